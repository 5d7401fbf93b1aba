//! A pass over all nodes of an XFS file system.

use inarch_tree::FileType;
use inarch_volume::{Body, Facts, Item, Node, Pass, VolumeError};

use super::inodes::Inode;
use super::listing::Listing;
use super::mapping::Claims;
use super::volume::XfsVolume;
use super::xattrs;
use crate::notes::counted;
use crate::xfs::spec::inode::flags;

/// Reads each piece of metadata for one node only.
pub(super) struct EveryNode<'a> {
    volume: &'a XfsVolume,
    claims: Claims,
    /// Inodes with attributes of chattr(1), and the flags of all of them together.
    chattr: (u64, u16),
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a XfsVolume) -> EveryNode<'a> {
        EveryNode { volume, claims: Claims::default(), chattr: (0, 0) }
    }

    fn count(&mut self, inode: &Inode) {
        let set = flags::OF_CHATTR.iter().fold(0, |all, (flag, _)| all | inode.core.flags.get() & flag);
        self.chattr.0 += u64::from(set != 0);
        self.chattr.1 |= set;
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        let disk = &self.volume.disk;
        let inode = Inode::read(disk, directory.0)?;
        let mut listing = Listing { disk, inode: &inode, claims: &mut self.claims };
        listing.each(0, &mut |item| {
            take(match item {
                Item::Lost(loss) => Item::Lost(self.volume.explained_loss(loss)),
                entry => entry,
            });
            true
        })
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let result = self.all_facts(node, facts);
        let losses = facts.losses.drain(..).map(|loss| self.volume.explained_loss(loss)).collect();
        facts.losses = losses;
        result.map_err(|error| match error {
            VolumeError::Damaged(reason) => VolumeError::Damaged(self.volume.explained(reason)),
            other => other,
        })
    }

    fn notes(&mut self) -> Vec<String> {
        let (count, set) = self.chattr;
        if count == 0 {
            return Vec::new();
        }
        let letters: String =
            flags::OF_CHATTR.iter().filter(|(flag, _)| set & flag != 0).map(|(_, letter)| *letter).collect();
        let files = counted(count, "file or directory has", "files and directories have");
        vec![format!("{files} attributes of chattr ({letters}), which are not kept")]
    }
}

impl EveryNode<'_> {
    fn all_facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let volume = self.volume;
        let inode = Inode::read(&volume.disk, node.0)?;
        facts.attributes = inode.attributes(&volume.disk);
        facts.body = match inode.file_type {
            FileType::Directory => Body::Directory,
            FileType::Symlink => {
                facts.target = volume.target_of(&mut self.claims, &inode)?;
                Body::Symlink
            }
            FileType::Regular => {
                let mut lose = |loss| facts.losses.push(loss);
                let wanted = 0..facts.attributes.size;
                volume.extents_of(&mut self.claims, &inode, wanted, &mut facts.extents, &mut lose)?;
                Body::Extents
            }
            _ => Body::Other,
        };
        self.count(&inode);
        let (list, lost) = xattrs::read(&volume.disk, &mut self.claims, &inode)?;
        facts.losses.extend(lost);
        facts.xattrs = list;
        Ok(())
    }
}
