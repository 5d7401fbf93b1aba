//! A layer that tells of each access: what was looked for, found, opened, read, listed and changed, by which path and by
//! which process.
//!
//! Nothing that passes is changed but for how long it may be kept: a client must ask each time, or the second process to
//! look for a name would not be seen. For the same reason the kernel reads no file by itself.

mod paths;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::passing::PassingOn;
use crate::{
    Attributes, Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, LockOwner, NewNode, NodeId,
    Opened, SetAttributes, WriteKind, passes_on,
};
use paths::Paths;

/// What somebody did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Looked for a name, which is there.
    Found,
    /// Looked for a name, which is not there.
    Absent,
    /// Asked for attributes.
    Attributes,
    /// Changed attributes, extended ones too.
    SetAttributes,
    /// Read a symbolic link.
    ReadLink,
    /// Opened a file to read it.
    OpenRead,
    /// Opened a file to write to it, or also to write to it.
    OpenWrite,
    /// Read from an opened file for the first time.
    Read,
    /// Wrote to an opened file, or took space for it, for the first time.
    Write,
    /// Read a directory from its start.
    List,
    /// Made something with a new name.
    Create,
    /// Gave something a further name.
    Link,
    /// Moved something to another name.
    Rename,
    /// Removed a name.
    Remove,
}

impl AccessKind {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            AccessKind::Found => "found",
            AccessKind::Absent => "absent",
            AccessKind::Attributes => "attributes",
            AccessKind::SetAttributes => "set-attributes",
            AccessKind::ReadLink => "read-link",
            AccessKind::OpenRead => "open-read",
            AccessKind::OpenWrite => "open-write",
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::List => "list",
            AccessKind::Create => "create",
            AccessKind::Link => "link",
            AccessKind::Rename => "rename",
            AccessKind::Remove => "remove",
        }
    }
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// What was done.
    pub kind: AccessKind,
    /// To what: names parted by slashes, from the root on, which is empty. Of several hard links, the one that was looked
    /// up last; of what has no name any more, the last it had.
    pub path: &'a [u8],
    /// The other path of a `Link` or a `Rename`: the new one.
    pub to: Option<&'a [u8]>,
    /// See [`Context::pid`].
    pub pid: u32,
}

/// Takes what a [`Recorder`] tells. It is called while the request waits: what takes long is for somebody else.
pub trait AccessSink: Send + Sync + 'static {
    /// Somebody did this.
    fn record(&self, access: &Access<'_>);
}

/// See the module's text.
pub struct Recorder<S> {
    below: Arc<dyn FileSystem>,
    sink: S,
    paths: Mutex<Paths>,
    /// What was told already of what is open, or, with the default handle, of what needs no opening.
    told: Mutex<HashMap<(NodeId, HandleId), Told>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    read: bool,
    written: bool,
}

fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing may be kept.
fn unkept(entry: Entry) -> Entry {
    let attributes = Attributes { valid: Duration::ZERO, ..entry.attributes };
    Entry { attributes, valid: Duration::ZERO, ..entry }
}

impl<S: AccessSink> Recorder<S> {
    /// Tells `sink` of what is done to `below`.
    pub fn new(below: Arc<dyn FileSystem>, sink: S) -> Recorder<S> {
        Recorder { below, sink, paths: Mutex::default(), told: Mutex::default() }
    }

    fn tell(&self, context: &Context<'_>, kind: AccessKind, path: &[u8], to: Option<&[u8]>) {
        self.sink.record(&Access { kind, path, to, pid: context.pid });
    }

    fn tell_node(&self, context: &Context<'_>, kind: AccessKind, node: NodeId) {
        let path = hold(&self.paths).path(node);
        self.tell(context, kind, &path, None);
    }

    /// Tells of a name in a directory; where it leads is known from now on.
    fn tell_name(
        &self,
        context: &Context<'_>,
        kind: AccessKind,
        (parent, name): (NodeId, &[u8]),
        entry: Entry,
    ) -> Entry {
        let path = {
            let mut paths = hold(&self.paths);
            paths.found(entry.node, parent, name);
            paths.path_of_name(parent, name)
        };
        self.tell(context, kind, &path, None);
        unkept(entry)
    }

    fn tell_open(&self, context: &Context<'_>, node: NodeId, flags: u32) {
        let reads = flags & libc::O_ACCMODE as u32 == libc::O_RDONLY as u32 && flags & libc::O_TRUNC as u32 == 0;
        self.tell_node(context, if reads { AccessKind::OpenRead } else { AccessKind::OpenWrite }, node);
    }

    fn tell_data(&self, context: &Context<'_>, node: NodeId, handle: HandleId, kind: AccessKind) {
        let is_first = {
            let mut told = hold(&self.told);
            let told = told.entry((node, handle)).or_default();
            let told = if kind == AccessKind::Read { &mut told.read } else { &mut told.written };
            !std::mem::replace(told, true)
        };
        if is_first {
            self.tell_node(context, kind, node);
        }
    }
}

impl<S: AccessSink> FileSystem for Recorder<S> {
    passes_on! {
        below: flush, fsync, sync, seek, open_directory, release_directory, get_xattr, list_xattrs, test_lock, set_lock,
        statistics, interrupted
    }

    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        match self.below.lookup(context, parent, name) {
            Ok(entry) => Ok(self.tell_name(context, AccessKind::Found, (parent, name), entry)),
            Err(errno) => {
                if errno == Errno::NOENT {
                    let path = hold(&self.paths).path_of_name(parent, name);
                    self.tell(context, AccessKind::Absent, &path, None);
                }
                Err(errno)
            }
        }
    }

    fn absence_valid(&self, _: NodeId) -> Duration {
        Duration::ZERO
    }

    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        let entry = self.below.parent(context, node)?;
        hold(&self.paths).counted(entry.node);
        Ok(unkept(entry))
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if hold(&self.paths).forget(node, lookups) {
            hold(&self.told).remove(&(node, HandleId::default()));
        }
        self.below.forget(node, lookups);
    }

    fn disconnected(&self) {
        *hold(&self.paths) = Paths::default();
        hold(&self.told).clear();
        self.below.disconnected();
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        let attributes = self.below.attributes(context, node, handle)?;
        self.tell_node(context, AccessKind::Attributes, node);
        Ok(Attributes { valid: Duration::ZERO, ..attributes })
    }

    fn set_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        let attributes = self.below.set_attributes(context, node, handle, set)?;
        self.tell_node(context, AccessKind::SetAttributes, node);
        Ok(Attributes { valid: Duration::ZERO, ..attributes })
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        let target = self.below.read_link(context, node)?;
        self.tell_node(context, AccessKind::ReadLink, node);
        Ok(target)
    }

    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        let entry = self.below.make_node(context, parent, name, new)?;
        Ok(self.tell_name(context, AccessKind::Create, (parent, name), entry))
    }

    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        let entry = self.below.make_directory(context, parent, name, new)?;
        Ok(self.tell_name(context, AccessKind::Create, (parent, name), entry))
    }

    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        let entry = self.below.make_symlink(context, parent, name, target)?;
        Ok(self.tell_name(context, AccessKind::Create, (parent, name), entry))
    }

    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let entry = self.below.link(context, node, parent, name)?;
        let (from, to) = {
            let mut paths = hold(&self.paths);
            let from = paths.path(node);
            paths.found(entry.node, parent, name);
            (from, paths.path_of_name(parent, name))
        };
        self.tell(context, AccessKind::Link, &from, Some(&to));
        Ok(unkept(entry))
    }

    fn unlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.below.unlink(context, parent, name)?;
        let path = hold(&self.paths).removed(parent, name);
        self.tell(context, AccessKind::Remove, &path, None);
        Ok(())
    }

    fn remove_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.below.remove_directory(context, parent, name)?;
        let path = hold(&self.paths).removed(parent, name);
        self.tell(context, AccessKind::Remove, &path, None);
        Ok(())
    }

    fn rename(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.below.rename(context, parent, name, new_parent, new_name, flags)?;
        let (from, to) = {
            let mut paths = hold(&self.paths);
            let (from, to) = (paths.path_of_name(parent, name), paths.path_of_name(new_parent, new_name));
            paths.renamed((parent, name), (new_parent, new_name), flags & RenameFlags::EXCHANGE.bits() != 0);
            (from, to)
        };
        self.tell(context, AccessKind::Rename, &from, Some(&to));
        Ok(())
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<Opened, Errno> {
        let opened = self.below.open(context, node, flags)?;
        self.tell_open(context, node, flags);
        Ok(opened)
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        let (entry, opened) = self.below.create(context, parent, name, new, flags)?;
        let entry = self.tell_name(context, AccessKind::Create, (parent, name), entry);
        self.tell_open(context, entry.node, flags);
        Ok((entry, opened))
    }

    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        let (entry, opened) = self.below.create_unnamed(context, parent, new, flags)?;
        hold(&self.paths).counted(entry.node);
        Ok((unkept(entry), opened))
    }

    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        let count = self.below.read(context, node, handle, offset, out)?;
        self.tell_data(context, node, handle, AccessKind::Read);
        Ok(count)
    }

    fn write(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        kind: WriteKind,
    ) -> Result<usize, Errno> {
        let count = self.below.write(context, node, handle, offset, data, kind)?;
        self.tell_data(context, node, handle, AccessKind::Write);
        Ok(count)
    }

    fn copy_range(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        let count = self.below.copy_range(context, from, to, length)?;
        self.tell_data(context, from.0, from.1, AccessKind::Read);
        self.tell_data(context, to.0, to.1, AccessKind::Write);
        Ok(count)
    }

    fn fallocate(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<(), Errno> {
        self.below.fallocate(context, node, handle, mode, offset, length)?;
        self.tell_data(context, node, handle, AccessKind::Write);
        Ok(())
    }

    fn set_xattr(
        &self,
        context: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_set_group_id: bool,
    ) -> Result<(), Errno> {
        self.below.set_xattr(context, node, name, value, flags, kill_set_group_id)?;
        self.tell_node(context, AccessKind::SetAttributes, node);
        Ok(())
    }

    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.below.remove_xattr(context, node, name)?;
        self.tell_node(context, AccessKind::SetAttributes, node);
        Ok(())
    }

    fn release(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>) {
        hold(&self.told).remove(&(node, handle));
        self.below.release(node, handle, owner);
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        if offset == 0 {
            self.tell_node(context, AccessKind::List, node);
        }
        // Where they lead is remembered. Nobody has looked for them yet.
        let mut seen = PassingOn::to(sink, |sink, entry| {
            let pushed = sink.push(&DirectoryEntry { entry: entry.entry.map(unkept), ..*entry });
            if let Some(found) = entry.entry.filter(|_| pushed) {
                hold(&self.paths).found(found.node, node, entry.name);
            }
            pushed
        });
        self.below.read_directory(context, node, handle, offset, &mut seen)
    }

    fn host_file(&self, _: NodeId, _: HandleId) -> Option<Arc<OwnedFd>> {
        None
    }
}
