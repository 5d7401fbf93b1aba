//! Any bytes as a kept overlay's file: opening it gives an overlay or an error, and never panics.

#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use inarch_block::Overlay;
use libfuzzer_sys::fuzz_target;

const BLOCKS: u64 = 2 * 16_384 + 5;

fuzz_target!(|input: (bool, u16, &[u8])| {
    let (start_from_good, offset, bytes) = input;
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let path = base.join(format!("inarch-fuzz-overlay-file-{}", std::process::id()));
    if start_from_good {
        drop(Overlay::open_or_create(&path, BLOCKS, [0; 32], 0).expect("a new overlay"));
    }
    let file = File::options().write(true).create(true).truncate(false).open(&path).expect("the file opens");
    file.write_all_at(bytes, u64::from(offset)).expect("the file can be written");
    if let Ok(overlay) = Overlay::open_or_create(&path, BLOCKS, [0; 32], 0) {
        assert!(overlay.written_bytes() <= 3 * 16_384 * 4096);
    }
    std::fs::remove_file(&path).expect("the file can be removed");
});
