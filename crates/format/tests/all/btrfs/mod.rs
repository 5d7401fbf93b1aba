//! Btrfs is read as the kernel reads it, and damage of any kind ends in an error.

mod build;
mod devices;
mod golden;
mod hostile;
mod made;

use std::path::Path;
use std::sync::Arc;

use inarch_block::BackingFile;
use inarch_confine::Parsing;
use inarch_format::btrfs::{self, ReadOptions, Root};
use inarch_format::{ReadError, TreeAndContent};

use crate::common::compare::open as open_file;

/// Walks the image in a file, with a subvolume as the root.
fn opened(image: &Path, root: Root) -> Result<TreeAndContent, ReadError> {
    let backing = Arc::new(BackingFile::new(open_file(image), image.to_owned()).unwrap());
    btrfs::open(Parsing::unconfined(), backing, &ReadOptions { root, ..ReadOptions::default() })
}
