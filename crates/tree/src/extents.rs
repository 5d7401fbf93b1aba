//! [`Extents`]: where file content lies in sources that keep many files in one, such as archives and disk images.

use std::collections::HashSet;

use crate::InodeId;

/// `length` bytes of a file, from its byte `offset`, which lie in a backing file from its byte `at`. Bytes that no
/// extent covers are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// How long it is, in bytes; never 0.
    pub length: u64,
    /// Where in the backing file it starts, in bytes.
    pub at: u64,
    /// Which backing file: an index into the source's list of them.
    pub backing: u32,
}

/// The extents of a tree's regular files, ascending within each file.
#[derive(Clone, Debug, Default)]
pub struct Extents {
    extents: Vec<Extent>,
    /// The index of each inode's first extent, plus one more at the end.
    starts: Vec<usize>,
}

/// What is wrong with a list of extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("extents of inode {} overlap, are empty, or end beyond 2^64 bytes", .0.0)]
pub struct ExtentError(pub InodeId);

impl Extents {
    /// The extents of files `0..inodes`, given in any order.
    ///
    /// Fails where extents of one file overlap, are empty or exceed 64 bits.
    pub fn new(inodes: u32, mut list: Vec<(InodeId, Extent)>) -> Result<Extents, ExtentError> {
        list.sort_by_key(|(inode, extent)| (*inode, extent.offset));
        let mut extents = Extents { extents: Vec::with_capacity(list.len()), starts: Vec::new() };
        extents.starts.reserve_exact(inodes as usize + 1);
        extents.starts.push(0);
        let mut end = 0;
        for (inode, extent) in list {
            if inode.0 >= inodes {
                return Err(ExtentError(inode));
            }
            if extents.starts.len() <= inode.index() {
                extents.starts.resize(inode.index() + 1, extents.extents.len());
                end = 0;
            }
            let stop =
                extent.offset.checked_add(extent.length).filter(|_| extent.at.checked_add(extent.length).is_some());
            end = stop.filter(|_| extent.length > 0 && extent.offset >= end).ok_or(ExtentError(inode))?;
            extents.extents.push(extent);
        }
        extents.starts.resize(inodes as usize + 1, extents.extents.len());
        Ok(extents)
    }

    /// The files whose bytes overlap those of another file, or of themselves, in a backing. Nothing says whose the bytes
    /// are, and together such files may be longer than the backing.
    pub fn overlapping(&self) -> HashSet<InodeId> {
        let inodes = (0..self.starts.len().saturating_sub(1) as u32).map(InodeId);
        let of = |inode| self.of(inode).iter().map(move |extent| (extent.backing, extent.at, extent.length, inode));
        let mut extents: Vec<_> = inodes.flat_map(of).collect();
        extents.sort_unstable();
        let mut found = HashSet::new();
        // The extent so far that ends last. What overlaps another one before overlaps it as well.
        let mut last: Option<(u32, u64, InodeId)> = None;
        for (backing, at, length, inode) in extents {
            let end = at.saturating_add(length);
            match last.filter(|(of, ..)| *of == backing) {
                Some((_, stop, other)) if at < stop => {
                    found.extend([inode, other]);
                    last = if end > stop { Some((backing, end, inode)) } else { last };
                }
                _ => last = Some((backing, end, inode)),
            }
        }
        found
    }

    /// A file's extents, ascending; empty for an inode without content.
    pub fn of(&self, inode: InodeId) -> &[Extent] {
        let (start, end) = (self.starts.get(inode.index()), self.starts.get(inode.index() + 1));
        start.zip(end).and_then(|(start, end)| self.extents.get(*start..*end)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, length: u64, at: u64) -> Extent {
        Extent { offset, length, at, backing: 0 }
    }

    #[test]
    fn every_file_gives_its_own_in_order() {
        let list =
            vec![(InodeId(3), extent(8, 4, 100)), (InodeId(1), extent(0, 5, 50)), (InodeId(3), extent(0, 8, 10))];
        let extents = Extents::new(5, list).unwrap();
        assert_eq!(extents.of(InodeId(0)), []);
        assert_eq!(extents.of(InodeId(1)), [extent(0, 5, 50)]);
        assert_eq!(extents.of(InodeId(2)), []);
        assert_eq!(extents.of(InodeId(3)), [extent(0, 8, 10), extent(8, 4, 100)]);
        assert_eq!(extents.of(InodeId(4)), []);
        assert_eq!(extents.of(InodeId(9)), []);
    }

    #[test]
    fn files_that_share_bytes_are_told_all_of_them() {
        let found = |list: &[(u32, u64, u64, u64, u32)]| {
            let extent = |&(inode, offset, length, at, backing): &(u32, u64, u64, u64, u32)| {
                (InodeId(inode), Extent { offset, length, at, backing })
            };
            let mut found: Vec<u32> = Extents::new(9, list.iter().map(extent).collect())
                .unwrap()
                .overlapping()
                .iter()
                .map(|id| id.0)
                .collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(&[]), []);
        // Side by side, and at one place of two backings.
        assert_eq!(found(&[(1, 0, 8, 0, 0), (2, 0, 8, 8, 0), (3, 0, 8, 0, 1)]), []);
        // The same, a part at the end, and one byte within.
        assert_eq!(found(&[(1, 0, 8, 0, 0), (2, 0, 8, 0, 0)]), [1, 2]);
        assert_eq!(found(&[(2, 0, 8, 0, 0), (1, 0, 8, 7, 0)]), [1, 2]);
        // Behind a short one, within a long one that began before it; what begins at its end is apart.
        assert_eq!(found(&[(1, 0, 100, 0, 0), (2, 0, 1, 10, 0), (3, 0, 1, 50, 0), (4, 0, 1, 100, 0)]), [1, 2, 3]);
        // One after another, each with a part of the last.
        assert_eq!(found(&[(1, 0, 8, 0, 0), (2, 0, 8, 6, 0), (3, 0, 8, 12, 0), (4, 0, 8, 20, 0)]), [1, 2, 3]);
        // A file's own bytes a second time.
        assert_eq!(found(&[(5, 0, 8, 0, 0), (5, 8, 8, 4, 0)]), [5]);
        // The largest of all that can be.
        assert_eq!(found(&[(1, 0, 8, u64::MAX - 8, 0), (2, 0, 1, u64::MAX - 1, 0)]), [1, 2]);
    }

    #[test]
    fn overlaps_empty_ones_and_overflows_are_refused() {
        let overlap = vec![(InodeId(0), extent(0, 9, 0)), (InodeId(0), extent(8, 4, 100))];
        assert_eq!(Extents::new(1, overlap).unwrap_err(), ExtentError(InodeId(0)));
        assert!(Extents::new(1, vec![(InodeId(0), extent(0, 0, 0))]).is_err());
        assert!(Extents::new(1, vec![(InodeId(0), extent(u64::MAX, 2, 0))]).is_err());
        assert!(Extents::new(1, vec![(InodeId(0), extent(0, 2, u64::MAX))]).is_err());
        assert!(Extents::new(1, vec![(InodeId(1), extent(0, 2, 0))]).is_err());
        let two = vec![(InodeId(0), extent(8, 4, 0)), (InodeId(1), extent(0, 4, 0))];
        assert_eq!(Extents::new(2, two).unwrap().of(InodeId(1)).len(), 1);
    }
}
