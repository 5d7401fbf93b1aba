//! File leases (fcntl(2), `F_SETLEASE`): whoever opens the file for writing or truncates it waits until the lease is
//! released.

#![allow(unsafe_code, reason = "fcntl(2) with commands that no library wraps")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::table::entry_of_file;

/// A read lease. When somebody wants to write, the kernel sends this process `SIGIO`, and breaks the lease after some
/// time (`fs.lease-break-time`, 45 seconds). The lease ends when the open file is closed everywhere.
#[derive(Debug)]
pub struct Lease {
    file: OwnedFd,
}

/// File systems (the mount table's names) whose files change by calls of this kernel alone, each of which a lease holds
/// back. Elsewhere the kernel may grant a lease and never break it: another machine writes, a server, or somebody in the
/// layer below. What is not known counts as such.
const HEEDED: [&str; 10] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs", "bcachefs", "vfat", "exfat"];

impl Lease {
    /// Whether a lease on the file holds back everybody who changes it.
    ///
    /// # Errors
    /// The type of its file system, where it may not.
    pub fn is_heeded(file: BorrowedFd<'_>) -> Result<(), String> {
        // A server of files chooses what statfs(2) tells of it, but not what is in the table.
        let kind = entry_of_file(file).map_or_else(|| "an unknown file system".to_owned(), |entry| entry.kind);
        if HEEDED.contains(&&*kind) { Ok(()) } else { Err(kind) }
    }

    /// Takes a lease. `SIGIO` must already be caught.
    ///
    /// # Errors
    /// Somebody has the file open for writing (`EAGAIN`), or its file system has no leases.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Lease> {
        let file = file.try_clone_to_owned()?;
        set(file.as_raw_fd(), libc::F_RDLCK)?;
        Ok(Lease { file })
    }

    /// Whether the lease is held and nobody waits for it.
    pub fn holds(&self) -> bool {
        // SAFETY: the command takes no argument.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
    }

    /// Releases the lease, so that waiting processes continue.
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
