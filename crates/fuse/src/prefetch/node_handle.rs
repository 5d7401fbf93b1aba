//! Opening a directory of a mount by its node number, which takes no names and so no requests.

#![allow(unsafe_code, reason = "a system call that rustix has not")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `FILEID_INO64_GEN` of Linux's include/linux/exportfs.h.
const NODE_AND_GENERATION: i32 = 0x81;

/// A file handle of a FUSE mount (`fuse_encode_fh` of Linux's fs/fuse/inode.c), in a `struct file_handle`.
#[repr(C)]
struct NodeHandle {
    bytes: u32,
    kind: i32,
    node: [u32; 2],
    generation: u32,
}

/// Opens the directory with this node number of the mount that `mount` is open in. Takes `CAP_DAC_READ_SEARCH`.
///
/// # Errors
/// `ESTALE` if the kernel has forgotten it.
pub fn open_directory(mount: BorrowedFd<'_>, node: u64) -> io::Result<OwnedFd> {
    let node = [(node >> 32) as u32, node as u32];
    let mut handle = NodeHandle { bytes: 12, kind: NODE_AND_GENERATION, node, generation: 0 };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the call reads a `struct file_handle`, whose bytes are the last three fields of this.
    let descriptor = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made it, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
