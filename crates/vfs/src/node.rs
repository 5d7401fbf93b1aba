//! The types that wires and file systems exchange.

use std::fmt;
use std::time::Duration;

use inarch_tree::Timestamp;

/// The file system's number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory. It is never forgotten.
    pub const ROOT: NodeId = NodeId(1);
}

/// The file system's number of an open file or directory. Requests on a file system that needs no open use the
/// default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// Who sends a request.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The user, who owns what the request creates.
    pub uid: u32,
    /// The user as the client sees it, where an adapter maps it to another one: the client's kernel decided by this
    /// one. `None` if it is the same.
    pub client_uid: Option<u32>,
    /// The group.
    pub gid: u32,
    /// The thread, as numbered where the wire ends; 0 if unknown. Linux's clients send no process: only the client's
    /// machine knows which process a thread belongs to.
    pub pid: u32,
    /// One supplementary group, if the wire asks for it as the new node's group.
    pub supplementary_group: Option<u32>,
    /// Whether the request was interrupted. A waiting request checks this after
    /// [`FileSystem::interrupted`](crate::FileSystem::interrupted) was called, and then returns `EINTR`.
    pub interrupted: &'a (dyn Fn() -> bool + Sync),
}

impl Context<'_> {
    /// The server itself: root, never interrupted.
    pub const SERVER: Context<'static> =
        Context { uid: 0, client_uid: None, gid: 0, pid: 0, supplementary_group: None, interrupted: &|| false };

    /// Whether the client's kernel permits the caller everything.
    pub fn is_root(&self) -> bool {
        self.client_uid.unwrap_or(self.uid) == 0
    }

    /// Whether the request was interrupted.
    pub fn is_interrupted(&self) -> bool {
        (self.interrupted)()
    }
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context { uid, client_uid: _, gid, pid, supplementary_group, interrupted: _ } = self;
        write!(f, "uid {uid}, gid {gid}, pid {pid}, supplementary group {supplementary_group:?}")
    }
}

/// Attributes of a node, as from stat(2), and their TTL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The number that stat(2) shows.
    pub inode: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device that a device node stands for, as makedev(3) gives it.
    pub device: u64,
    /// Bytes.
    pub size: u64,
    /// Space taken, in 512 bytes.
    pub blocks: u64,
    /// The preferred I/O size (`st_blksize`).
    pub block_size: u32,
    /// Time of last read.
    pub atime: Timestamp,
    /// Time of last write.
    pub mtime: Timestamp,
    /// Time of last change of content or attributes.
    pub ctime: Timestamp,
    /// Time of creation, where the file system knows it.
    pub birth: Option<Timestamp>,
    /// Grows with each change of content that the file system knows of; 0 if it cannot detect changes.
    pub version: u64,
    /// Whether another file system begins here. A client may show it as one, with its own device number.
    pub is_submount: bool,
    /// The TTL.
    pub valid: Duration,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the request's execution.
    Now,
    /// This time.
    To(Timestamp),
}

/// Attributes to set; those that are `None` stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Time of last read.
    pub atime: Option<SetTime>,
    /// Time of last write.
    pub mtime: Option<SetTime>,
    /// Clear set-user-ID, set-group-ID and file capabilities, as for a change by an unprivileged caller.
    pub kill_privileges: bool,
}

impl SetAttributes {
    /// Whether it sets owner, group or mode.
    pub fn changes_permissions(&self) -> bool {
        self.uid.is_some() || self.gid.is_some() || self.mode.is_some()
    }
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node. Each time a wire gets it counts as one look-up, to be dropped by `forget`.
    pub node: NodeId,
    /// Distinguishes nodes that had the same number at different times.
    pub generation: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// The TTL of the name.
    pub valid: Duration,
}

/// The attributes of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Type and permissions, before the umask.
    pub mode: u32,
    /// The caller's umask. A default ACL of the directory takes its place.
    pub umask: u32,
    /// The device number of a device node, as from makedev(3).
    pub device: u64,
}

/// An entry of a directory listing.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryEntry<'a> {
    /// The number that stat(2) shows.
    pub inode: u64,
    /// The offset at which reading continues after this entry.
    pub next: u64,
    /// Its type, in the bits of a mode.
    pub mode: u32,
    /// Its name; `.` and `..` are among the entries.
    pub name: &'a [u8],
    /// The node, if the sink wants it and the entry is neither `.` nor `..`.
    pub entry: Option<Entry>,
}

/// How a client may cache the content of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// It may cache what it reads from now on; earlier cached content may be stale.
    #[default]
    Fresh,
    /// It may also keep earlier cached content.
    Keep,
    /// It may not cache: every read and write reaches the file system.
    Direct,
}

/// A flag of an open: the kernel opens the file for execve(2) (`__FMODE_EXEC` of Linux's include/linux/fs.h, set by
/// `do_open_execat` of fs/exec.c). Programs cannot set it, because open(2) ignores it.
pub const OPEN_TO_EXECUTE: u32 = 1 << 5;

/// An open file or directory, as the file system gives it to the client that opened it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHandle {
    /// The handle.
    pub handle: HandleId,
    /// How its content may be cached.
    pub caching: Caching,
    /// Whether direct writes to different ranges may run concurrently.
    pub parallel_direct_writes: bool,
}

/// The origin of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteKind {
    /// From a client's write-back cache, after the program's own write. The handle may be any of the node's, so the
    /// write must not append.
    pub cached: bool,
    /// Clear set-user-ID, set-group-ID and file capabilities, as for a write by an unprivileged caller.
    pub kill_privileges: bool,
}

/// File system statistics, as from statvfs(3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Blocks that are free for ordinary users.
    pub available_blocks: u64,
    /// Inodes.
    pub files: u64,
    /// Inodes that are free.
    pub free_files: u64,
    /// Most bytes in a name.
    pub name_max: u32,
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Others may hold it too.
    Shared,
    /// Only one may hold it.
    Exclusive,
    /// Release.
    None,
}

/// The owner of a lock. Processes of different clients may have equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner(pub u64);

/// A lock on a range of a file (fcntl(2)), or on the whole file (flock(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// What for.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// The last byte; `u64::MAX` for no end.
    pub end: u64,
    /// The process that holds it, for `GETLK`.
    pub pid: u32,
    /// A flock(2) lock, which belongs to the open file, not to the process.
    pub whole_file: bool,
}
