//! A job as a value: it runs in threads of its own, and its starter waits for it or stops it.

use std::fmt;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use inarch_server::StopHandle;

use super::LifecycleError;
use crate::events::Events;

/// A job that was started. It gives a `T` at its end.
#[derive(Debug)]
pub(crate) struct Running<T, E> {
    stop: StopHandle,
    thread: JoinHandle<Result<T, E>>,
}

/// What the thread of a job is given. It tells `V`s, and when it is ready an `R`.
pub(crate) struct Duty<R, V> {
    /// Used when the job is to end.
    pub stop: StopHandle,
    /// Who is told what happens.
    pub events: Events<V>,
    ready: Sender<R>,
}

impl<R, V: 'static> Duty<R, V> {
    /// Tells the starter that the job is ready, and what it should know then.
    pub fn is_ready(&self, introduction: R) {
        // A starter that is gone knows all that it wants to know.
        let _ = self.ready.send(introduction);
    }
}

impl<T: Send + 'static, E: From<LifecycleError> + Send + 'static> Running<T, E> {
    /// Does `work` in a thread of its own, which has this `name`, and waits until that is ready. Gives what it said then.
    ///
    /// # Errors
    /// Those of `work` before it is ready.
    pub fn start<R: Send + 'static, V: 'static>(
        name: &str,
        events: Events<V>,
        work: impl FnOnce(&Duty<R, V>) -> Result<T, E> + Send + 'static,
    ) -> Result<(R, Running<T, E>), E> {
        let stop = StopHandle::new().map_err(|error| LifecycleError::Setup { what: "an eventfd", error })?;
        let (ready, starter) = mpsc::channel();
        let duty = Duty { stop: stop.clone(), events, ready };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || work(&duty));
        let running = Running { stop, thread: thread.map_err(LifecycleError::Thread)? };
        match starter.recv() {
            Ok(introduction) => Ok((introduction, running)),
            Err(_) => {
                running.wait()?;
                Err(LifecycleError::Stopped.into())
            }
        }
    }

    /// Ends the job from any thread.
    pub fn stopper(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Waits for the end of the job.
    ///
    /// # Errors
    /// What ended it.
    pub fn wait(self) -> Result<T, E> {
        self.thread.join().unwrap_or_else(|_| Err(LifecycleError::Panicked.into()))
    }
}

impl<R, V> fmt::Debug for Duty<R, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duty").field("stop", &self.stop).finish_non_exhaustive()
    }
}
