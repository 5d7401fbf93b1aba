//! An XFS file system as a volume.

use std::ops::Range;
use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_tree::{Extent, FileType, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pass, Statistics, Volume, VolumeError};

use super::disk::Disk;
use super::inodes::Inode;
use super::listing::Listing;
use super::log::Ring;
use super::mapping::{Claims, Run, map};
use super::pass::EveryNode;
use super::replay::{Replayed, replay};
use super::{NAME, Unknown, backing, damaged, xattrs};
use crate::xfs::spec::attribute::REMOTE_HEADER;
use crate::xfs::spec::inode::{Format, flags};
use crate::xfs::spec::seal;
use crate::{Damage, ReadError};

/// Bytes of a symlink's target at most (`XFS_SYMLINK_MAXLEN`).
const TARGET_LENGTH: u64 = 1024;
/// The magic number of a block with a symlink's target: `XFS_SYMLINK_MAGIC`.
const TARGET_MAGIC: [u8; 4] = *b"XSLM";

/// An XFS file system.
pub(super) struct XfsVolume {
    pub(super) disk: Disk,
    backings: [Arc<dyn Backing>; 2],
    /// Whether the log has changes that could not be replayed.
    is_dirty: bool,
    notes: Vec<String>,
}

impl XfsVolume {
    /// Reads and checks the superblock and the root, and replays the log unless it is empty.
    pub(super) fn open(image: Arc<dyn Backing>, damage: Damage) -> Result<XfsVolume, ReadError> {
        let mut notes = Vec::new();
        let mut disk = Disk::new(Arc::clone(&image), damage, &mut notes)?;
        let mut is_dirty = false;
        match replayed(&disk) {
            Ok(None) => {}
            Ok(Some(view)) => {
                notes.clear();
                // The superblock is in the log, too.
                disk = Disk::replayed(Arc::new(view), damage, &mut notes)?;
            }
            Err(VolumeError::Damaged(reason)) => {
                is_dirty = true;
                notes.push(format!(
                    "its journal {reason}, and was not replayed; last changes may be missing. The kernel or xfs_repair may \
                     mend a copy"
                ));
            }
            Err(error) => return Err(ReadError::of_volume(NAME, error)),
        }
        let backings: [Arc<dyn Backing>; 2] = [Arc::clone(&image), Arc::new(Unknown(image.size()))];
        let volume = XfsVolume { disk, backings, is_dirty, notes };
        match volume.inode_of(volume.root(), FileType::Directory) {
            Ok(_) => Ok(volume),
            Err(VolumeError::WrongType) => Err(super::unreadable("its root is no directory")),
            Err(VolumeError::Damaged(reason)) => Err(super::unreadable(format!("its root {reason}"))),
            Err(error) => Err(ReadError::of_volume(NAME, error)),
        }
    }

    /// What is wrong, with the journal as a possible reason.
    pub(super) fn explained(&self, reason: String) -> String {
        if self.is_dirty { format!("{reason} (the journal was not replayed)") } else { reason }
    }

    /// A loss with its reason explained, if it is damage.
    pub(super) fn explained_loss(&self, loss: Loss) -> Loss {
        match loss.is_damage {
            true => Loss::damage(self.explained(loss.reason)),
            false => loss,
        }
    }

    fn inode_of(&self, node: Node, file_type: FileType) -> Result<Inode, VolumeError> {
        let inode = Inode::read(&self.disk, node.0)?;
        match inode.file_type == file_type {
            true => Ok(inode),
            false => Err(VolumeError::WrongType),
        }
    }

    /// What a symlink points at: in its inode, or in blocks.
    pub(super) fn target_of(&self, claims: &mut Claims, inode: &Inode) -> Result<Vec<u8>, VolumeError> {
        let (size, data) = (inode.core.size.get(), inode.data());
        if !(1..=TARGET_LENGTH).contains(&size) {
            return Err(damaged(format!("is a symlink with a target of {size} bytes")));
        }
        let length = size as usize;
        let target = match data.format {
            Format::Local => {
                let target = data.bytes.get(..length).map(<[u8]>::to_vec);
                target.ok_or_else(|| damaged("is a symlink whose target is longer than its inode"))?
            }
            _ => self.remote_target(claims, inode, length)?,
        };
        match target.contains(&0) {
            true => Err(damaged("is a symlink with NUL in its target")),
            false => Ok(target),
        }
    }

    /// A target in blocks (`xfs_symlink_remote_read`): each run of them starts with a header in version 5.
    fn remote_target(&self, claims: &mut Claims, inode: &Inode, length: usize) -> Result<Vec<u8>, VolumeError> {
        let disk = &self.disk;
        let mut runs = Vec::new();
        if let Some(reason) = map(disk, claims, inode.ino, inode.data(), 0..TARGET_LENGTH, &mut runs)? {
            return Err(damaged(reason));
        }
        let mut target = Vec::with_capacity(length);
        for Run { block, length: blocks, .. } in runs {
            let block = block.ok_or_else(|| damaged("is a symlink whose target is nowhere"))?;
            let blocks = blocks.min((TARGET_LENGTH + REMOTE_HEADER as u64).div_ceil(disk.block_size));
            let mut bytes = vec![0; (blocks * disk.block_size) as usize];
            disk.read_blocks(block, &mut bytes)?;
            let part = match disk.is_sealed {
                true => {
                    let all: Vec<_> = (block..block + blocks).collect();
                    let about = |reason| damaged(format!("is a symlink with a block that {reason}"));
                    disk.check(seal::REMOTE, &bytes, &all, inode.ino).map_err(|error| match error {
                        VolumeError::Damaged(reason) => about(reason),
                        host => host,
                    })?;
                    if !bytes.starts_with(&TARGET_MAGIC) {
                        return Err(about(format!("is none: {block}")));
                    }
                    bytes.get(REMOTE_HEADER..).unwrap_or_default()
                }
                false => &bytes,
            };
            target.extend_from_slice(part.get(..length - target.len()).unwrap_or(part));
            if target.len() == length {
                return Ok(target);
            }
        }
        Err(damaged("is a symlink whose target is not all there"))
    }

    /// Puts where the bytes `wanted` of a file lie into `extents`, limited to the file's size.
    pub(super) fn extents_of(
        &self,
        claims: &mut Claims,
        inode: &Inode,
        wanted: Range<u64>,
        extents: &mut Vec<Extent>,
        lost: &mut dyn FnMut(Loss),
    ) -> Result<(), VolumeError> {
        let (disk, size) = (&self.disk, inode.core.size.get());
        let wanted = wanted.start..wanted.end.min(size);
        if wanted.is_empty() {
            return Ok(());
        }
        if inode.core.flags.get() & flags::REALTIME != 0 {
            lost(Loss::sound("has its content on a realtime device, which is not in the image; it cannot be read"));
            let (offset, length) = (wanted.start, wanted.end - wanted.start);
            extents.push(Extent { offset, length, at: 0, backing: backing::UNKNOWN });
            return Ok(());
        }
        let blocks = wanted.start / disk.block_size..wanted.end.div_ceil(disk.block_size);
        let mut runs = Vec::new();
        let flaw = map(disk, claims, inode.ino, inode.data(), blocks, &mut runs)?;
        flaw.into_iter().for_each(|reason| lost(Loss::damage(reason)));
        let is_there = |run: &Run| run.block.is_none_or(|first| disk.has(first, run.length));
        if !runs.iter().all(is_there) {
            lost(Loss::damage("has content behind the end of the image; it cannot be read"));
        }
        extents.extend(runs.iter().filter_map(|run| self.extent(run, &wanted)));
        Ok(())
    }

    /// The wanted part of a run.
    fn extent(&self, run: &Run, wanted: &Range<u64>) -> Option<Extent> {
        let block_size = self.disk.block_size;
        let first = run.logical.checked_mul(block_size)?;
        let start = first.max(wanted.start);
        let end = run.logical.saturating_add(run.length).saturating_mul(block_size).min(wanted.end);
        let (at, backing) = match run.block {
            Some(block) => (block * block_size + (start - first), backing::IMAGE),
            None => (0, backing::UNKNOWN),
        };
        (start < end).then(|| Extent { offset: start, length: end - start, at, backing })
    }

    fn with_listing<T>(
        &self,
        directory: Node,
        read: impl FnOnce(&mut Listing<'_>) -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        let inode = self.inode_of(directory, FileType::Directory)?;
        let mut claims = Claims::default();
        read(&mut Listing { disk: &self.disk, inode: &inode, claims: &mut claims })
    }
}

/// The file system with its log replayed, unless the log is empty.
fn replayed(disk: &Disk) -> Result<Option<Replayed>, VolumeError> {
    let ring = Ring::new(disk)?.ok_or_else(|| damaged("is on another device"))?;
    if ring.is_clean()? { Ok(None) } else { replay(disk, &ring).map(Some) }
}

impl Volume for XfsVolume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        Node(self.disk.superblock.root_ino.get())
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        Ok(Inode::read(&self.disk, node.0)?.attributes(&self.disk))
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        self.with_listing(directory, |listing| listing.find(name))
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        self.with_listing(directory, |listing| listing.each(from, take))
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        if directory == self.root() {
            return Ok(Some(directory));
        }
        Ok(self.with_listing(directory, |listing| listing.parent())?.map(Node))
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        self.target_of(&mut Claims::default(), &self.inode_of(symlink, FileType::Symlink)?)
    }

    fn xattrs(&self, node: Node, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        let inode = Inode::read(&self.disk, node.0)?;
        let (list, losses) = xattrs::read(&self.disk, &mut Claims::default(), &inode)?;
        losses.into_iter().for_each(lost);
        Ok(list)
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let mut at = offset;
        let inode = self.inode_of(file, FileType::Regular)?;
        let wanted = offset..offset.saturating_add(count);
        let (mut extents, mut reason) = (Vec::new(), None);
        let mut lose = |loss: Loss| reason = Some(loss.reason);
        self.extents_of(&mut Claims::default(), &inode, wanted, &mut extents, &mut lose)?;
        for extent in extents {
            out.fill_zeros(extent.offset - at);
            let Some(from) = self.backings.get(extent.backing as usize).filter(|_| extent.backing != backing::UNKNOWN)
            else {
                return Err(damaged(reason.unwrap_or_else(|| "has content whose place is unknown".to_owned())));
            };
            let read = from.read(extent.at, extent.length, out);
            read.map_err(|error| VolumeError::Io { offset: extent.at, error })?;
            at = extent.offset + extent.length;
        }
        out.fill_zeros(count - (at - offset));
        Ok(())
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        let inode = self.inode_of(file, FileType::Regular)?;
        let wanted = offset..offset.saturating_add(count);
        let mut extents = Vec::new();
        self.extents_of(&mut Claims::default(), &inode, wanted, &mut extents, &mut |_| {})?;
        Ok(Some(extents))
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &self.backings
    }

    fn block_size(&self) -> u32 {
        self.disk.block_size as u32
    }

    fn statistics(&self) -> Statistics {
        let superblock = &self.disk.superblock;
        let (inodes, free) = superblock.inodes_for_files();
        Statistics {
            block_size: self.block_size(),
            blocks: self.disk.blocks_for_files(),
            free_blocks: superblock.free_blocks.get(),
            reserved_blocks: 0,
            inodes,
            free_inodes: free,
            name_max: 255,
        }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn pass(&self) -> Box<dyn Pass + '_> {
        Box::new(EveryNode::new(self))
    }
}
