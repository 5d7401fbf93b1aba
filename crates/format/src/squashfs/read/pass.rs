//! A pass over all nodes of a squashfs image.

use inarch_tree::Xattr;
use inarch_volume::{Body as Content, Facts, Item, Loss, Node, Pass, Volume, VolumeError};

use super::image::wrong;
use super::volume::SquashfsVolume;
use crate::squashfs::spec::Reference;
use crate::squashfs::spec::inode::{Body, FileBody, NO_XATTRS};

/// Blocks of all files at most: 32 TiB of content in blocks of 128 KiB.
const MAX_BLOCKS: u64 = 1 << 28;
/// The most ranges between holes. A file with more is treated as one without holes, which still read as zeros.
const MAX_RANGES: usize = 1 << 22;
/// Bytes of an entry of a listing at least.
const ENTRY: u64 = 8;

/// Bounds the result by the image's size: names, targets and attributes that are reused often, or compress
/// unrealistically well, are refused before they fill memory.
pub(super) struct Budget {
    left: u64,
}

impl Budget {
    /// Real metadata compresses to a tenth; images of a few blocks may do better.
    pub(super) fn new(image_bytes: u64) -> Budget {
        Budget { left: image_bytes.saturating_mul(64).saturating_add(16 << 20) }
    }

    pub(super) fn spend(&mut self, bytes: u64) -> Result<(), VolumeError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| wrong("names and attributes are more than an image of its size can have"))?;
        Ok(())
    }
}

/// Counts names, attributes, blocks and holes.
pub(super) struct EveryNode<'a> {
    volume: &'a SquashfsVolume,
    budget: Budget,
    /// Blocks of all files so far.
    blocks: u64,
    /// Ranges of data of all files so far.
    ranges: usize,
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a SquashfsVolume) -> EveryNode<'a> {
        EveryNode { volume, budget: Budget::new(volume.image.bytes_used()), blocks: 0, ranges: 0 }
    }

    fn content(&mut self, body: FileBody, list: Reference, facts: &mut Facts) -> Result<Content, VolumeError> {
        let file = self.volume.file_of(body, list)?;
        let files = &self.volume.files;
        self.blocks = self.blocks.saturating_add(files.count(&file.place, file.size));
        if self.blocks > MAX_BLOCKS {
            return Err(wrong(format!("the files so far have more than {MAX_BLOCKS} blocks")));
        }
        let most = MAX_RANGES - self.ranges;
        if !files.ranges(&file.place, file.size, most, &mut facts.ranges)? || facts.ranges.len() > most {
            return Ok(Content::Packed);
        }
        self.ranges += facts.ranges.len();
        Ok(Content::PackedSparse)
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        let mut spent = Ok(());
        self.volume.list(directory, 0, &mut |item| {
            if let Item::Entry(entry) = &item {
                spent = self.budget.spend(ENTRY + entry.name.len() as u64);
            }
            if spent.is_ok() {
                take(item);
            }
            spent.is_ok()
        })?;
        spent
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let (inode, list) = self.volume.inode(node, &mut facts.target)?;
        facts.attributes = self.volume.attributes_of(&inode)?;
        self.budget.spend(facts.target.len() as u64)?;
        if inode.xattrs != NO_XATTRS {
            facts.shared.extend_from_slice(&inode.xattrs.to_le_bytes());
        }
        facts.body = match inode.body {
            Body::Directory(_) => Content::Directory,
            Body::Symlink { .. } => Content::Symlink,
            Body::Device { .. } | Body::Ipc { .. } => Content::Other,
            Body::File(body) => match self.content(body, list, facts) {
                Ok(content) => content,
                // It stays a file that cannot be read.
                Err(VolumeError::Damaged(reason)) => {
                    facts.losses.push(Loss::damage(reason));
                    Content::Packed
                }
                Err(error) => return Err(error),
            },
        };
        Ok(())
    }

    fn xattrs(&mut self, node: Node) -> Result<Vec<Xattr>, VolumeError> {
        let set = self.volume.inode(node, &mut Vec::new())?.0.xattrs;
        match self.volume.sets.as_ref().filter(|_| set != NO_XATTRS) {
            Some(sets) => sets.read(set, &mut self.budget),
            None => Ok(Vec::new()),
        }
    }
}
