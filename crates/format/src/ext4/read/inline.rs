//! Reads content stored in an inode (`fs/ext4/inline.c`): the first bytes in `i_block`, the rest in an extended
//! attribute.

use std::mem::offset_of;
use std::ops::Range;

use super::disk::word;
use super::inodes::Slot;
use crate::ext4::spec::inode::{BLOCK_FIELD, Inode, SIZE_128};
use crate::ext4::spec::xattr::{AreaReader, Value, index};

/// Bytes of a directory's part in `i_block` before its entries: the number of its parent
/// (`EXT4_INLINE_DOTDOT_SIZE`).
const PARENT: usize = 4;

/// Where in the slot the two parts are; the second may be empty. `None` where the attribute is missing.
pub(super) fn parts(slot: &Slot<'_>) -> Option<[Range<usize>; 2]> {
    let first = offset_of!(Inode, block);
    let area = area(slot)?;
    let data = AreaReader::in_inode(area)?
        .filter_map(Result::ok)
        .find(|entry| entry.index == index::SYSTEM && entry.name == b"data")?;
    let Value::Inline(value) = data.value else { return None };
    let second = slot.bytes.len() - area.len() + data.at;
    Some([first..first + BLOCK_FIELD, second..second + value.len()])
}

/// The bytes of the inode for attributes.
pub(super) fn area<'a>(slot: &'a Slot<'_>) -> Option<&'a [u8]> {
    slot.bytes.get(SIZE_128 + usize::from(slot.inode.extra_isize.get())..)
}

/// The parent of a directory.
pub(super) fn parent(slot: &Slot<'_>) -> u32 {
    word(&slot.inode.block, 0)
}

/// The entries of a directory, in two parts.
pub(super) fn directory<'a>(slot: &'a Slot<'_>) -> Option<[&'a [u8]; 2]> {
    let [first, second] = parts(slot)?;
    Some([slot.bytes.get(first)?.get(PARENT..)?, slot.bytes.get(second)?])
}

/// All bytes of an inode's content of `size` bytes.
pub(super) fn content(slot: &Slot<'_>, size: usize) -> Option<Vec<u8>> {
    let [first, second] = parts(slot)?;
    let all = [slot.bytes.get(first)?, slot.bytes.get(second)?].concat();
    all.get(..size).map(<[u8]>::to_vec)
}
