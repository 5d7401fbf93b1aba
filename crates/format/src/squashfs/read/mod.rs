//! Reading an image back into a tree. Nothing of it is believed: see `walk` for what bounds the tree, `metadata` and
//! `files` for what bounds a reference.

mod cache;
mod content;
mod files;
mod image;
mod inode;
mod metadata;
mod walk;
mod xattrs;

use std::sync::Arc;

use inarch_block::Backing;

use crate::notes::Notes;
use crate::{Damage, Opened, ReadError};
use content::Packed;
use files::Files;
use image::Image;

/// Opens a squashfs 4.0 image that is compressed by gzip, lz4, xz or zstd, or not at all. Content is decompressed when
/// it is read; 32 MiB of it are kept. Where blocks are stored as they are, the image's own file is lent.
///
/// Errors say what is wrong with the image, and where.
pub fn open(image: Arc<dyn Backing>) -> Result<Opened, ReadError> {
    open_with(image, Damage::Refused)
}

/// As [`open`]; where damage is salvaged, directories and inodes that cannot be read are left out. An image that was cut
/// off has lost its tables, which are at its end.
pub fn open_with(image: Arc<dyn Backing>, damage: Damage) -> Result<Opened, ReadError> {
    let mut notes = Notes::default();
    let image = Arc::new(Image::open(image)?);
    let mut files = Files::open(&image)?;
    let tree = walk::read_tree(&image, &mut files, damage, &mut notes).map_err(ReadError::into_damage)?;
    let notes = notes.into_lines();
    let tree = Arc::new(tree);
    let content = Arc::new(Packed::new(image, Arc::clone(&tree), files));
    Ok(Opened { tree, content, notes, image: None })
}
