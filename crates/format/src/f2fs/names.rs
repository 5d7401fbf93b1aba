//! Entries of directories.

use std::ops::ControlFlow;

use inarch_tree::FileType;
use inarch_volume::{Item, Loss, Node, VolumeError, is_name};

use super::nodes::{Inode, Nodes};
use super::{BLOCK, damaged, u16_at, u32_at};

/// Bytes of an entry: a hash, the inode, the length of the name and the type.
const ENTRY: usize = 11;
/// Bytes of a slot of names. A name takes as many as it needs, and as many entries.
const SLOT: usize = 8;
/// Slots of a block, the bytes of their bitmap, and where entries and names are (`struct f2fs_dentry_block`).
const SLOTS: usize = 214;
const BLOCK_ENTRIES: usize = 30;

/// A part of a directory: a block of it, or what is in the inode.
struct Slots<'a> {
    bitmap: &'a [u8],
    entries: &'a [u8],
    names: &'a [u8],
    count: usize,
}

impl<'a> Slots<'a> {
    fn of_block(block: &'a [u8]) -> Option<Slots<'a>> {
        let (bitmap, rest) = block.split_at_checked(BLOCK_ENTRIES)?;
        let (entries, names) = rest.split_at_checked(SLOTS * ENTRY)?;
        Some(Slots { bitmap, entries, names, count: SLOTS })
    }

    /// `make_dentry_ptr_inline`: the bitmap is at the start, and names are at the end.
    fn of_inode(bytes: &'a [u8]) -> Option<Slots<'a>> {
        let count = bytes.len() * 8 / ((ENTRY + SLOT) * 8 + 1);
        let names = bytes.len().checked_sub(count * SLOT)?;
        let entries = names.checked_sub(count * ENTRY)?;
        let (rest, names) = bytes.split_at_checked(names)?;
        let (bitmap, entries) = rest.split_at_checked(entries)?;
        Some(Slots { bitmap, entries, names, count })
    }

    fn is_used(&self, slot: usize) -> bool {
        self.bitmap.get(slot / 8).is_some_and(|byte| byte >> (slot % 8) & 1 == 1)
    }

    /// Calls `take` for the entries from `slot` on, with the number of the slot after each.
    fn each(
        &self,
        mut slot: usize,
        take: &mut dyn FnMut(Result<Found<'a>, Loss>, usize) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        while slot < self.count {
            let entry = self.entries.get(slot * ENTRY..).unwrap_or_default();
            let length = usize::from(u16_at(entry, 8));
            // The slots after an entry's first one have no name.
            if !self.is_used(slot) || length == 0 {
                slot += 1;
                continue;
            }
            let start = slot * SLOT;
            let name = start.checked_add(length).and_then(|end| self.names.get(start..end));
            let found = match name {
                Some(name) if is_name(name) || matches!(name, b"." | b"..") => {
                    Ok(Found { name, node: Node(u32_at(entry, 4).into()), file_type: file_type(entry) })
                }
                _ => Err(Loss::damage("has an entry without a name that can be; it is left out")),
            };
            slot += if found.is_ok() { length.div_ceil(SLOT) } else { 1 };
            take(found, slot)?;
        }
        ControlFlow::Continue(())
    }
}

/// An entry.
pub(super) struct Found<'a> {
    pub(super) name: &'a [u8],
    pub(super) node: Node,
    file_type: Option<FileType>,
}

fn file_type(entry: &[u8]) -> Option<FileType> {
    match entry.get(10)? {
        1 => Some(FileType::Regular),
        2 => Some(FileType::Directory),
        3 => Some(FileType::CharDevice),
        4 => Some(FileType::BlockDevice),
        5 => Some(FileType::Fifo),
        6 => Some(FileType::Socket),
        7 => Some(FileType::Symlink),
        _ => None,
    }
}

impl Nodes {
    /// A directory's inode.
    pub(super) fn directory(&self, node: Node) -> Result<Inode, VolumeError> {
        let inode = self.inode(node)?;
        match inode.file_type() {
            Some(FileType::Directory) => inode.check_is_read().map(|()| inode),
            _ => Err(VolumeError::WrongType),
        }
    }

    /// Calls `take` for all that is in a directory, also `.` and `..`, from a position on, with the position after each. Gives the number of blocks.
    pub(super) fn each_entry(
        &self,
        directory: &Inode,
        from: u64,
        take: &mut dyn FnMut(Result<Found<'_>, Loss>, u64) -> bool,
    ) -> Result<u64, VolumeError> {
        let mut give = |found: Result<Found<'_>, Loss>, next: u64| {
            if take(found, next) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        if let Some(bytes) = directory.entries_inside() {
            let slots = Slots::of_inode(bytes).ok_or_else(|| damaged("has entries where none can be"))?;
            let first = usize::try_from(from).unwrap_or(usize::MAX);
            let _ = slots.each(first, &mut |found, next| give(found, next as u64));
            return Ok(0);
        }
        let slots = SLOTS as u64;
        let blocks = directory.size().div_ceil(BLOCK as u64);
        // More blocks than the image has are some of them again.
        let most = self.pages.size() / BLOCK as u64;
        let (mut count, mut failed) = (0, None);
        let mut each = |block: u64, address: u32| {
            count += 1;
            let mut bytes = [0; BLOCK];
            let read = self.pages.read(u64::from(address) * BLOCK as u64, &mut bytes);
            let read = if count > most { Err(damaged("has more blocks than the image")) } else { read };
            let Some(part) = Slots::of_block(&bytes) else { return ControlFlow::Continue(()) };
            if let Err(error) = read {
                failed = Some(error);
                return ControlFlow::Break(());
            }
            let first = if block == from / slots { (from % slots) as usize } else { 0 };
            part.each(first, &mut |found, next| give(found, block.saturating_mul(slots).saturating_add(next as u64)))
        };
        let _ = self.each_address(directory, &(from / slots..blocks), &mut each)?;
        failed.map_or(Ok(count), Err)
    }
}

/// An entry, for the trait's callers; not `.` and `..`.
pub(super) fn give(found: Result<Found<'_>, Loss>, next: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> bool {
    match found {
        Ok(Found { name: b"." | b"..", .. }) => true,
        Ok(found) => take(Item::entry(found.name, found.node, found.file_type, next)),
        Err(loss) => take(Item::Lost(loss)),
    }
}
