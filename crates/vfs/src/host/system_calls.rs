//! System calls that no library wraps. The only unsafe code of the crate.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use vm_memory::VolatileSlice;

use super::handle::{FileHandle, MAX_BYTES};

/// The most buffers one `preadv` takes: `UIO_MAXIOV` of Linux's include/uapi/linux/uio.h.
const MAX_BUFFERS: usize = 1024;

/// `struct file_handle` of Linux's include/linux/fs.h with the longest handle there is.
#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; MAX_BYTES],
}

/// name_to_handle_at(2) of the file behind `descriptor`.
pub(super) fn name_to_handle(descriptor: BorrowedFd<'_>) -> Result<FileHandle, Errno> {
    let mut raw = RawHandle { bytes: MAX_BYTES as u32, kind: 0, handle: [0; MAX_BYTES] };
    let mut mount = 0i32;
    // SAFETY: the path is an empty C string, `raw` says how long its buffer is, and `mount` is an int.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            descriptor.as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    })?;
    let bytes = raw.handle.get(..raw.bytes as usize).ok_or(Errno::OVERFLOW)?;
    Ok(FileHandle { kind: raw.kind, bytes: bytes.into() })
}

/// open_by_handle_at(2).
pub(super) fn open_by_handle(mount: BorrowedFd<'_>, handle: &FileHandle, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut raw = RawHandle { bytes: handle.bytes.len() as u32, kind: handle.kind, handle: [0; MAX_BYTES] };
    raw.handle.get_mut(..handle.bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(&handle.bytes);
    // SAFETY: `raw` says how many bytes of its buffer are the handle.
    let descriptor = check(unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags.bits() as libc::c_int)
    })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}

/// getdents64(2): replaces the content of `buffer` with as many entries as fit in `most` bytes; none at the end.
pub(super) fn read_entries(directory: BorrowedFd<'_>, buffer: &mut Vec<u8>, most: usize) -> Result<(), Errno> {
    buffer.clear();
    buffer.reserve(most);
    // SAFETY: the kernel writes at most `most` bytes, which were reserved.
    let count =
        check(unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), buffer.as_mut_ptr(), most) })?;
    let count = usize::try_from(count).ok().filter(|count| *count <= most).ok_or(Errno::IO)?;
    // SAFETY: so many bytes were just written, and there is room for them.
    unsafe { buffer.set_len(count) };
    Ok(())
}

/// Sets the thread's user and group for file access (setfsuid(2)); returns whether that worked.
pub(super) fn set_file_owner(uid: u32, gid: u32) -> bool {
    // SAFETY: setfsgid and setfsuid take numbers and change nothing but the calling thread's credentials. -1 is no
    // user; what they give is then what was set before.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        libc::setfsgid(u32::MAX) == gid as i32 && libc::setfsuid(u32::MAX) == uid as i32
    }
}

/// Gives the calling thread its own umask.
pub(super) fn own_umask() -> Result<(), Errno> {
    // SAFETY: with CLONE_FS alone, `unshare` parts the thread's root, working directory and umask from those of the
    // other threads; no descriptor and no memory is concerned.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
}

/// preadv(2) into the slices, skipping their first `skip` bytes. Returns the number of bytes read.
pub(super) fn read(file: BorrowedFd<'_>, out: &[VolatileSlice<'_>], skip: usize, offset: u64) -> Result<usize, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    let buffers = buffers(out, skip);
    // SAFETY: each buffer is a part of a `VolatileSlice` that outlives the call, so it is mapped and writable; its bytes
    // are only ever touched as volatile memory, so the kernel may write them.
    let count = check(
        unsafe { libc::preadv(file.as_raw_fd(), buffers.as_ptr(), buffers.len() as i32, offset) } as libc::c_long
    )?;
    usize::try_from(count).map_err(|_| Errno::IO)
}

/// pwritev2(2) of the slices, skipping their first `skip` bytes. Returns the number of bytes written. With `append`,
/// writes at the end of the file.
pub(super) fn write(
    file: BorrowedFd<'_>,
    data: &[VolatileSlice<'_>],
    skip: usize,
    offset: u64,
    append: bool,
) -> Result<usize, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::FBIG)?;
    let buffers = buffers(data, skip);
    let flags = if append { libc::RWF_APPEND } else { 0 };
    // SAFETY: each buffer is a part of a `VolatileSlice` that outlives the call, so it is mapped and readable; the kernel
    // only reads it.
    let count = unsafe { libc::pwritev2(file.as_raw_fd(), buffers.as_ptr(), buffers.len() as i32, offset, flags) };
    usize::try_from(check(count as libc::c_long)?).map_err(|_| Errno::IO)
}

/// fcntl(2) with one of the commands for locks of an open file (`F_OFD_SETLK`, `F_OFD_GETLK`).
pub(super) fn lock(file: BorrowedFd<'_>, command: i32, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: these commands read, and F_OFD_GETLK writes, one `struct flock`, which is borrowed mutably.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *lock) }.into()).map(|_| ())
}

fn buffers(slices: &[VolatileSlice<'_>], mut skip: usize) -> SmallVec<[libc::iovec; 16]> {
    let mut buffers = SmallVec::new();
    for slice in slices {
        let behind = skip.min(slice.len());
        skip -= behind;
        if let Ok(rest) = slice.offset(behind)
            && !rest.is_empty()
            && buffers.len() < MAX_BUFFERS
        {
            buffers.push(libc::iovec { iov_base: rest.ptr_guard_mut().as_ptr().cast(), iov_len: rest.len() });
        }
    }
    buffers
}

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
