//! Chunks: the pieces of files by which the bytes of a remote are fetched and checked.
//!
//! BLAKE3 is a tree of hashes, in which each 256 KiB of a file are one subtree. So the digests of a file's chunks, merged, must give the
//! file's digest ([`is_of`]): a forged list of chunks is refused. A file of one chunk has no list: its digest is that of the chunk.
//!
//! Source: section 2.1 of the BLAKE3 paper; `blake3::hazmat`.

use std::collections::HashMap;
use std::sync::Arc;

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

use super::stored::Digest;

/// Bytes of a chunk; a file's last one may have fewer. A power of two, as subtrees are.
pub const CHUNK: u64 = 256 << 10;

/// The digests of chunks of one file.
pub(crate) type List = Arc<[[u8; 32]]>;

/// The lists of files, by the digests of these.
pub type Lists = HashMap<Digest, List>;

/// How many digests the list of a file has; 0 for one that needs none.
pub(crate) fn count(size: u64) -> u64 {
    if size <= CHUNK { 0 } else { size.div_ceil(CHUNK) }
}

/// The digest of the bytes of a chunk that is a part of a file: not its only one. `offset` is where it begins in the file.
pub fn of_part(offset: u64, bytes: &[u8]) -> [u8; 32] {
    if bytes.is_empty() {
        return [0; 32];
    }
    let mut hasher = Hasher::new();
    hasher.set_input_offset(offset / CHUNK * CHUNK);
    hasher.update(bytes).finalize_non_root()
}

/// Whether a list is that of the file of `size` bytes with this digest.
pub fn is_of(list: &[[u8; 32]], size: u64, digest: &Digest) -> bool {
    list.len() as u64 == count(size) && merged(list, size) == Some(*digest)
}

/// The digest of the file that has this list.
fn merged(list: &[[u8; 32]], size: u64) -> Option<Digest> {
    if list.len() < 2 {
        return None;
    }
    let (left, right) = split(list, size)?;
    let root = merge_subtrees_root(&subtree(left.0, left.1)?, &subtree(right.0, right.1)?, Mode::Hash);
    Some(Digest(*root.as_bytes()))
}

/// What the nodes below a node of the tree are made of.
type Below<'a> = (&'a [[u8; 32]], u64);

fn split(list: &[[u8; 32]], size: u64) -> Option<(Below<'_>, Below<'_>)> {
    let left = left_subtree_len(size);
    let (first, second) = list.split_at_checked(usize::try_from(left / CHUNK).ok()?)?;
    Some(((first, left), (second, size.checked_sub(left)?)))
}

/// At most 64 levels deep: each halves the size.
fn subtree(list: &[[u8; 32]], size: u64) -> Option<[u8; 32]> {
    match list {
        [] => None,
        [one] => (size <= CHUNK).then_some(*one),
        _ => {
            let (left, right) = split(list, size)?;
            Some(merge_subtrees_non_root(&subtree(left.0, left.1)?, &subtree(right.0, right.1)?, Mode::Hash))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_a_file_gives_its_digest() {
        for size in [
            CHUNK + 1,
            CHUNK + 1024,
            2 * CHUNK - 1,
            2 * CHUNK,
            2 * CHUNK + 1,
            3 * CHUNK,
            5 * CHUNK + 77,
            8 * CHUNK,
            17 * CHUNK + 1025,
        ] {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + at / 4096) as u8).collect();
            let list: Vec<[u8; 32]> =
                bytes.chunks(CHUNK as usize).zip(0..).map(|(chunk, at)| of_part(at * CHUNK, chunk)).collect();
            let digest = Digest(*blake3::hash(&bytes).as_bytes());
            assert!(is_of(&list, size, &digest), "{size}");
            // Another size, order, number or digest.
            assert!(!is_of(&list, size + CHUNK, &digest));
            assert!(!is_of(&list[1..], size, &digest));
            let mut other = list.clone();
            other.swap(0, 1);
            assert!(!is_of(&other, size, &digest), "{size}");
            other.swap(0, 1);
            other.last_mut().unwrap()[31] ^= 1;
            assert!(!is_of(&other, size, &digest));
        }
        for size in [0, 1, CHUNK] {
            assert!(!is_of(&[[0; 32]], size, &Digest([0; 32])));
            assert_eq!(count(size), 0);
        }
        assert!(!is_of(&[[0; 32]; 2], u64::MAX, &Digest([0; 32])));
    }
}
