//! [`HostFiles`]: reads a tree's regular files from the host, as long as they are as the scan saw them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use inarch_tree::{Inode, InodeId, Tree};
use rustix::fs::FileType;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::changed::{ChangeLog, ChangeReason, ChangedFiles};
use crate::content::{Borrower, Content, Lent};
use crate::events::add;
use crate::files::OpenFiles;
use crate::held::{Allowance, HeldFiles, Hold};
use crate::open::Opener;
use crate::scatter::Cursor;
use crate::seen::Seen;

/// How long to wait, in turn, for a descriptor that another thread or process may close.
const DESCRIPTOR_WAITS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(9),
    Duration::from_millis(27),
];

/// Why a file's bytes cannot be returned.
enum ReadFailure {
    /// The file is not, or may not be, as the scan saw it.
    Changed(ChangeReason),
    /// Unknown: no descriptor was left to open the file, in this process or on the host.
    NoDescriptor,
}

impl From<ChangeReason> for ReadFailure {
    fn from(reason: ChangeReason) -> ReadFailure {
        ReadFailure::Changed(reason)
    }
}

/// Reads a tree's regular files beneath the directory that was scanned.
///
/// After every read the file's inode number, size and times are compared with the tree's. A file that differs, is gone
/// or cannot be read gives `EIO` and is recorded in [`Content::changed`]. If a copy is held, the copy is read instead
/// and the file is recorded in [`Content::held`].
///
/// The kernel sets a file's times before it changes its pages, so data of a later write is never returned as the
/// scan's. A file that was written just before is not read until its times can show the next write. One change escapes
/// the times: stores through a shared mapping to a page that was dirty already when it was read.
#[derive(Debug)]
pub struct HostFiles {
    tree: Arc<Tree>,
    opener: Opener,
    open: OpenFiles,
    changes: ChangeLog,
    copies: HeldFiles,
    /// Changed files whose copies were read.
    held: ChangeLog,
    out_of_descriptors: AtomicU64,
}

impl HostFiles {
    /// The files of `tree`, whose root is the directory `root` (an `O_PATH` descriptor is enough). At most `max_open`
    /// of them stay open between reads; each reading thread may have one more.
    pub fn new(root: OwnedFd, tree: Arc<Tree>, max_open: usize) -> HostFiles {
        HostFiles {
            tree,
            opener: Opener::new(root),
            open: OpenFiles::new(max_open),
            changes: ChangeLog::default(),
            copies: HeldFiles::default(),
            held: ChangeLog::default(),
            out_of_descriptors: AtomicU64::new(0),
        }
    }

    /// A limit for [`HostFiles::new`] that leaves descriptors for everything else: half of `RLIMIT_NOFILE`, at most
    /// 512.
    pub fn default_max_open() -> usize {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limit.map_or(512, |limit| (limit / 2).min(512) as usize)
    }

    /// Records why a file could not be read; returns the reader's error.
    fn report(&self, id: InodeId, failure: ReadFailure) -> io::Error {
        match failure {
            ReadFailure::Changed(reason) => self.changes.add(&self.tree, id, reason),
            ReadFailure::NoDescriptor => add(&self.out_of_descriptors, 1),
        }
        io::Error::from_raw_os_error(libc::EIO)
    }

    fn read_unchanged(
        &self,
        id: InodeId,
        offset: u64,
        count: u64,
        out: &mut Cursor<'_, '_>,
    ) -> Result<(), ReadFailure> {
        if id.0 >= self.tree.inode_count() {
            return Err(ChangeReason::Vanished.into());
        }
        let inode = self.tree.inode(id);
        let content = inode.size().saturating_sub(offset).min(count);
        if content > 0 {
            let kept = self.open.get(id);
            let file = match &kept {
                Some(file) => Arc::clone(file),
                None => Arc::new(self.open_file(id)?),
            };
            let got = read_exact(file.as_fd(), offset, content, out);
            // Checked after the read: an earlier or concurrent change shows in the attributes now.
            compare(inode, &Seen::of(&file).map_err(ChangeReason::Unreadable)?)?;
            got?;
            // A file that was read whole is not soon read again, because the reader caches it.
            if kept.is_none() && content < inode.size() {
                self.open.put(id, file);
            }
        }
        out.fill_zeros(count - content);
        Ok(())
    }

    /// Reads a file's held copy like [`Content::read`]; returns whether there was one.
    fn read_held(&self, id: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> bool {
        if id.0 >= self.tree.inode_count() {
            return false;
        }
        let content = self.tree.inode(id).size().saturating_sub(offset).min(count);
        let got = self.copies.read(id, offset, content, out);
        out.fill_zeros(count - content);
        got
    }

    /// Lends a part of a file; returns the result of `take` if the file was as the scan saw it all the time.
    fn lend_unchanged(
        &self,
        id: InodeId,
        offset: u64,
        count: u64,
        take: &mut Borrower<'_>,
    ) -> Result<io::Result<()>, ReadFailure> {
        if id.0 >= self.tree.inode_count() {
            return Err(ChangeReason::Vanished.into());
        }
        let inode = self.tree.inode(id);
        let length = inode.size().saturating_sub(offset).min(count);
        if length == 0 {
            return Ok(Ok(()));
        }
        let file = self.open_file(id)?;
        let taken = take(file.as_fd(), Lent { offset, at: offset, length });
        // As for a read: an earlier or concurrent change shows in the attributes now.
        compare(inode, &Seen::of(&file).map_err(ChangeReason::Unreadable)?)?;
        Ok(taken)
    }

    /// Opens a file, and waits until its times show every later write.
    fn open_file(&self, id: InodeId) -> Result<OwnedFd, ReadFailure> {
        Seen::outlast_step(self.tree.inode(id).ctime());
        let path = self.tree.path(id);
        let mut waits = DESCRIPTOR_WAITS.iter();
        loop {
            let reason = match self.opener.open(&path) {
                Ok(file) => return Ok(file),
                Err(Errno::MFILE | Errno::NFILE) => {
                    let Some(wait) = waits.next() else { return Err(ReadFailure::NoDescriptor) };
                    self.open.clear();
                    thread::sleep(*wait);
                    continue;
                }
                Err(Errno::NOENT | Errno::NOTDIR) => ChangeReason::Vanished,
                Err(Errno::LOOP | Errno::XDEV | Errno::NXIO | Errno::NODEV) => ChangeReason::Replaced,
                Err(errno) => ChangeReason::Unreadable(errno),
            };
            return Err(reason.into());
        }
    }
}

impl Content for HostFiles {
    fn read(&self, id: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let start = out.clone();
        let Err(failure) = self.read_unchanged(id, offset, count, out) else { return Ok(()) };
        *out = start.clone();
        match failure {
            ReadFailure::Changed(reason) if self.read_held(id, offset, count, out) => {
                self.held.add(&self.tree, id, reason);
                Ok(())
            }
            failure => {
                start.clone().fill_zeros(count);
                Err(self.report(id, failure))
            }
        }
    }

    fn lend(&self, id: InodeId, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<bool> {
        self.lend_unchanged(id, offset, count, take).map_err(|failure| self.report(id, failure))?.map(|()| true)
    }

    fn hold(&self, hold: &Hold<'_>, allowance: &mut Allowance) -> io::Result<()> {
        let lend = |id, take: &mut Borrower<'_>| matches!(self.lend_unchanged(id, 0, u64::MAX, take), Ok(Ok(())));
        let read = |id: InodeId, most: u64| {
            let length = self.tree.inode(id).size().min(most);
            let mut text = vec![0; length as usize];
            let slices = [VolatileSlice::from(text.as_mut_slice())];
            self.read_unchanged(id, 0, length, &mut Cursor::new(&slices)).ok().map(|()| text)
        };
        self.copies.fill(&self.tree, hold, allowance, (&lend, &read))
    }

    fn held(&self) -> ChangedFiles {
        self.held.snapshot()
    }

    fn changed(&self) -> ChangedFiles {
        self.changes.snapshot()
    }

    fn out_of_descriptors(&self) -> u64 {
        self.out_of_descriptors.load(Ordering::Relaxed)
    }
}

pub(crate) fn read_exact(
    file: BorrowedFd<'_>,
    offset: u64,
    count: u64,
    out: &mut Cursor<'_, '_>,
) -> Result<(), ChangeReason> {
    let mut done = 0;
    while done < count {
        let got = out
            .read_from(file, offset.saturating_add(done), count - done)
            .map_err(|error| ChangeReason::Unreadable(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        if got == 0 {
            let was = offset.saturating_add(count);
            return Err(ChangeReason::Size { was, now: offset.saturating_add(done) });
        }
        done += got;
    }
    Ok(())
}

/// Compares a file's attributes with the scan's.
fn compare(inode: &Inode, now: &Seen) -> Result<(), ChangeReason> {
    if now.file_type != FileType::RegularFile {
        return Err(ChangeReason::Replaced);
    }
    if inode.source_ino() != 0 && inode.source_ino() != now.ino {
        return Err(ChangeReason::OtherInode);
    }
    if inode.size() != now.size {
        return Err(ChangeReason::Size { was: inode.size(), now: now.size });
    }
    if inode.mtime() != now.mtime {
        return Err(ChangeReason::Written);
    }
    if inode.ctime() != now.ctime {
        return Err(ChangeReason::Attributes);
    }
    Ok(())
}
