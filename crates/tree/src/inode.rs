//! [`Inode`]: an inode's attributes, packed to 72 bytes, because a tree has up to millions of inodes.

use crate::XattrSetId;

/// Index of an inode in its [`Tree`](crate::Tree); dense from 0, which is the root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u32);

impl InodeId {
    /// The root directory of every tree.
    pub const ROOT: InodeId = InodeId(0);

    /// The id as an index into a table with one slot for each inode.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A point in time as `statx` gives it: seconds since 1970 (may be negative) and nanoseconds `0..1_000_000_000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

/// What kind of object an inode is: the `S_IFMT` part of its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// `S_IFREG`
    Regular,
    /// `S_IFDIR`
    Directory,
    /// `S_IFLNK`
    Symlink,
    /// `S_IFCHR`
    CharDevice,
    /// `S_IFBLK`
    BlockDevice,
    /// `S_IFIFO`
    Fifo,
    /// `S_IFSOCK`
    Socket,
}

impl FileType {
    /// Its `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileType::Regular => 0o100000,
            FileType::Directory => 0o040000,
            FileType::Symlink => 0o120000,
            FileType::CharDevice => 0o020000,
            FileType::BlockDevice => 0o060000,
            FileType::Fifo => 0o010000,
            FileType::Socket => 0o140000,
        }
    }

    /// The type in a `st_mode`; `None` if its `S_IFMT` bits name no type of Linux.
    pub fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & 0o170000 {
            0o100000 => FileType::Regular,
            0o040000 => FileType::Directory,
            0o120000 => FileType::Symlink,
            0o020000 => FileType::CharDevice,
            0o060000 => FileType::BlockDevice,
            0o010000 => FileType::Fifo,
            0o140000 => FileType::Socket,
            _ => return None,
        })
    }
}

/// The attributes that a source gives to [`Builder::add`](crate::Builder::add).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// `st_mode`: type and permission bits.
    pub mode: u32,
    /// Owner, after any owner map.
    pub uid: u32,
    /// Group, after any owner map.
    pub gid: u32,
    /// Bytes of a regular file; 0 for everything else (a symlink's length follows from its target).
    pub size: u64,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// The inode number at the source, for detecting changes; 0 if there is none.
    pub source_ino: u64,
    /// Device numbers (major, minor) of a device node; `(0, 0)` for everything else.
    pub device: (u32, u32),
    /// Extended attributes, by [`Builder::intern_xattrs`](crate::Builder::intern_xattrs).
    pub xattrs: XattrSetId,
}

/// An inode as the tree stores it: 72 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Inode {
    /// Size of a regular file, or major << 32 | minor of a device node.
    pub(crate) size_or_device: u64,
    pub(crate) source_ino: u64,
    pub(crate) mtime_seconds: i64,
    pub(crate) ctime_seconds: i64,
    pub(crate) mtime_nanoseconds: u32,
    pub(crate) ctime_nanoseconds: u32,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u32,
    pub(crate) xattrs: XattrSetId,
    /// The first entry that names this inode (`u32::MAX` for the root); its path follows from it.
    pub(crate) entry: u32,
    /// Directory: index into the directory table. Symlink: into the targets. Sparse file: into the hole maps.
    pub(crate) detail: u32,
}

impl Inode {
    /// The value of `detail` for an inode without details.
    pub(crate) const NO_DETAIL: u32 = u32::MAX;

    pub(crate) fn new(a: &Attributes) -> Inode {
        let is_device = matches!(FileType::from_mode(a.mode), Some(FileType::CharDevice | FileType::BlockDevice));
        Inode {
            size_or_device: if is_device { u64::from(a.device.0) << 32 | u64::from(a.device.1) } else { a.size },
            source_ino: a.source_ino,
            mtime_seconds: a.mtime.seconds,
            ctime_seconds: a.ctime.seconds,
            mtime_nanoseconds: a.mtime.nanoseconds,
            ctime_nanoseconds: a.ctime.nanoseconds,
            mode: a.mode,
            uid: a.uid,
            gid: a.gid,
            links: 0,
            xattrs: a.xattrs,
            entry: u32::MAX,
            detail: Self::NO_DETAIL,
        }
    }

    /// The file type.
    pub fn file_type(&self) -> FileType {
        // The builder refuses modes without a type.
        FileType::from_mode(self.mode).unwrap_or(FileType::Regular)
    }

    /// `st_mode`: type and permission bits.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// Owner in the tree (after any owner map).
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Group in the tree (after any owner map).
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Bytes of a regular file; 0 for every other type.
    pub fn size(&self) -> u64 {
        if self.file_type() == FileType::Regular { self.size_or_device } else { 0 }
    }

    /// (major, minor) of a device node; `(0, 0)` for every other type.
    pub fn device(&self) -> (u32, u32) {
        match self.file_type() {
            FileType::CharDevice | FileType::BlockDevice => {
                ((self.size_or_device >> 32) as u32, self.size_or_device as u32)
            }
            _ => (0, 0),
        }
    }

    /// Last change of content.
    pub fn mtime(&self) -> Timestamp {
        Timestamp { seconds: self.mtime_seconds, nanoseconds: self.mtime_nanoseconds }
    }

    /// Last change of attributes.
    pub fn ctime(&self) -> Timestamp {
        Timestamp { seconds: self.ctime_seconds, nanoseconds: self.ctime_nanoseconds }
    }

    /// The number of this inode's names; for a directory 2 plus the number of its subdirectories.
    pub fn links(&self) -> u32 {
        self.links
    }

    /// The inode number at the source; 0 if there is none.
    pub fn source_ino(&self) -> u64 {
        self.source_ino
    }

    /// The id of its extended attributes, for [`Tree::xattrs`](crate::Tree::xattrs).
    pub fn xattrs(&self) -> XattrSetId {
        self.xattrs
    }
}
