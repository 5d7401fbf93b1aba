//! An ext4 file system as a volume.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_block::{Backing, Cursor};
use inarch_tree::{Extent, FileType, Timestamp, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pass, Statistics, TARGET_MAX, Volume, VolumeError};

use super::disk::Disk;
use super::inline;
use super::inodes::{Inodes, Slot};
use super::journal::{self, Replayed};
use super::listing::Listing;
use super::mapping::{Claims, Mapping, Place, Run, map};
use super::pass::EveryNode;
use super::xattrs::{self, XattrReader};
use super::{LostAndFound, NAME, ReadOptions, Unknown, backing};
use crate::ReadError;
use crate::ext4::spec::ROOT_INO;
use crate::ext4::spec::inode::{BLOCK_FIELD, FAST_SYMLINK_MAX, Inode, decode_time, flags};
use crate::ext4::spec::superblock::incompat;

/// The name of the directory for files that e2fsck finds without a name.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Bytes of a directory's blocks that are read at once where only some of its names are wanted.
const STEP: u64 = 16 << 10;

/// An ext2, ext3 or ext4 file system.
pub(super) struct Ext4Volume {
    pub(super) disk: Disk,
    replayed: Option<Arc<Replayed>>,
    backings: [Arc<dyn Backing>; 3],
    inodes: Mutex<Inodes>,
    /// Whether `lost+found` is left out.
    omits_lost_and_found: bool,
    notes: Vec<String>,
}

impl Ext4Volume {
    /// Reads and checks the superblock and the root, and finds what the journal holds.
    pub(super) fn open(image: Arc<dyn Backing>, options: &ReadOptions) -> Result<Ext4Volume, ReadError> {
        let mut disk = Disk::new(Arc::clone(&image), options)?;
        let mut notes = Vec::new();
        let mut replayed = None;
        if disk.needs_recovery() {
            match journal::replay(&disk) {
                Ok(log) => replayed = Some(Arc::new(log)),
                Err(VolumeError::Damaged(reason)) => notes.push(options.damage.or_refuse(NAME, reason)?),
                Err(error) => return Err(ReadError::of_volume(NAME, error)),
            }
        }
        if let Some(replayed) = &replayed {
            // The superblock is in the log, too.
            disk = Disk::new(Arc::clone(replayed) as _, options)?;
        }
        notes.extend(disk.warnings());
        let backings: [Arc<dyn Backing>; 3] =
            [Arc::clone(&image), Arc::clone(&disk.backing), Arc::new(Unknown(image.size()))];
        let inodes = Mutex::new(Inodes::new());
        let mut volume = Ext4Volume { disk, replayed, backings, inodes, omits_lost_and_found: false, notes };
        let root = volume.attributes(volume.root());
        let is_directory = root.map(|root| root.file_type() == Some(FileType::Directory));
        match is_directory.map_err(|error| ReadError::of_volume(NAME, error)) {
            Ok(true) => {}
            Ok(false) => return Err(super::unreadable("its root is no directory")),
            Err(ReadError::Format { reason, .. }) => return Err(super::unreadable(format!("its root {reason}"))),
            Err(error) => return Err(error),
        }
        volume.omits_lost_and_found = volume.omits(options.lost_and_found);
        Ok(volume)
    }

    /// Checks the descriptors of all block groups.
    pub(super) fn check_groups(&self) -> Result<(), ReadError> {
        self.disk.check_groups().map_err(|error| ReadError::of_volume(NAME, error).into_damage())
    }

    /// Whether `lost+found` is to be left out.
    fn omits(&self, choice: LostAndFound) -> bool {
        if choice != LostAndFound::KeepIfUsed {
            return choice == LostAndFound::Omit;
        }
        let Ok(Some(node)) = self.lookup(self.root(), LOST_AND_FOUND) else { return false };
        let mut is_empty = true;
        let listed = self.list(node, 0, &mut |_| {
            is_empty = false;
            false
        });
        listed.is_ok() && is_empty
    }

    /// Whether an entry is one that is left out.
    pub(super) fn leaves_out(&self, directory: Node, name: &[u8]) -> bool {
        self.omits_lost_and_found && directory == self.root() && name == LOST_AND_FOUND
    }

    /// The inode of a node that a directory may name.
    pub(super) fn number(&self, node: Node) -> Result<u32, VolumeError> {
        let ino = u32::try_from(node.0).ok().filter(|ino| self.disk.is_nameable(*ino));
        let number = node.0;
        ino.ok_or_else(|| VolumeError::Damaged(format!("has the inode number {number}, which no file can have")))
    }

    fn slot(&self, node: Node) -> Result<Slot<'static>, VolumeError> {
        let ino = self.number(node)?;
        let mut inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        inodes.get(&self.disk, ino).map(Slot::into_owned)
    }

    fn slot_of(&self, node: Node, file_type: FileType) -> Result<Slot<'static>, VolumeError> {
        let slot = self.slot(node)?;
        match self.attributes_of(&slot)?.file_type() == Some(file_type) {
            true => Ok(slot),
            false => Err(VolumeError::WrongType),
        }
    }

    /// The attributes of an inode.
    pub(super) fn attributes_of(&self, slot: &Slot<'_>) -> Result<Attributes, VolumeError> {
        let (inode, ino) = (&slot.inode, slot.ino);
        let damaged = |reason: String| Err(VolumeError::Damaged(format!("has an inode, {ino}, {reason}")));
        let mode = u32::from(inode.mode.get());
        let Some(file_type) = FileType::from_mode(mode) else {
            return damaged(format!("of no type: mode {mode:#o}"));
        };
        if inode.links_count.get() == 0 {
            return damaged("that was deleted".to_owned());
        }
        if inode.has(flags::EA_INODE) {
            return damaged("that is an extended attribute's".to_owned());
        }
        let size = if matches!(file_type, FileType::Regular | FileType::Symlink) { inode.size() } else { 0 };
        if i64::try_from(size).is_err() {
            return damaged(format!("with a size of {size} bytes"));
        }
        let (uid, gid) = inode.owner();
        let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        Ok(Attributes {
            inode: ino.into(),
            generation: inode.generation.get(),
            mode,
            links: inode.links_count.get().into(),
            uid,
            gid,
            size,
            allocated: inode.allocated(self.disk.block_size),
            device: if is_device { inode.device() } else { (0, 0) },
            atime: Some(decode_time(inode.atime, inode.atime_extra)),
            mtime: decode_time(inode.mtime, inode.mtime_extra),
            ctime: decode_time(inode.ctime, inode.ctime_extra),
            birth: self.birth(inode),
        })
    }

    fn birth(&self, inode: &Inode) -> Option<Timestamp> {
        (inode.crtime.get() != 0).then(|| decode_time(inode.crtime, inode.crtime_extra))
    }

    /// What a symlink points at: in `i_block`, in the inode, or in blocks. Goes into `target`, which is empty.
    pub(super) fn target_of(
        &self,
        mapping: &mut Mapping,
        slot: &Slot<'_>,
        target: &mut Vec<u8>,
    ) -> Result<(), VolumeError> {
        let (disk, inode) = (&self.disk, &slot.inode);
        let size = inode.size();
        if inode.has(flags::ENCRYPT) {
            return Err(VolumeError::Unsupported("is an encrypted symlink".to_owned()));
        }
        if !(1..=TARGET_MAX as u64).contains(&size) {
            return Err(VolumeError::Damaged(format!("is a symlink with a target of {size} bytes")));
        }
        let length = size as usize;
        if inode.has(flags::INLINE_DATA) {
            target.extend(inline::content(slot, length).unwrap_or_default());
        } else if length <= FAST_SYMLINK_MAX && !inode.has(flags::EXTENTS) {
            target.extend_from_slice(inode.block.get(..length).unwrap_or_default());
        } else {
            let Mapping { claims, runs } = mapping;
            let flaw = map(disk, claims, slot.ino, inode, 0..size.div_ceil(disk.block_size), runs)?;
            if let Some(reason) = flaw {
                return Err(VolumeError::Damaged(reason));
            }
            target.resize(length, 0);
            for (run, rest) in runs.iter().map(|run| (run, run.logical * disk.block_size)) {
                let Place::Blocks(block) = run.place else { continue };
                let part = target.get_mut(rest as usize..).unwrap_or_default();
                let count = part.len().min((run.length * disk.block_size) as usize);
                disk.read_blocks(block, part.get_mut(..count).unwrap_or_default())?;
            }
        }
        match target.is_empty() || target.contains(&0) {
            true => Err(VolumeError::Damaged("is a symlink whose target is not there, or has a NUL in it".to_owned())),
            false => Ok(()),
        }
    }

    /// Adds the places of the bytes `wanted` of a regular file to `extents`; damage goes to `lost`.
    pub(super) fn extents_of(
        &self,
        Mapping { claims, runs }: &mut Mapping,
        slot: &Slot<'_>,
        wanted: Range<u64>,
        extents: &mut Vec<Extent>,
        lost: &mut dyn FnMut(Loss),
    ) -> Result<(), VolumeError> {
        let (disk, inode) = (&self.disk, &slot.inode);
        let wanted = wanted.start..wanted.end.min(inode.size());
        if wanted.start >= wanted.end {
            return Ok(());
        }
        let blocks = wanted.start / disk.block_size..wanted.end.div_ceil(disk.block_size);
        let unknown = Run { logical: blocks.start, length: blocks.end - blocks.start, place: Place::Unknown };
        runs.clear();
        if inode.has(flags::ENCRYPT) {
            lost(Loss::sound("is encrypted; its content cannot be read"));
            runs.push(unknown);
        } else if inode.has(flags::INLINE_DATA) {
            match inline_extents(slot) {
                Some(inline) => {
                    extents.extend(inline.into_iter().filter_map(|extent| self.cut(extent, &wanted)));
                    return Ok(());
                }
                None => {
                    lost(Loss::damage("says that its content is in its inode, where it is not"));
                    runs.push(unknown);
                }
            }
        } else {
            let flaw = map(disk, claims, slot.ino, inode, blocks, runs)?;
            flaw.into_iter().for_each(|reason| lost(Loss::damage(reason)));
            let is_there = |run: &Run| match run.place {
                Place::Blocks(first) => disk.has(first, run.length),
                _ => true,
            };
            if !runs.iter().all(is_there) {
                lost(Loss::damage("has content behind the end of the image; it cannot be read"));
            }
        }
        extents.extend(runs.iter().filter_map(|run| self.cut(self.extent(run)?, &wanted)));
        Ok(())
    }

    fn extent(&self, run: &Run) -> Option<Extent> {
        let block_size = self.disk.block_size;
        let (backing, at) = match run.place {
            Place::Blocks(block) => (backing::IMAGE, block * block_size),
            Place::Unknown => (backing::UNKNOWN, 0),
            Place::Zeros => return None,
        };
        Some(Extent { offset: run.logical * block_size, length: run.length * block_size, at, backing })
    }

    /// The wanted part of an extent, from the journal if that has it.
    fn cut(&self, extent: Extent, wanted: &Range<u64>) -> Option<Extent> {
        let start = extent.offset.max(wanted.start);
        let end = extent.offset.saturating_add(extent.length).min(wanted.end);
        if start >= end {
            return None;
        }
        let before = if extent.backing == backing::UNKNOWN { 0 } else { start - extent.offset };
        let (at, length) = (extent.at + before, end - start);
        let in_log = |replayed: &Arc<Replayed>| replayed.covers(at, length);
        let moved = extent.backing == backing::IMAGE && self.replayed.as_ref().is_some_and(in_log);
        Some(Extent { offset: start, length, at, backing: if moved { backing::REPLAYED } else { extent.backing } })
    }

    fn with_listing<T>(
        &self,
        directory: Node,
        read: impl FnOnce(&mut Listing<'_>) -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        let slot = self.slot_of(directory, FileType::Directory)?;
        let mut claims = Claims::default();
        read(&mut Listing { disk: &self.disk, slot: &slot, claims: &mut claims, step: STEP })
    }
}

impl Volume for Ext4Volume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        Node(ROOT_INO.into())
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        self.attributes_of(&self.slot(node)?)
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        if self.leaves_out(directory, name) {
            return Ok(None);
        }
        self.with_listing(directory, |listing| listing.find(name))
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        self.with_listing(directory, |listing| {
            listing.each(from, &mut |item| match &item {
                Item::Entry(entry) if self.leaves_out(directory, entry.name) => true,
                _ => take(item),
            })
        })
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        if directory == self.root() {
            return Ok(Some(directory));
        }
        Ok(self.with_listing(directory, |listing| listing.parent())?.map(|ino| Node(ino.into())))
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        let mut target = Vec::new();
        self.target_of(&mut Mapping::default(), &self.slot_of(symlink, FileType::Symlink)?, &mut target)?;
        Ok(target)
    }

    fn xattrs(&self, node: Node, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        let Some(stored) = xattrs::stored(&self.slot(node)?) else { return Ok(Vec::new()) };
        let mut inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (list, losses) = XattrReader::default().read(&self.disk, &mut inodes, stored)?;
        // `lost` may ask the volume for more.
        drop(inodes);
        losses.into_iter().for_each(lost);
        Ok(list)
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let mut at = offset;
        let slot = self.slot_of(file, FileType::Regular)?;
        let wanted = offset..offset.saturating_add(count);
        let (mut extents, mut reason) = (Vec::new(), None);
        let mut lose = |loss: Loss| reason = Some(loss.reason);
        self.extents_of(&mut Mapping::default(), &slot, wanted, &mut extents, &mut lose)?;
        for extent in extents {
            out.fill_zeros(extent.offset - at);
            let Some(from) = self.backings.get(extent.backing as usize).filter(|_| extent.backing != backing::UNKNOWN)
            else {
                let reason = reason.unwrap_or_else(|| "has content whose place is unknown".to_owned());
                return Err(VolumeError::Damaged(reason));
            };
            let read = from.read(extent.at, extent.length, out);
            read.map_err(|error| VolumeError::Io { offset: extent.at, error })?;
            at = extent.offset + extent.length;
        }
        out.fill_zeros(count - (at - offset));
        Ok(())
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        let slot = self.slot_of(file, FileType::Regular)?;
        let wanted = offset..offset.saturating_add(count);
        let mut extents = Vec::new();
        self.extents_of(&mut Mapping::default(), &slot, wanted, &mut extents, &mut |_| {})?;
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
        let wide = superblock.has_incompat(incompat::BIT64);
        let high = if wide { u64::from(superblock.free_blocks_count_hi.get()) << 32 } else { 0 };
        let of_superblock =
            (high | u64::from(superblock.free_blocks_count_lo.get()), superblock.free_inodes_count.get().into());
        // One that was not unmounted.
        let of_groups = self.disk.needs_recovery().then(|| self.disk.free_in_groups()).flatten();
        let (free_blocks, free_inodes) = of_groups.unwrap_or(of_superblock);
        let high = if wide { u64::from(superblock.reserved_blocks_count_hi.get()) << 32 } else { 0 };
        let reserved = high | u64::from(superblock.reserved_blocks_count_lo.get());
        Statistics {
            block_size: self.block_size(),
            blocks: self.disk.blocks,
            free_blocks,
            reserved_blocks: reserved.min(free_blocks),
            inodes: superblock.inodes_count.get().into(),
            free_inodes,
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

/// The extents of content within an inode, bytes of the inode table; the second may be empty.
fn inline_extents(slot: &Slot<'_>) -> Option<[Extent; 2]> {
    let size = slot.inode.size();
    let [first, second] = inline::parts(slot)?;
    let (head, tail) = (size.min(BLOCK_FIELD as u64), size.saturating_sub(BLOCK_FIELD as u64));
    if tail > second.len() as u64 {
        return None;
    }
    let at = |start: usize| slot.at + start as u64;
    Some([
        Extent { offset: 0, length: head, at: at(first.start), backing: backing::IMAGE },
        Extent { offset: head, length: tail, at: at(second.start), backing: backing::IMAGE },
    ])
}
