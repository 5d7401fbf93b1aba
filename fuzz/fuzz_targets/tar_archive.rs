//! Any bytes as a tar archive: it is refused, or gives a tree whose content lies within the archive.

#![no_main]

use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_format::{Damage, ThisHost, oci};
use inarch_fuzz::{archive, image};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (archive::Archive<'_>, bool)| {
    let (input, salvaged) = input;
    let damage = if salvaged { Damage::Salvaged } else { Damage::Refused };
    let host = ThisHost::new(&std::env::temp_dir());
    if let Ok(opened) = oci::open_tar(Parsing::unconfined(), Arc::new(image::Memory(input.bytes())), &host, damage) {
        archive::look(opened);
    }
});
