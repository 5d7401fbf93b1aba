//! The child of a mount that lists directories in it, so that the kernel knows their names before programs ask for each.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use inarch_fuse::mount::Mount;
use inarch_fuse::{Lister, list_directories};

use crate::confinement::{Access, Confinement, Grants, Sandbox, Work};

/// The first word of the child's command line; what follows is [`list`]'s.
pub const LISTER_ARGUMENT: &str = "list-directories-as-told";

/// The words for whether it confines itself.
const CONFINED: &str = "confined";
const FREE: &str = "free";

/// The child, seen from the server; it ends when the server closes its pipe.
pub(crate) struct ListerChild(Child);

impl ListerChild {
    /// Starts it; nothing where that cannot be, for a mount does without.
    pub fn start(mount: &Mount, sandbox: Sandbox) -> Option<(ListerChild, Lister)> {
        // What it does takes file handles and a copy of the mount.
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let confined = if sandbox == Sandbox::None { FREE } else { CONFINED };
        let mut child = Command::new("/proc/self/exe")
            .arg(LISTER_ARGUMENT)
            .arg(mount.point())
            .arg(mount.device().to_string())
            .arg(confined)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .ok()?;
        let (orders, reports) = (child.stdin.take()?, child.stdout.take()?);
        let [orders, reports] = [orders.into(), std::os::fd::OwnedFd::from(reports)].map(std::fs::File::from);
        Some((ListerChild(child), Lister { orders, reports }))
    }
}

impl Drop for ListerChild {
    fn drop(&mut self) {
        // It may be gone already. If what is mounted hangs, so does the child, until this process has ended: it is not waited for.
        let _ = self.0.kill();
    }
}

/// The child's whole life. Gives its exit status.
pub fn list(words: &[OsString]) -> u8 {
    let [point, device, confined] = words else { return 1 };
    let Ok(device) = device.to_string_lossy().parse() else { return 1 };
    let point = Path::new(point);
    if confined == CONFINED {
        let Ok(confinement) = Confinement::new(Work::Listing).granted(point, Access::Read) else { return 1 };
        confinement.enter();
    }
    u8::from(list_directories(point, device).is_err())
}
