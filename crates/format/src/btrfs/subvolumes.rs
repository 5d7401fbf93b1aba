//! The subvolumes of a file system, and where they are linked.

use inarch_volume::VolumeError;
use zerocopy::FromBytes;

use super::blocks::Blocks;
use super::damaged;
use super::search::{Position, Root};
use super::spec::inode::{DirectoryItem, name_hash};
use super::spec::root::{Root as RootItem, RootReference};
use super::spec::tree::Key;
use super::spec::{FIRST_FREE, MAX_LEVEL, TOP_LEVEL, kind};

/// A subvolume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subvolume {
    pub(super) id: u64,
    pub(super) root: Root,
    /// The inode of its root directory.
    pub(super) directory: u64,
}

/// The tree of trees.
pub(super) struct Roots {
    root: Root,
    /// Where the default subvolume is noted.
    directory: u64,
}

impl Roots {
    pub(super) fn new(blocks: &Blocks) -> Roots {
        let superblock = &blocks.parameters.superblock;
        let root = Root {
            address: superblock.root.get(),
            level: superblock.root_level,
            generation: superblock.generation.get(),
        };
        Roots { root, directory: superblock.root_directory.get() }
    }

    /// The tree's root.
    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    /// The subvolume with a number; `None` if there is none, or if it is being deleted.
    pub(super) fn subvolume(&self, blocks: &Blocks, id: u64) -> Result<Option<Subvolume>, VolumeError> {
        if id != TOP_LEVEL && !(FIRST_FREE..=u64::MAX - FIRST_FREE).contains(&id) {
            return Ok(None);
        }
        let found = self.tree(blocks, id)?.filter(|(item, _)| item.references.get() > 0);
        Ok(found.map(|(item, root)| Subvolume { id, root, directory: item.directory.get() }))
    }

    /// The root of the tree with a number; `None` if there is none.
    pub(super) fn tree_of(&self, blocks: &Blocks, id: u64) -> Result<Option<Root>, VolumeError> {
        Ok(self.tree(blocks, id)?.map(|(_, root)| root))
    }

    fn tree(&self, blocks: &Blocks, id: u64) -> Result<Option<(RootItem, Root)>, VolumeError> {
        // A snapshot's item has the number of its transaction in its key.
        let position = Position::before(blocks, &self.root, Key::new(id, kind::ROOT_ITEM, u64::MAX))?;
        let item = position.item().filter(|(key, _)| (key.objectid, key.kind) == (id, kind::ROOT_ITEM));
        let Some((_, item)) = item else { return Ok(None) };
        let wrong = |what| damaged(format!("tree {id} {what}"));
        let (item, _) = RootItem::read_from_prefix(item).map_err(|_| wrong("has an item that is cut off"))?;
        if item.level >= MAX_LEVEL {
            return Err(wrong("has more than 8 levels"));
        }
        let root = Root { address: item.address.get(), level: item.level, generation: item.generation.get() };
        Ok(Some((item, root)))
    }

    /// The number of the default subvolume (`get_default_subvol_objectid`).
    pub(super) fn default_id(&self, blocks: &Blocks) -> Result<u64, VolumeError> {
        let key = Key::new(self.directory, kind::DIR_ITEM, name_hash(b"default"));
        let found = blocks.with_item(&self.root, key, |item| {
            let cut = |_| damaged("the note of the default subvolume is cut off");
            DirectoryItem::read_from_prefix(item).map(|(item, _)| item.location.key().objectid).map_err(cut)
        })?;
        Ok(found.unwrap_or(TOP_LEVEL))
    }

    /// Whether a subvolume is linked by that name in a directory of another one. A snapshot has the names of the
    /// subvolumes below what it is a snapshot of, but those are not in it.
    pub(super) fn is_linked(
        &self,
        blocks: &Blocks,
        parent: u64,
        directory: u64,
        name: &[u8],
        id: u64,
    ) -> Result<bool, VolumeError> {
        let linked = blocks.with_item(&self.root, Key::new(parent, kind::ROOT_REF, id), |item| {
            let cut = |_| damaged(format!("the link of subvolume {id} is cut off"));
            let (reference, rest) = RootReference::read_from_prefix(item).map_err(cut)?;
            let stored = rest.get(..usize::from(reference.name.get()));
            Ok(reference.directory.get() == directory && stored == Some(name))
        })?;
        Ok(linked.unwrap_or(false))
    }

    /// The subvolume and the directory that a subvolume is linked in.
    pub(super) fn parent(&self, blocks: &Blocks, id: u64) -> Result<Option<(u64, u64)>, VolumeError> {
        let position = Position::from(blocks, &self.root, Key::new(id, kind::ROOT_BACKREF, 0))?;
        let item = position.item().filter(|(key, _)| (key.objectid, key.kind) == (id, kind::ROOT_BACKREF));
        let Some((key, item)) = item else { return Ok(None) };
        let cut = |_| damaged(format!("the link of subvolume {id} is cut off"));
        let (reference, _) = RootReference::read_from_prefix(item).map_err(cut)?;
        Ok(Some((key.offset, reference.directory.get())))
    }
}
