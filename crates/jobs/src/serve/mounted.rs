//! A mount that this process answers the requests for.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use inarch_fuse::mount::{Mount, Unmounted};
use inarch_fuse::{Session, SessionError};
use inarch_vfs::FileSystem;
use inarch_vhost::StopHandle;

use super::guard::Guard;
use crate::JobError;
use crate::notes::shown;

/// A mount, and the thread that answers its requests.
pub(crate) struct Mounted {
    mount: Mount,
    session: JoinHandle<Result<(), SessionError>>,
    /// Whether somebody else took the mount away.
    is_gone: Arc<AtomicBool>,
}

impl Mounted {
    /// Answers the requests for `mount` from now on; uses `stop` when there will be no more.
    pub fn answer<F: FileSystem + ?Sized>(mount: Mount, session: Session<F>, stop: &StopHandle) -> Mounted {
        let (is_gone, stop) = (Arc::new(AtomicBool::new(false)), stop.clone());
        let ended_by_itself = Arc::clone(&is_gone);
        let session = thread::spawn(move || {
            let ended = session.run();
            ended_by_itself.store(ended.is_ok(), Ordering::Release);
            stop.stop();
            ended
        });
        Mounted { mount, session, is_gone }
    }

    /// Takes the mount away from `point`, and waits for its last request unless it is in use.
    pub fn end(self, guard: &mut Guard, point: &Path) -> Result<Unmounted, JobError> {
        let unmounted = guard.unmount(self.mount, self.is_gone.load(Ordering::Acquire))?;
        if unmounted == Unmounted::Clean {
            let ended = self.session.join().unwrap_or(Ok(()));
            ended.map_err(|error| JobError::Other(format!("{}: {error}", shown(point))))?;
        }
        Ok(unmounted)
    }
}
