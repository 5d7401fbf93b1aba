//! Collects what the image needs to know of every inode before places are assigned.

use std::collections::HashMap;

use inarch_tree::{FileType, Inode as Source, InodeId, Tree};

use super::numbers::Numbers;
use super::xattrs::Xattrs;
use super::{Error, path};
use crate::notes::counted;
use crate::squashfs::spec::MAX_IDS;
use crate::squashfs::spec::inode::{Body, Inode, encode_device};

/// Numbers, owners and attributes of a tree's inodes.
#[derive(Debug)]
pub(crate) struct Inventory {
    pub(crate) numbers: Numbers,
    pub(crate) xattrs: Xattrs,
    /// Owners and groups, in the order of their first use.
    pub(crate) ids: Vec<u32>,
    id_places: HashMap<u32, u16>,
    /// Seconds since 1970 of the newest change of content.
    pub(crate) newest_mtime: u32,
    /// Files whose times were clamped, and the first of them.
    clamped: Option<(u32, InodeId)>,
}

impl Inventory {
    /// Errors name the first file that squashfs cannot hold.
    pub(crate) fn new(tree: &Tree) -> Result<Inventory, Error> {
        let mut inventory = Inventory {
            numbers: Numbers::new(tree),
            xattrs: Xattrs::default(),
            ids: Vec::new(),
            id_places: HashMap::new(),
            newest_mtime: 0,
            clamped: None,
        };
        for place in 0..inventory.numbers.order().len() {
            let Some(id) = inventory.numbers.order().get(place).copied() else { break };
            inventory.add(tree, id)?;
        }
        Ok(inventory)
    }

    fn add(&mut self, tree: &Tree, id: InodeId) -> Result<(), Error> {
        let inode = tree.inode(id);
        for owner in [inode.uid(), inode.gid()] {
            self.add_owner(owner).ok_or_else(|| Error::TooManyIds { path: path(tree, id) })?;
        }
        let (mtime, clamped) = seconds(inode);
        self.newest_mtime = self.newest_mtime.max(mtime);
        if clamped {
            self.clamped.get_or_insert((0, id)).0 += 1;
        }
        let (major, minor) = inode.device();
        if encode_device(major, minor).is_none() {
            return Err(Error::Device { path: path(tree, id), major, minor });
        }
        self.xattrs.add(tree, id);
        Ok(())
    }

    fn add_owner(&mut self, owner: u32) -> Option<()> {
        if !self.id_places.contains_key(&owner) {
            let place = u16::try_from(self.ids.len()).ok().filter(|place| usize::from(*place) < MAX_IDS)?;
            self.ids.push(owner);
            self.id_places.insert(owner, place);
        }
        Some(())
    }

    fn owner(&self, owner: u32) -> u16 {
        self.id_places.get(&owner).copied().unwrap_or(0)
    }

    /// An inode as it stands in the inode table.
    pub(crate) fn inode(&self, tree: &Tree, id: InodeId, body: Body) -> Inode {
        let source = tree.inode(id);
        Inode {
            mode: (source.mode() & 0o7777) as u16,
            uid: self.owner(source.uid()),
            gid: self.owner(source.gid()),
            mtime: seconds(source).0,
            number: self.numbers.of(id),
            links: source.links(),
            xattrs: self.xattrs.set_of(source.xattrs()),
            body,
        }
    }

    /// The part of an inode that depends on its type, for all types but directories and regular files.
    pub(crate) fn special_body(&self, tree: &Tree, id: InodeId) -> Body {
        let source = tree.inode(id);
        match source.file_type() {
            FileType::Symlink => Body::Symlink { length: tree.symlink_target(id).len() as u32 },
            kind @ (FileType::CharDevice | FileType::BlockDevice) => {
                let (major, minor) = source.device();
                Body::Device { kind, number: encode_device(major, minor).unwrap_or(0) }
            }
            kind => Body::Ipc { kind },
        }
    }

    /// What the user should know, a line each.
    pub(crate) fn notes(&self, tree: &Tree) -> Vec<String> {
        let clamped = self.clamped.map(|(count, first)| {
            format!(
                "squashfs holds times from 1970 to 2106: those of {} were moved into that range, the first is {}",
                counted(count, "file", "files"),
                path(tree, first)
            )
        });
        let is_finer = tree.inodes().any(|(_, inode)| inode.mtime().nanoseconds != 0);
        let cut = is_finer.then(|| "times are cut to whole seconds, as squashfs has no others".to_owned());
        clamped.into_iter().chain(self.xattrs.notes(tree)).chain(cut).collect()
    }
}

/// An inode's time in seconds since 1970, and whether it had to be moved into the range of 32 bits.
fn seconds(inode: &Source) -> (u32, bool) {
    let seconds = inode.mtime().seconds;
    let clamped = seconds.clamp(0, u32::MAX.into());
    (clamped as u32, clamped != seconds)
}
