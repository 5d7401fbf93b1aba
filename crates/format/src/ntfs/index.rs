//! Directories: a B-tree of names, whose nodes are the attribute `$INDEX_ROOT` and blocks of `$INDEX_ALLOCATION`.
//!
//! A listing reads the nodes that `$BITMAP` marks as used, in storage order, so that no loop in the tree can trap it. A look-up descends
//! the tree.

use std::cmp::Ordering;

use inarch_tree::FileType;
use inarch_volume::{Loss, VolumeError};

use super::inode::{Inode, Stream};
use super::mft::Mft;
use super::names::{Upcase, units};
use super::record::undo_fixups;
use super::spec::{INDEX_NAME, NUMBER, array, file_flag, kind, part, record, u16_at, u32_at, u64_at};
use super::{about, damaged};

/// The deepest tree; a few levels hold all names of a volume.
const MAX_DEPTH: usize = 32;
/// The namespace of names for MS-DOS, which a file has beside a long one.
const DOS: u8 = 2;
/// In a place in a directory, the bits of the entry within its node: nodes have up to 64 KiB.
const PLACE_BITS: u32 = 16;
/// Headers of blocks and of the root come before the header of the node.
const ROOT_HEADER: usize = 16;
const BLOCK_HEADER: usize = 24;

/// A name of a file, in an index or in the file's own record.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileName<'a> {
    /// The reference of the directory.
    pub(super) parent: u64,
    pub(super) flags: u32,
    namespace: u8,
    /// UTF-16.
    pub(super) name: &'a [u8],
}

impl<'a> FileName<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Option<FileName<'a>> {
        let [length, namespace] = array(bytes, 64)?;
        let name = part(bytes, 66, 2 * usize::from(length))?;
        Some(FileName { parent: u64_at(bytes, 0)?, flags: u32_at(bytes, 56)?, namespace, name })
    }

    /// Whether it is only the short name of a file that has a long one.
    pub(super) fn is_short(&self) -> bool {
        self.namespace == DOS
    }

    /// The type of the file, if that is certain.
    pub(super) fn file_type(&self) -> Option<FileType> {
        match self.flags & (file_flag::REPARSE_POINT | file_flag::SYSTEM | file_flag::DIRECTORY) {
            0 => Some(FileType::Regular),
            file_flag::DIRECTORY => Some(FileType::Directory),
            _ => None,
        }
    }
}

/// An entry of a node.
struct Entry<'a> {
    /// The file's reference.
    reference: u64,
    /// The name; `None` for the last entry, which has none.
    name: Option<FileName<'a>>,
    /// The number, in the tree's units, of the block with what sorts before this entry.
    child: Option<u64>,
    /// The place of the next entry in the node.
    next: usize,
}

/// The entries of a node up to the last one, which has no name.
struct Entries<'a> {
    node: &'a [u8],
    at: Option<usize>,
}

impl<'a> Entries<'a> {
    /// Those of a node whose header is at a byte of `node`.
    fn new(node: &'a [u8], header: usize) -> Result<Entries<'a>, VolumeError> {
        let range = || {
            let first = header.checked_add(usize::try_from(u32_at(node, header)?).ok()?)?;
            let end = header.checked_add(usize::try_from(u32_at(node, header + 4)?).ok()?)?;
            Some((first, node.get(..end)?)).filter(|(first, _)| *first >= header + 16 && *first < end)
        };
        let (first, node) = range().ok_or_else(|| damaged("a node of its index is larger than it can be"))?;
        Ok(Entries { node, at: Some(first) })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, VolumeError>;

    fn next(&mut self) -> Option<Result<Entry<'a>, VolumeError>> {
        let at = self.at.take()?;
        let parsed = || {
            let length = usize::from(u16_at(self.node, at + 8)?);
            let bytes = part(self.node, at, length).filter(|_| length >= 16 && length.is_multiple_of(8))?;
            let (key, flags) = (usize::from(u16_at(bytes, 10)?), u16_at(bytes, 12)?);
            let child = match flags & 1 {
                0 => None,
                _ => Some(u64_at(bytes, length.checked_sub(8).filter(|child| *child >= 16)?)?),
            };
            let name = match flags & 2 {
                0 => Some(FileName::parse(part(bytes, 16, key)?)?),
                _ => None,
            };
            Some(Entry { reference: u64_at(bytes, 0)?, name, child, next: at + length })
        };
        let Some(entry) = parsed() else {
            return Some(Err(damaged(format!("an entry of its index, at byte {at} of a node, makes no sense"))));
        };
        self.at = entry.name.is_some().then_some(entry.next);
        Some(Ok(entry))
    }
}

/// What a listing gives: a name that is shown, or a part that is lost.
pub(super) enum Seen<'a> {
    Name(FileName<'a>, u64),
    Lost(Loss),
}

/// A directory's index.
pub(super) struct Index<'a> {
    mft: &'a Mft,
    inode: &'a Inode,
    root: Vec<u8>,
    block_size: u64,
    /// The blocks, and how many there are.
    blocks: Option<Stream>,
    count: u64,
}

/// A name that was found.
pub(super) struct Found {
    pub(super) reference: u64,
    /// UTF-16.
    pub(super) name: Vec<u8>,
    pub(super) is_short: bool,
}

impl<'a> Index<'a> {
    pub(super) fn open(mft: &'a Mft, inode: &'a Inode) -> Result<Index<'a>, VolumeError> {
        let root = inode.bytes(mft, kind::INDEX_ROOT, INDEX_NAME, mft.geometry.record_size as u64)?;
        let root = root.ok_or_else(|| damaged("is a directory without an index"))?;
        if u32_at(&root, 0) != Some(kind::FILE_NAME) {
            return Err(damaged("its index is not one of names"));
        }
        let block_size = u64::from(u32_at(&root, 8).unwrap_or(0));
        if !block_size.is_power_of_two() || !(512..=1 << PLACE_BITS).contains(&block_size) {
            return Err(damaged(format!("its index has blocks of {block_size} bytes")));
        }
        let blocks = inode.stream(mft, kind::INDEX_ALLOCATION, INDEX_NAME)?;
        let size = blocks.as_ref().map_or(0, Stream::size);
        if size > mft.image_size() {
            return Err(damaged(format!("its index has {size} bytes, more than the image")));
        }
        Ok(Index { mft, inode, root, block_size, blocks, count: size / block_size })
    }

    /// Which blocks are in use, a bit for each.
    fn in_use(&self) -> Result<Vec<u8>, VolumeError> {
        let Some(bitmap) = self.inode.stream(self.mft, kind::BITMAP, INDEX_NAME)? else { return Ok(Vec::new()) };
        let mut bytes = vec![0; self.count.div_ceil(8).min(bitmap.size()) as usize];
        self.inode.read(self.mft, &bitmap, 0, &mut bytes).map_err(|error| about("the bitmap of its index", error))?;
        Ok(bytes)
    }

    /// Bytes of the unit in which children are numbered: a cluster, or 512 where blocks are smaller than that.
    fn unit(&self) -> u64 {
        let cluster = self.mft.geometry.cluster();
        if cluster <= self.block_size { cluster } else { 512 }
    }

    /// Reads a block.
    fn block(&self, number: u64, block: &mut Vec<u8>) -> Result<(), VolumeError> {
        let wrong = |reason: &str| damaged(format!("block {number} of its index: {reason}"));
        let blocks = self.blocks.as_ref().filter(|_| number < self.count);
        let blocks = blocks.ok_or_else(|| wrong("it does not exist"))?;
        block.resize(self.block_size as usize, 0);
        self.inode.read(self.mft, blocks, number * self.block_size, block)?;
        if array(block, 0) != Some(*b"INDX") {
            return Err(wrong("it does not begin with \"INDX\""));
        }
        undo_fixups(block).map_err(wrong)?;
        match u64_at(block, 16) == Some(number * (self.block_size / self.unit())) {
            true => Ok(()),
            false => Err(wrong("it is another block, by its own number")),
        }
    }

    /// Calls `take` with each name of the node whose header is there that is shown, and with the place behind it, until it
    /// returns false.
    fn each_of(
        &self,
        node: &[u8],
        header: usize,
        from: usize,
        take: &mut dyn FnMut(Seen<'_>, u64) -> bool,
    ) -> Result<bool, VolumeError> {
        for entry in Entries::new(node, header)? {
            let entry = entry?;
            let Some(name) = entry.name.filter(|_| entry.next > from) else { continue };
            let next = entry.next as u64;
            if entry.reference & NUMBER < record::FIRST_USER || name.is_short() {
                continue;
            }
            let is_stray = name.parent & NUMBER != self.inode.base.number || entry.reference >> 48 == 0;
            let seen = match is_stray {
                true => Seen::Lost(Loss::damage("has an entry that is left out: it is a name of another directory")),
                false => Seen::Name(name, entry.reference),
            };
            if !take(seen, next) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Calls `take` with each name from a place on (0, or one that was given with a name), and with the place behind it, until it
    /// returns false. Blocks that cannot be read are lost.
    pub(super) fn each(&self, from: u64, take: &mut dyn FnMut(Seen<'_>, u64) -> bool) -> Result<(), VolumeError> {
        let (first, within) = (from >> PLACE_BITS, (from & ((1 << PLACE_BITS) - 1)) as usize);
        if first == 0 && !self.each_of(&self.root, ROOT_HEADER, within, take)? {
            return Ok(());
        }
        if self.count == 0 {
            return Ok(());
        }
        let in_use = self.in_use()?;
        let mut block = Vec::new();
        for number in first.saturating_sub(1)..self.count {
            let byte = in_use.get((number / 8) as usize).copied().unwrap_or(0);
            if byte >> (number % 8) & 1 == 0 {
                continue;
            }
            let place = (number + 1) << PLACE_BITS;
            let from = if number + 1 == first { within } else { 0 };
            let read = self.block(number, &mut block);
            // Behind a node's last byte is the start of the next one.
            let mut take_placed = |seen: Seen<'_>, next: u64| take(seen, place + next);
            let read = match read {
                Ok(()) => self.each_of(&block, BLOCK_HEADER, from, &mut take_placed),
                Err(error) => Err(error),
            };
            match read {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(VolumeError::Damaged(reason)) => {
                    if !take(Seen::Lost(Loss::damage(reason)), place) {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Finds a name by the tree: exactly, or whatever its case. Names of the file system's own files are not found.
    pub(super) fn find(&self, upcase: &Upcase, name: &[u16], exactly: bool) -> Result<Option<Found>, VolumeError> {
        let mut node = self.root.clone();
        let mut header = ROOT_HEADER;
        for _ in 0..MAX_DEPTH {
            let mut below = None;
            for entry in Entries::new(&node, header)? {
                let entry = entry?;
                let ordering = entry.name.map_or(Ordering::Less, |found| {
                    let wanted = || name.iter().copied();
                    let ordering = upcase.compare(wanted(), units(found.name));
                    if exactly { ordering.then_with(|| wanted().cmp(units(found.name))) } else { ordering }
                });
                match (ordering, entry.name) {
                    (Ordering::Greater, _) => {}
                    (Ordering::Equal, Some(found)) => {
                        let is_own = entry.reference & NUMBER < record::FIRST_USER;
                        let is_stray = found.parent & NUMBER != self.inode.base.number || entry.reference >> 48 == 0;
                        if is_stray && !is_own {
                            return Err(damaged("the entry of this name is one of another directory"));
                        }
                        let (reference, is_short) = (entry.reference, found.is_short());
                        return Ok((!is_own).then(|| Found { reference, name: found.name.to_vec(), is_short }));
                    }
                    _ => {
                        below = entry.child;
                        break;
                    }
                }
            }
            let Some(child) = below else { return Ok(None) };
            let blocks_each = self.block_size / self.unit();
            if child % blocks_each != 0 {
                return Err(damaged("its index leads into the middle of a block"));
            }
            let mut block = Vec::new();
            self.block(child / blocks_each, &mut block)?;
            (node, header) = (block, BLOCK_HEADER);
        }
        Err(damaged(format!("its index has more than {MAX_DEPTH} levels, or leads in a circle")))
    }
}
