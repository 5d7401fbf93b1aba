//! What lies in files and gives power to whoever runs or opens them: set-user-ID and set-group-ID bits, file capabilities,
//! device nodes. What a write clears of it, and how clients are kept from leaving it on the host ([`Refused`]).
//!
//! Bits and capabilities that are not to be there are left out, and the request succeeds. POSIX lets a system do so (chmod(2):
//! "implementation-defined restrictions may cause the S_ISUID and S_ISGID bits in mode to be ignored"), Linux does it with a
//! set-group-ID bit for a group that the caller is not in, and `cp -p`, tar and package managers, which give up where
//! chmod(2) fails, go on. A device node cannot be left out of mknod(2): that is refused with `EPERM`, as for an ordinary user.
//!
//! What was there before is the host's own. It stays as long as it is only read; once a client changes its content, owner or
//! permissions, or gives it a name, it is treated as if the client had made it. A file that has power is not given to a kernel
//! to be written past this layer (FUSE passthrough); of one that the host gives power to while a kernel has it, each open for
//! writing is a change. Who has had it mapped for writing since before that can store to it, as a program of the host could.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, chmodat, chownat, openat};
use rustix::io::Errno;

use super::HostDirectory;
use super::reach::DescriptorName;

/// What clients cannot leave in a directory that they change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Set-user-ID bits, set-group-ID bits of what is no directory, and file capabilities: they are left out.
    pub privileges: bool,
    /// Character and block devices: `EPERM`. A character device 0:0 is none: it stands for a name that is gone, and Linux
    /// lets every user make one, for overlayfs.
    pub devices: bool,
}

/// The extended attribute that file capabilities are.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The bits of a mode that give the rights of another user or group to who runs the file.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

impl HostDirectory {
    /// The permissions that something of this type (`S_IFMT` of a mode) gets of those that a client asks for.
    ///
    /// A set-group-ID bit goes without the group's execute permission too: it means nothing then, but a list of
    /// permissions can give it that meaning later.
    pub(super) fn granted(&self, kind: u32, mode: u32) -> u32 {
        match kind & libc::S_IFMT {
            _ if !self.options.refused.privileges => mode,
            // To new entries of a directory that bit gives the directory's group.
            libc::S_IFDIR => mode & !libc::S_ISUID,
            _ => mode & !SET_ID,
        }
    }

    /// `EPERM` for a device that clients cannot have.
    pub(super) fn require_no_device(&self, kind: u32, device: u64) -> Result<(), Errno> {
        let is_device = match kind & libc::S_IFMT {
            libc::S_IFCHR => device != 0,
            libc::S_IFBLK => true,
            _ => false,
        };
        if is_device && self.options.refused.devices { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Before a client changes the content of a file: clears what is refused, or else what a write by somebody `without`
    /// privilege clears.
    pub(super) fn before_writing(&self, target: BorrowedFd<'_>, without: bool) -> Result<(), Errno> {
        if self.options.refused.privileges {
            self.take_privileges(target)
        } else if without {
            self.drop_privileges(target)
        } else {
            Ok(())
        }
    }

    /// Before a client changes owner, permissions or name of something: refuses a device, and clears what else is refused.
    pub(super) fn before_changing(&self, target: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.options.refused.devices {
            let stat = self.stat(target, b"")?;
            self.require_no_device(stat.stx_mode.into(), device(&stat))?;
        }
        if self.options.refused.privileges { self.take_privileges(target) } else { Ok(()) }
    }

    /// The same for what has `name` in a directory.
    pub(super) fn before_moving(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        if self.options.refused == Refused::default() {
            return Ok(());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = self.with_room(|| openat(directory, name, flags, Mode::empty()))?;
        self.before_changing(target.as_fd())
    }

    /// Clears all that gives the rights of another user or group to who runs a file.
    fn take_privileges(&self, target: BorrowedFd<'_>) -> Result<(), Errno> {
        let mode = u32::from(self.stat(target, b"")?.stx_mode);
        if mode & libc::S_IFMT != libc::S_IFREG {
            return Ok(());
        }
        if mode & SET_ID != 0 {
            self.change_mode(target, mode & !SET_ID)?;
        }
        if has_capabilities(target) {
            // A change of owner to the same one clears them, and takes no capability of the server's as to remove them would.
            return chownat(target, "", None, None, AtFlags::EMPTY_PATH);
        }
        Ok(())
    }

    /// Whether a write to the file with this `mode` must clear something that only this layer clears: then nobody may write
    /// past it. A kernel that writes in the server's name, and was told that the server clears bits, does not.
    ///
    /// Capabilities the kernel clears itself where it executes write(2), but not where a program stores to a shared mapping:
    /// on the host itself they stay, too, unless they are refused.
    pub(super) fn loses_power(&self, target: BorrowedFd<'_>, mode: u32) -> bool {
        mode & SET_ID != 0 || self.options.refused.privileges && has_capabilities(target)
    }

    /// Clears what a change by somebody without privilege clears. The kernel itself clears file capabilities at each
    /// write and change of owner.
    pub(super) fn drop_privileges(&self, target: BorrowedFd<'_>) -> Result<(), Errno> {
        let mode = u32::from(self.stat(target, b"")?.stx_mode);
        if mode & libc::S_IFMT != libc::S_IFREG {
            return Ok(());
        }
        let mut kept = mode & !libc::S_ISUID;
        // Without the group's execute permission it is not a privilege.
        if mode & libc::S_IXGRP != 0 {
            kept &= !libc::S_ISGID;
        }
        if kept == mode { Ok(()) } else { self.change_mode(target, kept) }
    }

    /// Clears the set-group-ID bit, as setting an ACL does for somebody who is not in the group.
    pub(super) fn drop_set_group_id(&self, target: BorrowedFd<'_>) -> Result<(), Errno> {
        let mode = u32::from(self.stat(target, b"")?.stx_mode);
        if mode & libc::S_ISGID == 0 { Ok(()) } else { self.change_mode(target, mode & !libc::S_ISGID) }
    }

    pub(super) fn change_mode(&self, target: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        // A descriptor that is good for attributes only is not taken by fchmod(2); a symbolic link has no mode.
        chmodat(&self.descriptors, DescriptorName::new(target).as_bytes(), mode, AtFlags::empty())
    }
}

/// Whether a file has capabilities.
fn has_capabilities(target: BorrowedFd<'_>) -> bool {
    rustix::fs::getxattr(DescriptorName::new(target).path(), CAPABILITY, &mut [0; 0]).is_ok()
}

/// What a device node stands for.
fn device(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor)
}
