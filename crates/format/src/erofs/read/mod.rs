//! An image as a tree: its directories are walked once, its files' content is found in place.

mod compressed;
mod content;
mod directory;
mod image;
mod inode;
mod map;
mod volume;
mod walk;
mod xattr;

use std::sync::Arc;

use inarch_block::{BackedFiles, Backing, Content};
use inarch_tree::Extents;

use crate::erofs::NAME;
use crate::notes::Notes;
use crate::{Damage, Opened, ReadError};
use content::Files;
use image::{Image, Pages};
use volume::Volume;
use walk::Walked;

/// An error of this format.
fn damaged(reason: impl Into<String>) -> ReadError {
    ReadError::Format { format: NAME, reason: reason.into() }
}

/// The same error, about `path`.
fn about(path: &str, error: ReadError) -> ReadError {
    match error {
        ReadError::Format { format, reason } => ReadError::Format { format, reason: format!("{path}: {reason}") },
        other => other,
    }
}

/// Opens an EROFS image: as `mkfs.erofs` makes them, uncompressed or compressed by LZ4, LZMA, DEFLATE or Zstandard, in
/// one piece. Each file's compressed content is decompressed when it is read; some of it is kept.
///
/// Fails where the image is damaged, or has what is not supported: further devices, compressed metadata, and the
/// extent records that `-E48bit` gives compressed files. A compressed file whose content turns out to be damaged fails
/// to be read with `InvalidData`.
pub fn open(image: Arc<dyn Backing>) -> Result<Opened, ReadError> {
    open_with(image, Damage::Refused)
}

/// As [`open`]; where damage is salvaged, directories, inodes and parts of files that cannot be read are left out.
pub fn open_with(image: Arc<dyn Backing>, damage: Damage) -> Result<Opened, ReadError> {
    let source = Image::new(image.clone());
    let mut notes = Notes::default();
    let volume = Volume::read(&source, damage, &mut notes)?;
    let walked = walk::walk(Pages::new(source.clone()), &volume, damage, &mut notes);
    let Walked { tree, extents, compressed, packed } = walked.map_err(ReadError::into_damage)?;
    let notes = notes.into_lines();
    let tree = Arc::new(tree);
    let extents = Extents::new(tree.inode_count(), extents);
    let extents = extents.map_err(|error| damaged(format!("internal: {error}")))?;
    let plain = BackedFiles::new(tree.clone(), extents, vec![image]);
    let content: Arc<dyn Content> = if compressed.is_empty() {
        Arc::new(plain)
    } else {
        Arc::new(Files::new(tree.clone(), plain, compressed, packed, source))
    };
    Ok(Opened { tree, content, notes, image: None })
}
