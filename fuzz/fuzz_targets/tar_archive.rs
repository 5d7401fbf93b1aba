//! Any bytes in place of a tar archive: what is opened is a tree, all of whose content lies within the archive.

#![no_main]

mod archive;

use std::sync::Arc;

use inarch_format::tar;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: archive::Archive<'_>| {
    if let Ok(opened) = tar::open(Arc::new(archive::Memory(input.bytes()))) {
        archive::look(opened);
    }
});
