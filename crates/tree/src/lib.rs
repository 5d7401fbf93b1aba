//! [`Tree`]: an immutable snapshot of a file tree, with names, attributes and hole maps.
//!
//! A [`Tree`] holds no file content. Every source builds one through a [`Builder`]; this crate has the source for
//! directories of this host, [`scan`]. Every offering (a block map, an image, a share) reads one. The same input gives
//! the same tree: entries are sorted by their bytes and inodes are numbered in walk order, so no clock, thread or hash
//! order affects the result.
//!
//! [`select`] filters a tree and maps its owners, [`compare`] finds the differences between two trees, and [`layer`] stores
//! them apart, to be merged over a later state.
//!
//! ```
//! use inarch_tree::{Attributes, Builder, InodeId};
//!
//! let directory = Attributes { mode: 0o040755, ..Attributes::default() };
//! let file = Attributes { mode: 0o100644, size: 5, ..Attributes::default() };
//! let mut builder = Builder::new(&directory)?;
//! builder.list(InodeId::ROOT)?;
//! builder.add(b"hello.txt", &file)?;
//! let tree = builder.finish()?;
//!
//! let found = tree.lookup(b"hello.txt").expect("it was added");
//! assert_eq!(tree.inode(found).size(), 5);
//! # Ok::<(), inarch_tree::BuildError>(())
//! ```

#![deny(unsafe_code)]

mod beneath;
mod builder;
pub mod compare;
mod extents;
mod inode;
pub mod layer;
pub mod scan;
pub mod select;
mod stored;
mod tree;

pub use beneath::open_beneath;
pub use builder::{BuildError, Builder, NAME_MAX};
pub use extents::{Extent, ExtentError, Extents};
pub use inode::{Attributes, FileType, Inode, InodeId, Timestamp};
pub use stored::LoadError;
pub use tree::{DataRange, Entries, Entry, Tree, Xattr, XattrSetId};
