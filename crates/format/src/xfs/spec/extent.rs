//! Extents, and the trees of them (`struct xfs_bmbt_rec`, `struct xfs_bmdr_block` and `struct xfs_btree_block` in
//! `fs/xfs/libxfs/xfs_format.h`).

use super::{be16, be64};

/// Bytes of an extent.
pub(crate) const SIZE: usize = 16;
/// Bytes of a key, and of a pointer.
const WORD: usize = 8;
/// Bytes of the header of a root in an inode.
const ROOT_HEADER: usize = 4;
/// `XFS_BMAP_MAGIC` and `XFS_BMAP_CRC_MAGIC`
const MAGICS: [u32; 2] = [u32::from_be_bytes(*b"BMAP"), u32::from_be_bytes(*b"BMA3")];
/// Bytes of a block's header, of versions 4 and 5.
const HEADERS: [usize; 2] = [24, 72];
/// The highest level of a tree (`XFS_BTREE_MAXLEVELS`).
pub(crate) const MAX_LEVEL: u16 = 9;

/// Some blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first block within the file, of 54 bits.
    pub(crate) logical: u64,
    /// The first block of the file system, with its allocation group's number above.
    pub(crate) block: u64,
    /// Blocks, at most 2^21 - 1.
    pub(crate) length: u64,
    /// Allocated, but not written: zeros.
    pub(crate) unwritten: bool,
}

impl Extent {
    fn parse(record: &[u8]) -> Option<Extent> {
        let (high, low) = (be64(record, 0)?, be64(record, 8)?);
        Some(Extent {
            logical: (high & !(1 << 63)) >> 9,
            block: (high & 0x1FF) << 43 | low >> 21,
            length: low & 0x1F_FFFF,
            unwritten: high >> 63 == 1,
        })
    }
}

/// The extents in a list of `count`; `None` if it is longer than `bytes`.
pub(crate) fn list(bytes: &[u8], count: u64) -> Option<impl ExactSizeIterator<Item = Extent> + '_> {
    let length = usize::try_from(count).ok()?.checked_mul(SIZE)?;
    // A record of 16 bytes can always be parsed.
    let parse = |record| Extent::parse(record).unwrap_or(Extent { logical: 0, block: 0, length: 0, unwritten: false });
    Some(bytes.get(..length)?.chunks_exact(SIZE).map(parse))
}

/// A node of a tree of extents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    /// 0 for a leaf.
    pub(crate) level: u16,
    count: usize,
    keys: &'a [u8],
    pointers: &'a [u8],
}

impl<'a> Node<'a> {
    /// The root in an inode's fork of these bytes.
    pub(crate) fn root(fork: &'a [u8]) -> Option<Node<'a>> {
        let level = be16(fork, 0)?;
        Node::new(level, be16(fork, 2)?, fork.get(ROOT_HEADER..)?).filter(|_| (1..=MAX_LEVEL).contains(&level))
    }

    /// A block.
    pub(crate) fn block(block: &'a [u8], is_sealed: bool) -> Option<Node<'a>> {
        let [magic, header] = match is_sealed {
            false => [MAGICS[0] as usize, HEADERS[0]],
            true => [MAGICS[1] as usize, HEADERS[1]],
        };
        if super::seal::magic(block) as usize != magic {
            return None;
        }
        Node::new(be16(block, 4)?, be16(block, 6)?, block.get(header..)?)
    }

    /// The pointers follow the room for as many keys as fit.
    fn new(level: u16, count: u16, items: &'a [u8]) -> Option<Node<'a>> {
        let (room, count) = (items.len() / SIZE, usize::from(count));
        if count > room {
            return None;
        }
        let (keys, pointers) = items.split_at_checked(room * WORD)?;
        Some(Node { level, count, keys: if level == 0 { items } else { keys }, pointers })
    }

    /// How many extents or children it has.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// A leaf's extents.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> + use<'a> {
        let count = if self.level == 0 { self.count as u64 } else { 0 };
        list(self.keys, count).into_iter().flatten()
    }

    /// The first block of the file below child `index`, and the child.
    pub(crate) fn child(&self, index: usize) -> Option<(u64, u64)> {
        let at = index.checked_mul(WORD).filter(|_| self.level > 0 && index < self.count)?;
        Some((be64(self.keys, at)?, be64(self.pointers, at)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first file of 10 blocks of 'xfs_db -c "inode 131" -c "p u3.bmx[0]"': [startoff,startblock,blockcount,extentflag].
    #[test]
    fn a_record_has_four_fields() {
        let record = [(1u64 << 63 | 5 << 9 | 1).to_be_bytes(), (3u64 << 21 | 10).to_be_bytes()].concat();
        let extent = list(&record, 1).unwrap().next().unwrap();
        assert_eq!(extent, Extent { logical: 5, block: 1 << 43 | 3, length: 10, unwritten: true });
        assert!(list(&record, 2).is_none());
    }
}
