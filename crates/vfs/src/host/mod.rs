//! Offers a directory of this host, live.
//!
//! The server never gives the kernel a path of more than one component: every call names an open descriptor and at
//! most one checked name in it, and follows no symbolic link. What a client knows is in a table ([`table`]). A node's
//! file is reached, in this order (see [`reach`]), through
//!
//! 1. an open or cached descriptor: directories and recently used files have one, within a bound;
//! 2. a file handle, where the kernel permits them: taken when a directory's descriptor is evicted;
//! 3. its parent directory and name, followed by a comparison with the node's device, inode number, creation time and
//!    type. Another file in its place is `ESTALE`.
//!
//! So the number of descriptors does not grow with the number of nodes, and most requests are one system call. Only
//! regular files and directories are opened for more than their attributes, and only through a descriptor whose type
//! is known. So a device or FIFO that replaces a file at the wrong moment is not opened.
//!
//! The client's kernel checks permissions (`default_permissions`). New files belong to the caller if the server may
//! create files for others ([`caller`]).

mod ahead;
mod attributes;
mod caller;
mod descriptor_cache;
mod directories;
mod files;
mod handle;
mod locks;
mod mounts;
mod names;
mod privileges;
mod reach;
mod system_calls;
mod table;
#[cfg(test)]
mod tests;
mod unchanged;
mod xattrs;

use std::hash::RandomState;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, openat};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::{
    Attributes, Caching, Context, DescriptorShare, DirectorySink, Entry, FileSystem, HandleId, Lock, LockOwner,
    NewNode, NodeId, OpenHandle, SetAttributes, Statistics, WriteKind, descriptor_limit, hold, not_supported,
};
pub use attributes::is_shown_as;
pub use caller::may_open_every_file;
use handle::FileHandle;
pub use mounts::Submounts;
pub use privileges::Refused;
pub(crate) use table::Permissions;
use table::{Found, Table};

/// Who may change the tree while it is offered. This determines TTLs and caching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Changes {
    /// Only the client: everything is cached for a day.
    Guest,
    /// Anybody: names and attributes have a TTL of one second. At an open, a client keeps cached content and listings
    /// if nothing can have changed them since the open before ([`unchanged`]), and a listing only where that saves
    /// requests.
    #[default]
    Host,
    /// Nobody: everything is cached for good, files need no open, and changes are refused.
    None,
}

impl Changes {
    /// The TTL of attributes, names and negative entries.
    pub(crate) fn valid(self) -> Duration {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        match self {
            Changes::Guest => DAY,
            Changes::Host => Duration::from_secs(1),
            Changes::None => DAY.saturating_mul(365),
        }
    }

    fn caching(self) -> Caching {
        match self {
            Changes::Host => Caching::Fresh,
            Changes::Guest | Changes::None => Caching::Keep,
        }
    }
}

/// How to offer a directory.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions {
    /// Who may change it.
    pub changes: Changes,
    /// Clients cache nothing: names and attributes have no TTL, and each read is a request. Only with [`Changes::Host`].
    pub uncached: bool,
    /// Refuse changes.
    pub read_only: bool,
    /// What clients may not leave in it.
    pub refused: Refused,
    /// How to show mounts inside it.
    pub submounts: Submounts,
    /// Whether clients use a write-back cache: then a file opened for writing must be readable too.
    pub writeback: bool,
    /// Files need no open, which saves a client two requests for each use. Only for a server that [may open every
    /// file](crate::may_open_every_file) at any time, with [`Changes::Guest`]. With [`Changes::None`] this is always
    /// so.
    pub without_opening: bool,
    /// Clients open directories by requests even with [`Changes::Guest`]. Then the server can invalidate a cached
    /// listing, and one READDIRPLUS refreshes attributes that Linux's client would otherwise ask for one by one after
    /// reading files. Worth it where requests are expensive.
    pub opens_directories: bool,
    /// Whether locks are taken on the host's files, where the host and other clients see them. Otherwise locking
    /// returns `ENOSYS`, and the client's kernel keeps its locks itself.
    pub locks: bool,
    /// The smallest file for which [`host_file`](FileSystem::host_file) enables passthrough when it is opened
    /// read-only: the setup costs more than a few requests.
    pub host_files_from: u64,
    /// The most descriptors to use. By default the process's limit (`RLIMIT_NOFILE`) minus a reserve.
    pub descriptors: Option<usize>,
}

impl HostOptions {
    /// A good [`host_files_from`](HostOptions::host_files_from) for FUSE passthrough, in bytes. To give a file to the kernel and to take it
    /// back are two system calls, which take as long as reading this much through the server.
    pub const PASSTHROUGH_FROM: u64 = 256 << 10;

    /// The TTL of attributes, names and negative entries.
    fn valid(&self) -> Duration {
        if self.uncached { Duration::ZERO } else { self.changes.valid() }
    }

    /// What a client does with the cached content of a file that it opens.
    fn caching(&self) -> Caching {
        if self.uncached { Caching::Direct } else { self.changes.caching() }
    }
}

/// An error about the offered directory.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct HostError {
    /// The path.
    pub path: PathBuf,
    /// The error.
    pub error: std::io::Error,
}

/// A live directory of this host. See the module.
#[derive(Debug)]
pub struct HostDirectory {
    options: HostOptions,
    /// The root, opened so that file handles of its mount work.
    root: Arc<OwnedFd>,
    root_device: u64,
    root_mount: u64,
    /// The flags for statx(2).
    stat_flags: AtFlags,
    /// See [`HostDirectory::leave_servers_alone`].
    mounts_at_rest: AtomicBool,
    /// The file systems in which files have no creation times, and whether there are any.
    birthless: RwLock<Vec<u64>>,
    has_birthless: AtomicBool,
    /// `/proc/self/fd`, to reopen a cached descriptor for reading or writing.
    descriptors: OwnedFd,
    /// Whether the kernel permits opening by file handle.
    handles_work: bool,
    /// Whether new files can belong to the caller.
    for_others: bool,
    /// Never locked during a system call.
    table: RwLock<Table>,
    /// Write-locked during a rename, so that a request that did not find a node can wait for it.
    renaming: RwLock<()>,
    open: RwLock<files::OpenFiles>,
    streams: Mutex<directories::Streams>,
    ahead: ahead::Ahead,
    locks: locks::Locks,
    /// The most descriptors that keep removed files open which clients still use.
    most_pins: usize,
    devices: RwLock<Vec<u64>>,
    /// The age at which a last change is settled: a later change always shows in the times (see [`unchanged`]).
    settled: Duration,
    /// When the server started.
    started: Instant,
    /// Whether a client lists directories with their entries' attributes.
    lists_attributes: AtomicBool,
    stamps: RandomState,
    /// The descriptors of this client, if the server has several.
    share: Option<DescriptorShare>,
}

impl HostDirectory {
    /// Offers the directory at `path`, following symbolic links in the path.
    pub fn new(path: &Path, options: HostOptions) -> Result<HostDirectory, HostError> {
        let failed = |errno: Errno| HostError { path: path.to_owned(), error: errno.into() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(rustix::fs::CWD, path, flags, Mode::empty()).map_err(failed)?;
        HostDirectory::of(root, options).map_err(failed)
    }

    /// Sets whether to show attributes as this machine's kernel has them cached, without contacting the server of a
    /// network file system or of FUSE: a server that does not answer would block the request. A look-up of such a file
    /// system's root needs no more than the cached attributes.
    pub fn leave_servers_alone(&self, alone: bool) {
        self.mounts_at_rest.store(alone, Ordering::Relaxed);
    }

    fn of(root: OwnedFd, mut options: HostOptions) -> Result<HostDirectory, Errno> {
        options.read_only |= options.changes == Changes::None;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = openat(rustix::fs::CWD, "/proc/self/fd", flags, Mode::empty())?;
        let stat = attributes::stat(root.as_fd(), b"", AtFlags::empty())?;
        let (identity, permissions) = (attributes::identity(&stat), attributes::permissions(&stat));
        let found = Found { identity, on_root_mount: true, is_closed: false, permissions };
        let limit = options.descriptors.unwrap_or_else(descriptor_limit);
        let kept = (limit / 4).clamp(16, 1 << 16);
        let handles_work = FileHandle::of(root.as_fd())
            .and_then(|handle| handle.open(root.as_fd(), OFlags::PATH | OFlags::CLOEXEC))
            .is_ok();
        let stat_flags = mounts::stat_flags(root.as_fd(), options.submounts);
        Ok(HostDirectory {
            options,
            stat_flags,
            mounts_at_rest: AtomicBool::new(false),
            birthless: RwLock::default(),
            has_birthless: AtomicBool::new(false),
            root: Arc::new(root),
            root_device: found.identity.device,
            root_mount: stat.stx_mnt_id,
            descriptors,
            handles_work,
            for_others: caller::may_act_for_others(),
            table: RwLock::new(Table::new(found, kept, kept)),
            renaming: RwLock::new(()),
            open: RwLock::new(files::OpenFiles::new(limit / 3)),
            streams: Mutex::new(directories::Streams::default()),
            ahead: ahead::Ahead::new(ahead::Bounds::default(), stat_flags),
            locks: locks::Locks::new(limit / 12),
            most_pins: limit / 12,
            devices: RwLock::new(Vec::new()),
            settled: unchanged::SETTLED,
            started: Instant::now(),
            lists_attributes: AtomicBool::new(false),
            stamps: RandomState::new(),
            share: None,
        })
    }

    /// Holds `share`, the descriptors that it was made for ([`HostOptions::descriptors`]), until it is dropped.
    pub fn holding(mut self, share: DescriptorShare) -> HostDirectory {
        self.share = Some(share);
        self
    }

    /// Whether files are opened before use.
    fn opens_files(&self) -> bool {
        !self.options.without_opening && self.options.changes != Changes::None
    }

    /// Whether listings refresh attributes that the client has lost (see [`crate::accessed`]).
    fn tells_again(&self) -> bool {
        self.options.opens_directories && self.options.changes == Changes::Guest
    }

    /// Records that the client read or wrote a node.
    fn accessed(&self, node: NodeId) {
        if self.tells_again() {
            let table = read(&self.table);
            let _ = table.index(node).map(|index| table.accessed(index));
        }
    }

    /// Records that the client got a node's attributes.
    fn told(&self, node: NodeId) {
        if self.tells_again() {
            let table = read(&self.table);
            let _ = table.index(node).map(|index| table.told(index));
        }
    }

    fn writable(&self) -> Result<(), Errno> {
        if self.options.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }
}

/// A lock protects bookkeeping only, which a panic elsewhere leaves intact.
fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl FileSystem for HostDirectory {
    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.look_up(context, parent, name)
    }

    fn absence_valid(&self, _: NodeId) -> Duration {
        self.options.valid()
    }

    fn parent(&self, _: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        self.look_up_parent(node)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let dropped = write(&self.table).forget(node, lookups);
        drop(dropped);
    }

    fn disconnected(&self) {
        let open = write(&self.open).clear();
        let nodes = write(&self.table).clear();
        let streams = std::mem::take(&mut *hold(&self.streams));
        self.locks.end_all();
        self.ahead.clear();
        drop((open, nodes, streams));
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        let attributes = self.get_attributes(node, handle)?;
        self.told(node);
        Ok(attributes)
    }

    fn peek_attributes(&self, _: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        self.peek(node, handle)
    }

    fn is_contested(&self, node: NodeId) -> bool {
        let table = read(&self.table);
        let node = table.index(node).and_then(|index| table.node(index));
        node.is_ok_and(|node| node.is_contested(self.options.changes == Changes::Host))
    }

    fn set_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        self.writable()?;
        let attributes = self.change_attributes(context, node, handle, set)?;
        self.told(node);
        Ok(attributes)
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        let target = self.link_target(node)?;
        self.accessed(node);
        Ok(target)
    }

    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        self.writable()?;
        self.make_special(context, parent, name, new)
    }

    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        self.writable()?;
        self.make_subdirectory(context, parent, name, new)
    }

    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        self.writable()?;
        self.make_link_to(context, parent, name, target)
    }

    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.writable()?;
        self.add_name(context, node, parent, name)
    }

    fn unlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.writable()?;
        self.remove_name(context, parent, name, false)
    }

    fn remove_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.writable()?;
        self.remove_name(context, parent, name, true)
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
        self.writable()?;
        self.move_name(context, (parent, name), (new_parent, new_name), flags)
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        self.open_file(context, node, flags)
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        self.writable()?;
        self.create_file(context, parent, name, new, flags)
    }

    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        self.writable()?;
        self.create_nameless_file(context, parent, new, flags)
    }

    fn read(
        &self,
        _: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        let length = self.read_file(node, handle, offset, out)?;
        self.accessed(node);
        Ok(length)
    }

    fn write(
        &self,
        _: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        kind: WriteKind,
    ) -> Result<usize, Errno> {
        let length = self.write_file(node, handle, offset, data, kind)?;
        self.accessed(node);
        Ok(length)
    }

    fn copy_range(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        self.copy_between_files(context, from, to, length)
    }

    fn flush(&self, _: &Context<'_>, node: NodeId, handle: HandleId, owner: Option<LockOwner>) -> Result<(), Errno> {
        self.close_descriptor(node, handle, owner)
    }

    fn fsync(&self, _: &Context<'_>, node: NodeId, handle: HandleId, data_only: bool) -> Result<(), Errno> {
        self.make_durable(node, handle, data_only)
    }

    fn sync(&self, _: &Context<'_>) -> Result<(), Errno> {
        rustix::fs::syncfs(&self.root)
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
        self.writable()?;
        self.allocate(context, node, handle, mode, offset, length)
    }

    fn seek(&self, _: &Context<'_>, node: NodeId, handle: HandleId, offset: u64, whence: u32) -> Result<u64, Errno> {
        self.find_data_or_hole(node, handle, offset, whence)
    }

    fn release(&self, node: NodeId, handle: HandleId, _: Option<LockOwner>) {
        if self.options.locks {
            self.locks.release(node, handle);
        }
        self.close_file(node, handle);
    }

    fn open_directory(&self, context: &Context<'_>, node: NodeId) -> Result<OpenHandle, Errno> {
        self.open_stream(context, node)
    }

    fn read_directory(
        &self,
        _: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        self.list(node, handle, offset, sink)
    }

    fn release_directory(&self, node: NodeId, handle: HandleId) {
        self.close_file(node, handle);
    }

    fn get_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.xattr_value(context, node, name)
    }

    fn list_xattrs(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.xattr_names(node)
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
        self.writable()?;
        self.change_xattr(context, node, name, value, flags, kill_set_group_id)
    }

    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.writable()?;
        self.delete_xattr(context, node, name)
    }

    fn test_lock(
        &self,
        _: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
    ) -> Result<Option<Lock>, Errno> {
        self.conflicting_lock(node, handle, owner, lock)
    }

    fn set_lock(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        self.take_lock(context, node, handle, owner, lock, wait)
    }

    fn statistics(&self, _: &Context<'_>, node: NodeId) -> Result<Statistics, Errno> {
        self.get_statistics(node)
    }

    fn host_file(&self, node: NodeId, handle: HandleId) -> Option<Arc<OwnedFd>> {
        self.shared_file(node, handle)
    }

    // Requests that wait for locks are parked by the wire.
    not_supported! { interrupted }
}
