//! Measures the phases of a run.

use std::cell::Cell;
use std::time::Instant;

use super::report::Phases;

/// Notes the moments between a run's phases.
pub(super) struct Clock {
    began: Instant,
    spoke: Cell<Option<Instant>>,
    stopped: Option<Instant>,
}

impl Clock {
    /// Of a run that began then.
    pub fn from(began: Instant) -> Clock {
        Clock { began, spoke: Cell::new(None), stopped: None }
    }

    /// The guest has spoken.
    pub fn guest_spoke(&self) {
        self.spoke.set(Some(Instant::now()));
    }

    /// The machine has ended.
    pub fn stop(&mut self) {
        self.stopped = Some(Instant::now());
    }

    /// The phases until now.
    pub fn phases(&self) -> Phases {
        let stopped = self.stopped.unwrap_or_else(Instant::now);
        let spoke = self.spoke.get().unwrap_or(stopped);
        Phases {
            boot: (spoke - self.began).as_secs_f64(),
            command: (stopped - spoke).as_secs_f64(),
            total: self.began.elapsed().as_secs_f64(),
        }
    }
}
