//! [`Backing`]: a file that holds the content of many files, such as an archive or a disk image with or without an
//! overlay.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_tree::{Extent, Extents, InodeId, Tree};
use rustix::fs::FileType;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::content::{Borrower, Content, Lent};
use crate::seen::Seen;
use crate::{ChangeReason, ChangedFile, ChangedFiles, Cursor, Device, Origin};

/// Bytes that a file system reader can read at any offset.
pub trait Backing: Send + Sync {
    /// The number of bytes.
    fn size(&self) -> u64;

    /// Fills the next `count` bytes of `out` from `offset`; fails if that exceeds the end.
    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()>;

    /// Whether open files hold the `count` bytes from `offset`, holes aside.
    fn lends(&self, offset: u64, count: u64) -> bool {
        let _ = (offset, count);
        false
    }

    /// Lends the open files that hold `count` bytes from `offset`, if [`Backing::lends`] returns true: calls `take` for
    /// each part in ascending order, without holes. [`Lent::offset`] counts within the backing.
    ///
    /// Errors are those of `take`, and of a file that has changed: then the caller must not use what `take` took.
    fn lend(&self, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<()> {
        let _ = (offset, count, take);
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Checks whether the file is still as it was when it was opened; returns what changed.
    fn changed(&self) -> Option<ChangedFile> {
        None
    }

    /// The same for the backings below. Asks them through `asked`, so that one that lies below several others is asked
    /// once.
    fn changed_beneath(&self, asked: &mut Asked) -> Option<ChangedFile> {
        let _ = asked;
        self.changed()
    }
}

/// Which backings were asked whether their files have changed. Each one is asked once.
#[derive(Debug, Default)]
pub struct Asked(HashSet<*const ()>);

impl Asked {
    /// What has changed of a backing; nothing if it was asked before.
    pub fn ask(&mut self, backing: &Arc<dyn Backing>) -> Option<ChangedFile> {
        if self.0.insert(Arc::as_ptr(backing).cast()) { backing.changed_beneath(self) } else { None }
    }
}

/// Fills `out` with a backing's bytes from `offset`.
pub fn read_backing(backing: &dyn Backing, offset: u64, out: &mut [u8]) -> io::Result<()> {
    let count = out.len() as u64;
    backing.read(offset, count, &mut Cursor::new(&[VolatileSlice::from(out)]))
}

/// A file of the host that must stay as it was when it was opened: every read compares its size and times. Those of a block device do not show what is
/// written to it.
pub struct BackingFile {
    file: File,
    /// Bytes.
    size: u64,
    path: PathBuf,
    seen: Seen,
    change: Mutex<Option<ChangeReason>>,
}

impl BackingFile {
    /// `path` names the file in messages only.
    pub fn new(file: File, path: PathBuf) -> io::Result<BackingFile> {
        let seen = Seen::of(&file)?;
        Seen::outlast_step(seen.ctime);
        let size = match seen.file_type {
            FileType::BlockDevice => rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?,
            _ => seen.size,
        };
        Ok(BackingFile { file, size, path, seen, change: Mutex::new(None) })
    }

    fn check(&self) -> io::Result<()> {
        let reason = match Seen::of(&self.file) {
            Ok(now) if now == self.seen => return Ok(()),
            Ok(now) if now.size != self.seen.size => ChangeReason::Size { was: self.seen.size, now: now.size },
            Ok(now) if now.mtime != self.seen.mtime => ChangeReason::Written,
            Ok(_) => ChangeReason::Attributes,
            Err(errno) => ChangeReason::Unreadable(errno),
        };
        Err(self.fail(reason))
    }

    /// The error of a read. A server makes `EIO` of it; a user gets its text.
    fn fail(&self, reason: ChangeReason) -> io::Error {
        let error = match reason {
            ChangeReason::Unreadable(errno) => errno.into(),
            _ => io::Error::other(format!("it was changed after it was opened: {reason}")),
        };
        self.change.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        error
    }
}

impl Backing for BackingFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let mut done = 0;
        while done < count {
            let at = offset.checked_add(done).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
            let got = out.read_from(self.file.as_fd(), at, count - done).map_err(|error| {
                self.fail(ChangeReason::Unreadable(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
            })?;
            if got == 0 {
                self.check()?;
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += got;
        }
        self.check()
    }

    fn lends(&self, _offset: u64, _count: u64) -> bool {
        true
    }

    fn lend(&self, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<()> {
        if count > 0 {
            take(self.file.as_fd(), Lent { offset, at: offset, length: count })?;
        }
        self.check()
    }

    fn changed(&self) -> Option<ChangedFile> {
        let change = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        change.clone().map(|reason| ChangedFile { path: self.path.clone(), reason })
    }
}

/// A device as a file system reader's backing: its content, including the overlay.
impl Backing for Device {
    fn size(&self) -> u64 {
        self.capacity()
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        self.read_to(offset, count, out)
    }

    fn lends(&self, offset: u64, count: u64) -> bool {
        self.parts(offset, count).all(|(origin, _)| matches!(origin, Origin::Overlay | Origin::Zeros))
    }

    fn lend(&self, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<()> {
        for (origin, Range { start, end }) in self.parts(offset, count) {
            match (origin, self.overlay_file()) {
                (Origin::Overlay, Some((file, data_start))) => {
                    take(file, Lent { offset: start, at: data_start + start, length: end - start })?;
                }
                (Origin::Zeros, _) => {}
                _ => return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            }
        }
        Ok(())
    }
}

/// The content of a tree whose files are ranges of a few backings.
pub struct BackedFiles {
    tree: Arc<Tree>,
    extents: Extents,
    backings: Vec<Arc<dyn Backing>>,
}

impl BackedFiles {
    /// The files of `tree`; an extent's `backing` is an index into `backings`.
    pub fn new(tree: Arc<Tree>, extents: Extents, backings: Vec<Arc<dyn Backing>>) -> BackedFiles {
        BackedFiles { tree, extents, backings }
    }

    /// Where the files' bytes are.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    fn backing(&self, extent: &Extent) -> io::Result<&dyn Backing> {
        let backing = self.backings.get(extent.backing as usize).map(|backing| &**backing);
        backing.ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
    }

    /// The parts of extents within `count` bytes from `offset`, and within the file.
    fn parts(&self, inode: InodeId, offset: u64, count: u64) -> impl Iterator<Item = (&Extent, Lent)> {
        let size = if inode.0 < self.tree.inode_count() { self.tree.inode(inode).size() } else { 0 };
        let end = offset.saturating_add(count).min(size);
        let extents = self.extents.of(inode);
        let first = extents.partition_point(|extent| extent.offset + extent.length <= offset);
        let ahead = extents.get(first..).unwrap_or_default();
        ahead.iter().take_while(move |extent| extent.offset < end).map(move |extent| {
            let start = extent.offset.max(offset);
            let stop = (extent.offset + extent.length).min(end);
            (extent, Lent { offset: start, at: extent.at + (start - extent.offset), length: stop - start })
        })
    }

    fn read_parts(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let mut at = offset;
        for (extent, part) in self.parts(inode, offset, count) {
            out.fill_zeros(part.offset - at);
            self.backing(extent)?.read(part.at, part.length, out)?;
            at = part.offset + part.length;
        }
        out.fill_zeros(count - (at - offset));
        Ok(())
    }
}

impl Content for BackedFiles {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let mut start = out.clone();
        self.read_parts(inode, offset, count, out).map_err(|_| {
            start.fill_zeros(count);
            io::Error::from_raw_os_error(libc::EIO)
        })
    }

    fn lend(&self, inode: InodeId, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<bool> {
        for (extent, part) in self.parts(inode, offset, count) {
            if !self.backing(extent)?.lends(part.at, part.length) {
                return Ok(false);
            }
        }
        for (extent, part) in self.parts(inode, offset, count) {
            let of_file = |lent: Lent| Lent { offset: part.offset + (lent.offset - part.at), ..lent };
            self.backing(extent)?.lend(part.at, part.length, &mut |file, lent| take(file, of_file(lent)))?;
        }
        Ok(true)
    }

    fn changed(&self) -> ChangedFiles {
        let named: Vec<_> = self.backings.iter().filter_map(|backing| backing.changed()).collect();
        ChangedFiles { count: named.len() as u64, named }
    }
}
