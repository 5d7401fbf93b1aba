//! What a session asks of the file system behind it.

use std::time::Duration;

use rustix::io::Errno;

use crate::wire::reply::DirectoryList;

/// The file system's number for a file or directory; the mounted one has number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// What is mounted.
    pub const ROOT: NodeId = NodeId(crate::wire::ROOT_ID);
}

/// The file system's number for something opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// Who asks.
pub struct Context<'a> {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The process, as it is known where the session runs; 0 if it is not.
    pub pid: u32,
    pub(crate) interrupted: &'a dyn Fn() -> bool,
}

impl Context<'_> {
    /// Whether nobody waits for the answer any more. A request that waits for something looks at it when
    /// [`FileSystem::interrupted`] was called, and gives `EINTR`.
    pub fn is_interrupted(&self) -> bool {
        (self.interrupted)()
    }
}

/// Attributes of a node.
#[derive(Clone, Debug, Default)]
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
    /// Bytes.
    pub size: u64,
    /// Space taken, in 512 bytes.
    pub blocks: u64,
    /// Bytes that suit a read or write best.
    pub block_size: u32,
    /// Time of last write, since 1970.
    pub mtime: Duration,
    /// For how long the kernel need not ask again.
    pub valid: Duration,
}

/// Attributes to be set; those without a value stay.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttributes {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Time of last write, since 1970.
    pub mtime: Option<Duration>,
}

/// A node that a name leads to.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The node. The kernel remembers it until it forgets as many lookups as there were.
    pub node: NodeId,
    /// Its attributes.
    pub attributes: Attributes,
    /// For how long the name leads there.
    pub valid: Duration,
}

/// An entry of a directory that is read.
#[derive(Clone, Debug)]
pub struct DirectoryEntry<'a> {
    /// The number that stat(2) shows.
    pub inode: u64,
    /// Where to go on reading behind this entry.
    pub next: u64,
    /// Its type, in the bits of a mode.
    pub mode: u32,
    /// Its name.
    pub name: &'a [u8],
    /// Where the name leads, if the kernel wants to know; that counts as a lookup.
    pub entry: Option<Entry>,
}

/// Something that was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opened {
    /// What the kernel names in requests.
    pub handle: HandleId,
    /// [`open_flag`](crate::wire::open_flag)s.
    pub flags: u32,
}

/// A file system's numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Files.
    pub files: u64,
}

/// A file system. Called from several threads at once. What it does not implement is answered by `ENOSYS`, after which
/// the kernel asks no more.
pub trait FileSystem: Send + Sync + 'static {
    /// The node with `name` in directory `parent`.
    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let _ = (context, parent, name);
        Err(Errno::NOSYS)
    }

    /// The kernel takes back `lookups` of the node.
    fn forget(&self, node: NodeId, lookups: u64) {
        let _ = (node, lookups);
    }

    /// A node's attributes.
    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno>;

    /// Sets attributes and gives all of them.
    fn set_attributes(&self, context: &Context<'_>, node: NodeId, set: &SetAttributes) -> Result<Attributes, Errno> {
        let _ = (context, node, set);
        Err(Errno::NOSYS)
    }

    /// Opens a file; `flags` are those of open(2), without `O_CREAT`, `O_EXCL` and `O_TRUNC`.
    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<Opened, Errno> {
        let _ = (context, node, flags);
        Err(Errno::NOSYS)
    }

    /// Fills `out` with a file's bytes from `offset`; gives how many there are, fewer only at its end.
    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let _ = (context, node, handle, offset, out);
        Err(Errno::NOSYS)
    }

    /// Writes `data` to a file at `offset`; gives how many bytes of it.
    fn write(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[u8],
    ) -> Result<u32, Errno> {
        let _ = (context, node, handle, offset, data);
        Err(Errno::NOSYS)
    }

    /// A descriptor of the file was closed; others may be open.
    fn flush(&self, context: &Context<'_>, node: NodeId) -> Result<(), Errno> {
        let _ = (context, node);
        Err(Errno::NOSYS)
    }

    /// Makes a file's writes durable.
    fn fsync(&self, context: &Context<'_>, node: NodeId, handle: HandleId) -> Result<(), Errno> {
        let _ = (context, node, handle);
        Err(Errno::NOSYS)
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
        let _ = (context, node, handle, mode, offset, length);
        Err(Errno::NOSYS)
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
        let _ = (context, node, handle, offset, whence);
        Err(Errno::NOSYS)
    }

    /// A file is no longer open.
    fn release(&self, node: NodeId, handle: HandleId) {
        let _ = (node, handle);
    }

    /// Opens a directory.
    fn open_directory(&self, context: &Context<'_>, node: NodeId) -> Result<Opened, Errno> {
        let _ = (context, node);
        Err(Errno::NOSYS)
    }

    /// Adds a directory's entries to `list`, from `offset` on, until it is full.
    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        list: &mut DirectoryList<'_>,
    ) -> Result<(), Errno> {
        let _ = (context, node, handle, offset, list);
        Err(Errno::NOSYS)
    }

    /// A directory is no longer open.
    fn release_directory(&self, node: NodeId, handle: HandleId) {
        let _ = (node, handle);
    }

    /// The file system's numbers.
    fn statistics(&self, context: &Context<'_>) -> Result<Statistics, Errno> {
        let _ = context;
        Err(Errno::NOSYS)
    }

    /// A request was interrupted: those that wait look at their [`Context`] again.
    fn interrupted(&self) {}
}
