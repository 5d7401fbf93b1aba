//! A pass over all nodes of an F2FS.

use inarch_tree::FileType;
use inarch_volume::{Body, Facts, Item, Node, Pass, Volume, VolumeError};

use super::names::give;
use super::volume::F2fsVolume;
use super::{BLOCK, damaged};
use crate::region::body;

/// Counts the blocks of all directories: a hostile image may have one block in many of them. Nodes need no count, as each says where it belongs.
pub(super) struct EveryNode<'a> {
    volume: &'a F2fsVolume,
    left: u64,
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a F2fsVolume) -> EveryNode<'a> {
        EveryNode { volume, left: volume.nodes.pages.size() / BLOCK as u64 }
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        let nodes = &self.volume.nodes;
        let directory = nodes.directory(directory)?;
        if self.left == 0 {
            return Err(damaged("its directories have more blocks than the image"));
        }
        let blocks = nodes.each_entry(&directory, 0, &mut |found, next| {
            give(found, next, &mut |item| {
                take(item);
                true
            })
        })?;
        self.left = self.left.saturating_sub(blocks);
        Ok(())
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let inode = self.volume.nodes.inode(node)?;
        facts.attributes = self.volume.attributes_of(&inode)?;
        facts.xattrs = self.volume.nodes.xattrs(&inode, &mut |loss| facts.losses.push(loss))?;
        facts.body = match facts.attributes.file_type() {
            Some(FileType::Directory) => Body::Directory,
            Some(FileType::Symlink) => {
                facts.target = self.volume.target(node)?;
                Body::Symlink
            }
            Some(FileType::Regular) => {
                inode.check_is_read()?;
                body(self.volume.extents_of(&inode, 0, facts.attributes.size), facts)?
            }
            _ => Body::Other,
        };
        Ok(())
    }
}
