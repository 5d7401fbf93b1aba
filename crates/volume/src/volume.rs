//! [`Volume`]: the trait between readers of file systems and their users.

use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_tree::{DataRange, Extent, FileType, Timestamp, Xattr};

use crate::VolumeError;
use crate::findings::Loss;
use crate::pass::{AskedOneByOne, Pass};

/// The most bytes of a name, in any format: `FUSE_NAME_MAX` of Linux's `fs/fuse/fuse_i.h`. Readers do not list longer
/// names.
pub use inarch_tree::NAME_MAX;
/// The most bytes of a symbolic link's target: Linux's `PATH_MAX` without the NUL.
pub const TARGET_MAX: usize = 4095;

/// The format's own address of an inode: its number, or its place in the image. Callers may pass any number; one that
/// is no inode's address gives [`VolumeError::Damaged`], or whatever the bytes there mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u64);

/// Attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The inode number for stat(2): the format's, or the address if it has none.
    pub inode: u64,
    /// Distinguishes files that had the same number at different times; 0 if the format does not know.
    pub generation: u32,
    /// Type and permissions, as in `st_mode`. The type is one of [`FileType`].
    pub mode: u32,
    /// The link count in the image.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a regular file's content or a symbolic link's target, at most `i64::MAX`; otherwise 0.
    pub size: u64,
    /// Bytes that the content takes in the image, as far as the inode says.
    pub allocated: u64,
    /// Major and minor number of a device node; `(0, 0)` for everything else.
    pub device: (u32, u32),
    /// Time of last access, if the format has it.
    pub atime: Option<Timestamp>,
    /// Time of last write.
    pub mtime: Timestamp,
    /// Time of last change of content or attributes; `mtime` if the format has none.
    pub ctime: Timestamp,
    /// Time of creation, if the format has it.
    pub birth: Option<Timestamp>,
}

impl Attributes {
    /// The type of the node; `None` if the mode has an invalid one.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }
}

/// An entry of a directory, neither `.` nor `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// 1 to [`NAME_MAX`] bytes, without `/` and NUL.
    pub name: &'a [u8],
    /// The node.
    pub node: Node,
    /// The node's type, if the entry has it. The inode's type takes precedence.
    pub file_type: Option<FileType>,
    /// The position after this entry, for [`Volume::list`]: below 2^62.
    pub next: u64,
}

/// An item of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// An entry.
    Entry(Listed<'a>),
    /// A part of the directory that cannot be read, or an invalid entry: names are missing.
    Lost(Loss),
}

impl<'a> Item<'a> {
    /// An item for an entry of the image: a loss if its name is invalid.
    pub fn entry(name: &'a [u8], node: Node, file_type: Option<FileType>, next: u64) -> Item<'a> {
        match is_name(name) {
            true => Item::Entry(Listed { name, node, file_type, next }),
            false => {
                let start = String::from_utf8_lossy(name.get(..NAME_MAX).unwrap_or(name));
                Item::Lost(Loss::damage(format!("has an entry that is left out: the name {start:?} is none")))
            }
        }
    }
}

/// A named stream of a file: an NTFS alternate data stream or an HFS+ resource fork.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its name.
    pub name: Box<[u8]>,
    /// Bytes.
    pub size: u64,
}

/// File system statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Free blocks; 0 if the format cannot be written.
    pub free_blocks: u64,
    /// Those of the free blocks that users' files do not get: what ext4 keeps for root, and Btrfs for metadata.
    pub reserved_blocks: u64,
    /// Inodes, including free ones; 0 if unknown.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// The most bytes of a name.
    pub name_max: u32,
}

impl Statistics {
    /// Blocks that something is in.
    pub fn used_blocks(&self) -> u64 {
        self.blocks.saturating_sub(self.free_blocks)
    }

    /// Blocks that users' files can get.
    pub fn available_blocks(&self) -> u64 {
        self.free_blocks.saturating_sub(self.reserved_blocks)
    }

    /// Percent of the used and available blocks that are used, rounded up, as df(1) tells it; 0 if there are none.
    pub fn percent_used(&self) -> u64 {
        let (used, available) = (u128::from(self.used_blocks()), u128::from(self.available_blocks()));
        // At most 100.
        (used * 100).div_ceil((used + available).max(1)) as u64
    }
}

/// A file system inside a backing. Several threads call it at once.
///
/// A node may be queried at any time; nothing is opened or released. Methods fail with [`VolumeError::Io`] if the
/// host fails, with [`VolumeError::Damaged`] if the image is inconsistent, and with [`VolumeError::WrongType`] if a
/// node has the wrong type.
pub trait Volume: Send + Sync {
    /// The format's name, for messages.
    fn format(&self) -> &'static str;

    /// The root directory, which was read and checked on open.
    fn root(&self) -> Node;

    /// A node's attributes.
    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError>;

    /// Looks up `name` in a directory; `None` if it is absent. Never called for `.` and `..`. Damaged if the name was
    /// not found and part of the directory cannot be read.
    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError>;

    /// Whether the users of a directory ignore case in names. [`Volume::lookup`] does not: it finds a name only as it is stored.
    fn ignores_case(&self, directory: Node) -> bool {
        let _ = directory;
        false
    }

    /// Lists a directory in the image's order, from `from` (0, or an entry's [`Listed::next`]), until `take` returns
    /// false. If `from` was forged, an entry is still one of this directory, or the result is
    /// [`VolumeError::Damaged`].
    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError>;

    /// A directory's parent; the root's is the root. `None` if the image does not say.
    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError>;

    /// A symbolic link's target: 1 to [`TARGET_MAX`] bytes without NUL.
    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError>;

    /// A node's extended attributes, each name once, as getxattr(2) returns them: full names, ACLs in Linux's format.
    /// Unreadable ones go to `lost`.
    fn xattrs(&self, node: Node, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError>;

    /// A file's named streams.
    fn streams(&self, file: Node) -> Result<Vec<Stream>, VolumeError> {
        let _ = file;
        Ok(Vec::new())
    }

    /// Like [`Volume::read`], for a named stream.
    fn read_stream(
        &self,
        file: Node,
        name: &[u8],
        offset: u64,
        count: u64,
        out: &mut Cursor<'_, '_>,
    ) -> Result<(), VolumeError> {
        let _ = (file, name, offset, count, out);
        Err(VolumeError::Unsupported("it has no named streams".to_owned()))
    }

    /// Fills the next `count` bytes of `out` with a regular file's bytes from `offset`; holes and bytes past the end
    /// are zeros. After an error the content of `out` is undefined.
    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError>;

    /// The extents of `count` bytes of a regular file from `offset`, in the [`Volume::backings`]: ascending, limited
    /// to that range and to the file, and no more than the image's metadata holds. The rest is zeros. `None` if some
    /// are compressed or encrypted and must be [read](Volume::read).
    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError>;

    /// The first range of data of a regular file that ends after `offset`, merged with its neighbours; `None` if only
    /// holes follow.
    fn data(&self, file: Node, offset: u64) -> Result<Option<DataRange>, VolumeError> {
        let size = self.attributes(file)?.size;
        match self.extents(file, offset, size.saturating_sub(offset))? {
            Some(extents) => Ok(next_data(extents.iter().map(|extent| (extent.offset, extent.length)), offset)),
            None if offset < size => Ok(Some(DataRange { offset: 0, length: size })),
            None => Ok(None),
        }
    }

    /// The backings that extents refer to: the image, and views of it.
    fn backings(&self) -> &[Arc<dyn Backing>];

    /// Bytes of a block. Reads nothing: it is asked for with the attributes of each file.
    fn block_size(&self) -> u32;

    /// The block size of the file system that `node` is in: that of this one, unless it consists of several.
    fn block_size_at(&self, _: Node) -> u32 {
        self.block_size()
    }

    /// The file system's numbers. Some formats read all of a table to count what is free.
    fn statistics(&self) -> Statistics;

    /// The numbers of the file system that `node` is in: those of this one, unless it consists of several.
    fn statistics_at(&self, _: Node) -> Statistics {
        self.statistics()
    }

    /// Notes from opening the volume that are not damage of a single file, a line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// An error if the image has changed since it was opened.
    fn changed(&self) -> Option<inarch_block::ChangedFile> {
        self.backings().iter().find_map(|backing| backing.changed())
    }

    /// Starts a pass over all nodes; see [`Pass`]. By default it calls the other methods.
    fn pass(&self) -> Box<dyn Pass + '_> {
        Box::new(AskedOneByOne::new(self))
    }
}

/// Whether `name` is a valid name in a directory: 1 to [`NAME_MAX`] bytes without `/` and NUL, neither `.` nor `..`.
pub fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Appends data of `length` bytes at `offset` to `ranges`; adjacent ranges are merged.
pub fn join_data(ranges: &mut Vec<DataRange>, offset: u64, length: u64) {
    match ranges.last_mut() {
        _ if length == 0 => {}
        Some(last) if last.offset.saturating_add(last.length) == offset => last.length += length,
        _ => ranges.push(DataRange { offset, length }),
    }
}

/// The first of ascending parts (offset and length) that ends after `offset`, merged with directly following ones.
pub fn next_data(parts: impl Iterator<Item = (u64, u64)>, offset: u64) -> Option<DataRange> {
    let mut found: Option<DataRange> = None;
    for (at, length) in parts.filter(|(at, length)| at.saturating_add(*length) > offset) {
        match &mut found {
            None => found = Some(DataRange { offset: at, length }),
            Some(range) if range.offset.saturating_add(range.length) == at => range.length += length,
            Some(_) => break,
        }
    }
    found
}
