//! The accesses that are recorded.

use std::io;

use inarch_tree::Timestamp;
use rustix::io::Errno;

use crate::Attributes;

/// What a client did or tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Looked up a name, and failed for another reason than its absence.
    LookUp,
    /// Looked up a name that exists.
    Found,
    /// Looked up a name that does not exist.
    Absent,
    /// Asked for attributes.
    Attributes,
    /// Changed attributes other than the length.
    SetAttributes,
    /// Set a file's length, by itself or on open.
    Truncate,
    /// Read a symbolic link.
    ReadLink,
    /// Opened a file to read it.
    OpenRead,
    /// Opened a file to execute it, which is an `OpenRead` as well.
    Execute,
    /// Opened a file to write to it.
    OpenWrite,
    /// First read through an open file, or first search for holes.
    Read,
    /// First write through an open file.
    Write,
    /// First copy from one open file to another.
    Copy,
    /// Called fallocate(2).
    Allocate,
    /// Listed a directory from its start.
    List,
    /// Created something with a name.
    Create,
    /// Created a file without a name.
    CreateUnnamed,
    /// Gave something an additional name.
    Link,
    /// Renamed something.
    Rename,
    /// Exchanged two names.
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
    /// Asked for file system statistics.
    Statistics,
}

impl AccessKind {
    /// Whether it changes content or attributes of something that is there.
    pub fn changes(self) -> bool {
        matches!(
            self,
            AccessKind::SetAttributes
                | AccessKind::Truncate
                | AccessKind::OpenWrite
                | AccessKind::Write
                | AccessKind::Allocate
                | AccessKind::SetXattr
                | AccessKind::RemoveXattr
        )
    }

    /// The word for it in the record.
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

/// Identifies the state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The inode number; for a directory of the host, the host's own.
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
    /// The kind.
    pub kind: AccessKind,
    /// The path from the root, which is empty; components are separated by slashes. For hard links, the name looked
    /// up last.
    pub path: &'a [u8],
    /// Whether the file no longer has this path: it is its last one, or contains a directory's last one. Or the file
    /// never had a name, and `path` is its directory.
    pub nameless: bool,
    /// The other path of a `Link`, `Rename`, `Exchange` or `Copy`.
    pub to: Option<&'a [u8]>,
    /// The name of an extended attribute, or the target of a symbolic link.
    pub detail: Option<&'a [u8]>,
    /// The file's state when it was found, opened, listed, created or changed.
    pub identity: Option<Identity>,
    /// The error, if it failed.
    pub error: Option<Errno>,
    /// The process, at the level that records it; 0 if unknown.
    pub process: Option<u32>,
}

/// Names in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The directory's path, as in [`Access`].
    pub path: &'a [u8],
    /// Whether it no longer has this path.
    pub nameless: bool,
    /// The names, each followed by a slash.
    names: &'a [u8],
}

impl<'a> Listed<'a> {
    /// These names, each followed by a slash.
    pub fn new(path: &'a [u8], nameless: bool, names: &'a [u8]) -> Listed<'a> {
        Listed { path, nameless, names }
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.names.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }
}

/// Receives the accesses of a [`Recording`](super::Recording).
pub trait AccessSink {
    /// Records an access. An error ends the recording.
    fn record(&mut self, access: &Access<'_>) -> io::Result<()>;

    /// Told names that a client got from a directory's listing, if the recording is made
    /// [with them](super::Recording::with_names). A client that reads a part of a listing gets a part of the names.
    /// One that reads it again gets them again. `.` and `..` are left out.
    fn list(&mut self, _listed: &Listed<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Called when the queue is empty for now.
    fn caught_up(&mut self) -> io::Result<()>;
}
