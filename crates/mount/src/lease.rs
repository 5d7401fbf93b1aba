//! A lease of a file (fcntl(2), `F_SETLEASE`): whoever opens the file for writing or cuts it waits until it is given up.

#![allow(unsafe_code, reason = "fcntl(2) with commands that no library wraps")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A read lease. The kernel sends this process `SIGIO` when somebody wants it back, and takes it after some time (`fs.lease-break-time`,
/// 45 seconds). It ends with the open file, wherever that is open.
#[derive(Debug)]
pub struct Lease {
    file: OwnedFd,
}

impl Lease {
    /// Takes one; `SIGIO` must be caught by then.
    ///
    /// # Errors
    /// Somebody has the file open for writing (`EAGAIN`), or its file system has no leases.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Lease> {
        let file = file.try_clone_to_owned()?;
        set(file.as_raw_fd(), libc::F_RDLCK)?;
        Ok(Lease { file })
    }

    /// Whether it is there, and nobody wants it back.
    pub fn holds(&self) -> bool {
        // SAFETY: the command takes no argument.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
    }

    /// Gives it up: who waits for it goes on.
    pub fn give_up(&self) {
        // It is given up already, or taken.
        let _ = set(self.file.as_raw_fd(), libc::F_UNLCK);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn set(file: RawFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the command takes a number.
    if unsafe { libc::fcntl(file, libc::F_SETLEASE, kind) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
