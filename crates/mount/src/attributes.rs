//! mount_setattr(2), which no library wraps.

#![allow(unsafe_code, reason = "a system call that no library wraps")]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, OpenTreeFlags};

/// Of `struct mount_attr` of Linux's include/uapi/linux/mount.h.
#[repr(C)]
#[derive(Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// `MOUNT_ATTR_IDMAP` of Linux's include/uapi/linux/mount.h.
const IDMAP: u64 = 0x0010_0000;

/// Sets attributes of the mount at `mount`; with `recursive` also of all mounts inside it. With `private`, later
/// mounts inside it do not propagate, in either direction. A user namespace maps the owners that the mount shows;
/// that requires a detached mount (Linux 5.12).
///
/// # Errors
/// Those of mount_setattr(2); `ENOSYS` before Linux 5.12.
pub fn set_attributes(
    mount: BorrowedFd<'_>,
    set: MountAttrFlags,
    recursive: bool,
    private: bool,
    owners: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    const HERE: &CStr = c"";
    let mut attributes = MountAttributes { set: set.bits().into(), ..MountAttributes::default() };
    if private {
        attributes.propagation = MountPropagationFlags::PRIVATE.bits().into();
    }
    if let Some(owners) = owners {
        attributes.set |= IDMAP;
        attributes.user_namespace = owners.as_raw_fd().unsigned_abs().into();
    }
    let recursive = if recursive { OpenTreeFlags::AT_RECURSIVE.bits() } else { 0 };
    // SAFETY: the path is a C string, and the kernel reads as many bytes of `attributes` as it is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            HERE.as_ptr(),
            AtFlags::EMPTY_PATH.bits() | recursive,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
