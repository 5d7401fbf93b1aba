//! Any bytes as a stored trace: it is read or refused, what is read can be asked, and it does not differ from itself.

#![no_main]

use std::path::Path;

use inarch_jobs::trace::{StoredTrace, differences};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(trace) = StoredTrace::parse(bytes, Path::new("t.json")) else { return };
    assert!(trace.files().len() <= trace.inputs.len());
    assert!(differences(&trace, &trace).is_empty());
});
