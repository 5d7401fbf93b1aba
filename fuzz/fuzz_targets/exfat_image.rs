//! Any exFAT is read in bounded time and memory. An input is a small one with bytes replaced.

#![no_main]

use inarch_fuzz::asked::{Patches, survive};
use libfuzzer_sys::fuzz_target;

/// A volume of 100 clusters of 512 bytes, with a directory and a file. Its boot region has no checksum, which is salvaged.
fn base() -> Vec<u8> {
    const HEAP: usize = 32;
    let mut image = vec![0; (HEAP + 100) * 512];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(3, b"EXFAT   ");
    for (at, value) in [(72, 132), (80, 24), (84, 4), (88, HEAP as u32), (92, 100), (96, 2)] {
        put(at, &value.to_le_bytes());
    }
    put(108, &[9, 0, 1]);
    put(510, &[0x55, 0xAA]);
    // The root has clusters 2 and 3; a file 5, 7 and 6.
    for (cluster, next) in [(2, 3), (3, u32::MAX), (5, 7), (7, 6), (6, u32::MAX)] {
        put(24 * 512 + cluster * 4, &next.to_le_bytes());
    }
    let mut at = HEAP * 512;
    for (name, attributes, flags, first, length) in
        [(b'a', 0u8, 1u8, 5u8, 1500u32), (b'd', 0x10, 3, 9, 1024), (b'c', 0, 3, 12, 700)]
    {
        let mut set = [0; 96];
        (set[0], set[1], set[4], set[32], set[33], set[35], set[64], set[66]) =
            (0x85, 2, attributes, 0xC0, flags, 1, 0xC1, name);
        set[40..44].copy_from_slice(&length.to_le_bytes());
        set[52] = first;
        set[56..60].copy_from_slice(&length.to_le_bytes());
        let counted = set.iter().enumerate().filter(|(at, _)| !matches!(at, 2 | 3));
        let sum = counted.fold(0u16, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u16::from(*byte)));
        set[2..4].copy_from_slice(&sum.to_le_bytes());
        put(at, &set);
        at += 96;
    }
    image
}

fuzz_target!(|patches: Patches<'_>| survive("exfat", base(), &patches));
