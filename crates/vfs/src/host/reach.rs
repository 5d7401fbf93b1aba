//! Gets a descriptor of a node: one that is open, one by the node's file handle, or one by its name in a directory.
//!
//! A directory without a descriptor is reached in the same way. A name may lead to another file by now, so the identity
//! of what it leads to is compared. If no known name leads to the node any more, the answer is `ESTALE`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::attributes::identity;
use super::descriptor_cache::Evicted;
use super::handle::FileHandle;
use super::table::{Identity, Table, is_directory};
use super::{HostDirectory, read, write};
use crate::NodeId;

/// A name copied out of the table.
pub(super) type Name = SmallVec<[u8; 64]>;

/// The deepest supported nesting of directories.
const MAX_DEPTH: usize = 1 << 16;

/// Where to find a node.
pub(super) enum Whereabouts {
    /// An open descriptor.
    Here(Arc<OwnedFd>),
    /// A directory, and a name in it.
    In(u32, Name),
    /// Unknown.
    Nowhere,
}

impl HostDirectory {
    /// A descriptor of a node; it may be `O_PATH`.
    pub(super) fn descriptor(&self, node: NodeId) -> Result<Arc<OwnedFd>, Errno> {
        if node == NodeId::ROOT {
            return Ok(self.root.clone());
        }
        let index = read(&self.table).index(node)?;
        match self.reach(index) {
            Err(Errno::STALE | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                // It may be in the middle of a rename; afterwards its new place is known.
                let _renamed = read(&self.renaming);
                self.reach(index).map_err(|errno| match errno {
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::STALE,
                    errno => errno,
                })
            }
            result => result,
        }
    }

    /// A descriptor of a directory for a look-up or change.
    ///
    /// # Errors
    /// `EROFS` for a mount point that is shown empty.
    pub(super) fn directory(&self, node: NodeId) -> Result<Arc<OwnedFd>, Errno> {
        if node == NodeId::ROOT {
            return Ok(self.root.clone());
        }
        {
            let table = read(&self.table);
            let index = table.index(node)?;
            if !is_directory(table.node(index)?.identity.kind) {
                return Err(Errno::NOTDIR);
            }
            if table.node(index)?.is_closed {
                return Err(Errno::ROFS);
            }
            if let Some(descriptor) = table.descriptor(index) {
                return Ok(descriptor.clone());
            }
        }
        self.descriptor(node)
    }

    /// Goes up from the node to the nearest open descriptor, and down again from there.
    fn reach(&self, index: u32) -> Result<Arc<OwnedFd>, Errno> {
        let mut below: SmallVec<[(u32, Name); 8]> = SmallVec::new();
        let mut at = index;
        let mut descriptor = loop {
            match self.whereabouts(at)? {
                Whereabouts::Here(descriptor) => break descriptor,
                Whereabouts::In(parent, name) if below.len() < MAX_DEPTH => {
                    below.push((at, name));
                    at = parent;
                }
                _ => return Err(Errno::STALE),
            }
        };
        while let Some((node, name)) = below.pop() {
            descriptor = match self.open_there(node, descriptor.as_fd(), &name) {
                Err(Errno::STALE | Errno::NOENT) if below.is_empty() => self.open_elsewhere(node)?,
                result => result?,
            };
        }
        Ok(descriptor)
    }

    /// The cheapest way to a node.
    pub(super) fn whereabouts(&self, index: u32) -> Result<Whereabouts, Errno> {
        let table = read(&self.table);
        let number = table.number(index);
        if number == NodeId::ROOT {
            return Ok(Whereabouts::Here(self.root.clone()));
        }
        if let Some(descriptor) = table.descriptor(index) {
            return Ok(Whereabouts::Here(descriptor.clone()));
        }
        if let Some(descriptor) = read(&self.open).descriptor_of(number) {
            return Ok(Whereabouts::Here(descriptor));
        }
        if let Some(handle) = table.node(index)?.handle.clone() {
            drop(table);
            if let Ok(descriptor) = handle.open(self.root.as_fd(), OFlags::PATH | OFlags::CLOEXEC) {
                return Ok(Whereabouts::Here(self.keep(index, descriptor)));
            }
            let table = read(&self.table);
            return Ok(first_place(&table, index));
        }
        Ok(first_place(&table, index))
    }

    /// Opens the name if it leads to the node.
    fn open_there(&self, index: u32, directory: BorrowedFd<'_>, name: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        let identity = read(&self.table).node(index)?.identity;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = self.with_room(|| openat(directory, name, flags, Mode::empty()))?;
        if self.identity_of(descriptor.as_fd())? != identity {
            return Err(Errno::STALE);
        }
        Ok(self.keep(index, descriptor))
    }

    /// Looks for a node under its other hard links.
    fn open_elsewhere(&self, index: u32) -> Result<Arc<OwnedFd>, Errno> {
        /// The most links to try.
        const MANY: usize = 16;
        let places: Vec<(u32, Name)> =
            read(&self.table).places(index).skip(1).take(MANY).map(|(parent, name)| (parent, name.into())).collect();
        for (parent, name) in places {
            // A directory has one place, so the recursion ends.
            let opened = self.reach(parent).and_then(|directory| self.open_there(index, directory.as_fd(), &name));
            if opened.is_ok() {
                return opened;
            }
        }
        Err(Errno::STALE)
    }

    fn identity_of(&self, descriptor: BorrowedFd<'_>) -> Result<Identity, Errno> {
        Ok(identity(&self.stat(descriptor, b"")?))
    }

    /// Caches a descriptor of a node. If a directory's descriptor is evicted for it, takes that directory's file
    /// handle where possible.
    pub(super) fn keep(&self, index: u32, descriptor: OwnedFd) -> Arc<OwnedFd> {
        let descriptor = Arc::new(descriptor);
        let evicted = write(&self.table).keep(index, descriptor.clone());
        if let Some(evicted) = evicted {
            self.remember_way(&evicted);
        }
        descriptor
    }

    /// Before a descriptor is closed, takes a file handle if the node cannot be found quickly, or at all, by name.
    fn remember_way(&self, evicted: &Evicted) {
        if !self.handles_work {
            return;
        }
        let wanted = read(&self.table).node(evicted.node).is_ok_and(|node| {
            let hard_to_find = is_directory(node.identity.kind) || !node.has_place();
            node.on_root_mount && node.handle.is_none() && hard_to_find
        });
        if !wanted {
            return;
        }
        // The place in the table may belong to another node by now; the identity tells.
        let (Ok(identity), Ok(handle)) =
            (self.identity_of(evicted.descriptor.as_fd()), FileHandle::of(evicted.descriptor.as_fd()))
        else {
            return;
        };
        let mut table = write(&self.table);
        if table.node(evicted.node).is_ok_and(|node| node.identity == identity) {
            table.set_handle(evicted.node, handle);
        }
    }

    /// Reopens what a descriptor refers to, which is known to be a regular file or directory.
    pub(super) fn open_again(&self, descriptor: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let name = DescriptorName::new(descriptor);
        let open = |flags| self.with_room(|| openat(&self.descriptors, name.as_bytes(), flags, Mode::empty()));
        match open(flags | OFlags::CLOEXEC) {
            // Only the owner may use O_NOATIME; nothing else depends on it.
            Err(Errno::PERM) if flags.contains(OFlags::NOATIME) => {
                open(flags.difference(OFlags::NOATIME) | OFlags::CLOEXEC)
            }
            result => result,
        }
    }

    /// Retries after evicting cached descriptors, if too many are open.
    pub(super) fn with_room<T>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                let spare = write(&self.table).give_up_some();
                drop(spare);
                // A client with too many open files gets the error of a full file table.
                open().map_err(|errno| if errno == Errno::MFILE { Errno::NFILE } else { errno })
            }
            result => result,
        }
    }
}

fn first_place(table: &Table, index: u32) -> Whereabouts {
    match table.places(index).next() {
        Some((parent, name)) => Whereabouts::In(parent, name.into()),
        None => Whereabouts::Nowhere,
    }
}

/// A descriptor's name in `/proc/self/fd`.
pub(super) struct DescriptorName {
    text: SmallVec<[u8; 32]>,
}

impl DescriptorName {
    const DIRECTORY: &[u8] = b"/proc/self/fd/";

    pub fn new(descriptor: BorrowedFd<'_>) -> DescriptorName {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let mut text = SmallVec::from_slice(DescriptorName::DIRECTORY);
        // Writing to memory does not fail.
        let _ = write!(text, "{}", descriptor.as_raw_fd());
        DescriptorName { text }
    }

    /// Relative to the directory.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.get(DescriptorName::DIRECTORY.len()..).unwrap_or_default()
    }

    /// The absolute path.
    pub fn path(&self) -> &[u8] {
        &self.text
    }
}
