//! EROFS as a pure function of a tree, and any EROFS image as a tree.
//!
//! Planning opens no file: names, attributes, sizes and hole maps decide every byte but those of files. In the order of
//! the device:
//!
//! 1. the superblock;
//! 2. inodes in the order of the tree, extended ones of 64 bytes, each followed by its attributes and by what would
//!    fill a block badly: the end of a directory's listing, a symlink's target and, in an image that is written and not
//!    served, a short file; behind a sparse file's inode is its map of chunks;
//! 3. attributes that several inodes have;
//! 4. full blocks of directories, and targets too long for 2;
//! 5. the content of files in the order of the tree; then, in an image that is compressed, that of compressed files.
//!
//! The plan keeps eight bytes for each inode, and a few more for directories of several blocks and files with holes;
//! a metadata block is rendered from those and the tree when it is read. Where files are compressed (`pack`), all but
//! the addresses of their pieces is planned the same way, and those are known when the pieces are.

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

/// The EROFS format: 4 KiB blocks, at most 16 TiB, uncompressed or with files compressed by LZ4. Linux 5.15 and later
/// mount it.
///
/// Of times it keeps the modification time. It is read-only, so [`ImageOptions::free_bytes`] is refused. Files with
/// holes and those of one block are never compressed.
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
