//! A file tree as an immutable snapshot: names, attributes, and where each byte lives.
//!
//! A [`Tree`] holds no file content. Every source (today: a directory of this host, by [`scan`]) builds one
//! through a [`Builder`]; every offering (a block map, an image, a live share) reads one. The same input gives
//! the same tree: entries are sorted by name bytes and inodes are numbered in walk order, so no clock, thread or
//! hash order reaches what is made of it.

#![deny(unsafe_code)]

mod builder;
pub mod compare;
mod extents;
mod inode;
pub mod layer;
pub mod scan;
pub mod select;
mod stored;
mod tree;

pub use builder::{BuildError, Builder, NAME_MAX};
pub use extents::{Extent, ExtentError, Extents};
pub use inode::{Attributes, FileType, Inode, InodeId, Timestamp};
pub use stored::LoadError;
pub use tree::{DataRange, Entries, Entry, Tree, Xattr, XattrSetId};
