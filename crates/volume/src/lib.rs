//! File systems inside a [`Backing`](inarch_block::Backing), read on demand.
//!
//! [`Volume`] is the seam. What implements it is a reader of a format: it answers one question at a time (which node has this
//! name, what are its attributes, where do its bytes lie) from the bytes of the image, and keeps nothing that grows with the
//! tree. What calls it is one of two adapters: [`walk()`] makes a [`Tree`](inarch_tree::Tree) of all of it, for what needs to
//! know everything (a run, an image, a plan); `VolumeFiles` of `inarch-vfs` shows it as files that are asked for one request at
//! a time. A tree is a volume as well ([`TreeVolume`]), so that archives and snapshots are shown by the same files.
//!
//! # How to add a reader
//!
//! A folder and a line. The folder has a type that implements [`Volume`] and a function that opens one from a backing: it reads
//! and checks the superblock and the root, and no more, so that a mount is ready at once whatever the size of the tree. The line
//! is in the registry of readers (`crates/format/src/registry.rs`) and has the format's name, how its images are told from others,
//! and that function. Then:
//!
//! - A [`Node`] is the format's own address of an inode, whatever finds it without a table: its number, or where it lies.
//! - What lies in the image is hostile: sums are checked, nothing is allocated that is larger than what the image holds, no
//!   loop is longer than the image, no answer is a panic. What makes no sense is [`VolumeError::Damaged`].
//! - Methods take `&self` and are called by several threads. A cache is bounded, and has a lock of its own; [`Pages`] is one.
//! - [`Volume::pass`] is for the walk, which meets every node once. The default asks the other methods. A reader overrides it
//!   where one look at an inode answers several questions, and where what was met must be remembered: an image may
//!   say that every file has the same large attributes or extents, and a walk over all of them ends only if that is counted.
//!
//! A property test in `crates/format/tests/all` compares both adapters for every reader, and the fuzz target `volume` asks
//! damaged images for nodes at random.

#![forbid(unsafe_code)]

mod content;
mod error;
mod findings;
mod pages;
mod pass;
mod tree;
mod volume;
mod walk;

pub use content::WalkedFiles;
pub use error::VolumeError;
pub use findings::{Findings, Loss};
pub use pages::Pages;
pub use pass::{AskedOneByOne, Body, Facts, Pass};
pub use tree::TreeVolume;
pub use volume::{
    Attributes, Item, Listed, NAME_MAX, Node, Statistics, Stream, TARGET_MAX, Volume, is_name, join_data, next_data,
};
pub use walk::{Walked, walk};
