//! The child of a mount that lists directories in it, so that the kernel knows their names before programs ask for each.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;

use inarch_confine::close_inherited;
use inarch_fuse::{Lister, list_directories};
use inarch_mount::Mount;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::guard::own_child;
use crate::confinement::{Access, Confinement, Grants, Sandbox, Work};

/// The first word of the child's command line; what follows is [`list`]'s.
pub const LISTER_ARGUMENT: &str = "list-directories-as-told";

/// The words for whether it confines itself.
const CONFINED: &str = "confined";
const FREE: &str = "free";

/// How long the server waits for the end of the child, which has the mount open until then.
const LAST_WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The child, seen from the server; it ends when the server closes its pipe.
pub(crate) struct ListerChild {
    child: Child,
    /// By which a server ends it that may signal nobody else.
    process: OwnedFd,
}

impl ListerChild {
    /// Starts it; nothing where that cannot be, for a mount does without.
    pub fn start(mount: &Mount, sandbox: Sandbox) -> Option<(ListerChild, Lister)> {
        // What it does takes file handles and a copy of the mount.
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let confined = if sandbox == Sandbox::None { FREE } else { CONFINED };
        let mut child = own_child(LISTER_ARGUMENT)
            .arg(mount.point())
            .arg(mount.id().device().to_string())
            .arg(confined)
            .spawn()
            .ok()?;
        let (orders, reports) = (child.stdin.take()?, child.stdout.take()?);
        let [orders, reports] = [orders.into(), OwnedFd::from(reports)].map(std::fs::File::from);
        // Without one it ends with its pipe, which is closed here.
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok()?;
        Some((ListerChild { child, process }, Lister { orders, reports }))
    }
}

impl Drop for ListerChild {
    fn drop(&mut self) {
        // It may be gone already. If what is mounted hangs, so does the child, until this process has ended: then it is not
        // waited for any longer.
        if pidfd_send_signal(&self.process, Signal::KILL).is_ok() {
            let _ = poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&LAST_WAIT));
        }
        let _ = self.child.try_wait();
    }
}

/// The child's whole life. Gives its exit status.
pub fn list(words: &[OsString]) -> u8 {
    let [point, device, confined] = words else { return 1 };
    let Ok(device) = device.to_string_lossy().parse() else { return 1 };
    let point = Path::new(point);
    // What was left open for the server is not for its child. Without /proc it stays open.
    let _ = close_inherited();
    if confined == CONFINED {
        let Ok(confinement) = Confinement::new(Work::Listing).granted(point, Access::Read) else { return 1 };
        confinement.enter();
    }
    u8::from(list_directories(point, device).is_err())
}
