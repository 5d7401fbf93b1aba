//! The trait between readers and what uses them.

use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_tree::{DataRange, Extent, FileType, Timestamp, Xattr};

use crate::VolumeError;
use crate::findings::Loss;
use crate::pass::{AskedOneByOne, Pass};

/// Bytes of a name at most, whatever the format: `FUSE_NAME_MAX` of Linux's `fs/fuse/fuse_i.h`. A reader does not list what is
/// longer.
pub use inarch_tree::NAME_MAX;
/// Bytes of a symbolic link's target at most: `PATH_MAX` of Linux, without its NUL.
pub const TARGET_MAX: usize = 4095;

/// The format's own address of an inode: its number, or where it lies in the image. Any number can be asked for; what is no
/// inode's address is [`VolumeError::Damaged`], or whatever the bytes there make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u64);

/// Attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The number that stat(2) shows: the inode's number where the format has one, else its address.
    pub inode: u64,
    /// Tells files apart that had the same number one after the other; 0 where the format does not know.
    pub generation: u32,
    /// Type and permissions, as in `st_mode`. The type is one of those of [`FileType`].
    pub mode: u32,
    /// Names, as the image counts them.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a regular file's content or of a symbolic link's target, at most `i64::MAX`; 0 for everything else.
    pub size: u64,
    /// Bytes that the content takes in the image, as far as the inode tells.
    pub allocated: u64,
    /// Major and minor number of a device node; `(0, 0)` for everything else.
    pub device: (u32, u32),
    /// Time of last read, where the format has it.
    pub atime: Option<Timestamp>,
    /// Time of last write.
    pub mtime: Timestamp,
    /// Time of last change of content or attributes; `mtime` where the format has none.
    pub ctime: Timestamp,
    /// Time of creation, where the format has it.
    pub birth: Option<Timestamp>,
}

impl Attributes {
    /// What kind of node it is; none if the mode has a type that is none.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }
}

/// An entry of a directory, neither `.` nor `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// 1 to [`NAME_MAX`] bytes, without `/` and NUL.
    pub name: &'a [u8],
    /// Where it leads.
    pub node: Node,
    /// Of what type that is, where the entry says so. The inode decides.
    pub file_type: Option<FileType>,
    /// Where [`Volume::list`] goes on behind this entry: below 2^62.
    pub next: u64,
}

/// What [`Volume::list`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// An entry.
    Entry(Listed<'a>),
    /// A part of the directory that cannot be read, or an entry that is none: names are missing.
    Lost(Loss),
}

impl<'a> Item<'a> {
    /// An entry of a directory as the image has it: lost if its name is none.
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

/// A named stream of a file beside its content: NTFS's alternate data streams, HFS+'s resource forks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its name.
    pub name: Box<[u8]>,
    /// Bytes.
    pub size: u64,
}

/// A file system's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are free; 0 where the format cannot be written.
    pub free_blocks: u64,
    /// Inodes, free ones included; 0 where nobody knows.
    pub inodes: u64,
    /// Inodes that are free.
    pub free_inodes: u64,
    /// Bytes of a name at most.
    pub name_max: u32,
}

/// A file system inside a backing. Called from several threads at once.
///
/// Every node comes from the image and may be asked for again at any time; there is nothing to open, and nothing to give back.
/// Methods fail with [`VolumeError::Io`] where the host does, with [`VolumeError::Damaged`] where the image makes no sense, and
/// with [`VolumeError::WrongType`] where a node is of another type than the question.
pub trait Volume: Send + Sync {
    /// The format's name, for messages.
    fn format(&self) -> &'static str;

    /// The root directory, which was read and checked when the volume was opened.
    fn root(&self) -> Node;

    /// A node's attributes.
    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError>;

    /// What `name` leads to in a directory; none if it has no such name. Never asked for `.` and `..`. Damaged if there is no
    /// such name in what can be read of the directory, and not all of it can.
    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError>;

    /// Gives `take` the entries of a directory in the image's order, from `from` (0, or an entry's [`Listed::next`]) on, until it
    /// says false. An entry that a `from` of hostile making leads to is still an entry of this directory, or
    /// [`VolumeError::Damaged`].
    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError>;

    /// The directory that a directory lies in; of the root, the root. None where the image does not tell.
    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError>;

    /// A symbolic link's target: 1 to [`TARGET_MAX`] bytes without NUL.
    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError>;

    /// A node's extended attributes, each name once, as getxattr(2) gives them: full names, ACLs in Linux's own form. What of
    /// them cannot be read goes to `lost`.
    fn xattrs(&self, node: Node, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError>;

    /// A file's named streams.
    fn streams(&self, file: Node) -> Result<Vec<Stream>, VolumeError> {
        let _ = file;
        Ok(Vec::new())
    }

    /// As [`Volume::read`], of a named stream.
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

    /// Fills the next `count` bytes of `out` with a regular file's bytes from `offset`: zeros in its holes, and behind its end.
    /// After an error the bytes of `out` are anything.
    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError>;

    /// Where `count` bytes of a regular file from `offset` lie, as they are, in the [`Volume::backings`]: ascending, cut to that
    /// range and to the file, at most as many as the image's metadata holds. What no extent covers is zeros. None where some of
    /// them are stored in another form, compressed or encrypted, and have to be [read](Volume::read).
    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError>;

    /// The first range of data of a regular file that ends behind `offset`, neighbours joined; none if only holes follow.
    fn data(&self, file: Node, offset: u64) -> Result<Option<DataRange>, VolumeError> {
        let size = self.attributes(file)?.size;
        match self.extents(file, offset, size.saturating_sub(offset))? {
            Some(extents) => Ok(next_data(extents.iter().map(|extent| (extent.offset, extent.length)), offset)),
            None if offset < size => Ok(Some(DataRange { offset: 0, length: size })),
            None => Ok(None),
        }
    }

    /// What the backing numbers of extents mean: the image, and views of it.
    fn backings(&self) -> &[Arc<dyn Backing>];

    /// The file system's numbers.
    fn statistics(&self) -> Statistics;

    /// What was found when the volume was opened and is not damage to any one file, a line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The image, if it has changed since it was opened.
    fn changed(&self) -> Option<inarch_block::ChangedFile> {
        self.backings().iter().find_map(|backing| backing.changed())
    }

    /// One pass over all nodes; see [`Pass`]. Without an implementation it asks the other methods.
    fn pass(&self) -> Box<dyn Pass + '_> {
        Box::new(AskedOneByOne::new(self))
    }
}

/// Whether `name` may be a name in a directory: 1 to [`NAME_MAX`] bytes without `/` and NUL, neither `.` nor `..`.
pub fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Adds data of `length` bytes at `offset` behind `ranges`; neighbours become one.
pub fn join_data(ranges: &mut Vec<DataRange>, offset: u64, length: u64) {
    match ranges.last_mut() {
        _ if length == 0 => {}
        Some(last) if last.offset.saturating_add(last.length) == offset => last.length += length,
        _ => ranges.push(DataRange { offset, length }),
    }
}

/// The first of ascending parts, each an offset and a length, that ends behind `offset`, joined with those that follow it
/// without a gap.
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
