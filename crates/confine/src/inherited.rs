//! Undoes what a process inherited from its starter: open descriptors and an ignored SIGCHLD.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd};

/// A copy of a descriptor that the process was started with, such as a socket that its starter listens on.
///
/// # Errors
/// There is none of this number.
#[expect(unsafe_code, reason = "no type owns what was inherited")]
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: the descriptor is used in this call only, which fails if it is not open.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
}

/// Closes the inherited descriptors above 2. While one process holds them open, a shell waits for the end of a pipe and
/// other programs wait for a lock.
///
/// A descriptor counts as inherited if it lacks `FD_CLOEXEC`, because this program sets that flag on all that it opens.
/// Call this at any time when no thread is about to start a program.
///
/// # Errors
/// There is no /proc.
#[expect(unsafe_code, reason = "no type owns what was inherited")]
pub fn close_inherited() -> io::Result<()> {
    let entries = fs::read_dir("/proc/self/fd")?.collect::<io::Result<Vec<_>>>()?;
    let number = |name: &std::ffi::OsStr| name.to_str()?.parse::<RawFd>().ok();
    for number in entries.iter().filter_map(|entry| number(&entry.file_name())).filter(|number| *number > 2) {
        // SAFETY: the descriptor is used in this call only, which fails if it is no longer open, as for the directory
        // listing's own.
        let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) });
        if flags.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
            // SAFETY: nothing in this program owns it, see above.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

/// Sets SIGCHLD back to its default. Programs inherit an ignored SIGCHLD, and then cannot wait for the status of a
/// child. Call it at the start of a program, before it has threads.
#[expect(unsafe_code, reason = "no library sets a signal back to what it does by itself")]
pub fn heed_children() {
    // SAFETY: no handler is set, so no code runs in a signal's context. It cannot fail for a signal that there is.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}
