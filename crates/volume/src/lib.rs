//! File systems inside a [`Backing`](inarch_block::Backing), read on demand.
//!
//! [`Volume`] is the boundary. Below it, a reader of a format answers one question at a time (which node has this
//! name, what are its attributes, where are its bytes) from the bytes of the image. It stores nothing that grows with
//! the tree. Above it are two users: [`walk()`] makes a [`Tree`](inarch_tree::Tree) of the whole volume, for a run,
//! an image or a plan, and `VolumeFiles` of `inarch-vfs` offers it as a live file system. A tree is a volume as well
//! ([`TreeVolume`]), so that archives and snapshots are offered in the same way.
//!
//! # How to add a reader
//!
//! A reader is a folder and a line. The folder has a type that implements [`Volume`] and a function that opens one
//! from a backing. Opening reads and checks only the superblock and the root, so that a mount is ready at once
//! whatever the size of the tree. The line is an entry in the registry (`crates/format/src/registry.rs`): the
//! format's name, how to recognise its images, and that function. The rules:
//!
//! - A [`Node`] is the format's own address of an inode, which finds it without a table: its number, or its place.
//! - The image is hostile: verify checksums, allocate no more than the image holds, let no loop run longer than the
//!   image, and never panic. Inconsistent data is [`VolumeError::Damaged`].
//! - Methods take `&self` and run in several threads. A cache is bounded and has its own lock, like [`Pages`].
//! - [`Volume::pass`] is for the walk, which visits every node once. The default calls the other methods. Override it
//!   if one look at an inode answers several questions, or to bound what many nodes share: an image may claim that
//!   every file has the same large attributes or extents, and a walk ends in bounded time only if it counts them.
//!
//! A property test in `crates/format/tests/all` compares both users for every format that Inarch also writes, and
//! the fuzz target `volume` asks damaged images of these for random nodes.
//!
//! ```
//! use inarch_volume::{Item, Volume, VolumeError};
//!
//! /// The names in the root directory of any file system.
//! fn names(volume: &dyn Volume) -> Result<Vec<String>, VolumeError> {
//!     let mut names = Vec::new();
//!     volume.list(volume.root(), 0, &mut |item| {
//!         if let Item::Entry(entry) = item {
//!             names.push(String::from_utf8_lossy(entry.name).into_owned());
//!         }
//!         true
//!     })?;
//!     Ok(names)
//! }
//! ```

#![forbid(unsafe_code)]

mod composite;
mod content;
mod error;
mod findings;
mod pages;
mod pass;
mod path;
mod tree;
mod volume;
mod walk;

pub use composite::{Composite, NotMounted};
pub use content::WalkedFiles;
pub use error::VolumeError;
pub use findings::{Findings, Loss};
pub use pages::Pages;
pub use pass::{AskedOneByOne, Body, Facts, Pass};
pub use path::{Last, canonical, read_small, resolve};
pub use tree::TreeVolume;
pub use volume::{
    Attributes, Item, Listed, NAME_MAX, Node, Statistics, Stream, TARGET_MAX, Volume, is_name, join_data, next_data,
};
pub use walk::{Walked, walk};
