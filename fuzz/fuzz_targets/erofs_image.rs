//! Any bytes as an EROFS image, alone or over parts of a valid one, so that they get past the first checks.
//!
//! An image that opens must give a valid tree of bounded size. Reading its files may fail, but ends, and planning the tree again succeeds or is
//! refused.

#![no_main]

use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use inarch_confine::Parsing;
use inarch_block::{BLOCK_SIZE, read_content};
use inarch_format::erofs::{Erofs, open_with};
use inarch_format::{Damage, Format, ImageOptions, Layout};
use inarch_fuzz::image::{self, Memory};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    base: u8,
    patches: Vec<Patch<'a>>,
}

#[derive(Arbitrary, Debug)]
struct Patch<'a> {
    at: u16,
    bytes: &'a [u8],
}

/// An image of one compressed file, whose index is of the full or the packed kind, over blocks of LZ4.
fn compressed(layout: u16) -> Vec<u8> {
    let mut image = vec![0; 8 * 4096];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let inode = |format: u16, mode: u16, size: u64, block: u32| {
        let mut inode = [0; 64];
        inode[..2].copy_from_slice(&format.to_le_bytes());
        inode[4..6].copy_from_slice(&mode.to_le_bytes());
        inode[8..16].copy_from_slice(&size.to_le_bytes());
        inode[16..20].copy_from_slice(&block.to_le_bytes());
        inode
    };
    put(1024, &0xE0F5_E1E2u32.to_le_bytes());
    put(1024 + 12, &[12, 0, 40, 0]);
    put(1024 + 80, &[0x37]);
    // The packed inode is the file itself.
    put(1024 + 96, &[128]);
    put(40 * 32, &inode(1, 0o040755, 13, 1));
    put(4096, &[128, 0, 0, 0, 0, 0, 0, 0, 12, 0, 1, 0, b'f']);
    put(128 * 32 + 4096, &[0; 1]);
    put(128 * 32, &[0; 1]);
    put(40 * 32 + 64, &[0; 1]);
    put(4096 + 512, &inode(1 | layout << 1, 0o100644, 40_000, 0));
    put(4096, &[144, 0, 0, 0, 0, 0, 0, 0, 12, 0, 1, 0, b'f']);
    put(1024 + 96, &[144]);
    for cluster in 0..10 {
        let at = 4096 + 512 + 64 + 16 + cluster * 8;
        put(
            at,
            &[u8::from(cluster % 2 == 0) + 2 * u8::from(cluster % 2 == 1), 0, 0, 0, 3 + cluster as u8 / 2, 0, 1, 0],
        );
    }
    let lz4 = [&[0x1F, b'x', 1, 0][..], &[255; 35], &[0]].concat();
    for block in 3..8 {
        put((block + 1) * 4096 - lz4.len(), &lz4);
    }
    image
}

static BASES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let map = image::plan(&Erofs, image::tree(150), &ImageOptions::default());
    let mut plain = image::render(&map, map.blocks());
    // Without a checksum, because the superblock may be overwritten.
    plain[1024 + 8] &= !1;
    vec![plain, compressed(1), compressed(3), Vec::new()]
});

fn damaged(input: &Input<'_>) -> Vec<u8> {
    let mut image = BASES[usize::from(input.base) % BASES.len()].clone();
    for patch in &input.patches {
        let (at, bytes) = (usize::from(patch.at), &patch.bytes[..patch.bytes.len().min(4096)]);
        image.resize(image.len().max(at + bytes.len()), 0);
        image::replace(&mut image, at, bytes);
    }
    image
}

fuzz_target!(|input: Input<'_>| {
    let image = damaged(&input);
    let size = image.len();
    let Ok(opened) = open_with(Parsing::unconfined(), Arc::new(Memory(image)), Damage::Salvaged) else { return };
    // A name takes 12 bytes of a directory, and no two directories share bytes.
    assert!(opened.tree.entry_count() as usize <= size / 12);
    let mut buffer = [0; 8192];
    for (id, inode) in opened.tree.inodes().take(50) {
        for offset in [0, inode.size() / 2, inode.size().saturating_sub(100)] {
            let _ = read_content(&*opened.content, id, offset, &mut buffer);
        }
    }
    if let Ok(planned) = Erofs.plan(&opened.tree, &ImageOptions::default())
        && let Layout::Blocks(map) = planned.layout
    {
        let mut block = [0; BLOCK_SIZE];
        for number in image::metadata(&map).take(50) {
            map.render(number, &mut block);
        }
    }
});
