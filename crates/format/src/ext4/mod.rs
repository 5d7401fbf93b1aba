//! Plans ext4 file systems as a pure function of a tree: [`plan()`] returns a block map that a Linux kernel mounts
//! read-write.
//!
//! No checksum of ext4 covers file content, so names, attributes, sizes and hole maps determine every byte of
//! metadata, and planning opens no file. It has three steps:
//!
//! 1. `plan` measures the tree (blocks of directories, of extent trees, of attributes), solves the geometry (block
//!    groups, inode tables) and assigns every file its place. It keeps tables of a few bytes for each inode.
//! 2. The block map says where metadata, file content and zeros are.
//! 3. `render` makes any metadata block from the tree and those tables when it is read.
//!
//! Everything in use is one run of blocks from the device's start, in this order: superblock, group descriptors,
//! block bitmaps, inode bitmaps, inode tables, directories, long symlinks, extent trees, attribute blocks, attribute
//! values, journal, file content in inode order. The rest is free. Block groups may keep their metadata anywhere
//! (`flex_bg`) and there are no backup superblocks (`sparse_super2`), so no metadata lies between files.

mod image;
mod layout;
mod plan;
mod read;
mod render;
mod spec;

use std::io;

use inarch_block::Backing;

use crate::Reader;
use crate::probe::{Likeness, bytes_at};
pub use image::Ext4;
pub use layout::{Numbering, Options, PlanError, Summary, XattrError};
pub use plan::{Plan, Size, plan, plan_sized};
pub use read::{Ext4Image, LostAndFound, ReadOptions, open, open_image, open_volume};
pub(crate) use spec::acl::from_ext4;
pub use spec::inode::stored_time;

/// The format's name on the command line and in messages.
const NAME: &str = "ext4";

/// The reader, for the registry.
pub(crate) const READER: Reader =
    Reader { name: NAME, title: "an ext4 file system", packs: false, probe, open: open_volume };

/// Probes the superblock. Its magic number has only two bytes, which other data may contain by chance, so block size
/// and counts must be plausible too.
fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    let Some(superblock) = bytes_at::<84>(image, spec::superblock::OFFSET as u64)? else { return Ok(Likeness::No) };
    let word =
        |at: usize| superblock.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word));
    if word(56) as u16 != spec::superblock::MAGIC {
        return Ok(Likeness::No);
    }
    let (inodes, blocks, log_block_size, revision) = (word(0), word(4), word(24), word(76));
    let makes_sense = inodes != 0 && blocks != 0 && log_block_size <= 6 && revision <= 1;
    Ok(if makes_sense { Likeness::Sure } else { Likeness::Weak })
}
