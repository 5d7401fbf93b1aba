//! File system and archive formats. Nothing else in the program knows what a format's bytes mean, but for the superblocks that `inarch-disk`
//! reads for labels and free space.
//!
//! - A [`Format`] plans an image of a tree: a pure function that opens no file. The plan has one of three shapes, see
//!   [`Layout`]. [`formats`] lists them all.
//! - A [`Reader`] opens the file system in an image on demand, as a [`Volume`](inarch_volume::Volume). [`readers`] lists
//!   them all; [`probe`] recognises what a file is.
//! - [`tar`] and [`oci`] read archives and container images into a tree and its content ([`TreeAndContent`]).
//!
//! ```
//! use std::sync::Arc;
//! use inarch_format::{Format, ImageOptions, Layout, format_by_name};
//! use inarch_tree::{Attributes, Builder};
//!
//! let root = Attributes { mode: 0o040755, ..Attributes::default() };
//! let tree = Arc::new(Builder::new(&root)?.finish()?);
//! let ext4 = format_by_name("ext4").expect("it is registered");
//! let planned = ext4.plan(&tree, &ImageOptions::default())?;
//! let Layout::Blocks(map) = planned.layout else { unreachable!("ext4 is a disk") };
//! assert!(map.metadata().len() > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod archive;
mod assemble;
mod bitmap;
pub mod btrfs;
mod cache;
mod calendar;
pub mod cpio;
pub mod disk;
pub mod erofs;
pub mod exfat;
pub mod ext4;
pub mod f2fs;
pub mod fat;
mod host;
pub mod iso9660;
mod notes;
pub mod ntfs;
pub mod oci;
mod plan;
pub mod probe;
mod read;
mod region;
mod registry;
mod spool;
pub mod squashfs;
pub mod tar;
mod walk;
mod wide;
pub mod xfs;

pub use host::{Accounts, Host, ThisHost};
pub use notes::counted;
pub use plan::{
    Algorithm, Compression, Format, FormatError, ImageOptions, Layout, Pack, Piece, Planned, Progress, Sink, Stream,
};
pub use read::{Damage, ReadError, TreeAndContent};
pub use registry::{Reader, format_by_extension, format_by_name, formats, readers};
