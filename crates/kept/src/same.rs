//! Compares the bytes of two files without reading what must be equal: common holes, and bytes from one place.

use std::io;
use std::ops::Range;

use inarch_block::{Content, read_content};
use inarch_tree::{DataRange, InodeId, Tree};

/// Bytes that are compared at once.
const PIECE: u64 = 256 << 10;

/// A file of a tree, and where its bytes are.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// What reads its bytes.
    pub content: &'a dyn Content,
    /// The tree that it is in.
    pub tree: &'a Tree,
    /// Which file of that.
    pub inode: InodeId,
}

/// Whether two files of one size have the same bytes. `known` are ranges that are known to be equal, sorted and
/// disjoint.
///
/// # Errors
/// One of them cannot be read.
pub fn have_same_bytes(a: Side<'_>, b: Side<'_>, known: &[Range<u64>]) -> io::Result<bool> {
    let size = a.tree.inode(a.inode).size();
    let (mut was, mut is) = (vec![0; PIECE as usize], vec![0; PIECE as usize]);
    let ranges = data_of_either(a.tree.sparse_ranges(a.inode), b.tree.sparse_ranges(b.inode), size);
    for Range { start: mut at, end } in without(ranges, known) {
        while at < end {
            let count = (end - at).min(PIECE) as usize;
            let (was, is) = (&mut was[..count], &mut is[..count]);
            read_content(a.content, a.inode, at, is)?;
            read_content(b.content, b.inode, at, was)?;
            if was != is {
                return Ok(false);
            }
            at += count as u64;
        }
    }
    Ok(true)
}

/// The ranges of two files of `size` bytes in which at least one has data. `None` is a file without holes.
pub(crate) fn data_of_either(a: Option<&[DataRange]>, b: Option<&[DataRange]>, size: u64) -> Vec<Range<u64>> {
    let whole = [DataRange { offset: 0, length: size }];
    let (a, b) = (a.unwrap_or(&whole), b.unwrap_or(&whole));
    let mut all: Vec<Range<u64>> = a
        .iter()
        .chain(b)
        .map(|range| range.offset.min(size)..range.offset.saturating_add(range.length).min(size))
        .filter(|range| range.start < range.end)
        .collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in all {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// What of `ranges` is in none of `known`, both in their order.
fn without(ranges: Vec<Range<u64>>, known: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in ranges {
        let mut at = range.start;
        let first = known.partition_point(|one| one.end <= range.start);
        for one in known.iter().skip(first).take_while(|one| one.start < range.end) {
            if at < one.start {
                left.push(at..one.start);
            }
            at = at.max(one.end);
        }
        if at < range.end {
            left.push(at..range.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(ranges: &[(u64, u64)]) -> Vec<DataRange> {
        ranges.iter().map(|(offset, length)| DataRange { offset: *offset, length: *length }).collect()
    }

    #[test]
    fn only_data_of_one_or_the_other_is_compared() {
        let (a, b) = (data(&[(10, 10), (50, 5)]), data(&[(0, 3), (15, 10), (55, 100)]));
        assert_eq!(data_of_either(Some(&a), Some(&b), 100), [0..3, 10..25, 50..100]);
        assert_eq!(data_of_either(Some(&a), None, 100).len(), 1);
        assert_eq!(data_of_either(Some(&[]), Some(&[]), 1 << 60), []);
    }

    #[test]
    fn what_is_known_is_left_out() {
        assert_eq!(without(vec![0..10, 20..30], &[0..2, 5..22, 25..26, 29..40]), [2..5, 22..25, 26..29]);
        assert_eq!(without(vec![0..10, 20..30], &[0..10, 20..30]), []);
        assert_eq!(without(vec![0..10, 20..30], &[]), [0..10, 20..30]);
    }
}
