//! [`GuestDisk`]: a disk that a guest wrote to, and the file system that it left there.

use std::ops::Range;
use std::sync::Arc;

use inarch_block::{Content, Device, Origin as Held};
use inarch_confine::Parsing;
use inarch_format::ReadError;
use inarch_format::ext4::{self, Ext4Image, LostAndFound, Numbering, ReadOptions, open_image};
use inarch_tree::compare::Lineage;
use inarch_tree::{DataRange, InodeId, Timestamp, Tree};

use super::layered::Layered;
use super::same::{Side, have_same_bytes};

/// A disk that was made of a tree, with what its guest wrote.
pub struct WrittenDisk {
    /// The tree.
    pub layered: Arc<Layered>,
    /// The bytes of the files of the tree below the layer.
    pub host: Arc<dyn Content>,
    /// The disk: its plan, those bytes, and the overlay.
    pub device: Arc<Device>,
    /// Which inode numbers the plan gave to the tree's inodes.
    pub numbering: Numbering,
}

/// The same, and the file system that the guest left on it.
pub struct GuestDisk {
    /// The disk.
    pub disk: WrittenDisk,
    /// The file system.
    pub image: Ext4Image,
}

impl GuestDisk {
    /// Reads the file system.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub fn read(parsing: Parsing, disk: WrittenDisk) -> Result<GuestDisk, String> {
        let options = ReadOptions { lost_and_found: LostAndFound::Keep, ..ReadOptions::default() };
        let image = open_image(parsing, Arc::clone(&disk.device) as _, &options).map_err(|error| match error {
            // Unread files would count as removed.
            ReadError::Damaged { format, reason } => format!("{format}: {reason}"),
            other => other.to_string(),
        })?;
        Ok(GuestDisk { disk, image })
    }

    /// What the guest left.
    pub fn guest(&self) -> &Arc<Tree> {
        &self.image.opened.tree
    }

    /// The inode of the planned tree that an inode of the guest still is. A reused inode number has a random
    /// generation; a planned inode's generation is 0.
    pub fn planned(&self, new: InodeId) -> Option<InodeId> {
        let planned = self.disk.numbering.inode(self.image.ino(new)).filter(|_| self.image.generation(new) == 0)?;
        let kind = |tree: &Tree, id| tree.inode(id).file_type();
        (kind(&self.disk.layered.tree, planned) == kind(self.guest(), new)).then_some(planned)
    }

    /// Whether every byte of the guest's file is still where the plan put the planned file's: then the content is the
    /// same, and need not be read.
    pub fn is_untouched(&self, planned: InodeId, new: InodeId) -> bool {
        if self.disk.layered.tree.inode(planned).size() != self.guest().inode(new).size() {
            return false;
        }
        let pieces = self.pieces(planned, new);
        let length = |(range, _): &(Range<u64>, bool)| range.end - range.start;
        pieces.iter().all(|(_, in_place)| *in_place)
            && pieces.iter().map(length).sum::<u64>() == self.data_bytes(planned)
    }

    /// The parts of a guest's file on the disk, and whether each is where the plan put that part of a planned file.
    fn pieces(&self, planned: InodeId, new: InodeId) -> Vec<(Range<u64>, bool)> {
        let mut pieces = Vec::new();
        for extent in self.image.extents().of(new) {
            let mut done = 0;
            while done < extent.length {
                let (held, count) = self.disk.device.origin(extent.at + done);
                let there = Held::File { inode: planned, offset: extent.offset + done };
                let count = count.min(extent.length - done);
                let start = extent.offset + done;
                // Parts in the journal are not on the disk yet.
                pieces.push((start..start + count, held == there && self.image.is_on_device(extent)));
                done += count;
            }
        }
        pieces
    }

    /// Bytes of a planned file in blocks on the disk.
    fn data_bytes(&self, planned: InodeId) -> u64 {
        const BLOCK: u64 = inarch_block::BLOCK_SIZE as u64;
        let size = self.disk.layered.tree.inode(planned).size();
        let Some(ranges) = self.disk.layered.tree.sparse_ranges(planned) else { return size };
        let mut bytes = 0;
        let mut end = 0;
        for DataRange { offset, length } in ranges {
            let start = (offset / BLOCK * BLOCK).max(end);
            end = (offset + length).next_multiple_of(BLOCK).min(size).max(start);
            bytes += end - start;
        }
        bytes
    }
}

impl Lineage for GuestDisk {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        self.disk.layered.origin(self.planned(new)?)
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        let planned = self.planned(new).filter(|planned| self.disk.layered.whole(*planned) == Some(old));
        if planned.is_some_and(|planned| self.is_untouched(planned, new)) {
            return true;
        }
        let pieces = planned.map(|planned| self.pieces(planned, new)).unwrap_or_default();
        let mut known: Vec<Range<u64>> =
            pieces.into_iter().filter(|(_, in_place)| *in_place).map(|(range, _)| range).collect();
        // Extents of a damaged file system may overlap.
        known.sort_unstable_by_key(|range| range.start);
        let is = Side { content: &*self.image.opened.content, tree: self.guest(), inode: new };
        let was = Side { content: &*self.disk.host, tree: &self.disk.layered.lower, inode: old };
        // What can no longer be read for comparison counts as changed.
        have_same_bytes(is, was, &known).unwrap_or(false)
    }

    fn as_stored(&self, time: Timestamp) -> Timestamp {
        ext4::stored_time(time)
    }
}
