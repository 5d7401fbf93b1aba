//! How many descriptors this process may have, and room for them.

use std::os::fd::AsFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the trees' files and a disk's caches may take.
const ENOUGH: u64 = 4096;

/// The kernel's table for so many has 128 KiB. Only servers of the largest trees keep more.
const AT_ONCE: u64 = 16_384;

/// Takes as many descriptors as this process may have: the more directories and open files can be kept, the less often
/// one is looked for again. To be called before there are threads.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If that fails, fewer are kept.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    make_room();
}

/// This process's soft and hard limit of open files: the command's own. After this call our soft limit is higher,
/// because the trees' files are opened by us.
pub(crate) fn take_limit() -> Option<(u64, u64)> {
    let limit = getrlimit(Resource::Nofile);
    let raised = limit.maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    if limit.current.is_some_and(|current| current < raised) {
        // Refused, the caches of open files are smaller.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
    }
    make_room();
    limit.current.zip(limit.maximum)
}

/// Has the kernel's table of this process's descriptors be large from the beginning. It doubles otherwise when it is full, and where
/// there are threads, each time all who open something wait 10 milliseconds and more for the other processors (`expand_fdtable` of
/// Linux's fs/file.c).
pub(crate) fn make_room() {
    let most = getrlimit(Resource::Nofile).current.map_or(AT_ONCE, |limit| limit.min(AT_ONCE));
    // Without, all goes on as it would.
    if let (Ok(any), Ok(last)) =
        (openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()), i32::try_from(most.saturating_sub(1)))
    {
        drop(fcntl_dupfd_cloexec(any.as_fd(), last));
    }
}
