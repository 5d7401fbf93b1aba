//! Scans a directory of this host into a [`Tree`].
//!
//! 1. [`scan`] opens the directory and starts the workers, each with a stack of directories to read (`queue`).
//! 2. A worker opens a directory (`open`), reads and sorts its names, and reads the attributes of each relative to the
//!    directory's descriptor (`walk`, `entry`, `xattr`, `access`, `holes`, `filter`, `owner`). It opens only files that
//!    seem to have holes.
//! 3. It writes them as a listing into its own chunk of memory (`chunk`), numbers the subdirectories and puts them on
//!    its stack. If another worker is idle it hands some over.
//! 4. At the end the listings are put in depth-first order, so that the tree does not depend on the number of workers,
//!    and the chunks are freed one by one (`assemble`).

mod access;
mod assemble;
mod chunk;
mod entry;
mod holes;
mod open;
mod queue;
mod report;
mod syscall;
mod walk;
mod xattr;

use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::Resource;

pub use crate::select::{Filter, FilterBuilder, FilterError, OwnerMap, OwnerMapError};
pub use report::{LISTED_MAX, LeftOut, Reason, Report};
pub use xattr::is_portable as is_portable_xattr;

use crate::Tree;
use access::Caller;
use chunk::Findings;
use queue::Queue;
use report::ReportPart;
use walk::{Task, Walk, Worker};
use xattr::Method;

/// The fewest threads by default. Where directories and inodes come from the disk, some threads wait while others go on: 526,000 names
/// on two cores take 4.8 s by two threads, 2.5 s by eight and 2.3 s by sixteen. With all in memory, eight take 1.05 of the time of two.
const THREADS_LEAST: usize = 8;

/// The most threads; more do not share a directory tree well.
const THREADS_MAX: usize = 64;

/// The most directories that stay open for their subdirectories.
const KEPT_MAX: usize = 128;

/// How to scan.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// Number of threads, at most 64; 0 for one for each core, and 8 at least.
    pub threads: usize,
    /// How long to run at the lowest priority. After that a second set of threads, with the caller's priority, takes
    /// over the remaining work.
    pub patience: Duration,
    /// Whether to descend into mounts below the directory.
    pub cross: bool,
    /// Whether to read extended attributes: the namespaces `user`, `security` and `trusted`, and POSIX ACLs.
    pub xattrs: bool,
    /// Which names to include.
    pub filter: Filter,
    /// Who owns them.
    pub owner: OwnerMap,
    /// Directories to include empty, by their path from the scanned directory, without a leading slash: `proc`.
    pub leave_out: Vec<Vec<u8>>,
}

impl Default for ScanOptions {
    /// All cores, one file system, extended attributes, every name, owners as they are.
    fn default() -> ScanOptions {
        ScanOptions {
            threads: 0,
            patience: Duration::ZERO,
            cross: false,
            xattrs: true,
            filter: Filter::default(),
            owner: OwnerMap::default(),
            leave_out: Vec::new(),
        }
    }
}

/// A scanned directory.
#[derive(Debug)]
pub struct Scan {
    /// The tree.
    pub tree: Tree,
    /// The directory itself, opened with `O_PATH`: a file is opened by its [`Tree::path`] beneath it.
    pub root: OwnedFd,
    /// What is not in the tree, and why.
    pub report: Report,
    /// How long reading the directories took.
    pub walk_time: Duration,
    /// How long assembling the tree took, after that.
    pub assembly_time: Duration,
}

/// Why a scan failed.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The directory cannot be opened.
    #[error("cannot read the directory {}: {}", path.display(), std::io::Error::from(*error))]
    Open {
        /// As it was given.
        path: PathBuf,
        /// `ENOENT`, `ENOTDIR`, `EACCES`...
        error: Errno,
    },
    /// The directory cannot be listed; [`ScanError::Open`] names it later.
    #[error("cannot list the directory: {}", std::io::Error::from(*.0))]
    Root(Errno),
    /// Too few descriptors or too little memory, or a kernel before Linux 4.11.
    #[error("the scan cannot go on: {}", std::io::Error::from(*.0))]
    Resources(Errno),
    /// More entries, names or symlink targets than a tree's 32-bit indices can address.
    #[error("the directory has more entries or longer names than fit 32 bits; leave parts of it out")]
    TooLarge,
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A thread ended by a panic.
    #[error("a thread of the scan ended by a panic")]
    Panic,
}

impl ScanError {
    /// Adds the name of the directory.
    fn at(self, root: &Path) -> ScanError {
        match self {
            ScanError::Root(error) => ScanError::Open { path: root.to_owned(), error },
            other => other,
        }
    }
}

/// Reads the attributes of everything below the directory `root`. A symlink as `root` is followed, symlinks below are
/// not. Unreadable files are left out and reported; files that vanish meanwhile are left out. Only an error that
/// concerns the whole scan fails it.
pub fn scan(root: &Path, options: &ScanOptions) -> Result<Scan, ScanError> {
    let begin = Instant::now();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root_fd = rustix::fs::open(root, flags, Mode::empty())
        .map_err(|error| ScanError::Open { path: root.to_owned(), error })?;
    let root_stat = rustix::fs::statx(&root_fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE)
        .map_err(|error| ScanError::Root(error).at(root))?;
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get).max(THREADS_LEAST),
        threads => threads,
    };
    let threads = threads.min(THREADS_MAX);
    let kept = AtomicUsize::new(0);
    let first = Task { serial: 0, path: vec![0], name: 0, parent: None, ignore: None };
    let walk = Walk {
        options,
        root: root_fd.as_fd(),
        root_device: entry::device(&root_stat),
        stat_flags: stat_flags(root_fd.as_fd(), options.cross),
        caller: Caller::current(),
        method: if options.xattrs { Method::choose(root_fd.as_fd()) } else { Method::None },
        queue: Queue::new(threads, first),
        next_serial: AtomicU32::new(1),
        kept: &kept,
        kept_max: kept_max(threads),
    };
    let mut findings = run(&walk, threads).map_err(|error| error.at(root))?;
    let serials = walk.next_serial.load(Ordering::Relaxed);
    drop(walk);
    let walk_time = begin.elapsed();
    let tree = assemble::assemble(&mut findings, serials).map_err(|error| error.at(root))?;
    let report = ReportPart::merge(findings.into_iter().map(|f| f.report));
    Ok(Scan { tree, root: root_fd, report, walk_time, assembly_time: begin.elapsed() - walk_time })
}

/// The flags for reading attributes. Within one file system on this machine's own disk there is nothing to synchronize
/// with; then a server of a file system mounted below, if it does not answer, does not block the scan.
fn stat_flags(root: BorrowedFd<'_>, cross: bool) -> AtFlags {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    if is_on_own_disk(root) && !cross { flags | AtFlags::STATX_DONT_SYNC } else { flags }
}

/// Whether a directory is on this machine's own file system, so that reading its attributes asks no server.
pub fn is_on_own_disk(directory: BorrowedFd<'_>) -> bool {
    /// File systems whose files other machines or processes change: NFS, FUSE, SMB, CIFS, 9P, Ceph, AFS, Coda, GFS2,
    /// OCFS2, Lustre (linux/magic.h).
    const REMOTE: [u32; 11] = [
        0x6969,
        0x6573_5546,
        0xfe53_4d42,
        0xff53_4d42,
        0x0102_1997,
        0x00c3_6400,
        0x5346_414f,
        0x7375_7245,
        0x0116_1970,
        0x7461_636f,
        0x0bd0_0bd0,
    ];
    rustix::fs::fstatfs(directory).is_ok_and(|fs| !REMOTE.contains(&(fs.f_type as u32)))
}

fn run(walk: &Walk<'_>, threads: usize) -> Result<Vec<Findings>, ScanError> {
    std::thread::scope(|scope| {
        let mut handles = Vec::with_capacity(2 * threads);
        let mut done = Vec::with_capacity(2 * threads);
        let join =
            |handle: ScopedJoinHandle<'_, Result<Findings, ScanError>>| handle.join().unwrap_or(Err(ScanError::Panic));
        let mut start = |yielding: bool| {
            for started in 0..threads {
                let spawned = loop {
                    let builder = std::thread::Builder::new().name("scan".to_owned());
                    let spawned = builder.spawn_scoped(scope, move || Worker::new(walk, yielding).run());
                    // The user's limit of processes may leave no room beside the first workers, which are ending.
                    if spawned.is_ok() || started > 0 || handles.is_empty() {
                        break spawned;
                    }
                    done.extend(handles.pop().map(join));
                };
                match spawned {
                    Ok(handle) => handles.push(handle),
                    Err(error) if started == 0 => {
                        walk.queue.stop();
                        done.push(Err(ScanError::Thread(error)));
                        break;
                    }
                    // Those that have started do all of the work.
                    Err(_) => {
                        walk.queue.do_without(threads - started);
                        break;
                    }
                }
            }
        };
        let patience = walk.options.patience;
        start(!patience.is_zero());
        if !patience.is_zero() && !walk.queue.wait(patience) && walk.queue.relieve(threads) {
            start(false);
        }
        done.extend(handles.into_iter().map(join));
        done.into_iter().collect()
    })
}

/// The limit for directories that stay open. Most descriptors are left to the rest of the process, and to what each
/// thread opens.
fn kept_max(threads: usize) -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    (limit / 2).saturating_sub(threads * 4).min(KEPT_MAX)
}
