//! Any bytes as a file's first and last ones: they are identified or called unknown, without a panic.

#![no_main]

use inarch_confine::Parsing;
use inarch_format::probe::{Found, identify};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    if let Found::Other(text) = identify(Parsing::unconfined(), input.0, input.1) {
        assert!(text.starts_with("is ") && !text.contains('\n'));
    }
});
