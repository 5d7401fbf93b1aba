//! [`ReadFiles`]: records which of a tree's files are read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use inarch_tree::InodeId;

use crate::content::Borrower;
use crate::{Allowance, ChangedFiles, Content, Cursor, Hold};

/// A tree's content, and a bit for each inode that was read. A client that reads the device learns metadata from elsewhere,
/// so only the content of regular files counts.
pub struct ReadFiles {
    content: Arc<dyn Content>,
    read: Box<[AtomicU64]>,
}

impl ReadFiles {
    /// Records reads of `content`. `inodes` is the number of inodes in its tree.
    pub fn new(content: Arc<dyn Content>, inodes: u32) -> ReadFiles {
        let words = (inodes as usize).div_ceil(u64::BITS as usize);
        ReadFiles { content, read: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Whether bytes of the inode's content were read or lent.
    pub fn was_read(&self, inode: InodeId) -> bool {
        let (word, bit) = place(inode);
        self.read.get(word).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// How many inodes' content was read or lent.
    pub fn count(&self) -> u64 {
        self.read.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    fn note(&self, inode: InodeId) {
        let (word, bit) = place(inode);
        if let Some(word) = self.read.get(word)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for ReadFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadFiles").finish_non_exhaustive()
    }
}

/// The word of an inode's bit, and the bit.
fn place(inode: InodeId) -> (usize, u64) {
    let index = inode.index();
    (index / u64::BITS as usize, 1 << (index % u64::BITS as usize))
}

impl Content for ReadFiles {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        self.note(inode);
        self.content.read(inode, offset, count, out)
    }

    fn lend(&self, inode: InodeId, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<bool> {
        self.note(inode);
        self.content.lend(inode, offset, count, take)
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

#[cfg(test)]
mod tests {
    use vm_memory::VolatileSlice;

    use super::*;

    struct Letters;

    impl Content for Letters {
        fn read(&self, _: InodeId, _: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
            out.copy_from(&vec![b'x'; count as usize]);
            Ok(())
        }
    }

    #[test]
    fn a_file_counts_when_it_is_read() {
        let files = ReadFiles::new(Arc::new(Letters), 130);
        let mut bytes = [0; 3];
        for inode in [0, 63, 64, 129] {
            assert!(!files.was_read(InodeId(inode)));
            let slices = [VolatileSlice::from(&mut bytes[..])];
            files.read(InodeId(inode), 0, 3, &mut Cursor::new(&slices)).unwrap();
            assert!(files.was_read(InodeId(inode)));
        }
        let counted = (0..200).filter(|inode| files.was_read(InodeId(*inode))).count();
        assert_eq!((counted, &bytes), (4, b"xxx"));
        // A number beyond the tree's is no inode's.
        files.note(InodeId(u32::MAX));
        assert!(!files.was_read(InodeId(u32::MAX)));
    }
}
