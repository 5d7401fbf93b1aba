//! Attributes of inodes.

use inarch_tree::FileType;
use inarch_volume::{Attributes, Node, TARGET_MAX, VolumeError};
use zerocopy::FromBytes;

use super::blocks::Blocks;
use super::damaged;
use super::spec::inode::Inode;
use super::spec::tree::Key;
use super::spec::{FIRST_FREE, kind};
use super::subvolumes::Subvolume;

/// Reads an inode's item.
pub(super) fn parse(item: &[u8]) -> Result<Inode, VolumeError> {
    Inode::read_from_prefix(item).map(|(inode, _)| inode).map_err(|_| damaged("has an inode that is cut off"))
}

/// The inode of a subvolume with that number.
pub(super) fn read(blocks: &Blocks, subvolume: &Subvolume, number: u64) -> Result<Inode, VolumeError> {
    let missing = || damaged(format!("has an inode that does not exist: {number} in subvolume {}", subvolume.id));
    if !(FIRST_FREE..=u64::MAX - FIRST_FREE).contains(&number) {
        return Err(missing());
    }
    let inode = blocks.with_item(&subvolume.root, Key::new(number, kind::INODE_ITEM, 0), parse)?;
    inode.ok_or_else(missing)
}

/// The type of an inode, which is none of an unknown one.
pub(super) fn file_type(inode: &Inode) -> Option<FileType> {
    FileType::from_mode(inode.mode.get())
}

/// The attributes of the inode that is `node`.
pub(super) fn attributes(node: Node, inode: &Inode) -> Result<Attributes, VolumeError> {
    let mode = inode.mode.get();
    let file_type = file_type(inode).ok_or_else(|| damaged(format!("has an inode of no type: mode {mode:#o}")))?;
    if inode.links.get() == 0 {
        return Err(damaged("has an inode that was deleted"));
    }
    let size = if matches!(file_type, FileType::Regular | FileType::Symlink) { inode.size.get() } else { 0 };
    if i64::try_from(size).is_err() {
        return Err(damaged(format!("has a size of {size} bytes, more than a file can have")));
    }
    if file_type == FileType::Symlink && !(1..=TARGET_MAX as u64).contains(&size) {
        return Err(damaged(format!("is a symlink with a target of {size} bytes")));
    }
    let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    Ok(Attributes {
        inode: node.0,
        generation: inode.generation.get() as u32,
        mode,
        links: inode.links.get(),
        uid: inode.uid.get(),
        gid: inode.gid.get(),
        size,
        allocated: inode.allocated.get(),
        device: if is_device { inode.numbers() } else { (0, 0) },
        atime: Some(inode.atime.timestamp()),
        mtime: inode.mtime.timestamp(),
        ctime: inode.ctime.timestamp(),
        birth: Some(inode.otime.timestamp()).filter(|time| time.seconds != 0),
    })
}
