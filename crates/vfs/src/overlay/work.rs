//! The work directory, where changes of several steps are prepared before one step makes them visible.
//!
//! It is beside the upper layer, on the same file system, and private. The next server clears what a killed server
//! left there; it was never visible.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::attributes::{copy_attributes, optional};
use super::closed::{self, Directory};
use super::listing::read_all;
use super::{ME, Overlay, hold};
use crate::xattr_names::{ACCESS_ACL, DEFAULT_ACL};
use crate::{Attributes, Context, Entry, FileSystem, NewNode, NodeId, OpenHandle, SetAttributes};

/// The names of upper layer and work directory, as mount(8) takes them, in the directory that holds both.
const UPPER: &[u8] = b"upper";
const WORK: &[u8] = b"work";

/// A directory that nobody else can enter.
const PRIVATE: NewNode = NewNode { mode: libc::S_IFDIR | 0o700, umask: 0, device: 0 };

/// A name that is gone.
pub(super) const WHITEOUT: NewNode = NewNode { mode: libc::S_IFCHR, umask: 0, device: 0 };

/// The deepest nesting that a work directory is cleared to.
const MAX_DEPTH: usize = 1 << 10;

/// The root nodes of an upper layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The upper layer's root.
    pub upper: NodeId,
    /// The work directory.
    pub work: NodeId,
}

/// Something just created, and possibly opened.
pub(super) struct Made {
    pub entry: Entry,
    pub opened: Option<OpenHandle>,
}

/// Where to create something that belongs in a directory.
struct Stage {
    directory: NodeId,
    /// Its name in the work directory, or `None` for the work directory itself.
    name: Option<Vec<u8>>,
}

/// A counter for names in the work directory, which belongs to one server at a time and is empty at its start.
#[derive(Debug, Default)]
pub(super) struct Names(AtomicU64);

impl Names {
    fn next(&self) -> Vec<u8> {
        format!("{:x}", self.0.fetch_add(1, Ordering::Relaxed)).into_bytes()
    }
}

impl Place {
    /// Finds or creates the layer in `layer`, with the attributes of the root of `lower`. Clears what a killed server
    /// left in the work directory.
    pub fn open(layer: &dyn FileSystem, lower: &dyn FileSystem) -> Result<Place, Errno> {
        let work = match directory(layer, NodeId::ROOT, WORK) {
            Err(Errno::NOENT) => layer.make_directory(&ME, NodeId::ROOT, WORK, &PRIVATE)?.node,
            found => found?,
        };
        // A default ACL inherited from the surrounding directory must not change the permissions of what is created
        // here.
        for list in [DEFAULT_ACL, ACCESS_ACL] {
            optional(layer.remove_xattr(&ME, work, list))?;
        }
        let private = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
        layer.set_attributes(&ME, work, None, &private)?;
        let upper = match directory(layer, NodeId::ROOT, UPPER) {
            Err(Errno::NOENT) => None,
            found => Some(found?),
        };
        if let Some(upper) = upper {
            let left: Vec<_> = read_all(layer, work)?.into_iter().map(|(name, ..)| name).collect();
            closed::set_noted(layer, (upper, work), &left)?;
        }
        clear(layer, work, 0)?;
        let upper = upper.map_or_else(|| make_root(layer, work, lower), Ok)?;
        Ok(Place { upper, work })
    }

    /// Finds it again, after everything about it was forgotten.
    pub fn found_again(layer: &dyn FileSystem) -> Result<Place, Errno> {
        let upper = directory(layer, NodeId::ROOT, UPPER)?;
        Ok(Place { upper, work: directory(layer, NodeId::ROOT, WORK)? })
    }
}

/// The directory of a name.
fn directory(layer: &dyn FileSystem, parent: NodeId, name: &[u8]) -> Result<NodeId, Errno> {
    let found = layer.lookup(&ME, parent, name)?;
    if is_directory(&found.attributes) {
        return Ok(found.node);
    }
    layer.forget(found.node, 1);
    Err(Errno::NOTDIR)
}

/// Creates the upper layer's root, with the attributes of the lower one.
fn make_root(layer: &dyn FileSystem, work: NodeId, lower: &dyn FileSystem) -> Result<NodeId, Errno> {
    let attributes = lower.attributes(&ME, NodeId::ROOT, None)?;
    let owner = Context { uid: attributes.uid, gid: attributes.gid, ..ME };
    let made = layer.make_directory(&owner, work, UPPER, &PRIVATE)?;
    copy_attributes((lower, NodeId::ROOT), (layer, &made), &attributes)?;
    let mode = layer.attributes(&ME, made.node, None)?.mode & 0o7777;
    let step = || layer.rename(&ME, work, UPPER, NodeId::ROOT, UPPER, RenameFlags::NOREPLACE.bits());
    closed::put_in_place(layer, work, (made.node, mode), b"", step)?;
    Ok(made.node)
}

/// Removes the content of a directory.
fn clear(layer: &dyn FileSystem, node: NodeId, depth: usize) -> Result<(), Errno> {
    if depth > MAX_DEPTH {
        return Err(Errno::LOOP);
    }
    for (name, _, mode) in read_all(layer, node)? {
        match &*name {
            b"." | b".." => {}
            name if mode == libc::S_IFDIR => {
                let below = directory(layer, node, name)?;
                let private = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
                let opened = layer.set_attributes(&ME, below, None, &private).map(drop);
                let cleared = opened.and_then(|()| clear(layer, below, depth + 1));
                layer.forget(below, 1);
                cleared?;
                layer.remove_directory(&ME, node, name)?;
            }
            name => layer.unlink(&ME, node, name)?,
        }
    }
    Ok(())
}

pub(super) fn is_directory(attributes: &Attributes) -> bool {
    attributes.mode & libc::S_IFMT == libc::S_IFDIR
}

impl Overlay {
    pub(super) fn work(&self) -> NodeId {
        hold(&self.place).work
    }

    /// A free name in the work directory.
    pub(super) fn temporary(&self) -> Vec<u8> {
        self.temporaries.next()
    }

    /// Removes a leftover; if that fails, the next server does it.
    pub(super) fn discard(&self, directory: NodeId, name: &[u8]) {
        if let Err(Errno::ISDIR | Errno::PERM) = self.upper.unlink(&ME, directory, name) {
            let _ = self.upper.remove_directory(&ME, directory, name);
        }
    }

    /// Creates something in `directory` of the upper layer by `make`, which gets a directory and a name. A whiteout
    /// there is replaced in the same step, so that the name never leads to the lower layer.
    pub(super) fn make_above(
        &self,
        directory: NodeId,
        name: &[u8],
        make: impl Fn(NodeId, &[u8]) -> Result<Made, Errno>,
    ) -> Result<Made, Errno> {
        if !self.is_whiteout_at(directory, name)? {
            return self.with_rights(&[Directory::At(directory)], || make(directory, name));
        }
        let stage = self.stage_for(directory)?;
        let temporary = self.temporary();
        let made = make(stage.directory, &temporary);
        let put = made.and_then(|made| {
            let put = self.put_over_whiteout((stage.directory, &temporary), (directory, name), &made.entry);
            put.inspect_err(|_| self.take_back(&made)).map(|()| made)
        });
        if put.is_err() {
            self.discard(stage.directory, &temporary);
        }
        if let Some(name) = stage.name {
            self.upper.forget(stage.directory, 1);
            self.discard(self.work(), &name);
        }
        put
    }

    /// Undoes a creation.
    fn take_back(&self, made: &Made) {
        if let Some(opened) = made.opened {
            self.upper.release(made.entry.node, opened.handle, None);
        }
        self.upper.forget(made.entry.node, 1);
    }

    fn put_over_whiteout(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), made: &Entry) -> Result<(), Errno> {
        if !is_directory(&made.attributes) {
            let step = || self.upper.rename(&ME, from.0, from.1, to.0, to.1, 0);
            return self.with_rights(&[Directory::At(to.0)], step);
        }
        // It must not be merged with a lower directory, not even for a moment.
        self.with_rights(&[Directory::At(to.0), Directory::Named(made.node, to)], || {
            self.upper.set_xattr(&ME, made.node, self.opaque, b"y", 0, false)?;
            self.upper.rename(&ME, from.0, from.1, to.0, to.1, RenameFlags::EXCHANGE.bits())
        })?;
        self.discard(from.0, from.1);
        Ok(())
    }

    /// A place that passes on the same group and default ACL as `directory`.
    fn stage_for(&self, directory: NodeId) -> Result<Stage, Errno> {
        let attributes = self.upper.attributes(&ME, directory, None)?;
        let list = optional(self.upper.get_xattr(&ME, directory, DEFAULT_ACL))?;
        let hands_group_down = attributes.mode & libc::S_ISGID != 0;
        let work = self.work();
        if !hands_group_down && list.is_none() {
            return Ok(Stage { directory: work, name: None });
        }
        let name = self.temporary();
        let made = self.upper.make_directory(&ME, work, &name, &PRIVATE)?.node;
        let set = SetAttributes {
            gid: hands_group_down.then_some(attributes.gid),
            mode: Some(0o700 | if hands_group_down { libc::S_ISGID } else { 0 }),
            ..SetAttributes::default()
        };
        let prepared = self.upper.set_attributes(&ME, made, None, &set).map(drop).and_then(|()| match list {
            Some(list) => self.upper.set_xattr(&ME, made, DEFAULT_ACL, &list, 0, false),
            None => Ok(()),
        });
        if let Err(errno) = prepared {
            self.upper.forget(made, 1);
            self.discard(work, &name);
            return Err(errno);
        }
        Ok(Stage { directory: made, name: Some(name) })
    }

    /// Puts a whiteout at a free name.
    pub(super) fn cover(&self, directory: NodeId, name: &[u8]) -> Result<(), Errno> {
        let made = self.upper.make_node(&ME, directory, name, &WHITEOUT)?;
        self.upper.forget(made.node, 1);
        Ok(())
    }

    /// Replaces an upper node by a whiteout in one step.
    pub(super) fn replace_by_whiteout(&self, directory: NodeId, name: &[u8], is_directory: bool) -> Result<(), Errno> {
        let (work, temporary) = (self.work(), self.temporary());
        let flags = if is_directory { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        let covered = self
            .cover(work, &temporary)
            .and_then(|()| self.upper.rename(&ME, work, &temporary, directory, name, flags.bits()));
        if covered.is_err() {
            self.discard(work, &temporary);
        } else if is_directory {
            self.discard_emptied(work, &temporary);
        }
        covered
    }

    /// Removes a directory in the work directory that contains only whiteouts.
    fn discard_emptied(&self, work: NodeId, name: &[u8]) {
        if let Ok(there) = self.upper.lookup(&ME, work, name) {
            // As far as possible. Nobody sees it any more.
            let private = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
            let _ = self.upper.set_attributes(&ME, there.node, None, &private);
            let _ = self.remove_whiteouts(there.node);
            self.upper.forget(there.node, 1);
        }
        let _ = self.upper.remove_directory(&ME, work, name);
    }

    /// Removes the whiteouts of an upper directory that cover nothing any more.
    pub(super) fn remove_whiteouts(&self, upper: NodeId) -> Result<(), Errno> {
        self.whiteouts_in(upper)?.iter().try_for_each(|name| self.upper.unlink(&ME, upper, name))
    }
}
