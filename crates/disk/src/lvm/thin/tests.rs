//! Pools that are built here, sound and hostile. crates/cli/tests/promises/thin_volumes_are_read.rs has those of the kernel.

use super::*;
use crate::tests::Bytes;

const CHUNK: usize = 64 << 10;

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn seal(block: &mut [u8], xor: u32) {
    let sum = checksum(block, xor);
    put(block, 0, &sum.to_le_bytes());
}

fn node(number: u64, kind: u32, entries: &[(u64, u64)]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let most = 252usize;
    put(&mut block, 4, &kind.to_le_bytes());
    put(&mut block, 8, &number.to_le_bytes());
    put(&mut block, 16, &(entries.len() as u32).to_le_bytes());
    put(&mut block, 20, &(most as u32).to_le_bytes());
    put(&mut block, 24, &8u32.to_le_bytes());
    for (index, (key, value)) in entries.iter().enumerate() {
        put(&mut block, NODE_HEADER + 8 * index, &key.to_le_bytes());
        put(&mut block, NODE_HEADER + 8 * (most + index), &value.to_le_bytes());
    }
    seal(&mut block, NODE_XOR);
    block
}

/// A pool whose device 1 has its chunks 1, 2 and 5 at 3, 4 and 0; device 7 shares the leaf of 1 and 2.
fn pool() -> Vec<u8> {
    let mut first = vec![0; BLOCK];
    put(&mut first, 32, &MAGIC.to_le_bytes());
    put(&mut first, 40, &2u32.to_le_bytes());
    put(&mut first, 320, &1u64.to_le_bytes());
    put(&mut first, 336, &128u32.to_le_bytes());
    put(&mut first, 340, &8u32.to_le_bytes());
    seal(&mut first, SUPERBLOCK_XOR);
    let at = |chunk: u64| chunk << TIME_BITS | 9;
    [
        first,
        node(1, LEAF, &[(1, 2), (7, 5)]),
        node(2, INTERNAL, &[(1, 3), (5, 4)]),
        node(3, LEAF, &[(1, at(3)), (2, at(4))]),
        node(4, LEAF, &[(5, at(0))]),
        node(5, INTERNAL, &[(1, 3)]),
    ]
    .concat()
}

fn data() -> Vec<u8> {
    (0..5u8).flat_map(|chunk| vec![chunk + 1; CHUNK]).collect()
}

fn opened(metadata: Vec<u8>, device: u64, origin: Option<Vec<u8>>) -> Result<Vec<u8>, String> {
    let origin = origin.map(|bytes| Arc::new(Bytes(bytes)) as Arc<dyn Backing>);
    let size = 8 * CHUNK as u64 - 512;
    let volume = open((Arc::new(Bytes(metadata)), Arc::new(Bytes(data()))), device, size, origin)?;
    let mut bytes = vec![0; size as usize];
    read_backing(&*volume, 0, &mut bytes).map_err(|error| error.to_string())?;
    for (at, count) in [(CHUNK - 3, 9), (2 * CHUNK - 1, 3 * CHUNK), (0, 1)] {
        let mut part = vec![0; count];
        read_backing(&*volume, at as u64, &mut part).unwrap();
        assert_eq!(part, bytes[at..at + count]);
    }
    Ok(bytes)
}

/// The chunks by their first bytes.
fn chunks(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.chunks(CHUNK).all(|chunk| chunk.iter().all(|byte| *byte == chunk[0])));
    bytes.chunks(CHUNK).map(|chunk| chunk[0]).collect()
}

#[test]
fn chunks_lie_where_the_trees_say() {
    assert_eq!(chunks(&opened(pool(), 1, None).unwrap()), [0, 4, 5, 0, 0, 1, 0, 0]);
    assert_eq!(chunks(&opened(pool(), 7, None).unwrap()), [0, 4, 5, 0, 0, 0, 0, 0], "a snapshot shares them");
    let origin = vec![9; 3 * CHUNK];
    assert_eq!(chunks(&opened(pool(), 7, Some(origin)).unwrap()), [9, 4, 5, 0, 0, 0, 0, 0]);
    assert_eq!(opened(pool(), 2, None).unwrap_err(), "its pool has no device 2");
}

#[test]
fn what_is_damaged_is_no_volume() {
    let circle =
        |entries: &[(u64, u64)]| [&pool()[..2 * BLOCK], &node(2, INTERNAL, entries), &pool()[3 * BLOCK..]].concat();
    assert!(opened(circle(&[(0, 2)]), 1, None).unwrap_err().contains("too deep"));
    assert!(opened(circle(&[(0, 99)]), 1, None).unwrap_err().contains("beyond its end"));
    assert!(opened(circle(&[(0, u64::MAX)]), 1, None).unwrap_err().contains("beyond its end"));
    let far = [&pool()[..3 * BLOCK], &node(3, LEAF, &[(1, u64::MAX)]), &pool()[4 * BLOCK..]].concat();
    assert!(opened(far, 1, None).is_err());
    for at in (0..6 * BLOCK).filter(|at| at % BLOCK < 80 || at % 61 == 0) {
        let mut damaged = pool();
        damaged[at] ^= 1 << (at % 8);
        if let Ok(bytes) = opened(damaged.clone(), 1, None) {
            assert_eq!(chunks(&bytes), [0, 4, 5, 0, 0, 1, 0, 0], "{at}");
        }
        // With the right checksums.
        for (number, block) in damaged.chunks_mut(BLOCK).enumerate() {
            seal(block, if number == 0 { SUPERBLOCK_XOR } else { NODE_XOR });
        }
        let _ = opened(damaged, 1, None);
    }
    for length in (0..6 * BLOCK).step_by(509) {
        let _ = opened(pool()[..length].to_vec(), 1, None);
    }
}
