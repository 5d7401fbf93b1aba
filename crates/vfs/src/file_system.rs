//! [`FileSystem`]: the trait that file systems implement and wires call.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::{
    Attributes, Context, DirectoryEntry, Entry, HandleId, Lock, LockOwner, NewNode, NodeId, OpenHandle, SetAttributes,
    Statistics, WriteKind,
};

/// Collects the entries of a directory until a client's buffer is full.
pub trait DirectorySink {
    /// Whether entries should carry their node, which counts as one look-up each. An entry without a node can still
    /// be looked up by name.
    fn wants_entries(&self) -> bool;

    /// Whether an entry with a name of this length fits. Ask before a look-up whose result might not fit.
    fn has_room(&self, name: usize) -> bool;

    /// Adds an entry. Returns false if there is no room for it, nor for any other.
    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool;
}

/// A live file system. Several threads call it at once.
///
/// An adapter decides every method, so that none is passed on by oversight: it implements the method, lists it in
/// [`passes_on!`](crate::passes_on), or lists it in [`not_supported!`](crate::not_supported). The latter returns
/// `ENOSYS`, which a wire may treat as permanent.
///
/// ```
/// # use inarch_vfs::{FileSystem, not_supported, passes_on};
/// struct Layer<F>(F);
/// struct OverIt<F> { below: F }
/// # macro_rules! rest { ($list:ident! { $($first:tt)* }) => { $list! { $($first)* lookup, absence_valid, parent, forget,
/// #     disconnected, attributes, peek_attributes, is_contested, set_attributes, read_link, make_node, make_directory, make_symlink, link, unlink,
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
/// A method that is not decided does not compile:
/// ```compile_fail,E0046
/// # use inarch_vfs::{FileSystem, not_supported, passes_on};
/// # macro_rules! rest { ($list:ident! { $($first:tt)* }) => { $list! { $($first)* lookup, absence_valid, parent, forget,
/// #     disconnected, attributes, peek_attributes, is_contested, set_attributes, read_link, make_node, make_directory, make_symlink, link, unlink,
/// #     remove_directory, rename, open, create, create_unnamed, read, write, copy_range, flush, fsync, sync, fallocate, seek,
/// #     release, open_directory, read_directory, release_directory, get_xattr, list_xattrs, set_xattr, remove_xattr, test_lock,
/// #     set_lock, statistics, host_file } } }
/// struct OverIt<F> { below: F }
/// impl<F: FileSystem> FileSystem for OverIt<F> {
/// #   rest! { passes_on! { below: } }
/// }
/// ```
///
/// Each name is one component; implementations check it ([`check_name`](crate::check_name)). Node and handle numbers
/// come from guests: return `ESTALE` for a node that was forgotten or never given out, `EBADF` for an unknown handle.
pub trait FileSystem: Send + Sync + 'static {
    /// Looks up `name` in the directory `parent`.
    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno>;

    /// The TTL of negative entries in `parent`; zero if they must not be cached.
    fn absence_valid(&self, parent: NodeId) -> Duration;

    /// The parent of the directory `node`; the root's parent is the root. Counts as a look-up.
    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno>;

    /// The client drops `lookups` look-ups of the node. A larger number than it has counts as all of them.
    fn forget(&self, node: NodeId, lookups: u64);

    /// The client is gone or starts anew: drops all look-ups and closes everything that is open. Requests in flight
    /// may fail with `ESTALE` or `EBADF`.
    fn disconnected(&self);

    /// A node's attributes.
    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno>;

    /// Like `attributes`, but for the server itself: neither the client nor its cached permissions are affected.
    fn peek_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<Attributes, Errno>;

    /// Whether the owner or the permissions of a node changed behind the back of a client's kernel, which may go on
    /// deciding by the old ones. The host changed them while the client knew the node: Linux drops an answer that
    /// another one overtook (`fuse_change_attributes` of its fs/fuse/inode.c). Or the client changed them by an ACL:
    /// Linux takes note of that only where it enforces ACLs (`fuse_setxattr` of its fs/fuse/xattr.c).
    fn is_contested(&self, node: NodeId) -> bool;

    /// Sets attributes and returns all of them.
    fn set_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno>;

    /// A symbolic link's target.
    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Makes a file without opening it, a FIFO, a socket or a device node.
    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno>;

    /// Makes a directory.
    fn make_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode)
    -> Result<Entry, Errno>;

    /// Makes a symbolic link.
    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno>;

    /// Gives `node` an additional name. Counts as a look-up.
    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno>;

    /// Removes a name that is not a directory's. Open files stay usable.
    fn unlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn remove_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno>;

    /// Renames; `flags` are those of renameat2(2).
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
    /// [`OPEN_TO_EXECUTE`](crate::OPEN_TO_EXECUTE). `ENOSYS` means that files need no open, and requests use the default handle.
    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno>;

    /// Creates a regular file and opens it; `flags` are those of open(2). Returns `EEXIST` if the name exists, with
    /// or without `O_EXCL`: a caller that checks permissions must look the name up first.
    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno>;

    /// Creates a regular file without a name (`O_TMPFILE`) on the file system of the directory `parent`, and opens
    /// it.
    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno>;

    /// Reads a file from `offset` into the slices of `out`, in order. Returns the number of bytes, which is smaller
    /// than requested only at the end of the file.
    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno>;

    /// Writes the slices, in order, to a file from `offset`. Returns the number of bytes written.
    fn write(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        kind: WriteKind,
    ) -> Result<usize, Errno>;

    /// copy_file_range(2) within this file system. `from` and `to` are node, handle and offset.
    fn copy_range(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno>;

    /// A descriptor of the file was closed; others may be open. Drops the fcntl(2) locks of `owner`.
    fn flush(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: Option<LockOwner>,
    ) -> Result<(), Errno>;

    /// Syncs a file, or a directory by its handle. With `data_only`, skips attributes that reading does not need.
    fn fsync(&self, context: &Context<'_>, node: NodeId, handle: HandleId, data_only: bool) -> Result<(), Errno>;

    /// syncfs(2).
    fn sync(&self, context: &Context<'_>) -> Result<(), Errno>;

    /// fallocate(2) with `mode`.
    fn fallocate(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<(), Errno>;

    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`.
    fn seek(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno>;

    /// The last descriptor of a handle was closed. Drops the flock(2) locks of `owner`.
    fn release(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>);

    /// Opens a directory. `ENOSYS` means that directories need no open.
    fn open_directory(&self, context: &Context<'_>, node: NodeId) -> Result<OpenHandle, Errno>;

    /// Adds a directory's entries to `sink` until it is full, from `offset` on: 0, or the `next` of an entry. Entries
    /// that persist appear exactly once, whatever is added or removed meanwhile.
    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno>;

    /// Closes a directory.
    fn release_directory(&self, node: NodeId, handle: HandleId);

    /// An extended attribute's value.
    fn get_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// The names of the extended attributes, each followed by a NUL.
    fn list_xattrs(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Sets an extended attribute; `flags` are those of setxattr(2). `kill_set_group_id` clears that bit, as for an
    /// unprivileged change of an ACL.
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

    /// Returns a lock that conflicts with `lock`, if there is one.
    fn test_lock(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
    ) -> Result<Option<Lock>, Errno>;

    /// Takes or releases a lock. Returns `EAGAIN` on a conflict, unless told to `wait`.
    fn set_lock(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
        wait: bool,
    ) -> Result<(), Errno>;

    /// File system statistics.
    fn statistics(&self, context: &Context<'_>, node: NodeId) -> Result<Statistics, Errno>;

    /// The host file that holds the node's content byte for byte, opened like `handle`, for passthrough. `None` if
    /// there is no such file. All open handles of a node have the same host file.
    fn host_file(&self, node: NodeId, handle: HandleId) -> Option<Arc<OwnedFd>>;

    /// A request was interrupted: wake those that wait, so that they check their [`Context`].
    fn interrupted(&self);
}
