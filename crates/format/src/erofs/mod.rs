//! Plans EROFS images as a pure function of a tree, and reads EROFS images.
//!
//! Planning opens no file: names, attributes, sizes and hole maps determine every byte except file content. The
//! device holds, in this order:
//!
//! 1. the superblock;
//! 2. inodes in the order of the tree, extended ones of 64 bytes, each followed by its extended attributes and by
//!    what would fill a block badly: the tail of a directory listing, a symlink target and, in an image that is
//!    written rather than served, a short file; the inode of a sparse file is followed by its chunk map;
//! 3. extended attributes that several inodes share;
//! 4. full directory blocks, and targets too long for 2;
//! 5. file content in the order of the tree, and then, in a compressed image, that of compressed files.
//!
//! The plan keeps eight bytes for each inode, and a few more for large directories and sparse files. A metadata block
//! is rendered from these and the tree when it is read. For compressed files (`pack`), everything but the addresses
//! of their pieces is planned the same way.

mod beside;
mod layout;
mod pack;
mod plan;
mod read;
mod render;
mod spec;

use std::io;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_tree::Tree;

pub use beside::metadata_beside;
pub use read::{open, open_volume, open_with};

use crate::probe::{Likeness, bytes_at};
use crate::{Format, FormatError, ImageOptions, Layout, Planned, Reader};

/// The format's name on the command line and in messages.
const NAME: &str = "erofs";

/// The reader, for the registry.
pub(crate) const READER: Reader =
    Reader { name: NAME, title: "an EROFS file system", packs: true, probe, open: open_volume };

/// By the superblock's magic number.
fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    let magic = bytes_at(image, spec::superblock::OFFSET as u64)?;
    Ok(Likeness::certain(magic == Some(spec::superblock::MAGIC.to_le_bytes())))
}

/// The EROFS format: 4 KiB blocks, at most 16 TiB, uncompressed or with LZ4-compressed files. Linux 5.15 and later
/// mount it.
///
/// The only time it stores is mtime. It is read-only, so [`ImageOptions::free_bytes`] is refused. Sparse files and
/// files of one block are never compressed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Erofs;

impl Format for Erofs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn plan(&self, tree: &Arc<Tree>, options: &ImageOptions) -> Result<Planned, FormatError> {
        FormatError::of_long_names(tree, NAME, 255)?;
        let layout = match options.compression {
            None => Layout::Blocks(plan::Laid::new(tree, options)?.into_map(tree, options)?),
            Some(_) => Layout::Packed(Box::new(pack::Compressed::new(tree, options)?)),
        };
        Ok(Planned { layout, notes: Vec::new() })
    }
}
