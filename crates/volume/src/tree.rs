//! A tree as a volume: of an archive, an image that was walked, or a snapshot of a directory.

use std::sync::Arc;

use inarch_block::{Backing, Content, Cursor};
use inarch_tree::{DataRange, Extent, FileType, Inode, InodeId, Tree, Xattr};

use crate::{Attributes, Item, Loss, Node, Statistics, Volume, VolumeError, next_data};

/// The block size that statistics report: a tree has no blocks.
const BLOCK_SIZE: u32 = 4096;

/// A [`Tree`] and its [`Content`] as a [`Volume`], for what asks volumes. A node is an inode's id and 1 more, and so is the
/// number that stat(2) shows.
pub struct TreeVolume {
    tree: Arc<Tree>,
    content: Arc<dyn Content>,
    /// Blocks of all files.
    blocks: u64,
}

impl TreeVolume {
    /// Of a tree, and of what its regular files hold.
    pub fn new(tree: Arc<Tree>, content: Arc<dyn Content>) -> TreeVolume {
        let blocks = tree.inodes().map(|(_, inode)| inode.size().div_ceil(BLOCK_SIZE.into()));
        let blocks = blocks.fold(0u64, u64::saturating_add);
        TreeVolume { tree, content, blocks }
    }

    fn inode(&self, node: Node) -> Result<(InodeId, &Inode), VolumeError> {
        let number = node.0.checked_sub(1).and_then(|number| u32::try_from(number).ok());
        let id = number.filter(|number| *number < self.tree.inode_count()).map(InodeId);
        let id = id.ok_or_else(|| VolumeError::Damaged(format!("{} is no inode's number", node.0)))?;
        Ok((id, self.tree.inode(id)))
    }

    fn inode_of(&self, node: Node, file_type: FileType) -> Result<(InodeId, &Inode), VolumeError> {
        let (id, inode) = self.inode(node)?;
        if inode.file_type() == file_type { Ok((id, inode)) } else { Err(VolumeError::WrongType) }
    }
}

fn node_of(id: InodeId) -> Node {
    Node(u64::from(id.0) + 1)
}

impl Volume for TreeVolume {
    fn format(&self) -> &'static str {
        "tree"
    }

    fn root(&self) -> Node {
        node_of(InodeId::ROOT)
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        let (id, inode) = self.inode(node)?;
        // Not every source says how long a symbolic link is.
        let size = match self.tree.symlink_target(id) {
            [] => inode.size(),
            target => target.len() as u64,
        };
        let allocated = match self.tree.sparse_ranges(id) {
            Some(ranges) => ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.length)),
            None => inode.size(),
        };
        Ok(Attributes {
            inode: node.0,
            generation: 0,
            mode: inode.mode(),
            links: inode.links(),
            uid: inode.uid(),
            gid: inode.gid(),
            size,
            allocated,
            device: inode.device(),
            atime: None,
            mtime: inode.mtime(),
            ctime: inode.ctime(),
            birth: None,
        })
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        let (directory, _) = self.inode_of(directory, FileType::Directory)?;
        Ok(self.tree.find(directory, name).map(node_of))
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        let (directory, _) = self.inode_of(directory, FileType::Directory)?;
        let entries = self.tree.entries(directory);
        let rest = (from..u64::MAX).map_while(|place| Some((place, entries.get(usize::try_from(place).ok()?)?)));
        for (place, entry) in rest {
            let file_type = self.tree.inode(entry.inode).file_type();
            if !take(Item::entry(entry.name, node_of(entry.inode), Some(file_type), place + 1)) {
                break;
            }
        }
        Ok(())
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        let (directory, _) = self.inode_of(directory, FileType::Directory)?;
        Ok(Some(node_of(self.tree.parent(directory))))
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        let (symlink, _) = self.inode_of(symlink, FileType::Symlink)?;
        Ok(self.tree.symlink_target(symlink).to_vec())
    }

    fn xattrs(&self, node: Node, _: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        Ok(self.tree.xattrs(self.inode(node)?.1.xattrs()).to_vec())
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let (id, inode) = self.inode_of(file, FileType::Regular)?;
        let there = count.min(inode.size().saturating_sub(offset));
        if there > 0 {
            self.content.read(id, offset, there, out).map_err(|error| VolumeError::Io { offset, error })?;
        }
        out.fill_zeros(count - there);
        Ok(())
    }

    fn extents(&self, file: Node, _: u64, _: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        // Only the content knows where its bytes lie.
        self.inode_of(file, FileType::Regular).map(|_| None)
    }

    fn data(&self, file: Node, offset: u64) -> Result<Option<DataRange>, VolumeError> {
        let (id, inode) = self.inode_of(file, FileType::Regular)?;
        let Some(ranges) = self.tree.sparse_ranges(id) else {
            let whole = DataRange { offset: 0, length: inode.size() };
            return Ok(Some(whole).filter(|whole| offset < whole.length));
        };
        // The first range that does not end before the offset.
        let first = ranges.partition_point(|range| range.offset.saturating_add(range.length) <= offset);
        let rest = ranges.get(first..).unwrap_or_default();
        Ok(next_data(rest.iter().map(|range| (range.offset, range.length)), offset))
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &[]
    }

    fn block_size(&self) -> u32 {
        BLOCK_SIZE
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            block_size: self.block_size(),
            blocks: self.blocks,
            inodes: self.tree.inode_count().into(),
            name_max: 255,
            ..Statistics::default()
        }
    }
}
