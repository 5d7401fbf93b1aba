//! File handles: a way to a file that needs no name and finds no other file. They are made here and never come from a
//! client, for whoever can choose one reaches the whole file system.

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
    /// Of what `descriptor` is of.
    pub fn of(descriptor: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
        system_calls::name_to_handle(descriptor)
    }

    /// Opens what has this handle on the file system that `mount` is of. Takes `CAP_DAC_READ_SEARCH`.
    pub fn open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        system_calls::open_by_handle(mount, self, flags)
    }
}
