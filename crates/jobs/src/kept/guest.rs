//! A kept disk without a machine: what the guest's file system on it is now, and what it was.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::{Content, Device, Origin, read_content};
use inarch_format::ext4::{self, Ext4Image, LostAndFound, Numbering, ReadOptions, open_image};
use inarch_tree::compare::Lineage;
use inarch_tree::{DataRange, FileType, InodeId, Timestamp, Tree};

use super::{KeptRun, KeptTree};
use crate::JobError;
use crate::device::reopen_kept;
use crate::notes::shown;

/// Bytes that are compared at once.
const PIECE: usize = 256 << 10;

/// What a kept disk was and what it is.
pub(super) struct KeptDisk {
    /// The host's tree when the run began.
    pub base: Arc<Tree>,
    /// What its files hold, as long as the host's are what they were.
    pub base_content: Arc<dyn Content>,
    /// The guest's tree.
    pub guest: Arc<Tree>,
    /// What its files hold.
    pub content: Arc<dyn Content>,
    /// What of the guest's file system could not be read, a line each.
    pub notes: Vec<String>,
    image: Ext4Image,
    numbering: Numbering,
    device: Arc<Device>,
}

/// A kept disk's parts, before the guest's file system on it is read.
pub(crate) struct Reopened {
    pub tree: Arc<Tree>,
    pub content: Arc<dyn Content>,
    pub device: Arc<Device>,
    pub numbering: Numbering,
}

impl KeptDisk {
    /// Opens the disk of `tree`; `None` if the guest has never had it.
    pub fn open(run: &KeptRun, tree: &KeptTree) -> Result<Option<KeptDisk>, JobError> {
        let overlay = run.overlay(tree.ordinal);
        if tree.read_only || !overlay.exists() {
            return Ok(None);
        }
        let base = run.base(tree.ordinal).load()?;
        let Reopened { tree: base, content: base_content, device, numbering } =
            reopen_kept(&tree.source(), base, &overlay, tree.ordinal)?;
        // The host's own lost+found is one of its directories; that of the guest's file system is nobody's change.
        let lost_and_found = match base.lookup(b"lost+found") {
            Some(_) => LostAndFound::Keep,
            None => LostAndFound::KeepIfUsed,
        };
        let options = ReadOptions { lost_and_found, ..ReadOptions::default() };
        let image = open_image(Arc::clone(&device) as _, &options).map_err(|error| {
            let source: PathBuf = tree.source();
            JobError::Other(format!("the kept disk of {}: {error}", shown(&source)))
        })?;
        Ok(Some(KeptDisk {
            base,
            base_content,
            guest: Arc::clone(&image.opened.tree),
            content: Arc::clone(&image.opened.content),
            notes: image.opened.notes.clone(),
            image,
            numbering,
            device,
        }))
    }

    /// Files of the guest whose bytes on the disk are those of another file too, or several times their own: the file
    /// system is damaged, or made to fill whatever it is copied to.
    pub fn overlapping(&self) -> HashSet<InodeId> {
        self.image.files_with_shared_bytes()
    }

    /// Whether every byte of the guest's file is still where the plan put the one of the base's file: then it is the
    /// same, and nothing needs to be read.
    fn is_untouched(&self, old: InodeId, new: InodeId) -> bool {
        let mut covered = 0;
        for extent in self.image.extents().of(new) {
            // What the journal holds and a kill kept from its place is not what the device has there.
            if !self.image.is_on_device(extent) {
                return false;
            }
            let mut done = 0;
            while done < extent.length {
                let (origin, count) = self.device.origin(extent.at + done);
                if origin != (Origin::File { inode: old, offset: extent.offset + done }) {
                    return false;
                }
                done += count.min(extent.length - done);
            }
            covered += extent.length;
        }
        covered == self.data_bytes(old)
    }

    /// Bytes of a file of the base that lie in blocks on the disk.
    fn data_bytes(&self, old: InodeId) -> u64 {
        const BLOCK: u64 = inarch_block::BLOCK_SIZE as u64;
        let size = self.base.inode(old).size();
        let Some(ranges) = self.base.sparse_ranges(old) else { return size };
        let mut bytes = 0;
        let mut end = 0;
        for DataRange { offset, length } in ranges {
            let start = (offset / BLOCK * BLOCK).max(end);
            end = (offset + length).next_multiple_of(BLOCK).min(size).max(start);
            bytes += end - start;
        }
        bytes
    }

    /// Whether two files of the same size hold the same bytes; an error if one of them cannot be read.
    fn compare(&self, old: InodeId, new: InodeId) -> io::Result<bool> {
        let size = self.guest.inode(new).size();
        let (mut was, mut is) = (vec![0; PIECE], vec![0; PIECE]);
        let mut at = 0;
        while at < size {
            let count = (size - at).min(PIECE as u64) as usize;
            let (was, is) = (&mut was[..count], &mut is[..count]);
            read_content(&*self.content, new, at, is)?;
            read_content(&*self.base_content, old, at, was)?;
            if was != is {
                return Ok(false);
            }
            at += count as u64;
        }
        Ok(true)
    }

    fn kind(tree: &Tree, id: InodeId) -> FileType {
        tree.inode(id).file_type()
    }
}

impl Lineage for KeptDisk {
    /// An inode number is used again for other files, with a generation that the kernel takes at random; a planned
    /// inode's is 0.
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        let origin = self.numbering.inode(self.image.ino(new)).filter(|_| self.image.generation(new) == 0)?;
        (Self::kind(&self.base, origin) == Self::kind(&self.guest, new)).then_some(origin)
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        // What can no longer be read for comparison counts as changed.
        self.is_untouched(old, new) || self.compare(old, new).unwrap_or(false)
    }

    /// Every block tells of which file of the base it is, if it is still one: files can exchange blocks.
    fn lenders(&self, new: InodeId) -> Vec<InodeId> {
        let mut lenders: Vec<InodeId> = self.origin(new).into_iter().collect();
        for extent in self.image.extents().of(new).iter().filter(|extent| self.image.is_on_device(extent)) {
            let mut done = 0;
            while done < extent.length {
                let (origin, count) = self.device.origin(extent.at.saturating_add(done));
                if let Origin::File { inode, .. } = origin
                    && lenders.last() != Some(&inode)
                {
                    lenders.push(inode);
                }
                done += count.min(extent.length - done);
            }
        }
        lenders.sort_unstable();
        lenders.dedup();
        lenders
    }

    fn as_stored(&self, time: Timestamp) -> Timestamp {
        ext4::stored_time(time)
    }
}
