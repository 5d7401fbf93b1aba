//! The content of an image that has compressed files.

use std::io;
use std::sync::Arc;

use inarch_block::{BackedFiles, Borrower, ChangedFiles, Content, Cursor};
use inarch_tree::{InodeId, Tree};

use super::about;
use super::compressed::{Compressed, Packed, Store};
use super::image::Image;
use crate::ReadError;

/// The files of an image, compressed or not.
pub(crate) struct Files {
    tree: Arc<Tree>,
    plain: BackedFiles,
    /// Ascending.
    compressed: Vec<(InodeId, Compressed)>,
    store: Store,
}

impl Files {
    pub(crate) fn new(
        tree: Arc<Tree>,
        plain: BackedFiles,
        compressed: Vec<(InodeId, Compressed)>,
        packed: Option<Packed>,
        image: Image,
    ) -> Files {
        Files { tree, plain, compressed, store: Store::new(image, packed) }
    }

    fn compressed(&self, inode: InodeId) -> Option<&Compressed> {
        let place = self.compressed.binary_search_by_key(&inode, |(id, _)| *id).ok()?;
        self.compressed.get(place).map(|(_, file)| file)
    }

    fn error(&self, inode: InodeId, error: ReadError) -> io::Error {
        let path = self.tree.path(inode);
        match about(&String::from_utf8_lossy(&path), error) {
            ReadError::Io { error, .. } => error,
            error => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
        }
    }
}

impl Content for Files {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let Some(file) = self.compressed(inode) else { return self.plain.read(inode, offset, count, out) };
        let mut start = out.clone();
        self.store.read(inode.0, file, offset, count, &mut |bytes| out.copy_from(bytes)).map_err(|error| {
            start.fill_zeros(count);
            self.error(inode, error)
        })
    }

    fn lend(&self, inode: InodeId, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<bool> {
        match self.compressed(inode) {
            Some(_) => Ok(false),
            None => self.plain.lend(inode, offset, count, take),
        }
    }

    fn changed(&self) -> ChangedFiles {
        self.plain.changed()
    }
}
