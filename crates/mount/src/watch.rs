//! Waits for the end of a mount that the kernel serves.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::{MountId, place_of};

/// Waits for the end of a mount, or of a file system, which lives as long as somebody has a file of it open or has it
/// mounted elsewhere.
#[derive(Debug)]
pub struct Watch {
    until: Until,
}

#[derive(Debug)]
enum Until {
    /// Waits for the file system's end, through inotify(7).
    FileSystemEnds(OwnedFd),
    /// Waits until the mount leaves the table, whose changes poll(2) reports (proc_pid_mountinfo(5)).
    MountEnds(File, Option<MountId>),
}

impl Watch {
    /// Begins before the mount is visible: watches the file system with this root or, without a root, a mount.
    pub(super) fn begin(root: Option<BorrowedFd<'_>>) -> Result<Watch, Errno> {
        let Some(root) = root else {
            let table = File::open("/proc/self/mountinfo");
            let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            return Ok(Watch { until: Until::MountEnds(table, None) });
        };
        let events = inotify::init(CreateFlags::CLOEXEC)?;
        let path = format!("/proc/self/fd/{}", root.as_raw_fd());
        // inotify always reports an unmounted file system.
        inotify::add_watch(&events, path, WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR)?;
        Ok(Watch { until: Until::FileSystemEnds(events) })
    }

    /// Sets the mount to watch, which has its numbers only now.
    pub(super) fn of(mut self, id: MountId) -> Watch {
        if let Until::MountEnds(_, mount) = &mut self.until {
            *mount = Some(id);
        }
        self
    }

    /// Returns when it is gone.
    ///
    /// # Errors
    /// Those of poll(2) and read(2).
    pub fn wait(&self) -> io::Result<()> {
        match &self.until {
            Until::FileSystemEnds(events) => wait_for_unmount(events),
            Until::MountEnds(table, Some(id)) => {
                while place_of(id).is_some() {
                    match poll(&mut [PollFd::new(table, PollFlags::PRI)], None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
                Ok(())
            }
            Until::MountEnds(_, None) => Ok(()),
        }
    }
}

fn wait_for_unmount(events: &OwnedFd) -> io::Result<()> {
    let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 4096];
    let mut reader = Reader::new(events, &mut buffer);
    loop {
        match reader.next() {
            Ok(event) if event.events().intersects(ReadFlags::UNMOUNT | ReadFlags::IGNORED) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
