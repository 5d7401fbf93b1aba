//! File handles: they reach a file without a name, and only that file. They are made here and never come from a
//! client, because a chosen handle could reach any file of the file system.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::system_calls;

/// Most bytes of a handle: `MAX_HANDLE_SZ` of Linux's include/uapi/linux/fcntl.h (include/linux/exportfs.h before).
pub(super) const MAX_BYTES: usize = 128;

/// A handle, as name_to_handle_at(2) gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHandle {
    pub(super) kind: i32,
    pub(super) bytes: Box<[u8]>,
}

impl FileHandle {
    /// The handle of the file behind `descriptor`.
    pub fn of(descriptor: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
        system_calls::name_to_handle(descriptor)
    }

    /// Opens the file with this handle, on the file system of `mount`. Needs `CAP_DAC_READ_SEARCH`.
    pub fn open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        system_calls::open_by_handle(mount, self, flags)
    }
}
