//! Any bytes as a tar archive: it is refused, or gives a tree whose content lies within the archive.

#![no_main]

use std::sync::Arc;

use inarch_format::{Damage, tar};
use inarch_fuzz::{archive, image};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (archive::Archive<'_>, bool)| {
    let (input, salvaged) = input;
    let damage = if salvaged { Damage::Salvaged } else { Damage::Refused };
    if let Ok(opened) = tar::open(Arc::new(image::Memory(input.bytes())), damage) {
        archive::look(opened);
    }
});
