//! A pass over all nodes of a Btrfs file system.

use inarch_tree::FileType;
use inarch_volume::{Attributes, Body, Facts, Item, Loss, Node, Pass, Volume, VolumeError, join_data};

use super::content::{File, join};
use super::extents::{FileExtent, PiecePlace};
use super::names::{add_xattrs, make_unique};
use super::numbers::What;
use super::search::Position;
use super::spec::inode::{Inode, flags};
use super::spec::kind;
use super::spec::tree::Key;
use super::subvolumes::Subvolume;
use super::volume::BtrfsVolume;
use super::{damaged, inodes};
use crate::notes::counted;

/// Bytes that an entry of a directory, and an extent, count for.
const ENTRY: u64 = 32;

/// Reads the items of each node once. Counts what they hold: snapshots share the blocks of their trees, and files their
/// extents, so that a small image can hold very many.
pub(super) struct EveryNode<'a> {
    volume: &'a BtrfsVolume,
    /// Bytes of names, attributes and extents that are still allowed.
    left: u64,
    /// The subvolume that was needed last.
    last: Option<Subvolume>,
    features: Features,
}

/// What inodes have that a tree cannot hold.
#[derive(Default)]
struct Features {
    /// Files with fs-verity.
    verity: u64,
    /// Inodes with attributes of chattr(1), and the flags of all of them together.
    chattr: (u64, u64),
    /// Places where a subvolume is not linked.
    missing: u64,
}

impl Features {
    fn count(&mut self, inode: &Inode) {
        let set = inode.flags.get();
        self.verity += u64::from(set & flags::VERITY != 0);
        let of_chattr = flags::OF_CHATTR.iter().fold(0, |all, (flag, _)| all | (set & flag));
        self.chattr.0 += u64::from(of_chattr != 0);
        self.chattr.1 |= of_chattr;
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.verity > 0 {
            let files = counted(self.verity, "file has", "files have");
            notes.push(format!("{files} fs-verity, whose hashes are neither checked nor kept"));
        }
        if self.chattr.0 > 0 {
            let set = flags::OF_CHATTR.iter().filter(|(flag, _)| self.chattr.1 & flag != 0);
            let letters: String = set.map(|(_, letter)| *letter).collect();
            let files = counted(self.chattr.0, "file or directory has", "files and directories have");
            notes.push(format!("{files} attributes of chattr ({letters}), which are not kept"));
        }
        if self.missing > 0 {
            let places = counted(self.missing, "directory is", "directories are");
            notes.push(format!("{places} empty in a snapshot, where the original has a subvolume"));
        }
        notes
    }
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a BtrfsVolume) -> EveryNode<'a> {
        // Real images have more bytes of metadata than they have names, unless they have hundreds of snapshots.
        let left = volume.blocks.image.size().saturating_mul(64).saturating_add(16 << 20);
        EveryNode { volume, left, last: None, features: Features::default() }
    }

    fn spend(&mut self, bytes: u64) -> Result<(), VolumeError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| damaged("names and extents are more than an image of its size can have"))?;
        Ok(())
    }

    fn subvolume(&mut self, id: u64) -> Result<Subvolume, VolumeError> {
        match self.last.filter(|last| last.id == id) {
            Some(last) => Ok(last),
            None => self.volume.subvolume(id).inspect(|found| self.last = Some(*found)),
        }
    }

    /// Reads all items of an inode but the names in it.
    fn items(&mut self, node: Node, subvolume: &Subvolume, number: u64, facts: &mut Facts) -> Result<(), VolumeError> {
        let volume = self.volume;
        let inode = inodes::read(&volume.blocks, subvolume, number)?;
        facts.attributes = inodes::attributes(node, &inode)?;
        self.features.count(&inode);
        let file_type = facts.attributes.file_type();
        facts.body = match file_type {
            Some(FileType::Directory) => Body::Directory,
            Some(FileType::Symlink) => Body::Symlink,
            Some(FileType::Regular) => Body::Extents,
            _ => Body::Other,
        };
        if file_type == Some(FileType::Symlink) {
            let file = File { root: subvolume.root, inode: number, size: facts.attributes.size };
            volume.target_of(&file, &mut facts.target)?;
        }
        let end = if file_type == Some(FileType::Regular) { kind::EXTENT_DATA } else { kind::XATTR_ITEM };
        let mut content = Content::default();
        let mut position = Position::from(&volume.blocks, &subvolume.root, Key::new(number, kind::XATTR_ITEM, 0))?;
        while let (Some((key, item)), Some(at)) = (position.item(), position.at())
            && key.objectid == number
            && key.kind <= end
        {
            match key.kind {
                kind::XATTR_ITEM => {
                    self.spend(item.len() as u64)?;
                    let losses = &mut facts.losses;
                    add_xattrs(item, &mut facts.xattrs, &mut |loss| losses.push(loss));
                }
                kind::EXTENT_DATA => {
                    let pieces = content.add(volume, key.offset, item, at, facts)?;
                    self.spend(ENTRY.saturating_mul(1 + pieces))?;
                }
                _ => {}
            }
            position.advance()?;
        }
        make_unique(&mut facts.xattrs);
        content.finish(facts);
        Ok(())
    }
}

/// The content of a file while its items are read.
#[derive(Default)]
struct Content {
    /// Where the last extent ended.
    end: u64,
    packed: bool,
    lost: Option<Loss>,
}

impl Content {
    /// Adds an extent; gives the number of its pieces.
    fn add(
        &mut self,
        volume: &BtrfsVolume,
        offset: u64,
        item: &[u8],
        at: u64,
        facts: &mut Facts,
    ) -> Result<u64, VolumeError> {
        let mut pieces = 0;
        let Facts { attributes: Attributes { size, .. }, extents, ranges, .. } = facts;
        if self.lost.is_some() || offset >= *size {
            return Ok(pieces);
        }
        let added = FileExtent::parse(offset, item, at).and_then(|extent| {
            extent.follows(&mut self.end)?;
            extent.pieces(&volume.blocks, &(0..*size), &mut |piece| {
                pieces += 1;
                join_data(ranges, piece.offset, piece.length);
                match piece.place {
                    PiecePlace::Stored(at) => join(extents, piece.offset, piece.length, at),
                    PiecePlace::Packed(_) => self.packed = true,
                }
                Ok(true)
            })
        });
        match added {
            Ok(_) => {}
            Err(VolumeError::Damaged(reason)) => self.lost = Some(Loss::damage(reason)),
            Err(VolumeError::Unsupported(reason)) => self.lost = Some(Loss::sound(reason)),
            Err(error) => return Err(error),
        }
        Ok(pieces)
    }

    fn finish(self, facts: &mut Facts) {
        if let Some(loss) = self.lost {
            // It stays a file that cannot be read.
            facts.losses.push(loss);
            facts.extents.clear();
            facts.body = Body::Packed;
        } else if self.packed {
            facts.extents.clear();
            facts.body = Body::PackedSparse;
        }
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        let mut spent = Ok(());
        self.volume.list(directory, 0, &mut |item| {
            if let Item::Entry(entry) = &item {
                spent = self.spend(ENTRY + entry.name.len() as u64);
            }
            if spent.is_ok() {
                take(item);
            }
            spent.is_ok()
        })?;
        spent
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let place = self.volume.numbers.place(node);
        let subvolume = self.subvolume(place.subvolume)?;
        match place.what {
            What::Inode(number) => self.items(node, &subvolume, number, facts),
            What::Missing(_) => {
                self.features.missing += 1;
                facts.attributes = self.volume.missing(node, &subvolume)?;
                facts.body = Body::Directory;
                Ok(())
            }
        }
    }

    fn notes(&mut self) -> Vec<String> {
        self.features.notes()
    }
}
