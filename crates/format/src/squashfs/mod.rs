//! Plans and writes squashfs 4.0 images, compressed or not, and reads them.
//!
//! An uncompressed image is a pure function of a tree: names, attributes, sizes and hole maps determine every byte
//! except file content, and content starts at multiples of 4 KiB. So it can be served as a disk:
//!
//! 1. `plan` numbers the inodes (a directory after its content), places files, inodes and listings in that order, and
//!    then the tables. It keeps tables of a few bytes for each inode.
//! 2. The block map says where content and metadata are. From the image's start: the superblock in a block of its
//!    own, the files, then inodes, directories, the export table, owners, and extended attributes.
//! 3. `render` makes any metadata block from the tree and those tables when it is read.

mod codec;
mod layout;
mod pack;
mod plan;
mod read;
mod render;
mod spec;

pub use read::{open, open_volume, open_with};

use std::io;
use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, Backing};
use inarch_tree::Tree;

use codec::Settings;

use crate::probe::{Likeness, bytes_at};
use crate::{Format, FormatError, ImageOptions, Layout, Planned, Reader};

const NAME: &str = "squashfs";

/// The reader, for the registry.
pub(crate) const READER: Reader =
    Reader { name: NAME, title: "a SquashFS file system", packs: true, probe, open: open_volume };

/// By the superblock's magic number.
fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    Ok(Likeness::certain(bytes_at(image, 0)? == Some(spec::superblock::MAGIC.to_le_bytes())))
}

/// squashfs 4.0: read-only, compressed or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Squashfs;

fn refuse(reason: impl ToString) -> FormatError {
    FormatError { format: NAME, reason: reason.to_string() }
}

impl Format for Squashfs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["sqfs", "sqsh"]
    }

    fn plan(&self, tree: &Arc<Tree>, options: &ImageOptions) -> Result<Planned, FormatError> {
        let block_size = check(options)?;
        FormatError::of_long_names(tree, NAME, spec::directory::MAX_NAME)?;
        // Times before 1970 or after 2106 become the nearest that the superblock can hold.
        let mtime = options.epoch.map(|epoch| epoch.clamp(0, u32::MAX.into()) as u32);
        if let Some(compression) = options.compression {
            if options.size.is_some() {
                let reason = "the size of a compressed image is known only when it has been made; leave the size out";
                return Err(refuse(reason));
            }
            let settings = Settings::new(compression, block_size).map_err(refuse)?;
            let image = pack::Image::plan(tree, settings, block_size, mtime, options.threads).map_err(refuse)?;
            let notes = image.notes();
            return Ok(Planned { layout: Layout::Packed(Box::new(image)), notes });
        }
        let blocks = options.size.unwrap_or(0) / BLOCK_SIZE as u64;
        let (map, notes) = plan::plan(tree, block_size, mtime, blocks).map_err(refuse)?;
        if let Some(size) = options.size.filter(|size| map.blocks() * BLOCK_SIZE as u64 > *size) {
            let needed = map.blocks() * BLOCK_SIZE as u64;
            return Err(refuse(format!("the image takes {needed} bytes, more than the {size} asked for")));
        }
        Ok(Planned { layout: Layout::Blocks(map), notes })
    }
}

/// Refuses unsupported options; returns the size of a data block.
fn check(options: &ImageOptions) -> Result<u32, FormatError> {
    use spec::{DEFAULT_BLOCK_SIZE, MAX_BLOCK_SIZE, MIN_BLOCK_SIZE};
    if !options.label.is_empty() {
        return Err(refuse("it has no label; leave the label out"));
    }
    if options.uuid.is_some() {
        return Err(refuse("it has no UUID; leave the UUID out"));
    }
    if options.free_bytes > 0 {
        return Err(refuse("it is read-only, and has no free space; leave the free space out"));
    }
    let block_size = options.block_size.unwrap_or(DEFAULT_BLOCK_SIZE);
    if !block_size.is_power_of_two() || !(MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&block_size) {
        return Err(refuse(format!(
            "a block size of {block_size} bytes is not a power of two from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}"
        )));
    }
    Ok(block_size)
}
