//! A pass over all nodes of an EROFS image, with bounds on its metadata.

use inarch_tree::{FileType, Xattr};
use inarch_volume::{Body, Facts, Item, Node, Pass, Volume, VolumeError};

use super::damaged;
use super::inode::Inode;
use super::map::map_size;
use super::volume::{ErofsVolume, is_compressed};
use super::xattr::Xattrs;

/// Bytes of attributes that sets may hold, beyond what the image's size allows.
const SLACK: u64 = 16 << 20;

/// Limits metadata: pieces must not overlap, so all of them together cannot be larger than the image.
pub(super) struct EveryNode<'a> {
    volume: &'a ErofsVolume,
    /// Bytes of metadata that are still allowed.
    metadata: u64,
    /// Bytes of extended attributes that are still allowed: a few shared attributes could make many large sets.
    xattrs: u64,
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a ErofsVolume) -> EveryNode<'a> {
        let size = volume.pages.size();
        EveryNode { volume, metadata: size, xattrs: size.saturating_mul(2).saturating_add(SLACK) }
    }

    /// Deducts an inode's metadata.
    fn charge(&mut self, inode: &Inode) -> Result<(), VolumeError> {
        let listing = if inode.file_type == FileType::Directory { inode.size } else { 0 };
        let has_content = matches!(inode.file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
        let map = if has_content { map_size(inode, &self.volume.parameters) } else { Some(0) };
        let bytes = map.and_then(|map| map.max(listing).checked_add(inode.xattrs_size + 32));
        let left = bytes.and_then(|bytes| self.metadata.checked_sub(bytes));
        self.metadata = left.ok_or_else(|| {
            damaged("the metadata up to this file is larger than the image: parts of it overlap, or sizes are wrong")
        })?;
        Ok(())
    }

    fn body(&self, inode: &Inode, facts: &mut Facts) -> Result<Body, VolumeError> {
        Ok(match inode.file_type {
            FileType::Directory => Body::Directory,
            FileType::Symlink => {
                self.volume.target_of(inode, &mut facts.target)?;
                Body::Symlink
            }
            FileType::Regular if is_compressed(inode) => {
                self.volume.compressed(inode)?;
                Body::Packed
            }
            FileType::Regular => {
                self.volume.extents_of(inode, 0..inode.size, &mut facts.extents)?;
                Body::Extents
            }
            _ => Body::Other,
        })
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        self.volume.list(directory, 0, &mut |item| {
            take(item);
            true
        })
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let inode = self.volume.inode(node)?;
        facts.attributes = self.volume.attributes_of(node, &inode)?;
        self.charge(&inode)?;
        Xattrs::area(&self.volume.pages, &inode, &mut facts.shared)?;
        facts.body = self.body(&inode, facts)?;
        Ok(())
    }

    fn xattrs(&mut self, node: Node) -> Result<Vec<Xattr>, VolumeError> {
        let too_large =
            || damaged("the extended attributes of its files together are too large for an image of its size");
        // Once the limit is reached, no more are read.
        if self.xattrs == 0 {
            return Err(too_large());
        }
        let list = self.volume.xattrs(node, &mut |_| {})?;
        let length = |xattr: &Xattr| (size_of::<Xattr>() + xattr.name.len() + xattr.value.len()) as u64;
        let left = self.xattrs.checked_sub(list.iter().map(length).sum());
        self.xattrs = left.unwrap_or(0);
        left.map(|_| list).ok_or_else(too_large)
    }
}
