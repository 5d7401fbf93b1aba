//! ext4 as a pure function of a tree: [`plan()`] gives a block map that a Linux kernel mounts read-write.
//!
//! No checksum of ext4 covers file content, so names, attributes, sizes and hole maps decide every byte of metadata:
//! planning opens no file. It happens in three steps:
//!
//! 1. `plan` measures the tree (blocks of directories, of extent trees, of attributes), solves the geometry (block
//!    groups, inode tables) and gives every file its place. What it keeps is tables of a few bytes an inode.
//! 2. The block map says where metadata, file content and zeros are.
//! 3. `render` makes any metadata block from the tree and those tables when it is read.
//!
//! Everything that is used is one run of blocks from the device's start, in this order: superblock, group descriptors,
//! block bitmaps, inode bitmaps, inode tables, directories, long symlinks, extent trees, attribute blocks, attribute
//! values, journal, file content in inode order. What follows is free. Block groups may keep their metadata anywhere
//! (`flex_bg`) and there are no backup superblocks (`sparse_super2`), so no metadata lies between files.

mod image;
mod plan;
mod read;
mod render;
mod spec;

pub use image::Ext4;
pub use plan::{Numbering, Options, Plan, PlanError, Size, Summary, XattrError, plan, plan_sized};
pub use read::{Ext4Image, LostAndFound, ReadOptions, open, open_image};
pub use spec::inode::stored_time;
