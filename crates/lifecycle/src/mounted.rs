//! A mount of this process, which serves it or waits for the kernel to end it.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use inarch_mount::{Mount, Unmounted};
use inarch_server::StopHandle;

use super::LifecycleError;
use super::guard::Guard;

/// A mount, and the thread that answers its requests or waits for its end.
pub struct Mounted {
    mount: Mount,
    thread: JoinHandle<Result<(), String>>,
    /// Whether somebody else unmounted it.
    is_gone: Arc<AtomicBool>,
}

impl Mounted {
    /// Starts a thread in which `serve` answers the requests for `mount`, or waits until it is gone; uses `stop` when
    /// that returns.
    pub fn served<E: Display>(
        mount: Mount,
        stop: &StopHandle,
        serve: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Mounted {
        let (is_gone, stop) = (Arc::new(AtomicBool::new(false)), stop.clone());
        let ended_by_itself = Arc::clone(&is_gone);
        let thread = thread::spawn(move || {
            let ended = serve().map_err(|error| error.to_string());
            ended_by_itself.store(ended.is_ok(), Ordering::Release);
            stop.stop();
            ended
        });
        Mounted { mount, thread, is_gone }
    }

    /// Unmounts it from `point`, and waits for its last request, or for the end of its file system. If the mount is
    /// in use, it waits only if `in_use` says so.
    pub fn end(
        self,
        guard: &mut Guard,
        point: &Path,
        in_use: impl FnOnce() -> bool,
    ) -> Result<Unmounted, LifecycleError> {
        let unmounted = guard.unmount(self.mount, self.is_gone.load(Ordering::Acquire))?;
        if unmounted == Unmounted::Clean || in_use() {
            let ended = self.thread.join().unwrap_or(Ok(()));
            ended.map_err(|reason| LifecycleError::Mounted { point: point.to_owned(), reason })?;
        }
        Ok(unmounted)
    }
}
