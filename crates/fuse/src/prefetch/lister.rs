//! The child that lists directories in a mount.
//!
//! It has the mount open only while there is something to list, and as a detached copy: who unmounts it finds nobody there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, RawDir, SeekFrom, fstat, openat, seek};
use rustix::io::{Errno, read};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::thread::gettid;
use zerocopy::IntoBytes;

use super::node_handle::open_directory;
use super::order::{END, LISTED, Order, READY, Report, WALKED};
use inarch_mount::DeviceNumber;

/// So long after the last order the mount is let go of.
const IDLE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Bytes of entries at a time. A larger directory's listing goes on with the next order: the kernel asks for attributes with the
/// names at the beginning, and again when somebody has used what it was told (`fuse_use_readdirplus` of Linux's fs/fuse/readdir.c).
const BUFFER: usize = 128 << 10;

/// Of a directory with fewer entries the end is looked for at once: then the kernel has all of it.
const ENTRIES: usize = 512;

/// The root's node number (`FUSE_ROOT_ID`).
const ROOT: u64 = 1;

/// Threads that list, each a directory at a time.
const MOST_THREADS: usize = 4;

/// Lists directories of the mount with this number at `point` as told on standard input, a pipe, and reports on standard output, until
/// the input ends. The mount's server waits for this, a moment at most, so it is not waited for in turn.
///
/// # Errors
/// The mount cannot be listed by file handles: it takes `CAP_SYS_ADMIN` and `CAP_DAC_READ_SEARCH`.
pub fn list_directories(point: &Path, device: DeviceNumber) -> io::Result<()> {
    let mount = enter(point, device)?;
    open_directory(mount.as_fd(), ROOT)?;
    drop(mount);
    let input = io::stdin();
    let input = input.as_fd();
    // Whoever finds that another thread was quicker waits again.
    rustix::io::ioctl_fionbio(input, true)?;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    thread::scope(|scope| {
        let serve = || {
            if serve(input, point, device).is_err() {
                // What this one was told to list is never reported: better none than one less.
                std::process::exit(1);
            }
        };
        (1..threads).for_each(|_| drop(scope.spawn(serve)));
        serve();
    });
    Ok(())
}

/// One thread's life.
fn serve(input: BorrowedFd<'_>, point: &Path, device: DeviceNumber) -> io::Result<()> {
    let mut mount: Option<Inside> = None;
    let mut buffer = Vec::with_capacity(BUFFER);
    let number = gettid().as_raw_nonzero().get().unsigned_abs();
    let mut reports = Reports::default();
    reports.add(Report { kind: READY, number: number.into(), offset: 0 })?;
    loop {
        let mut order = Order::of(0, 0);
        match read(input, order.as_mut_bytes()) {
            Ok(0) => return Ok(()),
            Ok(length) if length == size_of::<Order>() => {}
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(Errno::AGAIN | Errno::INTR) => {
                reports.send()?;
                let patience = mount.as_ref().map(|_| &IDLE);
                if poll(&mut [PollFd::new(&input, PollFlags::IN)], patience)? == 0 {
                    mount = None;
                }
                continue;
            }
            Err(errno) => return Err(errno.into()),
        }
        if mount.is_none() {
            mount = enter(point, device).ok().map(|root| Inside { root, parent: None });
        }
        let directory = mount.as_mut().and_then(|mount| mount.open(&order).ok());
        let listed = directory.and_then(|directory| list(directory, order.offset, &mut buffer).ok());
        let kind = if order.name().is_some() { WALKED } else { LISTED };
        reports.add(Report { kind, number: order.node, offset: listed.unwrap_or(END) })?;
    }
}

/// What is to be reported: of what nobody waits for some at a time, for each time somebody is woken to hear it.
#[derive(Default)]
struct Reports(Vec<Report>);

impl Reports {
    /// Reports kept back at most: there are others to do meanwhile.
    const MOST: usize = 8;

    fn add(&mut self, report: Report) -> io::Result<()> {
        self.0.push(report);
        if report.kind != WALKED || self.0.len() >= Self::MOST { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> io::Result<()> {
        if !self.0.is_empty() {
            // One write, which a pipe takes whole.
            rustix::io::write(io::stdout().as_fd(), self.0.as_bytes())?;
            self.0.clear();
        }
        Ok(())
    }
}

/// The mount, while there is something to list.
struct Inside {
    root: OwnedFd,
    /// The directory, with its number, that a subdirectory was listed in last.
    parent: Option<(u64, OwnedFd)>,
}

impl Inside {
    /// Opens what is to be listed.
    fn open(&mut self, order: &Order) -> io::Result<OwnedFd> {
        let Some(name) = order.name() else { return open_directory(self.root.as_fd(), order.node) };
        let parent = match self.parent.take().filter(|(node, _)| *node == order.node) {
            Some((_, parent)) => parent,
            None => open_directory(self.root.as_fd(), order.node)?,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(&parent, name, flags, Mode::empty());
        self.parent = Some((order.node, parent));
        Ok(directory?)
    }
}

/// The root of a detached copy of the mount.
fn enter(point: &Path, device: DeviceNumber) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let copy = open_tree(CWD, point, flags)?;
    let root = openat(&copy, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Something else may be mounted there by now.
    if DeviceNumber::from(fstat(&root)?.st_dev) != device {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(root)
}

/// Lists a part of a directory; gives where it ended.
fn list(directory: OwnedFd, offset: u64, buffer: &mut Vec<u8>) -> io::Result<u64> {
    if offset != 0 {
        seek(&directory, SeekFrom::Start(offset))?;
    }
    let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
    let mut seen = 0;
    while let Some(entry) = entries.next() {
        let next = entry?.next_entry_cookie();
        seen += 1;
        if seen >= ENTRIES && entries.is_buffer_empty() {
            return Ok(next);
        }
    }
    Ok(END)
}
