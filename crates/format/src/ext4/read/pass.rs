//! A pass over all nodes of an ext4 file system.

use inarch_tree::FileType;
use inarch_volume::{Body, Facts, Item, Node, Pass, VolumeError};

use super::inodes::Inodes;
use super::listing::Listing;
use super::mapping::Mapping;
use super::volume::Ext4Volume;
use super::xattrs::{self, XattrReader};
use crate::ext4::spec::inode::{Inode, flags};
use crate::notes::counted;

/// Bytes of a directory's blocks that are read at once.
const STEP: u64 = 256 << 10;

/// Reads each piece of metadata for one node only.
pub(super) struct EveryNode<'a> {
    volume: &'a Ext4Volume,
    inodes: Inodes,
    mapping: Mapping,
    xattrs: XattrReader,
    features: Features,
}

/// What inodes have that a tree cannot hold.
#[derive(Default)]
struct Features {
    /// Files with fs-verity.
    verity: u64,
    /// Directories that fold case.
    casefold: u64,
    /// Inodes with attributes of chattr(1), and the flags of all of them together.
    chattr: (u64, u32),
}

impl Features {
    fn count(&mut self, inode: &Inode) {
        self.verity += u64::from(inode.has(flags::VERITY));
        self.casefold += u64::from(inode.has(flags::CASEFOLD));
        let of_chattr =
            flags::OF_CHATTR.iter().filter(|(flag, _)| inode.has(*flag)).fold(0, |all, (flag, _)| all | flag);
        self.chattr.0 += u64::from(of_chattr != 0);
        self.chattr.1 |= of_chattr;
    }

    fn notes(&self) -> Vec<String> {
        let letters: String =
            flags::OF_CHATTR.iter().filter(|(flag, _)| self.chattr.1 & flag != 0).map(|(_, letter)| *letter).collect();
        let notes = [
            (self.verity, "file has", "files have", "fs-verity, whose hashes are neither checked nor kept".to_owned()),
            (
                self.casefold,
                "directory ignores",
                "directories ignore",
                "the case of names, which is not kept".to_owned(),
            ),
            (
                self.chattr.0,
                "file or directory has",
                "files and directories have",
                format!("attributes of chattr ({letters}), which are not kept"),
            ),
        ];
        let note = |(count, one, many, what)| format!("{} {what}", counted(count, one, many));
        notes.into_iter().filter(|(count, ..)| *count > 0).map(note).collect()
    }
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a Ext4Volume) -> EveryNode<'a> {
        EveryNode {
            volume,
            inodes: Inodes::new(),
            mapping: Mapping::default(),
            xattrs: XattrReader::default(),
            features: Features::default(),
        }
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        let volume = self.volume;
        let slot = self.inodes.get(&volume.disk, volume.number(directory)?)?;
        let mut listing = Listing { disk: &volume.disk, slot: &slot, claims: &mut self.mapping.claims, step: STEP };
        listing.each(0, &mut |item| {
            match &item {
                Item::Entry(entry) if volume.leaves_out(directory, entry.name) => {}
                _ => take(item),
            }
            true
        })
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let volume = self.volume;
        let slot = self.inodes.get(&volume.disk, volume.number(node)?)?;
        facts.attributes = volume.attributes_of(&slot)?;
        facts.body = match facts.attributes.file_type() {
            Some(FileType::Directory) => Body::Directory,
            Some(FileType::Symlink) => {
                volume.target_of(&mut self.mapping, &slot, &mut facts.target)?;
                Body::Symlink
            }
            Some(FileType::Regular) => {
                let mut lose = |loss| facts.losses.push(loss);
                let wanted = 0..facts.attributes.size;
                volume.extents_of(&mut self.mapping, &slot, wanted, &mut facts.extents, &mut lose)?;
                Body::Extents
            }
            _ => Body::Other,
        };
        self.features.count(&slot.inode);
        if let Some(stored) = xattrs::stored(&slot) {
            let (list, lost) = self.xattrs.read(&volume.disk, &mut self.inodes, stored)?;
            facts.losses.extend(lost);
            facts.xattrs = list;
        }
        Ok(())
    }

    fn notes(&mut self) -> Vec<String> {
        self.features.notes()
    }
}
