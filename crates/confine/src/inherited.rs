//! What a process was started with, and did not ask for: descriptors, and what becomes of a signal.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd};

/// Closes the inherited descriptors above 2: a shell waits for the end of a pipe, and others for a lock,
/// for as long as one process has it open.
///
/// What was inherited is known by the lack of `FD_CLOEXEC`, with which this program opens all that it opens. So it can be
/// called at any time, when no thread is about to start a program.
///
/// # Errors
/// There is no /proc.
#[expect(unsafe_code, reason = "no type owns what was inherited")]
pub fn close_inherited() -> io::Result<()> {
    let entries = fs::read_dir("/proc/self/fd")?.collect::<io::Result<Vec<_>>>()?;
    let number = |name: &std::ffi::OsStr| name.to_str()?.parse::<RawFd>().ok();
    for number in entries.iter().filter_map(|entry| number(&entry.file_name())).filter(|number| *number > 2) {
        // SAFETY: it is not used beyond this call, which fails where it is not open any more, as the one of the listing.
        let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) });
        if flags.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
            // SAFETY: nothing in this program owns it, see above.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

/// Gives SIGCHLD its usual meaning again. A caller may have had it ignored, which programs inherit: then a child that has ended leaves
/// no status to wait for. For the start of a program, before it has threads.
#[expect(unsafe_code, reason = "no library sets a signal back to what it does by itself")]
pub fn heed_children() {
    // SAFETY: no handler is set, so no code runs in a signal's context. It cannot fail for a signal that there is.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}
