//! Any bytes as what an appliance's program says: they are read or refused, and no message is longer than allowed.

#![no_main]

use inarch_jobs::appliance::read_answers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Each frame has a header of five bytes.
    assert!(read_answers(bytes) <= bytes.len() / 5);
});
