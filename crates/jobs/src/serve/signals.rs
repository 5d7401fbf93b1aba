//! Ending a server by SIGINT or SIGTERM.

use std::thread;

use inarch_server::StopHandle;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::JobError;

/// A handle that the first SIGINT or SIGTERM uses; the second ends the process.
pub(crate) fn stop_on_signals() -> Result<StopHandle, JobError> {
    let stop = StopHandle::new().map_err(|error| JobError::Other(format!("cannot make an eventfd: {error}")))?;
    let mut signals =
        Signals::new([SIGINT, SIGTERM]).map_err(|error| JobError::Other(format!("cannot catch signals: {error}")))?;
    let on_signal = stop.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if on_signal.is_stopped() {
                // Asked twice. The guard sees our end.
                std::process::exit(128 + signal);
            }
            on_signal.stop();
        }
    });
    Ok(stop)
}
