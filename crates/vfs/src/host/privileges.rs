//! Keeps clients from leaving privileges in the host's files, and clears them on write. Privileges are set-user-ID
//! and set-group-ID bits, file capabilities and device nodes ([`Refused`]).
//!
//! Refused bits and capabilities are dropped, and the request succeeds. POSIX permits that (chmod(2):
//! "implementation-defined restrictions may cause the S_ISUID and S_ISGID bits in mode to be ignored"), and Linux
//! does it for a set-group-ID bit of a group that the caller is not in. Programs like `cp -p`, tar and package
//! managers give up if chmod(2) fails, and so they work. A device node cannot be dropped from mknod(2): that fails
//! with `EPERM`, as for an ordinary user.
//!
//! Privileges that the host's files had before stay while the file is only read. When a client changes the file's
//! content, owner or permissions, or gives it a name, the file is treated as if the client had made it. A privileged
//! file gets no passthrough for writing. If the host adds privileges to a file that has passthrough, each open for
//! writing clears them; a client that mapped it for writing before can still store to it, as a host program could.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, chmodat, chownat, openat};
use rustix::io::Errno;

use super::HostDirectory;
use super::reach::DescriptorName;

/// What clients may not leave in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Set-user-ID bits, set-group-ID bits except on directories, and file capabilities: they are dropped.
    pub privileges: bool,
    /// Character and block devices: `EPERM`. A character device 0:0 is allowed: it is a whiteout, and Linux lets
    /// every user make one.
    pub devices: bool,
}

/// The extended attribute of file capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The mode bits that give a program the rights of another user or group.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

impl HostDirectory {
    /// The granted permissions of those that a client asks for, for a file type (`S_IFMT` of a mode).
    ///
    /// A set-group-ID bit is dropped even without group execute permission: it has no effect then, but an ACL could
    /// give it one later.
    pub(super) fn granted(&self, kind: u32, mode: u32) -> u32 {
        match kind & libc::S_IFMT {
            _ if !self.options.refused.privileges => mode,
            // On a directory the bit gives new entries the directory's group.
            libc::S_IFDIR => mode & !libc::S_ISUID,
            _ => mode & !SET_ID,
        }
    }

    /// `EPERM` for a device that clients may not make.
    pub(super) fn require_no_device(&self, kind: u32, device: u64) -> Result<(), Errno> {
        let is_device = match kind & libc::S_IFMT {
            libc::S_IFCHR => device != 0,
            libc::S_IFBLK => true,
            _ => false,
        };
        if is_device && self.options.refused.devices { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Before a client changes a file's content: clears what is refused, or what a write `without` privilege clears.
    pub(super) fn before_writing(&self, target: BorrowedFd<'_>, without: bool) -> Result<(), Errno> {
        if self.options.refused.privileges {
            self.take_privileges(target)
        } else if without {
            self.drop_privileges(target)
        } else {
            Ok(())
        }
    }

    /// Before a client changes an owner, permissions or a name: refuses a device, and clears what else is refused.
    pub(super) fn before_changing(&self, target: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.options.refused.devices {
            let stat = self.stat(target, b"")?;
            self.require_no_device(stat.stx_mode.into(), device(&stat))?;
        }
        if self.options.refused.privileges { self.take_privileges(target) } else { Ok(()) }
    }

    /// The same for `name` in a directory.
    pub(super) fn before_moving(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        if self.options.refused == Refused::default() {
            return Ok(());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = self.with_room(|| openat(directory, name, flags, Mode::empty()))?;
        self.before_changing(target.as_fd())
    }

    /// Clears all privileges of a file.
    fn take_privileges(&self, target: BorrowedFd<'_>) -> Result<(), Errno> {
        let mode = u32::from(self.stat(target, b"")?.stx_mode);
        if mode & libc::S_IFMT != libc::S_IFREG {
            return Ok(());
        }
        if mode & SET_ID != 0 {
            self.change_mode(target, mode & !SET_ID)?;
        }
        if has_capabilities(target) {
            // Setting the same owner clears them, and needs no capability, which removing them would.
            return chownat(target, "", None, None, AtFlags::EMPTY_PATH);
        }
        Ok(())
    }

    /// Whether a write to the file must clear something that only this file system clears; then there is no
    /// passthrough. With passthrough the kernel writes in the server's name and, told that the server clears bits,
    /// does not.
    ///
    /// The kernel itself clears capabilities on write(2), but not on a store to a shared mapping. On the host they
    /// stay then, too, unless they are refused.
    pub(super) fn loses_power(&self, target: BorrowedFd<'_>, mode: u32) -> bool {
        mode & SET_ID != 0 || self.options.refused.privileges && has_capabilities(target)
    }

    /// Clears what an unprivileged change clears. The kernel itself clears file capabilities at each write and change
    /// of owner.
    pub(super) fn drop_privileges(&self, target: BorrowedFd<'_>) -> Result<(), Errno> {
        let mode = u32::from(self.stat(target, b"")?.stx_mode);
        if mode & libc::S_IFMT != libc::S_IFREG {
            return Ok(());
        }
        let mut kept = mode & !libc::S_ISUID;
        // Without group execute permission it is not a privilege.
        if mode & libc::S_IXGRP != 0 {
            kept &= !libc::S_ISGID;
        }
        if kept == mode { Ok(()) } else { self.change_mode(target, kept) }
    }

    /// Clears the set-group-ID bit, as for a change of an ACL by a user outside the group.
    pub(super) fn drop_set_group_id(&self, target: BorrowedFd<'_>) -> Result<(), Errno> {
        let mode = u32::from(self.stat(target, b"")?.stx_mode);
        if mode & libc::S_ISGID == 0 { Ok(()) } else { self.change_mode(target, mode & !libc::S_ISGID) }
    }

    pub(super) fn change_mode(&self, target: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        // fchmod(2) does not accept an O_PATH descriptor; a symbolic link has no mode.
        chmodat(&self.descriptors, DescriptorName::new(target).as_bytes(), mode, AtFlags::empty())
    }
}

/// Whether a file has capabilities.
fn has_capabilities(target: BorrowedFd<'_>) -> bool {
    rustix::fs::getxattr(DescriptorName::new(target).path(), CAPABILITY, &mut [0; 0]).is_ok()
}

/// The device number of a device node.
fn device(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor)
}
