//! The exit status of a process that is no child of this one, through a pidfd.
#![allow(unsafe_code, reason = "an ioctl that no library wraps")]

use std::os::fd::{AsRawFd, BorrowedFd};

/// `PIDFD_GET_INFO` of Linux's include/uapi/linux/pidfd.h, for a structure of 64 bytes.
const PIDFD_GET_INFO: libc::Ioctl = 0xC040_FF0B;
/// `PIDFD_INFO_EXIT`: asks for the status, and says that it is there.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// The first version of `struct pidfd_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    /// The numbers of the process, its thread group and its parent; its users and groups.
    numbers: [u32; 11],
    exit_code: i32,
}

/// The status, as of wait(2), of a process that has ended and that its parent has waited for; `None` before that, and on kernels
/// before Linux 6.15.
pub fn exit_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = Info { mask: PIDFD_INFO_EXIT, ..Info::default() };
    // SAFETY: the kernel writes at most the 64 bytes of the structure, which the number of the request tells.
    let answer = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (answer == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn a_status_is_there_after_the_wait() {
        assert_eq!(size_of::<Info>(), 64);
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        assert_eq!(exit_status(handle.as_fd()), None);
        child.wait().unwrap();
        let is_known = exit_status(handle.as_fd());
        // Not available before Linux 6.15.
        assert!([Some(7 << 8), None].contains(&is_known), "{is_known:?}");
        assert_eq!(exit_status(std::fs::File::open("/dev/null").unwrap().as_fd()), None);
    }
}
