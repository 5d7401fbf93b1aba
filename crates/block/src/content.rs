//! [`Content`]: reads the bytes of a tree's regular files.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use inarch_tree::InodeId;
use vm_memory::VolatileSlice;

use crate::{Allowance, ChangedFiles, Cursor, Hold};

/// A part of a file that lies in an open file of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Where in the tree's file it starts, in bytes.
    pub offset: u64,
    /// Where in the open file it starts, in bytes.
    pub at: u64,
    /// How long it is, in bytes; never 0.
    pub length: u64,
}

/// Takes a part that [`Content::lend`] lends.
pub type Borrower<'a> = dyn FnMut(BorrowedFd<'_>, Lent) -> io::Result<()> + 'a;

/// Reads a tree's regular files. Every method may be called from several threads at once.
pub trait Content: Send + Sync {
    /// Reads `count` bytes of `inode` from `offset` into `out` and advances it; zeros beyond the file's end and in its
    /// holes. After an error those bytes of `out` are zeros.
    ///
    /// `EIO`: the bytes are not, or may not be, those of the scan, and no copy is held; [`Content::changed`] has the
    /// reason.
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()>;

    /// Lends the open files that hold `count` bytes of `inode` from `offset`, so that the kernel can share or copy
    /// them: calls `take` for each part in ascending order, without holes. Returns `false` without calling `take` if no
    /// file holds the bytes unchanged (compressed, for example); then only [`Content::read`] works.
    ///
    /// Errors are those of `take`, and `EIO` as for [`Content::read`]: then the caller must not use what `take` took.
    fn lend(&self, inode: InodeId, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<bool> {
        let _ = (inode, offset, count, take);
        Ok(false)
    }

    /// The files that were found changed.
    fn changed(&self) -> ChangedFiles {
        ChangedFiles::default()
    }

    /// Copies files while they are as the scan saw them; returns when all are copied or the allowance is used up. Does
    /// nothing for content that cannot change.
    ///
    /// Errors are those of the place for the copies. Copies made before an error stay held.
    fn hold(&self, hold: &Hold<'_>, allowance: &mut Allowance) -> io::Result<()> {
        let _ = (hold, allowance);
        Ok(())
    }

    /// The changed files whose held copies were read instead.
    fn held(&self) -> ChangedFiles {
        ChangedFiles::default()
    }

    /// Reads that failed because no descriptor was left, in this process (`EMFILE`) or on the host (`ENFILE`).
    fn out_of_descriptors(&self) -> u64 {
        0
    }
}

/// Reads a part of a file's content into this process's memory; see [`Content::read`].
pub fn read_content(content: &dyn Content, inode: InodeId, offset: u64, out: &mut [u8]) -> io::Result<()> {
    let count = out.len() as u64;
    content.read(inode, offset, count, &mut Cursor::new(&[VolatileSlice::from(out)]))
}

/// The content of a tree that was made from another one: each inode has the content of an inode of the other tree.
pub struct Renumbered {
    content: Arc<dyn Content>,
    /// For each inode of the new tree, the old tree's inode.
    origins: Vec<InodeId>,
}

impl Renumbered {
    /// `origins` has, for each inode of the new tree, the inode of the tree that `content` belongs to.
    pub fn new(content: Arc<dyn Content>, origins: Vec<InodeId>) -> Renumbered {
        Renumbered { content, origins }
    }

    fn origin(&self, inode: InodeId) -> io::Result<InodeId> {
        self.origins.get(inode.index()).copied().ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
    }
}

impl Content for Renumbered {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        match self.origin(inode) {
            Ok(origin) => self.content.read(origin, offset, count, out),
            Err(error) => {
                out.fill_zeros(count);
                Err(error)
            }
        }
    }

    fn lend(&self, inode: InodeId, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<bool> {
        self.content.lend(self.origin(inode)?, offset, count, take)
    }

    fn changed(&self) -> ChangedFiles {
        self.content.changed()
    }

    fn hold(&self, hold: &Hold<'_>, allowance: &mut Allowance) -> io::Result<()> {
        self.content.hold(hold, allowance)
    }

    fn held(&self) -> ChangedFiles {
        self.content.held()
    }

    fn out_of_descriptors(&self) -> u64 {
        self.content.out_of_descriptors()
    }
}
