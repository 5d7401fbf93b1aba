//! Any Btrfs image is opened or refused, and its content is read, in bounded time and memory.
//!
//! An input is a small image with bytes replaced, with right checksums or without; or the bytes of blocks themselves.

#![no_main]

#[path = "../../crates/format/tests/all/btrfs/build.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod build;

use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use inarch_block::read_content;
use inarch_confine::Parsing;
use inarch_format::Damage;
use inarch_format::btrfs::{ReadOptions, Root, open};
use inarch_fuzz::image::{self, Memory};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    patches: Vec<Patch<'a>>,
    /// Whether checksums are made right again.
    seal: bool,
    subvolume: Option<u8>,
    length: Option<u16>,
}

/// Bytes to be replaced in the superblock or one of the blocks of trees, counted from its start or its end.
#[derive(Arbitrary, Debug)]
struct Patch<'a> {
    block: u8,
    from_end: bool,
    offset: u16,
    bytes: &'a [u8],
}

/// Frames of zstd, zlib and LZO that decompress to little; what matters is that bytes of them are replaced.
static BASE: LazyLock<build::Made> = LazyLock::new(|| {
    let zlib = vec![0x78, 0x9c, 0x4b, 0x4c, 0x44, 0x05, 0x00, 0x14, 0xe1, 0x03, 0xcb];
    let lzo = vec![16, 0, 0, 0, 8, 0, 0, 0, 21, b'a', b'b', b'c', b'd', 0x11, 0, 0];
    let zstd = vec![0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x00, 0x21, 0x00, 0x00, b'a', b'b', b'c', b'd', 0, 0, 0, 0];
    build::sample(&[(1, zlib), (2, lzo), (3, zstd)])
});

fuzz_target!(|input: Input<'_>| {
    let mut made = BASE.clone();
    let places: Vec<_> = made.blocks.iter().copied().chain([build::SUPERBLOCK]).collect();
    for patch in &input.patches {
        let start = places[usize::from(patch.block) % places.len()];
        let offset = usize::from(patch.offset) % build::NODE;
        let at = if patch.from_end { start + build::NODE - 1 - offset } else { start + offset };
        image::replace(&mut made.image, at, &patch.bytes[..patch.bytes.len().min(build::NODE)]);
    }
    if input.seal {
        made.seal();
    }
    let mut image = made.image;
    image.truncate(input.length.map_or(image.len(), |length| usize::from(length) * 16));
    let root = input.subvolume.map_or(Root::Default, |number| Root::Id(250 + u64::from(number)));
    let options = ReadOptions { root, damage: Damage::Salvaged };
    let Ok(opened) = open(Parsing::unconfined(), Arc::new(Memory(image)), &options) else { return };
    let mut buffer = vec![0; 20_000];
    for (id, inode) in opened.tree.inodes().take(2000) {
        let _ = opened.tree.symlink_target(id);
        for offset in [0, inode.size() / 2, inode.size().saturating_sub(9000)] {
            let _ = read_content(&*opened.content, id, offset, &mut buffer);
        }
        let _ = opened.content.lend(id, 0, inode.size().min(1 << 20), &mut |_, _| Ok(()));
    }
    let _ = opened.content.changed();
});
