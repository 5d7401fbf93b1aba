//! Directories (`fs/xfs/libxfs/xfs_da_format.h`): within an inode, blocks with names, and the index of their hashes.

use inarch_tree::FileType;

use super::{be16, be32, be64, seal};

/// The byte of a directory's space at which its index starts (`XFS_DIR2_LEAF_OFFSET`).
pub(crate) const INDEX_START: u64 = 1 << 35;
/// Positions in a directory count units of 8 bytes.
pub(crate) const UNIT: usize = 8;

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// In a block, where it starts in [units](UNIT); in an inode, its number.
    pub(crate) place: u64,
    /// The place of the next one.
    pub(crate) next: u64,
    pub(crate) name: &'a [u8],
    pub(crate) ino: u64,
    /// 0 without a type.
    pub(crate) type_code: u8,
}

/// The type that an entry gives (`XFS_DIR3_FT_*`); a whiteout is a device.
pub(crate) fn file_type_of(code: u8) -> Option<FileType> {
    Some(match code {
        1 => FileType::Regular,
        2 => FileType::Directory,
        3 | 8 => FileType::CharDevice,
        4 => FileType::BlockDevice,
        5 => FileType::Fifo,
        6 => FileType::Socket,
        7 => FileType::Symlink,
        _ => return None,
    })
}

/// The directory in an inode (`struct xfs_dir2_sf_hdr`).
#[derive(Clone, Debug)]
pub(crate) struct Short<'a> {
    pub(crate) parent: u64,
    count: usize,
    wide: bool,
    has_types: bool,
    number: usize,
    rest: &'a [u8],
}

impl<'a> Short<'a> {
    /// Of a fork's bytes; `None` if they are too few.
    pub(crate) fn parse(fork: &'a [u8], has_types: bool) -> Option<Short<'a>> {
        // The second byte counts the numbers that need 8 bytes; if there are any, all have 8.
        let (count, wide) = (usize::from(*fork.first()?), *fork.get(1)? > 0);
        let (parent, rest) = number(fork.get(2..)?, wide)?;
        Some(Short { parent, count, wide, has_types, number: 0, rest })
    }

    fn entry(&mut self) -> Option<Entry<'a>> {
        let length = usize::from(*self.rest.first()?);
        let (name, rest) = self.rest.get(3..)?.split_at_checked(length)?;
        let (type_code, rest) = match self.has_types {
            true => rest.split_first().map(|(code, rest)| (*code, rest))?,
            false => (0, rest),
        };
        let (ino, rest) = number(rest, self.wide)?;
        self.rest = rest;
        let place = self.number as u64;
        Some(Entry { place, next: place + 1, name, ino, type_code })
    }
}

impl<'a> Iterator for Short<'a> {
    type Item = Result<Entry<'a>, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.number >= self.count {
            return None;
        }
        let entry = self.entry();
        self.number = if entry.is_some() { self.number + 1 } else { self.count };
        Some(entry.ok_or(()))
    }
}

/// An inode's number of 8 or 4 bytes, and what follows.
fn number(bytes: &[u8], wide: bool) -> Option<(u64, &[u8])> {
    match wide {
        true => Some((be64(bytes, 0)? & ((1 << 56) - 1), bytes.get(8..)?)),
        false => Some((be32(bytes, 0)?.into(), bytes.get(4..)?)),
    }
}

/// A block with names. Its parts are the entries; unused parts are skipped.
#[derive(Clone, Debug)]
pub(crate) struct Names<'a> {
    /// Up to where the names go.
    bytes: &'a [u8],
    at: usize,
    has_types: bool,
}

impl<'a> Names<'a> {
    /// A block of any of the four kinds; `None` if it is none of them. One that is a whole directory ends with its index.
    pub(crate) fn parse(block: &'a [u8], is_sealed: bool, has_types: bool) -> Option<Names<'a>> {
        let (start, whole) = match (&seal::magic(block).to_be_bytes(), is_sealed) {
            (b"XD2B", false) => (16, true),
            (b"XD2D", false) => (16, false),
            (b"XDB3", true) => (64, true),
            (b"XDD3", true) => (64, false),
            _ => return None,
        };
        let mut end = block.len();
        if whole {
            let tail = end.checked_sub(8)?;
            end = tail.checked_sub((be32(block, tail)? as usize).checked_mul(8)?)?;
        }
        Some(Names { bytes: block.get(..end)?, at: start, has_types })
    }

    /// The part at the current place: how long it is, and an entry, unless it is unused.
    fn part(&self) -> Option<(usize, Option<Entry<'a>>)> {
        let part = self.bytes.get(self.at..)?;
        let (length, entry) = match be16(part, 0)? {
            0xFFFF => (usize::from(be16(part, 2)?), None),
            _ => {
                let name_length = usize::from(*part.get(8)?);
                let name = part.get(9..9 + name_length)?;
                let end = 9 + name_length + usize::from(self.has_types);
                let type_code = if self.has_types { *part.get(end - 1)? } else { 0 };
                let length = (end + 2).next_multiple_of(UNIT);
                let (place, next) = ((self.at / UNIT) as u64, ((self.at + length) / UNIT) as u64);
                (length, Some(Entry { place, next, name, ino: be64(part, 0)?, type_code }))
            }
        };
        // Each part ends with the offset of its start.
        let tag = be16(part, length.checked_sub(2)?)?;
        let fits = length >= UNIT && length.is_multiple_of(UNIT) && usize::from(tag) == self.at;
        fits.then_some((length, entry))
    }
}

impl<'a> Iterator for Names<'a> {
    type Item = Result<Entry<'a>, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.bytes.len() {
            let Some((length, entry)) = self.part() else {
                self.at = self.bytes.len();
                return Some(Err(()));
            };
            self.at += length;
            if let Some(entry) = entry {
                return Some(Ok(entry));
            }
        }
        None
    }
}

/// The hash of a name (`xfs_da_hashname`).
pub(crate) fn hash(name: &[u8]) -> u32 {
    let mut chunks = name.chunks_exact(4);
    let step = |hash: u32, bytes: &[u8]| {
        let mixed = bytes.iter().fold(0u32, |mixed, byte| mixed << 7 ^ u32::from(*byte));
        mixed ^ hash.rotate_left(7 * bytes.len() as u32)
    };
    let hash = chunks.by_ref().fold(0, step);
    match chunks.remainder() {
        [] => hash,
        rest => step(hash, rest),
    }
}

/// A block of the tree of hashes, of a directory or of attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hashes<'a> {
    /// Pairs of a block's greatest hash and its number.
    Node(&'a [u8]),
    /// Pairs of a hash and an entry's position, and the next leaf or 0. Only of a directory.
    Leaf(&'a [u8], u32),
    /// Attributes.
    Attributes,
}

impl<'a> Hashes<'a> {
    /// `None` if it is no such block.
    pub(crate) fn parse(block: &'a [u8], is_sealed: bool) -> Option<Hashes<'a>> {
        let (head, start) = if is_sealed { (56, 64) } else { (12, 16) };
        let count = usize::from(be16(block, head)?);
        let pairs = block.get(start..)?.get(..count.checked_mul(8)?);
        match (be16(block, 8)?, is_sealed) {
            (0xFEBE, false) | (0x3EBE, true) => pairs.map(Hashes::Node),
            (0xD2F1 | 0xD2FF, false) | (0x3DF1 | 0x3DFF, true) => Some(Hashes::Leaf(pairs?, be32(block, 0)?)),
            (0xFBEE, false) | (0x3BEE, true) => Some(Hashes::Attributes),
            _ => None,
        }
    }
}

/// The pairs of a block.
pub(crate) fn pairs(bytes: &[u8]) -> impl DoubleEndedIterator<Item = (u32, u32)> + '_ {
    bytes.chunks_exact(8).map(|pair| (be32(pair, 0).unwrap_or_default(), be32(pair, 4).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `xfs_db -c "hash NAME"`.
    #[test]
    fn hashes_are_the_kernels() {
        let known: [(&[u8], u32); 5] = [
            (b".", 0x2e),
            (b"..", 0x172e),
            (b"name", 0x0dd8_76e5),
            (b"file", 0x0cda_7665),
            (b"SGI_ACL_FILE", 0x275b_19c4),
        ];
        for (name, value) in known {
            assert_eq!(hash(name), value, "{}", name.escape_ascii());
        }
    }
}
