//! A small F2FS for hostile tests and fuzzing: a root with its entries in the inode, a file with a node of addresses below its inode, a directory with a
//! block of entries, and a symbolic link. crates/cli/tests/promises/f2fs_volumes_are_read.rs has those of Linux.

/// Bytes of a block.
pub const BLOCK: usize = 4096;
const CHECKPOINT: usize = 2;
const NAT: usize = 20;
/// Where files begin, behind two segments of the NAT.
pub const MAIN: usize = NAT + 1024;
const BLOCKS: usize = MAIN + 12;
/// The blocks that say something.
pub const PLACES: [usize; 13] = [
    0,
    1,
    CHECKPOINT,
    CHECKPOINT + 1,
    CHECKPOINT + 7,
    NAT,
    MAIN,
    MAIN + 1,
    MAIN + 2,
    MAIN + 3,
    MAIN + 4,
    MAIN + 5,
    MAIN + 6,
];

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn word(image: &mut [u8], at: usize, number: u32) {
    put(image, at, &number.to_le_bytes());
}

/// CRC-32 from the seed of F2FS, without the usual inversions.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0xEDB8_8320 } else { sum >> 1 };
    bytes.iter().fold(0xF2F5_2010, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}

/// Makes the checksums of the checkpoint right.
pub fn seal(image: &mut [u8]) {
    for block in [CHECKPOINT, CHECKPOINT + 7] {
        let Some(block) = image.get_mut(block * BLOCK..(block + 1) * BLOCK) else { continue };
        word(block, 164, BLOCK as u32 - 4);
        let sum = checksum(&block[..BLOCK - 4]);
        word(block, BLOCK - 4, sum);
    }
}

/// Entries, each in the slots that its name takes.
fn entries(image: &mut [u8], at: (usize, usize, usize), list: &[(&str, u32, u8)]) {
    let (bitmap, entries, names) = at;
    let mut slot = 0;
    for (name, inode, kind) in list {
        for _ in 0..name.len().div_ceil(8) {
            image[bitmap + slot / 8] |= 1 << (slot % 8);
        }
        word(image, entries + slot * 11 + 4, *inode);
        put(image, entries + slot * 11 + 8, &(name.len() as u16).to_le_bytes());
        image[entries + slot * 11 + 10] = *kind;
        put(image, names + slot * 8, name.as_bytes());
        slot += name.len().div_ceil(8);
    }
}

/// An inode in a block of its own.
fn inode(image: &mut [u8], block: usize, number: u32, (mode, inline, size): (u16, u8, u64)) {
    let at = block * BLOCK;
    put(image, at, &mode.to_le_bytes());
    image[at + 3] = inline;
    word(image, at + 12, 1);
    put(image, at + 16, &size.to_le_bytes());
    word(image, at + 4072, number);
    word(image, at + 4076, number);
}

/// The image.
pub fn sample() -> Vec<u8> {
    let mut image = vec![0; BLOCKS * BLOCK];
    for at in [1024, BLOCK + 1024] {
        for (place, number) in
            [(0, 0xF2F5_2010), (16, 12), (20, 9), (36, BLOCKS as u32), (60, 2), (72, 2), (76, CHECKPOINT as u32)]
        {
            word(&mut image, at + place, number);
        }
        for (place, number) in [(84, NAT as u32), (92, MAIN as u32), (96, 3), (2180, 0)] {
            word(&mut image, at + place, number);
        }
    }
    for block in [CHECKPOINT, CHECKPOINT + 7] {
        let at = block * BLOCK;
        for (place, number) in
            [(0, 5), (8, 100), (16, 10), (132, 5), (136, 8), (140, 1), (144, 6), (148, 4), (156, 64), (160, 128)]
        {
            word(&mut image, at + place, number);
        }
    }
    // The journal, in a compact summary: node 7.
    let journal = (CHECKPOINT + 1) * BLOCK;
    put(&mut image, journal, &[1, 0, 7, 0, 0, 0, 0, 4, 0, 0, 0]);
    word(&mut image, journal + 2 + 9, MAIN as u32 + 4);
    for (node, block) in [(3, MAIN), (4, MAIN + 1), (5, MAIN + 2), (6, MAIN + 3)] {
        word(&mut image, NAT * BLOCK + node * 9 + 1, node as u32);
        word(&mut image, NAT * BLOCK + node * 9 + 5, block as u32);
    }
    inode(&mut image, MAIN, 3, (0o040_755, 0x05, 4096));
    // 872 words are left for entries: 182 of them.
    let room = MAIN * BLOCK + 364;
    let (count, bytes) = (872 * 4 * 8 / 153, 872 * 4);
    let places = (room, room + bytes - count * 19, room + bytes - count * 8);
    let list = [(".", 3, 2), ("..", 3, 2), ("a file of some length", 4, 1), ("directory", 5, 2), ("link", 6, 7)];
    entries(&mut image, places, &list);
    inode(&mut image, MAIN + 1, 4, (0o100_644, 0x01, 900 * BLOCK as u64));
    let file = (MAIN + 1) * BLOCK;
    word(&mut image, file + 360, MAIN as u32 + 5);
    word(&mut image, file + 4052, 7);
    // An attribute behind the addresses.
    put(&mut image, file + 360 + 873 * 4, &0xF2F5_2011u32.to_le_bytes());
    put(&mut image, file + 360 + 873 * 4 + 24, b"\x01\x04\x05\0notehello");
    inode(&mut image, MAIN + 2, 5, (0o040_755, 0, 4096));
    word(&mut image, (MAIN + 2) * BLOCK + 360, MAIN as u32 + 6);
    inode(&mut image, MAIN + 3, 6, (0o120_777, 0x02, 4));
    put(&mut image, (MAIN + 3) * BLOCK + 364, b"link");
    let node = (MAIN + 4) * BLOCK;
    word(&mut image, node + 4 * 3, MAIN as u32 + 5);
    for (place, number) in [(4072, 7), (4076, 4), (4080, 1 << 3)] {
        word(&mut image, node + place, number);
    }
    put(&mut image, (MAIN + 5) * BLOCK, b"content");
    let block = (MAIN + 6) * BLOCK;
    entries(&mut image, (block, block + 30, block + 30 + 214 * 11), &[(".", 5, 2), ("..", 3, 2), ("again", 4, 1)]);
    seal(&mut image);
    image
}
