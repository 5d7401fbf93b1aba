//! Any bytes as a qcow2 image: it is opened or refused, and what it says lies within it.

#![no_main]

use inarch_disk::container::Container;
use inarch_fuzz::container;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| container::open_and_read(Container::Qcow2, bytes));
