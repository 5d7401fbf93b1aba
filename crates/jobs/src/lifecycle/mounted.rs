//! A mount of this process's: it answers the requests for it, or the kernel does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use inarch_fuse::Session;
use inarch_mount::{Mount, Unmounted, Watch};
use inarch_vfs::FileSystem;
use inarch_vhost::StopHandle;

use super::guard::Guard;
use crate::JobError;
use crate::text::shown;

/// A mount, and the thread that answers its requests or waits for its end.
pub(crate) struct Mounted {
    mount: Mount,
    thread: JoinHandle<Result<(), String>>,
    /// Whether somebody else took the mount away.
    is_gone: Arc<AtomicBool>,
}

impl Mounted {
    /// Answers the requests for `mount` from now on; uses `stop` when there will be no more.
    pub fn answer<F: FileSystem + ?Sized>(mount: Mount, session: Session<F>, stop: &StopHandle) -> Mounted {
        Mounted::until_it_ends(mount, stop, move || session.run().map_err(|error| error.to_string()))
    }

    /// Waits from now on until `mount`, which the kernel serves, is gone; uses `stop` then.
    pub fn watch(mount: Mount, watch: Watch, stop: &StopHandle) -> Mounted {
        Mounted::until_it_ends(mount, stop, move || watch.wait().map_err(|error| error.to_string()))
    }

    fn until_it_ends(
        mount: Mount,
        stop: &StopHandle,
        wait: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Mounted {
        let (is_gone, stop) = (Arc::new(AtomicBool::new(false)), stop.clone());
        let ended_by_itself = Arc::clone(&is_gone);
        let thread = thread::spawn(move || {
            let ended = wait();
            ended_by_itself.store(ended.is_ok(), Ordering::Release);
            stop.stop();
            ended
        });
        Mounted { mount, thread, is_gone }
    }

    /// Takes the mount away from `point`, and waits for its last request, or for the end of its file system; of one that is in use only
    /// after `in_use` says that this is to be waited for, too.
    pub fn end(self, guard: &mut Guard, point: &Path, in_use: impl FnOnce() -> bool) -> Result<Unmounted, JobError> {
        let unmounted = guard.unmount(self.mount, self.is_gone.load(Ordering::Acquire))?;
        if unmounted == Unmounted::Clean || in_use() {
            let ended = self.thread.join().unwrap_or(Ok(()));
            ended.map_err(|error| JobError::Other(format!("{}: {error}", shown(point))))?;
        }
        Ok(unmounted)
    }
}
