//! The trait between wires and layers.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::{
    Attributes, Context, DirectoryEntry, Entry, HandleId, Lock, LockOwner, NewNode, NodeId, Opened, SetAttributes,
    Statistics, WriteKind,
};

/// Takes the entries of a directory until a client's buffer is full.
pub trait DirectorySink {
    /// Whether entries should say where they lead, which counts as a lookup of each. Where one does not, its name can be
    /// looked up.
    fn wants_entries(&self) -> bool;

    /// Whether there is room for an entry with a name of so many bytes: asked before a lookup is made that could not be
    /// told of.
    fn has_room(&self, name: usize) -> bool;

    /// Adds an entry; false if there is no room for it, nor for any further one.
    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool;
}

/// A file system. Called from several threads at once.
///
/// A method that neither it nor what is [below](FileSystem::below) it implements gives `ENOSYS`, which a wire may take as
/// true for ever. Names are one component;
/// implementations check them ([`check_name`](crate::check_name)). A node that was forgotten, or never given, is
/// answered with `ESTALE`, an unknown handle with `EBADF`: both numbers come from guests.
pub trait FileSystem: Send + Sync + 'static {
    /// The file system that this one is a layer over. What a layer does not implement itself is done by what is below it.
    fn below(&self) -> Option<&dyn FileSystem> {
        None
    }

    /// The node with `name` in directory `parent`.
    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.below().ok_or(Errno::NOSYS)?.lookup(context, parent, name)
    }

    /// For how long a name that was not found in `parent` need not be looked up again; zero: it must be.
    fn absence_valid(&self, parent: NodeId) -> Duration {
        self.below().map_or(Duration::ZERO, |below| below.absence_valid(parent))
    }

    /// The directory that directory `node` lies in; of the root, the root. Counts as a lookup.
    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        self.below().ok_or(Errno::NOSYS)?.parent(context, node)
    }

    /// A client takes back `lookups` of the node. More than there were are as many as there were.
    fn forget(&self, node: NodeId, lookups: u64) {
        if let Some(below) = self.below() {
            below.forget(node, lookups);
        }
    }

    /// The client is gone, or starts anew: every lookup is taken back, and what is open is closed. Requests of its that
    /// are still being executed may fail with `ESTALE` or `EBADF`.
    fn disconnected(&self) {
        if let Some(below) = self.below() {
            below.disconnected();
        }
    }

    /// A node's attributes.
    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        self.below().ok_or(Errno::NOSYS)?.attributes(context, node, handle)
    }

    /// Sets attributes and gives all of them.
    fn set_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        self.below().ok_or(Errno::NOSYS)?.set_attributes(context, node, handle, set)
    }

    /// A symbolic link's target.
    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.below().ok_or(Errno::NOSYS)?.read_link(context, node)
    }

    /// Makes a file that is not opened, a fifo, a socket or a device node.
    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        self.below().ok_or(Errno::NOSYS)?.make_node(context, parent, name, new)
    }

    /// Makes a directory.
    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        self.below().ok_or(Errno::NOSYS)?.make_directory(context, parent, name, new)
    }

    /// Makes a symbolic link.
    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        self.below().ok_or(Errno::NOSYS)?.make_symlink(context, parent, name, target)
    }

    /// Gives `node` a further name. Counts as a lookup.
    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.below().ok_or(Errno::NOSYS)?.link(context, node, parent, name)
    }

    /// Removes the name of something that is no directory. What is open stays usable.
    fn unlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.unlink(context, parent, name)
    }

    /// Removes an empty directory.
    fn remove_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.remove_directory(context, parent, name)
    }

    /// Gives what has a name another one; `flags` are those of renameat2(2).
    fn rename(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.rename(context, parent, name, new_parent, new_name, flags)
    }

    /// Opens a file; `flags` are those of open(2), without `O_CREAT` and `O_EXCL`. `ENOSYS`: there is no need to open
    /// anything, requests carry the default handle.
    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<Opened, Errno> {
        self.below().ok_or(Errno::NOSYS)?.open(context, node, flags)
    }

    /// Makes a regular file and opens it; `flags` are those of open(2). `EEXIST` if something has that name, with or
    /// without `O_EXCL`: whether the caller may open that is checked by who checks callers, after looking it up.
    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        self.below().ok_or(Errno::NOSYS)?.create(context, parent, name, new, flags)
    }

    /// Makes a regular file without a name (`O_TMPFILE`) on the file system of directory `parent`, and opens it.
    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        self.below().ok_or(Errno::NOSYS)?.create_unnamed(context, parent, new, flags)
    }

    /// Fills `out`, one slice after the other, with a file's bytes from `offset`; gives how many there are, fewer only at
    /// its end.
    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        self.below().ok_or(Errno::NOSYS)?.read(context, node, handle, offset, out)
    }

    /// Writes the slices, one after the other, to a file from `offset` on; gives how many bytes of them.
    fn write(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        kind: WriteKind,
    ) -> Result<usize, Errno> {
        self.below().ok_or(Errno::NOSYS)?.write(context, node, handle, offset, data, kind)
    }

    /// Copies as copy_file_range(2), within this file system. `from` and `to` are node, handle and offset.
    fn copy_range(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        self.below().ok_or(Errno::NOSYS)?.copy_range(context, from, to, length)
    }

    /// A descriptor of the file was closed; others may be open. Locks of `owner` as fcntl(2) has them end.
    fn flush(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: Option<LockOwner>,
    ) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.flush(context, node, handle, owner)
    }

    /// Makes a file's or, with a directory's handle, a directory's changes durable; with `data_only` not those of
    /// attributes that reading does without.
    fn fsync(&self, context: &Context<'_>, node: NodeId, handle: HandleId, data_only: bool) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.fsync(context, node, handle, data_only)
    }

    /// Makes everything durable, as syncfs(2).
    fn sync(&self, context: &Context<'_>) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.sync(context)
    }

    /// As fallocate(2) with `mode`.
    fn fallocate(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.fallocate(context, node, handle, mode, offset, length)
    }

    /// As lseek(2) with `SEEK_DATA` or `SEEK_HOLE`.
    fn seek(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        self.below().ok_or(Errno::NOSYS)?.seek(context, node, handle, offset, whence)
    }

    /// A file is no longer open. Locks of `owner` as flock(2) has them end.
    fn release(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>) {
        if let Some(below) = self.below() {
            below.release(node, handle, owner);
        }
    }

    /// Opens a directory. `ENOSYS`: there is no need to.
    fn open_directory(&self, context: &Context<'_>, node: NodeId) -> Result<Opened, Errno> {
        self.below().ok_or(Errno::NOSYS)?.open_directory(context, node)
    }

    /// Adds a directory's entries to `sink`, from `offset` (0, or an entry's `next`) on, until it is full. Entries that
    /// stay are seen once, whatever is added and removed meanwhile.
    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.read_directory(context, node, handle, offset, sink)
    }

    /// A directory is no longer open.
    fn release_directory(&self, node: NodeId, handle: HandleId) {
        if let Some(below) = self.below() {
            below.release_directory(node, handle);
        }
    }

    /// An extended attribute's value.
    fn get_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.below().ok_or(Errno::NOSYS)?.get_xattr(context, node, name)
    }

    /// The names of the extended attributes, each with a NUL behind it.
    fn list_xattrs(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.below().ok_or(Errno::NOSYS)?.list_xattrs(context, node)
    }

    /// Sets an extended attribute; `flags` are those of setxattr(2). `kill_set_group_id`: clear that bit, as setting an
    /// ACL without privilege does.
    fn set_xattr(
        &self,
        context: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_set_group_id: bool,
    ) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.set_xattr(context, node, name, value, flags, kill_set_group_id)
    }

    /// Removes an extended attribute.
    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.remove_xattr(context, node, name)
    }

    /// A lock that stands against `lock`, or none.
    fn test_lock(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
    ) -> Result<Option<Lock>, Errno> {
        self.below().ok_or(Errno::NOSYS)?.test_lock(context, node, handle, owner, lock)
    }

    /// Takes or gives back a lock; `EAGAIN` if another one stands against it, unless it is to `wait`.
    fn set_lock(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        self.below().ok_or(Errno::NOSYS)?.set_lock(context, node, handle, owner, lock, wait)
    }

    /// The file system's numbers.
    fn statistics(&self, context: &Context<'_>, node: NodeId) -> Result<Statistics, Errno> {
        self.below().ok_or(Errno::NOSYS)?.statistics(context, node)
    }

    /// The host's file that holds the node's content byte for byte, opened as `handle` is, for a kernel that can read
    /// and write it without asking; none if there is no such file. One node has one such file while any handle is open.
    fn host_file(&self, node: NodeId, handle: HandleId) -> Option<Arc<OwnedFd>> {
        self.below()?.host_file(node, handle)
    }

    /// A request was interrupted: those that wait look at their [`Context`] again.
    fn interrupted(&self) {
        if let Some(below) = self.below() {
            below.interrupted();
        }
    }
}
