//! Lists the subvolumes of a file system, with their paths.

use inarch_volume::VolumeError;
use zerocopy::FromBytes;

use super::ListedSubvolume;
use super::search::Position;
use super::spec::root::{PARENT_UUID, READ_ONLY, Root as RootItem, RootReference};
use super::spec::tree::Key;
use super::spec::{FIRST_FREE, TOP_LEVEL, kind};
use super::volume::BtrfsVolume;

/// The most subvolumes that are listed.
const MOST: usize = 10_000;
/// The most directories above each other in a path: more than `PATH_MAX` allows.
const DEEPEST: usize = 2048;
/// The most bytes of a path.
const MOST_PATH: usize = 4096;

impl BtrfsVolume {
    /// The subvolumes but for the top one.
    pub(super) fn listed(&self) -> Result<Vec<ListedSubvolume>, VolumeError> {
        let default = self.roots.default_id(&self.blocks).unwrap_or(TOP_LEVEL);
        let mut found = Vec::new();
        let mut position = Position::from(&self.blocks, self.roots.root(), Key::new(FIRST_FREE, kind::ROOT_ITEM, 0))?;
        while let Some((key, item)) = position.item() {
            if key.objectid > u64::MAX - FIRST_FREE || found.len() >= MOST {
                break;
            }
            if key.kind == kind::ROOT_ITEM
                && let Ok((root, _)) = RootItem::read_from_prefix(item)
                && root.references.get() > 0
            {
                let is_snapshot = item.get(PARENT_UUID).is_some_and(|id| id.iter().any(|byte| *byte != 0));
                let is_read_only = root.flags.get() & READ_ONLY != 0;
                // One that is not linked has no path.
                if let Ok(Some(path)) = self.path_of(key.objectid) {
                    let (id, is_default) = (key.objectid, key.objectid == default);
                    found.push(ListedSubvolume { id, path, is_snapshot, is_read_only, is_default });
                }
            }
            position.advance()?;
        }
        found.dedup_by_key(|subvolume| subvolume.id);
        Ok(found)
    }

    /// The path of a subvolume from the top on; `None` if it is not linked, or too deep.
    fn path_of(&self, id: u64) -> Result<Option<Vec<u8>>, VolumeError> {
        // From the last name to the first.
        let (mut names, mut bytes) = (Vec::new(), 0);
        let mut id = id;
        while id != TOP_LEVEL {
            let Some((parent, mut directory, name)) = self.link_of(id)? else { return Ok(None) };
            bytes += name.len() + 1;
            names.push(name);
            let Some(subvolume) = self.roots.subvolume(&self.blocks, parent)? else { return Ok(None) };
            while directory != subvolume.directory {
                let Some((above, name)) = self.name_of(&subvolume.root, directory)? else { return Ok(None) };
                bytes += name.len() + 1;
                names.push(name);
                directory = above;
                if names.len() > DEEPEST || bytes > MOST_PATH {
                    return Ok(None);
                }
            }
            id = parent;
            if names.len() > DEEPEST || bytes > MOST_PATH {
                return Ok(None);
            }
        }
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }

    /// The subvolume and the directory that a subvolume is linked in, and its name there.
    fn link_of(&self, id: u64) -> Result<Option<(u64, u64, Vec<u8>)>, VolumeError> {
        let position = Position::from(&self.blocks, self.roots.root(), Key::new(id, kind::ROOT_BACKREF, 0))?;
        let item = position.item().filter(|(key, _)| (key.objectid, key.kind) == (id, kind::ROOT_BACKREF));
        let Some((key, item)) = item else { return Ok(None) };
        let Ok((reference, rest)) = RootReference::read_from_prefix(item) else { return Ok(None) };
        let name = rest.get(..usize::from(reference.name.get())).map(<[u8]>::to_vec);
        Ok(name.map(|name| (key.offset, reference.directory.get(), name)))
    }

    /// The directory that a directory is in, and its name there.
    fn name_of(&self, root: &super::search::Root, directory: u64) -> Result<Option<(u64, Vec<u8>)>, VolumeError> {
        let position = Position::from(&self.blocks, root, Key::new(directory, kind::INODE_REF, 0))?;
        let item = position.item().filter(|(key, _)| (key.objectid, key.kind) == (directory, kind::INODE_REF));
        let Some((key, item)) = item else { return Ok(None) };
        // `struct btrfs_inode_ref`: a position, and the length of the name that follows.
        let length = item.get(8..10).and_then(|bytes| bytes.first_chunk()).map(|bytes| u16::from_le_bytes(*bytes));
        let name = length.and_then(|length| item.get(10..)?.get(..usize::from(length)));
        Ok(name.map(|name| (key.offset, name.to_vec())))
    }
}
