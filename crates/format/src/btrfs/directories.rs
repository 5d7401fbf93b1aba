//! Directories: by an index of names in their order, and by hashes of names.

use inarch_tree::FileType;
use inarch_volume::{Item, Loss, Node, VolumeError};

use super::damaged;
use super::inodes;
use super::names::{Named, Names};
use super::numbers::{Place, What};
use super::search::Position;
use super::spec::inode::name_hash;
use super::spec::kind;
use super::spec::tree::Key;
use super::subvolumes::Subvolume;
use super::volume::BtrfsVolume;

/// Positions in a directory are below this.
const NEXT_MAX: u64 = 1 << 62;

impl BtrfsVolume {
    /// What a name of the directory `directory` stands for.
    fn named(&self, subvolume: &Subvolume, directory: u64, named: &Named<'_>) -> Result<Node, VolumeError> {
        let location = named.item.location.key();
        let place = |subvolume, what| self.numbers.node(Place { subvolume, what });
        match location.kind {
            kind::INODE_ITEM => place(subvolume.id, What::Inode(location.objectid)),
            kind::ROOT_ITEM => {
                let id = location.objectid;
                let linked = self.roots.is_linked(&self.blocks, subvolume.id, directory, named.name, id)?;
                match self.roots.subvolume(&self.blocks, id)?.filter(|_| linked) {
                    Some(found) => place(id, What::Inode(found.directory)),
                    None => place(subvolume.id, What::Missing(id)),
                }
            }
            kind => Err(damaged(format!("has an entry of the unknown kind {kind}"))),
        }
    }

    /// Gives `take` the names of a directory from position `from` on, until it wants no more.
    pub(super) fn each_name(
        &self,
        subvolume: &Subvolume,
        directory: u64,
        from: u64,
        take: &mut dyn FnMut(Item<'_>) -> bool,
    ) -> Result<(), VolumeError> {
        let key = Key::new(directory, kind::DIR_INDEX, from);
        let mut position = Position::from(&self.blocks, &subvolume.root, key)?;
        while let Some((key, item)) = position.item()
            && (key.objectid, key.kind) == (directory, kind::DIR_INDEX)
        {
            let next = key.offset.saturating_add(1);
            // An item of the index has one name.
            let named = Names(item).next().unwrap_or_else(|| Err(damaged("has an entry without a name")));
            let named = named.and_then(|named| match next < NEXT_MAX {
                true => Ok((self.named(subvolume, directory, &named)?, named)),
                false => Err(damaged(format!("has an entry at the position {}", key.offset))),
            });
            let goes_on = match named {
                Ok((node, named)) => take(Item::entry(named.name, node, named.item.file_type(), next)),
                Err(VolumeError::Damaged(reason)) => {
                    take(Item::Lost(Loss::damage(format!("{reason}; it is left out"))))
                }
                Err(VolumeError::Unsupported(reason)) => {
                    take(Item::Lost(Loss::sound(format!("has an entry that {reason}; it is left out"))))
                }
                Err(error) => return Err(error),
            };
            if !goes_on {
                break;
            }
            position.advance()?;
        }
        Ok(())
    }

    /// Finds a name in a directory.
    pub(super) fn find(&self, subvolume: &Subvolume, directory: u64, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        let key = Key::new(directory, kind::DIR_ITEM, name_hash(name));
        let found = self.blocks.with_item(&subvolume.root, key, |item| {
            for named in Names(item) {
                let named = named?;
                if named.name == name {
                    return self.named(subvolume, directory, &named).map(Some);
                }
            }
            Ok(None)
        })?;
        Ok(found.flatten())
    }

    /// The directory that a directory is in; `None` if that is not known.
    pub(super) fn parent_of(&self, subvolume: &Subvolume, directory: u64) -> Result<Option<Node>, VolumeError> {
        if directory == subvolume.directory {
            let parent = self.roots.parent(&self.blocks, subvolume.id)?;
            let node = |(subvolume, inode)| self.numbers.node(Place { subvolume, what: What::Inode(inode) });
            return parent.map(node).transpose();
        }
        let position = Position::from(&self.blocks, &subvolume.root, Key::new(directory, kind::INODE_REF, 0))?;
        let key = position.key().filter(|key| (key.objectid, key.kind) == (directory, kind::INODE_REF));
        let place = |parent| Place { subvolume: subvolume.id, what: What::Inode(parent) };
        key.map(|key| self.numbers.node(place(key.offset))).transpose()
    }

    /// A directory's subvolume and inode number; `None` for one that stands in for a missing subvolume, and is empty.
    pub(super) fn directory(&self, node: Node) -> Result<Option<(Subvolume, u64)>, VolumeError> {
        let place = self.numbers.place(node);
        let subvolume = self.subvolume(place.subvolume)?;
        let What::Inode(number) = place.what else { return Ok(None) };
        let inode = inodes::read(&self.blocks, &subvolume, number)?;
        match inodes::file_type(&inode) {
            Some(FileType::Directory) => Ok(Some((subvolume, number))),
            _ => Err(VolumeError::WrongType),
        }
    }
}
