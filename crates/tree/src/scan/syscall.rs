//! Wrappers for system calls that no library wraps yet: the crate's only unsafe code.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Numbers of `include/uapi/asm-generic/unistd.h`, the same on every architecture that is built for.
const GETXATTRAT: libc::c_long = 464;
const LISTXATTRAT: libc::c_long = 465;

/// `struct xattr_args` of `include/uapi/linux/xattr.h`.
#[repr(C, align(8))]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// `listxattrat` of `name` in `dir` (Linux 6.13) without following symlinks; returns the number of bytes written to
/// `list`, or the length needed if `list` is empty.
pub(super) fn listxattrat(dir: BorrowedFd<'_>, name: &CStr, list: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: `dir` is open and `name` ends in NUL for as long as the call lasts; the kernel writes at most
    // `list.len()` bytes to `list`, which is borrowed mutably.
    let count = unsafe {
        libc::syscall(
            LISTXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            list.as_mut_ptr(),
            list.len(),
        )
    };
    result(count)
}

/// `getxattrat` of `name` in `dir` (Linux 6.13) without following symlinks; returns the number of bytes written to
/// `value`.
pub(super) fn getxattrat(dir: BorrowedFd<'_>, name: &CStr, attribute: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
    let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
    let mut args = XattrArgs { value: value.as_mut_ptr().expose_provenance() as u64, size, flags: 0 };
    // SAFETY: `dir` is open and both names end in NUL for as long as the call lasts; `args` has the layout and the size
    // that the call declares, and points at `value`, mutably borrowed, of at least `size` bytes.
    let count = unsafe {
        libc::syscall(
            GETXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attribute.as_ptr(),
            &raw mut args,
            size_of::<XattrArgs>(),
        )
    };
    result(count)
}

/// Gives the calling thread a working directory of its own, so that its `fchdir` moves no other thread.
pub(super) fn own_working_directory() -> Result<(), Errno> {
    // SAFETY: with CLONE_FS alone, `unshare` separates the thread's root, working directory and umask from those of the
    // other threads; it affects no descriptor and no memory.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
}

fn result(count: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
