//! Catches signals that would end the process, while there is something to clean up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

/// Catches SIGINT, SIGTERM and SIGHUP until it is dropped; then they have their previous action.
pub(super) struct Signals {
    caught: Arc<AtomicUsize>,
    registered: Vec<SigId>,
}

impl Signals {
    pub(super) fn catch() -> Signals {
        let caught = Arc::new(AtomicUsize::new(0));
        let register = |signal| flag::register_usize(signal, Arc::clone(&caught), signal as usize).ok();
        let registered = [SIGINT, SIGTERM, SIGHUP].into_iter().filter_map(register).collect();
        Signals { caught, registered }
    }

    /// The last signal that came.
    pub(super) fn caught(&self) -> Option<i32> {
        i32::try_from(self.caught.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}
