//! What a wire and a layer tell each other.

use std::fmt;
use std::time::Duration;

use inarch_tree::Timestamp;

/// The file system's number for a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The directory that is offered. It is never forgotten.
    pub const ROOT: NodeId = NodeId(1);
}

/// The file system's number for something opened. Requests on a file system that needs no opening carry the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// Who asks.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The user: whom belongs what is made.
    pub uid: u32,
    /// The user as the client knows it, by whom its kernel has decided, where a layer makes another one of it. Without, it is
    /// the same.
    pub client_uid: Option<u32>,
    /// The group.
    pub gid: u32,
    /// The thread, as it is known where the wire ends; 0 if it is not. Linux's clients say no process: only its own machine
    /// knows which one a thread is of.
    pub pid: u32,
    /// One further group, where the wire says that a new node shall have it.
    pub supplementary_group: Option<u32>,
    /// Whether nobody waits for the answer any more. A request that waits looks at it when
    /// [`FileSystem::interrupted`](crate::FileSystem::interrupted) was called, and gives `EINTR`.
    pub interrupted: &'a (dyn Fn() -> bool + Sync),
}

impl Context<'_> {
    /// The server itself: root, never interrupted.
    pub const SERVER: Context<'static> =
        Context { uid: 0, client_uid: None, gid: 0, pid: 0, supplementary_group: None, interrupted: &|| false };

    /// Whether the client's kernel lets the caller do everything.
    pub fn is_root(&self) -> bool {
        self.client_uid.unwrap_or(self.uid) == 0
    }

    /// Whether nobody waits for the answer any more.
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

/// Attributes of a node: stat(2)'s, and for how long they hold.
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
    /// Bytes that suit a read or write best.
    pub block_size: u32,
    /// Time of last read.
    pub atime: Timestamp,
    /// Time of last write.
    pub mtime: Timestamp,
    /// Time of last change of content or attributes.
    pub ctime: Timestamp,
    /// Time of creation, where the file system knows it.
    pub birth: Option<Timestamp>,
    /// Grows with each change of content that the file system knows of; 0 if it cannot tell one content from another.
    pub version: u64,
    /// Whether another file system begins here, which a client may show as one, with a device number of its own.
    pub is_submount: bool,
    /// For how long a client need not ask again.
    pub valid: Duration,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the request's execution.
    Now,
    /// This one.
    To(Timestamp),
}

/// Attributes to be set; those without a value stay.
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
    /// Clear set-user-id, set-group-id and file capabilities as a change by somebody without privilege would.
    pub kill_privileges: bool,
}

/// A node that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node. Each time it is given to a wire counts as one lookup, to be taken back by `forget`.
    pub node: NodeId,
    /// Tells nodes apart that had the same number one after the other.
    pub generation: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// For how long the name leads there.
    pub valid: Duration,
}

/// What a new node is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Type and permissions, before the umask.
    pub mode: u32,
    /// Permissions that the maker does not give, unless the directory has a default ACL, which then decides.
    pub umask: u32,
    /// What a device node stands for, as makedev(3) gives it.
    pub device: u64,
}

/// An entry of a directory that is read.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryEntry<'a> {
    /// The number that stat(2) shows.
    pub inode: u64,
    /// Where to go on reading behind this entry.
    pub next: u64,
    /// Its type, in the bits of a mode.
    pub mode: u32,
    /// Its name; `.` and `..` are among the entries.
    pub name: &'a [u8],
    /// Where the name leads, if the sink wants to know and it is neither `.` nor `..`.
    pub entry: Option<Entry>,
}

/// What a client may keep of the content of something opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// What it reads from now on; what it had before may be old.
    #[default]
    Fresh,
    /// Also what it had before.
    Keep,
    /// Nothing: every read and write reaches the file system.
    Direct,
}

/// Among the flags of an open: a kernel opens the file to execute it, as execve(2) does (`__FMODE_EXEC` of Linux's
/// include/linux/fs.h, set in `do_open_execat` of fs/exec.c). open(2) ignores it, so no program can set it.
pub const OPEN_TO_EXECUTE: u32 = 1 << 5;

/// Something that was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// What requests name it by.
    pub handle: HandleId,
    /// What may be kept of its content.
    pub caching: Caching,
    /// Whether direct writes to different parts may run at once.
    pub parallel_direct_writes: bool,
}

/// How a write came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteKind {
    /// From a client's cache, later than the program's own write: the handle may be another one of the same node, and
    /// must not be taken for one that appends.
    pub cached: bool,
    /// Clear set-user-id, set-group-id and file capabilities as a write by somebody without privilege would.
    pub kill_privileges: bool,
}

/// A file system's numbers, as statvfs(3) gives them.
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

/// What a lock is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Others may have it too.
    Shared,
    /// Nobody else has it.
    Exclusive,
    /// Given back.
    None,
}

/// Whose a lock is: processes of different clients may have equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner(pub u64);

/// A lock on bytes of a file, as fcntl(2)'s, or on the whole of it as flock(2)'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// What for.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// The last byte; `u64::MAX` for all that may ever follow.
    pub end: u64,
    /// The process that has it, for those that ask.
    pub pid: u32,
    /// flock(2)'s, which is the opened file's and not the process's.
    pub whole_file: bool,
}
