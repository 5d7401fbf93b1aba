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
/// Every method is to be decided by each layer, so that none is passed on by a layer that ought to do something about it, and
/// nobody has forgotten to pass one on: what a layer leaves to the one below it lists in [`passes_on!`](crate::passes_on), and
/// what a file system has no use for in [`not_supported!`](crate::not_supported). The latter gives `ENOSYS`, which a wire may
/// take as true for ever.
///
/// ```
/// # use inarch_vfs::{FileSystem, not_supported, passes_on};
/// struct Layer<F>(F);
/// struct OverIt<F> { below: F }
/// # macro_rules! rest { ($list:ident! { $($first:tt)* }) => { $list! { $($first)* lookup, absence_valid, parent, forget,
/// #     disconnected, attributes, peek_attributes, set_attributes, read_link, make_node, make_directory, make_symlink, link, unlink,
/// #     remove_directory, rename, open, create, create_unnamed, read, write, copy_range, flush, fsync, sync, fallocate, seek,
/// #     release, open_directory, read_directory, release_directory, get_xattr, list_xattrs, set_xattr, remove_xattr, test_lock,
/// #     set_lock, statistics, host_file } } }
/// impl<F: Send + Sync + 'static> FileSystem for Layer<F> {
///     not_supported! { interrupted }
/// #   rest! { not_supported! {} }
/// }
/// impl<F: FileSystem> FileSystem for OverIt<F> {
///     passes_on! { below: interrupted }
/// #   rest! { passes_on! { below: } }
/// }
/// ```
/// A method that nobody has decided:
/// ```compile_fail,E0046
/// # use inarch_vfs::{FileSystem, not_supported, passes_on};
/// # macro_rules! rest { ($list:ident! { $($first:tt)* }) => { $list! { $($first)* lookup, absence_valid, parent, forget,
/// #     disconnected, attributes, peek_attributes, set_attributes, read_link, make_node, make_directory, make_symlink, link, unlink,
/// #     remove_directory, rename, open, create, create_unnamed, read, write, copy_range, flush, fsync, sync, fallocate, seek,
/// #     release, open_directory, read_directory, release_directory, get_xattr, list_xattrs, set_xattr, remove_xattr, test_lock,
/// #     set_lock, statistics, host_file } } }
/// struct OverIt<F> { below: F }
/// impl<F: FileSystem> FileSystem for OverIt<F> {
/// #   rest! { passes_on! { below: } }
/// }
/// ```
///
/// Names are one component; implementations check them ([`check_name`](crate::check_name)). A node that was forgotten, or never
/// given, is answered with `ESTALE`, an unknown handle with `EBADF`: both numbers come from guests.
pub trait FileSystem: Send + Sync + 'static {
    /// The node with `name` in directory `parent`.
    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno>;

    /// For how long a name that was not found in `parent` need not be looked up again; zero: it must be.
    fn absence_valid(&self, parent: NodeId) -> Duration;

    /// The directory that directory `node` lies in; of the root, the root. Counts as a lookup.
    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno>;

    /// A client takes back `lookups` of the node. More than there were are as many as there were.
    fn forget(&self, node: NodeId, lookups: u64);

    /// The client is gone, or starts anew: every lookup is taken back, and what is open is closed. Requests of its that
    /// are still being executed may fail with `ESTALE` or `EBADF`.
    fn disconnected(&self);

    /// A node's attributes.
    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno>;

    /// The same for the server itself: the client is told nothing by it, and decides nothing by them.
    fn peek_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<Attributes, Errno>;

    /// Sets attributes and gives all of them.
    fn set_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno>;

    /// A symbolic link's target.
    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Makes a file that is not opened, a fifo, a socket or a device node.
    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno>;

    /// Makes a directory.
    fn make_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode)
    -> Result<Entry, Errno>;

    /// Makes a symbolic link.
    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno>;

    /// Gives `node` a further name. Counts as a lookup.
    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno>;

    /// Removes the name of something that is no directory. What is open stays usable.
    fn unlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn remove_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// Gives what has a name another one; `flags` are those of renameat2(2).
    fn rename(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno>;

    /// Opens a file; `flags` are those of open(2), without `O_CREAT` and `O_EXCL`, or
    /// [`OPEN_TO_EXECUTE`](crate::OPEN_TO_EXECUTE). `ENOSYS`: there is no need to open anything, requests carry the default
    /// handle.
    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<Opened, Errno>;

    /// Makes a regular file and opens it; `flags` are those of open(2). `EEXIST` if something has that name, with or
    /// without `O_EXCL`: whether the caller may open that is checked by who checks callers, after looking it up.
    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno>;

    /// Makes a regular file without a name (`O_TMPFILE`) on the file system of directory `parent`, and opens it.
    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno>;

    /// Fills `out`, one slice after the other, with a file's bytes from `offset`; gives how many there are, fewer only at
    /// its end.
    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno>;

    /// Writes the slices, one after the other, to a file from `offset` on; gives how many bytes of them.
    fn write(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        kind: WriteKind,
    ) -> Result<usize, Errno>;

    /// Copies as copy_file_range(2), within this file system. `from` and `to` are node, handle and offset.
    fn copy_range(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno>;

    /// A descriptor of the file was closed; others may be open. Locks of `owner` as fcntl(2) has them end.
    fn flush(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: Option<LockOwner>,
    ) -> Result<(), Errno>;

    /// Makes a file's or, with a directory's handle, a directory's changes durable; with `data_only` not those of
    /// attributes that reading does without.
    fn fsync(&self, context: &Context<'_>, node: NodeId, handle: HandleId, data_only: bool) -> Result<(), Errno>;

    /// Makes everything durable, as syncfs(2).
    fn sync(&self, context: &Context<'_>) -> Result<(), Errno>;

    /// As fallocate(2) with `mode`.
    fn fallocate(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<(), Errno>;

    /// As lseek(2) with `SEEK_DATA` or `SEEK_HOLE`.
    fn seek(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno>;

    /// A file is no longer open. Locks of `owner` as flock(2) has them end.
    fn release(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>);

    /// Opens a directory. `ENOSYS`: there is no need to.
    fn open_directory(&self, context: &Context<'_>, node: NodeId) -> Result<Opened, Errno>;

    /// Adds a directory's entries to `sink`, from `offset` (0, or an entry's `next`) on, until it is full. Entries that
    /// stay are seen once, whatever is added and removed meanwhile.
    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno>;

    /// A directory is no longer open.
    fn release_directory(&self, node: NodeId, handle: HandleId);

    /// An extended attribute's value.
    fn get_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// The names of the extended attributes, each with a NUL behind it.
    fn list_xattrs(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno>;

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
    ) -> Result<(), Errno>;

    /// Removes an extended attribute.
    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// A lock that stands against `lock`, or none.
    fn test_lock(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
    ) -> Result<Option<Lock>, Errno>;

    /// Takes or gives back a lock; `EAGAIN` if another one stands against it, unless it is to `wait`.
    fn set_lock(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
        wait: bool,
    ) -> Result<(), Errno>;

    /// The file system's numbers.
    fn statistics(&self, context: &Context<'_>, node: NodeId) -> Result<Statistics, Errno>;

    /// The host's file that holds the node's content byte for byte, opened as `handle` is, for a kernel that can read
    /// and write it without asking; none if there is no such file. One node has one such file while any handle is open.
    fn host_file(&self, node: NodeId, handle: HandleId) -> Option<Arc<OwnedFd>>;

    /// A request was interrupted: those that wait look at their [`Context`] again.
    fn interrupted(&self);
}
