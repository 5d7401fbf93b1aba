//! Nodes: inodes, and the blocks of addresses below them.

use std::ops::{ControlFlow, Range};

use inarch_tree::{FileType, Timestamp};
use inarch_volume::{Attributes, Node, Pages, VolumeError};

use super::checkpoint::{Parameters, feature};
use super::{BLOCK, damaged, u16_at, u32_at, u64_at, unsupported};

/// Where the footer of a node is: its number, its inode's, and flags with its place in the file.
const FOOTER: usize = BLOCK - 24;
/// Bits of the flags before the place (`OFFSET_BIT_SHIFT`).
const PLACE_SHIFT: u32 = 3;
/// Where an inode has its addresses, and how many words there are for them and what takes their place.
const ADDRESSES: usize = 360;
const WORDS: usize = 923;
/// Where it has the numbers of the nodes below it.
const BELOW: usize = 4052;
/// Addresses of a node below an inode, or nodes below such a node.
const IN_NODE: u64 = 1018;
/// Words of extended attributes in an inode, unless it says otherwise (`DEFAULT_INLINE_XATTR_ADDRS`).
const XATTR_WORDS: usize = 50;
/// Addresses of blocks that are not written yet, and of compressed ones.
const NEW: u32 = u32::MAX;
const COMPRESSED: u32 = u32::MAX - 1;

/// Flags of `i_inline`.
mod inline {
    pub(super) const XATTR: u8 = 0x01;
    pub(super) const DATA: u8 = 0x02;
    pub(super) const ENTRIES: u8 = 0x04;
    pub(super) const EXTRA: u8 = 0x20;
}

/// `FADVISE_ENCRYPT_BIT` of `i_advise`.
const ENCRYPTED: u8 = 0x04;
/// `F2FS_COMPR_FL` of `i_flags`.
const COMPRESSES: u32 = 0x4;

/// A file system's nodes.
pub(super) struct Nodes {
    pub(super) pages: Pages,
    pub(super) parameters: Parameters,
}

/// An inode.
pub(super) struct Inode {
    pub(super) number: u32,
    /// Its block.
    pub(super) bytes: Vec<u8>,
    /// The address of that, in bytes.
    pub(super) at: u64,
    /// Words before its addresses.
    extra: usize,
    /// Words of extended attributes behind them.
    xattrs: usize,
}

impl Nodes {
    /// The block of a node, and its address in bytes. It must say that it belongs to `inode`, at that place.
    pub(super) fn node(&self, number: u32, inode: u32, place: u32) -> Result<(Vec<u8>, u64), VolumeError> {
        let address = self.parameters.address(&self.pages, number)?;
        let address = address.ok_or_else(|| damaged(format!("node {number} does not exist")))?;
        if !self.parameters.main.contains(&address) {
            return Err(damaged(format!("node {number} is at block {address}, where none can be")));
        }
        let (at, mut bytes) = (u64::from(address) * BLOCK as u64, vec![0; BLOCK]);
        self.pages.read(at, &mut bytes)?;
        let footer = (u32_at(&bytes, FOOTER), u32_at(&bytes, FOOTER + 4), u32_at(&bytes, FOOTER + 8) >> PLACE_SHIFT);
        if footer != (number, inode, place) {
            return Err(damaged(format!("node {number} is not at block {address}, as the table of nodes says")));
        }
        Ok((bytes, at))
    }

    /// An inode by its number.
    pub(super) fn inode(&self, node: Node) -> Result<Inode, VolumeError> {
        let number = u32::try_from(node.0).map_err(|_| damaged(format!("{} is no inode's number", node.0)))?;
        let (bytes, at) = self.node(number, number, 0)?;
        let flags = bytes.get(3).copied().unwrap_or_default();
        let extra = if flags & inline::EXTRA != 0 { usize::from(u16_at(&bytes, 360)) } else { 0 };
        let is_flexible = self.parameters.features & feature::FLEXIBLE_XATTRS != 0 && flags & inline::EXTRA != 0;
        let xattrs = match flags {
            _ if is_flexible => usize::from(u16_at(&bytes, 362)),
            flags if flags & (inline::XATTR | inline::ENTRIES) != 0 => XATTR_WORDS,
            _ => 0,
        };
        // What is left holds at least the two words of a device's number.
        if extra % 4 != 0 || extra / 4 + xattrs + 2 > WORDS {
            return Err(damaged(format!("inode {number} has parts of sizes that cannot be")));
        }
        Ok(Inode { number, bytes, at, extra: extra / 4, xattrs })
    }

    /// Calls `take` for the addresses of a file's blocks in `range` that are not holes, with their numbers in the file.
    pub(super) fn each_address(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        take: &mut dyn FnMut(u64, u32) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, VolumeError> {
        let own = inode.addresses();
        let count = own.len() as u64 / 4;
        if self.addresses(own, 0, range, take)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let single = IN_NODE * IN_NODE;
        let places = 2 * IN_NODE as u32;
        // The nodes below the inode: how deep they are, the first block, and the place (`get_node_path`).
        let tops = [
            (0, count, 1),
            (0, count + IN_NODE, 2),
            (1, count + 2 * IN_NODE, 3),
            (1, count + 2 * IN_NODE + single, 4 + IN_NODE as u32),
            (2, count + 2 * IN_NODE + 2 * single, 5 + places),
        ];
        for (index, (depth, start, place)) in tops.into_iter().enumerate() {
            let number = u32_at(&inode.bytes, BELOW + 4 * index);
            if self.below(inode.number, (number, place), depth, start, range, take)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The addresses below a node; `depth` is 0 for one that has them itself.
    fn below(
        &self,
        inode: u32,
        (number, place): (u32, u32),
        depth: u32,
        start: u64,
        range: &Range<u64>,
        take: &mut dyn FnMut(u64, u32) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, VolumeError> {
        let end = start.saturating_add(IN_NODE.pow(depth + 1));
        if number == 0 || end <= range.start || start >= range.end {
            return Ok(ControlFlow::Continue(()));
        }
        let (bytes, _) = self.node(number, inode, place)?;
        let words = bytes.get(..IN_NODE as usize * 4).unwrap_or_default();
        let Some(depth) = depth.checked_sub(1) else { return self.addresses(words, start, range, take) };
        let (children, _) = words.as_chunks::<4>();
        // A node of nodes takes a place before each of its children.
        let step = if depth == 0 { 1 } else { IN_NODE as u32 + 1 };
        for (index, child) in (0..).zip(children) {
            let first = start + u64::from(index) * IN_NODE.pow(depth + 1);
            let child = (u32::from_le_bytes(*child), place + 1 + index * step);
            if self.below(inode, child, depth, first, range, take)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn addresses(
        &self,
        words: &[u8],
        start: u64,
        range: &Range<u64>,
        take: &mut dyn FnMut(u64, u32) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, VolumeError> {
        let (words, _) = words.as_chunks::<4>();
        let first = range.start.saturating_sub(start).min(words.len() as u64) as usize;
        let last = range.end.saturating_sub(start).min(words.len() as u64) as usize;
        for (block, word) in (start + first as u64..).zip(words.get(first..last).unwrap_or_default()) {
            match u32::from_le_bytes(*word) {
                0 | NEW => {}
                COMPRESSED => return Err(unsupported("is compressed, and such files are not read")),
                address if !self.parameters.main.contains(&address) => {
                    return Err(damaged(format!("has its block {block} at {address}, where none can be")));
                }
                address if take(block, address).is_break() => return Ok(ControlFlow::Break(())),
                _ => {}
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Inode {
    fn word(&self, at: usize) -> u32 {
        u32_at(&self.bytes, at)
    }

    pub(super) fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(u16_at(&self.bytes, 0).into())
    }

    /// Bytes.
    pub(super) fn size(&self) -> u64 {
        u64_at(&self.bytes, 16)
    }

    fn has(&self, flag: u8) -> bool {
        self.bytes.get(3).is_some_and(|flags| flags & flag != 0)
    }

    /// Its addresses.
    fn addresses(&self) -> &[u8] {
        let start = ADDRESSES + 4 * self.extra;
        self.bytes.get(start..ADDRESSES + 4 * (WORDS - self.xattrs)).unwrap_or_default()
    }

    /// What is in the inode in place of addresses, and where that is in the block: content or entries.
    fn inside(&self) -> (&[u8], usize) {
        // A word is reserved.
        (self.addresses().get(4..).unwrap_or_default(), ADDRESSES + 4 * self.extra + 4)
    }

    /// Content that is in the inode: where it is in the block, and its bytes.
    pub(super) fn content_inside(&self) -> Option<(&[u8], usize)> {
        self.has(inline::DATA).then(|| self.inside())
    }

    /// Entries that are in the inode.
    pub(super) fn entries_inside(&self) -> Option<&[u8]> {
        self.has(inline::ENTRIES).then(|| self.inside().0)
    }

    /// Extended attributes that are in the inode.
    pub(super) fn xattrs_inside(&self) -> &[u8] {
        let end = ADDRESSES + 4 * WORDS;
        if self.has(inline::XATTR) { self.bytes.get(end - 4 * self.xattrs..end).unwrap_or_default() } else { &[] }
    }

    /// The node with further ones, or 0.
    pub(super) fn xattrs_below(&self) -> u32 {
        self.word(76)
    }

    /// Fails if content or names cannot be read.
    pub(super) fn check_is_read(&self) -> Result<(), VolumeError> {
        if self.bytes.get(2).is_some_and(|advice| advice & ENCRYPTED != 0) {
            return Err(unsupported("is encrypted"));
        }
        // Directories have the flag for what is made in them.
        let is_compressed = self.word(80) & COMPRESSES != 0 && self.file_type() == Some(FileType::Regular);
        if is_compressed && self.size() > 0 {
            return Err(unsupported("is compressed, and such files are not read"));
        }
        Ok(())
    }

    pub(super) fn attributes(&self, features: u32) -> Result<Attributes, VolumeError> {
        let time = |seconds: usize, fraction: usize| Timestamp {
            seconds: u64_at(&self.bytes, seconds) as i64,
            nanoseconds: self.word(fraction).min(999_999_999),
        };
        let file_type = self.file_type().ok_or_else(|| damaged(format!("inode {} has no type", self.number)))?;
        let size = self.size();
        if i64::try_from(size).is_err() {
            return Err(damaged(format!("has {size} bytes, more than a file can have")));
        }
        let has_size = matches!(file_type, FileType::Regular | FileType::Symlink);
        let has_birth = features & feature::CREATION_TIME != 0 && self.extra * 4 >= 24;
        let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        Ok(Attributes {
            inode: self.number.into(),
            generation: self.word(68),
            mode: u16_at(&self.bytes, 0).into(),
            links: self.word(12),
            uid: self.word(4),
            gid: self.word(8),
            size: if has_size { size } else { 0 },
            // The inode's own block counts there.
            allocated: u64_at(&self.bytes, 24).saturating_sub(1).saturating_mul(BLOCK as u64),
            device: if is_device { self.device() } else { (0, 0) },
            atime: Some(time(32, 56)),
            mtime: time(48, 64),
            ctime: time(40, 60),
            birth: has_birth.then(|| time(372, 380)),
        })
    }

    /// A device's number, in the older form or the newer one.
    fn device(&self) -> (u32, u32) {
        match (u32_at(self.addresses(), 0), u32_at(self.addresses(), 4)) {
            (0, new) => (new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xF_FF00),
            (old, _) => (old >> 8 & 0xFF, old & 0xFF),
        }
    }
}
