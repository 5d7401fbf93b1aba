//! A worker of a scan: reads directories one after the other, each into a listing.

use std::ffi::CStr;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::access::Caller;
use super::chunk::{Chunk, Findings, Listing};
use super::entry::{DESCEND, TARGET_BYTES, WANTED, device};
use super::open::{KeptDirectory, open_directory};
use super::queue::Queue;
use super::report::Reason;
use super::xattr::{Method, Reader};
use super::{ScanError, ScanOptions};
use crate::FileType;
use crate::select::{IGNORE_FILE_MAX, IgnoreLevel};

/// What all workers share.
pub(super) struct Walk<'a> {
    pub(super) options: &'a ScanOptions,
    /// The scanned directory.
    pub(super) root: BorrowedFd<'a>,
    pub(super) root_device: u64,
    /// The flags for reading attributes.
    pub(super) stat_flags: AtFlags,
    pub(super) caller: Caller,
    pub(super) method: Method,
    pub(super) queue: Queue<Task<'a>>,
    /// The next serial number of a directory.
    pub(super) next_serial: AtomicU32,
    /// How many directories are open for their subdirectories, and the limit.
    pub(super) kept: &'a AtomicUsize,
    pub(super) kept_max: usize,
}

/// A directory to be read.
pub(super) struct Task<'a> {
    pub(super) serial: u32,
    /// From the root, without a leading slash, with a NUL at its end.
    pub(super) path: Vec<u8>,
    /// Where the last component starts in `path`.
    pub(super) name: usize,
    /// Its parent directory, if that is open.
    pub(super) parent: Option<Arc<KeptDirectory<'a>>>,
    /// The ignore files that apply to it.
    pub(super) ignore: Option<Arc<IgnoreLevel>>,
}

impl Task<'_> {
    fn path(&self) -> &[u8] {
        self.path.strip_suffix(&[0]).unwrap_or(&self.path)
    }

    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let path = self.path();
        let mut joined = Vec::with_capacity(path.len() + name.len() + 2);
        if !path.is_empty() {
            joined.extend_from_slice(path);
            joined.push(b'/');
        }
        joined.extend_from_slice(name);
        joined
    }
}

/// A name that `getdents64` gave.
#[derive(Clone, Copy)]
struct Name {
    /// Its first 8 bytes, big-endian and padded with zeros: sorts like the name, unless both names begin with the same
    /// 8 bytes.
    start: u64,
    /// Its position in the buffer of names, and its length without the NUL.
    offset: usize,
    length: usize,
}

/// One thread's part of a walk.
pub(super) struct Worker<'w, 'a> {
    pub(super) walk: &'w Walk<'a>,
    /// Whether the thread runs at the lowest priority, until it is relieved.
    yielding: bool,
    local: Vec<Task<'a>>,
    pub(super) xattrs: Reader,
    pub(super) findings: Findings,
    buffer: Vec<MaybeUninit<u8>>,
    pub(super) target: Vec<MaybeUninit<u8>>,
}

/// Bytes that one `getdents64` may return. With fewer, large directories take more calls; more gain nothing.
const DENTS_BYTES: usize = 128 * 1024;

/// The nice value of a thread of lowest priority.
const LEAST_PRIORITY: i32 = 19;

/// Name buffers larger than this are freed after the directory.
const NAMES_KEPT: usize = 1 << 20;

impl<'w, 'a> Worker<'w, 'a> {
    pub(super) fn new(walk: &'w Walk<'a>, yielding: bool) -> Worker<'w, 'a> {
        Worker {
            walk,
            yielding,
            local: Vec::new(),
            xattrs: Reader::new(walk.method, walk.options.owner),
            findings: Findings::default(),
            buffer: vec![MaybeUninit::uninit(); DENTS_BYTES],
            target: vec![MaybeUninit::uninit(); TARGET_BYTES],
        }
    }

    /// Reads directories until none are left. Fails only if the whole scan must fail.
    pub(super) fn run(mut self) -> Result<Findings, ScanError> {
        let _stop = StopOnPanic(&self.walk.queue);
        if self.yielding {
            // Changes this thread's priority only. If that fails the scan goes on.
            let _ = rustix::process::setpriority_process(None, LEAST_PRIORITY);
        }
        let mut bytes = Vec::new();
        let mut names = Vec::new();
        while let Some(task) = self.walk.queue.next(&mut self.local, self.yielding) {
            if let Err(error) = self.directory(&task, &mut bytes, &mut names) {
                self.walk.queue.stop();
                return Err(error);
            }
            if bytes.capacity() > NAMES_KEPT {
                bytes = Vec::new();
                names = Vec::new();
            }
        }
        self.findings.xattr_sets = self.xattrs.into_sets();
        Ok(self.findings)
    }

    fn directory(&mut self, task: &Task<'a>, bytes: &mut Vec<u8>, names: &mut Vec<Name>) -> Result<(), ScanError> {
        let parent = task.parent.as_deref().map(KeptDirectory::fd);
        let dir = match open_directory(self.walk.root, parent, &task.path, task.name) {
            Ok(dir) => dir,
            Err(error) => return self.unopened(task, error),
        };
        match self.read_names(task, dir.as_fd(), bytes, names) {
            // The directory was or is being removed.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => {
                self.failed(task.path().to_owned(), error)?;
            }
        }
        self.xattrs.enter(dir.as_fd());
        if task.serial == 0 {
            self.root(dir.as_fd())?;
        }
        let ignore = self.ignore_level(task, dir.as_fd(), bytes, names);
        if self.findings.chunks.last().is_none_or(Chunk::is_full) {
            self.findings.chunks.push(Chunk::new());
        }
        let chunk = self.findings.chunks.len() - 1;
        let start = self.findings.chunks[chunk].end();
        let mut directories = 0;
        for name in names.iter() {
            let Ok(name) = CStr::from_bytes_with_nul(&bytes[name.offset..=name.offset + name.length]) else { continue };
            if self.entry(task, dir.as_fd(), name, ignore.as_ref())? {
                directories += 1;
            }
        }
        let chunk_now = &mut self.findings.chunks[chunk];
        chunk_now.listings_left += 1;
        let count = chunk_now.inodes.len() - start.entry;
        let listing = Listing { serial: task.serial, chunk, start, count };
        if directories > 0 {
            self.give_tasks(task, dir, listing, directories, ignore)?;
        }
        self.findings.listings.push(listing);
        Ok(())
    }

    /// Makes tasks of the subdirectories in `listing` that are to be descended, and numbers them.
    fn give_tasks(
        &mut self,
        task: &Task<'a>,
        dir: OwnedFd,
        listing: Listing,
        directories: u32,
        ignore: Option<Arc<IgnoreLevel>>,
    ) -> Result<(), ScanError> {
        let first = self.walk.next_serial.fetch_add(directories, Ordering::Relaxed);
        if first > u32::MAX / 2 || directories > u32::MAX / 4 {
            return Err(ScanError::TooLarge);
        }
        let parent = KeptDirectory::keep(dir, self.walk.kept, self.walk.kept_max).map(Arc::new);
        let chunk = &mut self.findings.chunks[listing.chunk];
        let mut serial = first;
        let mut at = listing.start.name;
        let oldest = self.local.len();
        for (inode, length) in
            chunk.inodes[listing.start.entry..].iter_mut().zip(&chunk.name_lengths[listing.start.entry..])
        {
            let end = at + usize::from(*length);
            if inode.detail == DESCEND && inode.file_type() == FileType::Directory {
                inode.detail = serial;
                let mut path = task.path_of(&chunk.names[at..end]);
                let name = path.len() - usize::from(*length);
                path.push(0);
                self.local.push(Task { serial, path, name, parent: parent.clone(), ignore: ignore.clone() });
                serial += 1;
            }
            at = end;
        }
        // The first name must be taken first.
        self.local[oldest..].reverse();
        Ok(())
    }

    /// Reads and sorts the names of `dir`; reports names that no tree can hold. On an error the names read so far
    /// remain.
    fn read_names(
        &mut self,
        task: &Task<'a>,
        dir: BorrowedFd<'_>,
        bytes: &mut Vec<u8>,
        names: &mut Vec<Name>,
    ) -> Result<(), Errno> {
        bytes.clear();
        names.clear();
        let mut result = Ok(());
        let mut entries = RawDir::new(dir, &mut self.buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if name.is_empty() || name.len() > 255 || name.contains(&b'/') {
                self.findings.report.add(task.path_of(name), Reason::BadName, None);
                continue;
            }
            let mut start = [0; 8];
            let length = name.len().min(8);
            start[..length].copy_from_slice(&name[..length]);
            names.push(Name { start: u64::from_be_bytes(start), offset: bytes.len(), length: name.len() });
            bytes.extend_from_slice(entry.file_name().to_bytes_with_nul());
        }
        let name = |name: &Name| &bytes[name.offset..name.offset + name.length];
        names.sort_unstable_by(|a, b| a.start.cmp(&b.start).then_with(|| name(a).cmp(name(b))));
        names.dedup_by(|b, a| a.start == b.start && name(a) == name(b));
        result
    }

    /// The root directory's own attributes.
    fn root(&mut self, dir: BorrowedFd<'_>) -> Result<(), ScanError> {
        let stat = rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, WANTED).map_err(ScanError::Root)?;
        let found = self.xattrs.read(dir, c".", device(&stat));
        self.findings.root = Some(self.inode(&stat, FileType::Directory, found.set));
        Ok(())
    }

    /// The ignore files that apply in `dir`: those of `task`, and its own.
    fn ignore_level(
        &self,
        task: &Task<'a>,
        dir: BorrowedFd<'_>,
        bytes: &[u8],
        names: &[Name],
    ) -> Option<Arc<IgnoreLevel>> {
        let mut level = task.ignore.clone();
        // The last level is checked first.
        for wanted in self.walk.options.filter.ignore_files().iter().rev() {
            let found =
                names.binary_search_by(|name| bytes[name.offset..name.offset + name.length].cmp(&wanted[..])).ok();
            let Some(name) = found.and_then(|index| names.get(index)) else { continue };
            let Ok(name) = CStr::from_bytes_with_nul(&bytes[name.offset..=name.offset + name.length]) else { continue };
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let Ok(file) = rustix::fs::openat(dir, name, flags, Mode::empty()) else { continue };
            let regular =
                rustix::fs::fstat(&file).is_ok_and(|stat| FileType::from_mode(stat.st_mode) == Some(FileType::Regular));
            let mut text = Vec::new();
            let mut file = std::fs::File::from(file).take(IGNORE_FILE_MAX);
            if regular && file.read_to_end(&mut text).is_ok() {
                let prefix = if task.path().is_empty() { 0 } else { task.path().len() + 1 };
                level = IgnoreLevel::new(&text, prefix, level);
            }
        }
        level
    }

    fn unopened(&mut self, task: &Task<'a>, error: Errno) -> Result<(), ScanError> {
        match error {
            _ if task.serial == 0 => Err(ScanError::Root(error)),
            // It vanished, or was replaced.
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Ok(()),
            Errno::ACCESS | Errno::PERM => {
                let error = Some(error.raw_os_error());
                self.findings.report.add(task.path().to_owned(), Reason::UnreadableDirectory, error);
                Ok(())
            }
            error => self.failed(task.path().to_owned(), error).map(|_| ()),
        }
    }

    /// Reports an error that concerns `path` alone, and returns `Ok(false)`: nothing to descend. An error that would
    /// affect every other path too ends the scan.
    pub(super) fn failed(&mut self, path: Vec<u8>, error: Errno) -> Result<bool, ScanError> {
        match error {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSYS => Err(ScanError::Resources(error)),
            error => {
                self.findings.report.add(path, Reason::Failed, Some(error.raw_os_error()));
                Ok(false)
            }
        }
    }
}

/// Ends the other workers if this one panics: they would wait for its tasks for ever.
struct StopOnPanic<'w, 'a>(&'w Queue<Task<'a>>);

impl Drop for StopOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}
