//! Decisions: what the image holds, in which order, and where.

pub(crate) mod blocks;
pub(crate) mod inventory;
pub(crate) mod listing;
pub(crate) mod numbers;
pub(crate) mod places;
pub(crate) mod stored;
pub(crate) mod xattrs;

use inarch_block::MapError;
use inarch_tree::{InodeId, Tree};

/// Why a tree cannot be a squashfs image.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Error {
    #[error(
        "{path}: the owner or group of this file is one more than the 65535 different ones that squashfs holds; map some of them to others"
    )]
    TooManyIds { path: String },
    #[error("{path}: squashfs cannot store the device number {major}:{minor}; leave it out")]
    Device { path: String, major: u32, minor: u32 },
    #[error("{path}: {size} bytes exceed 16 TiB, the greatest size of a file here")]
    FileTooLarge { path: String, size: u64 },
    #[error("{path}: with this directory the listings exceed the 4 GiB that squashfs can address; leave some out")]
    DirectoriesTooLarge { path: String },
    #[error(
        "{path}: with this file the inode table exceeds the 4 GiB that squashfs can address; leave some out, or ask for larger blocks"
    )]
    InodesTooLarge { path: String },
    #[error("internal: the planned block map is out of order: {0}")]
    Map(#[from] MapError),
}

/// A file's path, for messages.
pub(crate) fn path(tree: &Tree, inode: InodeId) -> String {
    format!("/{}", String::from_utf8_lossy(&tree.path(inode)))
}
