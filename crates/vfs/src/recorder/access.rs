//! What somebody did, as it is told.

use std::io;

use inarch_tree::Timestamp;
use rustix::io::Errno;

use crate::Attributes;

/// What somebody did, or tried to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Looked for a name, and that failed, though not because it is not there.
    LookUp,
    /// Looked for a name, which is there.
    Found,
    /// Looked for a name, which is not there.
    Absent,
    /// Asked for attributes.
    Attributes,
    /// Changed attributes other than the length.
    SetAttributes,
    /// Set a file's length, by itself or as it was opened.
    Truncate,
    /// Read a symbolic link.
    ReadLink,
    /// Opened a file to read it.
    OpenRead,
    /// Opened a file to execute it, which is an `OpenRead` as well.
    Execute,
    /// Opened a file to write to it.
    OpenWrite,
    /// Read from an opened file, or asked where its holes are, for the first time.
    Read,
    /// Wrote to an opened file for the first time.
    Write,
    /// Had a part of one opened file copied to another one, for the first time of either.
    Copy,
    /// Took or gave back space of a file, or moved it, as fallocate(2) does.
    Allocate,
    /// Read a directory from its start.
    List,
    /// Made something with a new name.
    Create,
    /// Made a file without a name.
    CreateUnnamed,
    /// Gave something a further name.
    Link,
    /// Moved something to another name.
    Rename,
    /// Exchanged what two names lead to.
    Exchange,
    /// Removed a name.
    Remove,
    /// Read an extended attribute.
    GetXattr,
    /// Read the names of the extended attributes.
    ListXattrs,
    /// Set an extended attribute.
    SetXattr,
    /// Removed an extended attribute.
    RemoveXattr,
    /// Asked for the file system's numbers.
    Statistics,
}

impl AccessKind {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            AccessKind::LookUp => "look-up",
            AccessKind::Found => "found",
            AccessKind::Absent => "absent",
            AccessKind::Attributes => "attributes",
            AccessKind::SetAttributes => "set-attributes",
            AccessKind::Truncate => "truncate",
            AccessKind::ReadLink => "read-link",
            AccessKind::OpenRead => "open-read",
            AccessKind::Execute => "execute",
            AccessKind::OpenWrite => "open-write",
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::Copy => "copy",
            AccessKind::Allocate => "allocate",
            AccessKind::List => "list",
            AccessKind::Create => "create",
            AccessKind::CreateUnnamed => "create-unnamed",
            AccessKind::Link => "link",
            AccessKind::Rename => "rename",
            AccessKind::Exchange => "exchange",
            AccessKind::Remove => "remove",
            AccessKind::GetXattr => "get-xattr",
            AccessKind::ListXattrs => "list-xattrs",
            AccessKind::SetXattr => "set-xattr",
            AccessKind::RemoveXattr => "remove-xattr",
            AccessKind::Statistics => "statistics",
        }
    }
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The number that stat(2) shows: of a directory of the host, the host's own.
    pub inode: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Time of last write.
    pub mtime: Timestamp,
}

impl From<&Attributes> for Identity {
    fn from(attributes: &Attributes) -> Identity {
        let Attributes { inode, mode, size, mtime, .. } = *attributes;
        Identity { inode, mode, size, mtime }
    }
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// What was done.
    pub kind: AccessKind,
    /// To what: names parted by slashes, from the root on, which is empty. Of several hard links, the one that was looked
    /// up last.
    pub path: &'a [u8],
    /// Whether that is no longer a name of it: `path` is the last one that it had, or that its directory had; or the
    /// directory's in which it was made without a name.
    pub nameless: bool,
    /// The other path of a `Link`, `Rename`, `Exchange` or `Copy`: where to.
    pub to: Option<&'a [u8]>,
    /// The name of an extended attribute, or the target of a symbolic link that was read or made.
    pub detail: Option<&'a [u8]>,
    /// What was found, opened, listed, made or changed, as it was then; of what a path is looked up, opened or listed.
    pub identity: Option<Identity>,
    /// Why it failed.
    pub error: Option<Errno>,
    /// The process, where they are told apart; 0 if it is not known.
    pub process: Option<u32>,
}

/// Takes what a [`Recording`](super::Recording) tells.
pub trait AccessSink {
    /// Somebody did this. An error ends the recording.
    fn record(&mut self, access: &Access<'_>) -> io::Result<()>;

    /// There is nothing more for now.
    fn caught_up(&mut self) -> io::Result<()>;
}
