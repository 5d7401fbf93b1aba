//! Any F2FS is read in bounded time and memory. An input is a small one with bytes replaced in the blocks that say something.

#![no_main]

#[path = "../../crates/format/tests/all/f2fs/build.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod build;

use std::sync::LazyLock;

use inarch_fuzz::asked::survive;
use inarch_fuzz::image::replace;
use libfuzzer_sys::fuzz_target;

static BASE: LazyLock<Vec<u8>> = LazyLock::new(build::sample);

fuzz_target!(|patches: Vec<(u8, u16, bool, &[u8])>| {
    let mut image = BASE.clone();
    for (block, within, from_end, bytes) in patches {
        let within = usize::from(within) % build::BLOCK;
        let within = if from_end { build::BLOCK - 1 - within % 200 } else { within };
        let at = build::PLACES[usize::from(block) % build::PLACES.len()] * build::BLOCK + within;
        replace(&mut image, at, &bytes[..bytes.len().min(64)]);
    }
    build::seal(&mut image);
    survive("f2fs", image, &Vec::new());
});
