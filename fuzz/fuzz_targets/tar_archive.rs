//! Any bytes as a tar archive: it is refused, or gives a tree whose content lies within the archive.

#![no_main]

use inarch_confine::Parsing;
use inarch_format::{Damage, ThisHost, oci};
use inarch_fuzz::archive;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (archive::Archive<'_>, bool)| {
    let (input, salvaged) = input;
    let damage = if salvaged { Damage::Salvaged } else { Damage::Refused };
    let host = ThisHost::new(&std::env::temp_dir());
    if let Ok(opened) = oci::open_tar_file(Parsing::unconfined(), archive::file(&input.bytes()), "-".as_ref(), &host, damage) {
        archive::look(opened);
    }
});
