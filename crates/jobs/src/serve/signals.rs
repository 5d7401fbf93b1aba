//! Ending a server by SIGINT or SIGTERM.

use std::thread;

use inarch_server::StopHandle;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::JobError;

/// SIGINT and SIGTERM, which do not end the process any more: they wait until somebody heeds them.
pub(crate) struct Caught {
    signals: Signals,
    /// What the first of them will use.
    pub stop: StopHandle,
}

impl Caught {
    /// Catches them: before a socket or mount is there to be seen, for whoever sees it may have the server end.
    pub fn from_now_on() -> Result<Caught, JobError> {
        let stop = StopHandle::new().map_err(|error| JobError::Other(format!("cannot make an eventfd: {error}")))?;
        let signals = Signals::new([SIGINT, SIGTERM]);
        let signals = signals.map_err(|error| JobError::Other(format!("cannot catch signals: {error}")))?;
        Ok(Caught { signals, stop })
    }

    /// Starts a thread, as confined as the calling one, which has the first of them use the handle and the second end the
    /// process. Gives the handle.
    pub fn heed(mut self) -> StopHandle {
        let stop = self.stop.clone();
        thread::spawn(move || {
            for signal in self.signals.forever() {
                if self.stop.is_stopped() {
                    // Asked twice. The guard sees our end.
                    std::process::exit(128 + signal);
                }
                self.stop.stop();
            }
        });
        stop
    }
}
