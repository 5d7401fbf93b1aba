//! One thread's descriptor of `/dev/fuse`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, write};

/// Where the kernel's requests come from.
pub(crate) use inarch_mount::DEVICE;

/// One descriptor of the connection.
#[derive(Debug)]
pub(crate) struct Channel {
    device: OwnedFd,
}

impl Channel {
    /// The descriptor that was mounted.
    pub fn new(device: OwnedFd) -> Channel {
        Channel { device }
    }

    /// A cloned descriptor of the same connection, so that two threads do not contend for one lock in the kernel. A
    /// request must be answered on the descriptor it was read from.
    pub fn try_clone(&self) -> io::Result<Channel> {
        let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        clone_connection(&device, &self.device)?;
        Ok(Channel { device })
    }

    /// A duplicate of this descriptor, to answer a request later.
    pub fn duplicate(&self) -> io::Result<Channel> {
        Ok(Channel { device: self.device.try_clone()? })
    }

    /// Waits for the next request; `None` when the connection has ended.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<&'b mut [u8]>> {
        loop {
            match read(&self.device, &mut *buffer) {
                Ok(length) => return Ok(buffer.get_mut(..length)),
                // ENOENT: the request was interrupted before it could be read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                // Unmounted, or aborted.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends an answer, header included. It is no error if the request was interrupted meanwhile.
    pub fn reply(&self, answer: &[u8]) -> io::Result<()> {
        loop {
            match write(&self.device, answer) {
                Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Makes `new`, a fresh descriptor of the device, a clone of the connection of `old`.
#[allow(unsafe_code, reason = "an ioctl")]
fn clone_connection(new: &OwnedFd, old: &OwnedFd) -> io::Result<()> {
    use rustix::ioctl::{Setter, ioctl, opcode};
    /// `FUSE_DEV_IOC_CLONE` of Linux's include/uapi/linux/fuse.h: `_IOR(229, 0, uint32_t)`.
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
    let old = u32::try_from(old.as_fd().as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel reads one u32, a descriptor's number, from the pointer (fuse_dev_ioctl_clone in fs/fuse/dev.c;
    // the request's number says, wrongly, that it writes there), and `Setter` passes a pointer to one.
    unsafe { ioctl(new, Setter::<CLONE, u32>::new(old)) }?;
    Ok(())
}
