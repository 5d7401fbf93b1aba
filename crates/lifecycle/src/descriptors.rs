//! Raises this process's limit of descriptors, and makes room for them.

use std::os::fd::AsFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the trees' files and a disk's caches may take.
const ENOUGH: u64 = 4096;

/// The kernel's table for so many has 128 KiB. Only servers of the largest trees keep more.
const AT_ONCE: u64 = 16_384;

/// Raises the limit as far as permitted: more cached directories and open files mean fewer look-ups. Call it before
/// there are threads.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If that fails, fewer are kept.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    make_room();
}

/// The process's original soft and hard limits, which the command gets. This call raises our own soft limit, because
/// this process opens the trees' files.
pub fn take_limit() -> Option<(u64, u64)> {
    let limit = getrlimit(Resource::Nofile);
    let raised = limit.maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    if limit.current.is_some_and(|current| current < raised) {
        // Refused, the caches of open files are smaller.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
    }
    make_room();
    limit.current.zip(limit.maximum)
}

/// Makes room for as many as this process may ever have, whatever the limit is raised to later. Call it first in a
/// program: before there are threads it takes no time.
pub fn make_room_at_start() {
    let limit = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, it stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    make_room();
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Makes the kernel's descriptor table large from the start. Otherwise it doubles whenever it is full, and in a
/// process with threads every open then waits 10 milliseconds and more for the other CPUs (`expand_fdtable` of
/// Linux's fs/file.c).
pub fn make_room() {
    let most = getrlimit(Resource::Nofile).current.map_or(AT_ONCE, |limit| limit.min(AT_ONCE));
    // A failure only costs that time.
    if let (Ok(any), Ok(last)) =
        (openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()), i32::try_from(most.saturating_sub(1)))
    {
        drop(fcntl_dupfd_cloexec(any.as_fd(), last));
    }
}
