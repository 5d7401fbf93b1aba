//! An F2FS as a volume.

use std::ops::ControlFlow;
use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_tree::{Extent, FileType, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pages, Pass, Statistics, TARGET_MAX, Volume, VolumeError};

use super::checkpoint::Parameters;
use super::names::give;
use super::nodes::{Inode, Nodes};
use super::pass::EveryNode;
use super::{BLOCK, NAME, damaged};
use crate::region::find;
use crate::{Damage, ReadError};

/// Pages of nodes and directories that are kept: 4 MiB.
const PAGES: usize = 1024;

/// An F2FS file system.
pub(super) struct F2fsVolume {
    pub(super) nodes: Nodes,
    backings: [Arc<dyn Backing>; 1],
}

impl F2fsVolume {
    pub(super) fn open(image: Arc<dyn Backing>, _: Damage) -> Result<F2fsVolume, ReadError> {
        let fail = |error| ReadError::of_volume(NAME, error);
        let pages = Pages::new(Arc::clone(&image), PAGES);
        let parameters = Parameters::read(&pages).map_err(fail)?;
        let volume = F2fsVolume { nodes: Nodes { pages, parameters }, backings: [image] };
        match volume.nodes.directory(volume.root()) {
            Ok(_) => Ok(volume),
            Err(VolumeError::WrongType) => Err(fail(damaged("its root is no directory"))),
            Err(error) => Err(fail(error)),
        }
    }

    fn of_type(&self, node: Node, file_type: FileType) -> Result<Inode, VolumeError> {
        let inode = self.nodes.inode(node)?;
        if inode.file_type() != Some(file_type) {
            return Err(VolumeError::WrongType);
        }
        inode.check_is_read().map(|()| inode)
    }

    /// The extents of an inode's content in a range.
    pub(super) fn extents_of(&self, inode: &Inode, offset: u64, count: u64) -> Result<Vec<Extent>, VolumeError> {
        let (size, block) = (inode.size(), BLOCK as u64);
        let end = offset.saturating_add(count).min(size);
        let mut extents: Vec<Extent> = Vec::new();
        if offset >= end {
            return Ok(extents);
        }
        if let Some((bytes, within)) = inode.content_inside() {
            if size > bytes.len() as u64 {
                return Err(damaged(format!("has {size} bytes in its inode, more than fit there")));
            }
            let at = inode.at + within as u64 + offset;
            return Ok(vec![Extent { offset, length: end - offset, at, backing: 0 }]);
        }
        let mut each = |number: u64, address: u32| {
            let start = number.saturating_mul(block).max(offset);
            let stop = number.saturating_add(1).saturating_mul(block).min(end);
            let at = u64::from(address) * block + start % block;
            match extents.last_mut() {
                Some(last) if last.offset + last.length == start && last.at + last.length == at => {
                    last.length += stop - start;
                }
                _ => extents.push(Extent { offset: start, length: stop - start, at, backing: 0 }),
            }
            ControlFlow::Continue(())
        };
        let _ = self.nodes.each_address(inode, &(offset / block..end.div_ceil(block)), &mut each)?;
        Ok(extents)
    }

    /// Reads content of an inode; holes are zeros.
    fn read_of(&self, inode: &Inode, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let (mut at, end) = (offset, offset.saturating_add(count));
        for extent in self.extents_of(inode, offset, count)? {
            out.fill_zeros(extent.offset - at);
            let read = self.nodes.pages.backing().read(extent.at, extent.length, out);
            read.map_err(|error| VolumeError::Io { offset: extent.at, error })?;
            at = extent.offset + extent.length;
        }
        out.fill_zeros(end - at);
        Ok(())
    }

    pub(super) fn target_of(&self, inode: &Inode) -> Result<Vec<u8>, VolumeError> {
        let length = usize::try_from(inode.size()).ok().filter(|length| (1..=TARGET_MAX).contains(length));
        let length = length.ok_or_else(|| damaged("is a symlink of a size that cannot be"))?;
        let mut target = vec![0; length];
        for extent in self.extents_of(inode, 0, length as u64)? {
            let place = target.get_mut(extent.offset as usize..(extent.offset + extent.length) as usize);
            self.nodes.pages.read(extent.at, place.unwrap_or_default())?;
        }
        match target.contains(&0) {
            true => Err(damaged("is a symlink whose target is not there, or has a NUL in it")),
            false => Ok(target),
        }
    }

    pub(super) fn attributes_of(&self, inode: &Inode) -> Result<Attributes, VolumeError> {
        inode.attributes(self.nodes.parameters.features)
    }
}

impl Volume for F2fsVolume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        Node(self.nodes.parameters.root.into())
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        self.attributes_of(&self.nodes.inode(node)?)
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        let directory = self.nodes.directory(directory)?;
        find(name, |take| {
            let each = &mut |found: Result<super::names::Found<'_>, Loss>, _| {
                take(found.map(|found| (found.name, found.node)))
            };
            self.nodes.each_entry(&directory, 0, each).map(drop)
        })
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        let directory = self.nodes.directory(directory)?;
        self.nodes.each_entry(&directory, from, &mut |found, next| give(found, next, take)).map(drop)
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        if directory == self.root() {
            return Ok(Some(directory));
        }
        let inode = self.nodes.directory(directory)?;
        let mut parent = None;
        self.nodes.each_entry(&inode, 0, &mut |found, _| {
            parent = found.ok().filter(|found| found.name == b"..").map(|found| found.node);
            parent.is_none()
        })?;
        Ok(parent)
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        self.target_of(&self.of_type(symlink, FileType::Symlink)?)
    }

    fn xattrs(&self, node: Node, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        self.nodes.xattrs(&self.nodes.inode(node)?, lost)
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        self.read_of(&self.of_type(file, FileType::Regular)?, offset, count, out)
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        self.extents_of(&self.of_type(file, FileType::Regular)?, offset, count).map(Some)
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &self.backings
    }

    fn block_size(&self) -> u32 {
        BLOCK as u32
    }

    fn statistics(&self) -> Statistics {
        let numbers = &self.nodes.parameters.numbers;
        Statistics {
            block_size: self.block_size(),
            blocks: numbers.blocks,
            free_blocks: numbers.free_blocks,
            reserved_blocks: 0,
            inodes: numbers.inodes,
            free_inodes: numbers.free_inodes,
            name_max: 255,
        }
    }

    fn notes(&self) -> Vec<String> {
        self.nodes.parameters.notes.clone()
    }

    fn pass(&self) -> Box<dyn Pass + '_> {
        Box::new(EveryNode::new(self))
    }
}
