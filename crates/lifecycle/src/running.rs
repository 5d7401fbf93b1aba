//! A job as a value: it runs in threads of its own; its starter stops it and waits for it.

use std::fmt;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use inarch_server::StopHandle;

use super::LifecycleError;
use crate::events::Events;

/// A started job, whose result is a `T`.
#[derive(Debug)]
pub struct Running<T, E> {
    stop: StopHandle,
    thread: JoinHandle<Result<T, E>>,
}

/// What the thread of a job gets. It emits events `V` and, when the job is ready, reports an `R`.
pub struct Duty<R, V> {
    /// Stops the job.
    pub stop: StopHandle,
    /// Receives what happens.
    pub events: Events<V>,
    ready: Sender<R>,
}

impl<R, V: 'static> Duty<R, V> {
    /// Tells the starter that the job is ready, and what it should know then.
    pub fn is_ready(&self, introduction: R) {
        // If the starter is gone, nobody needs to be told.
        let _ = self.ready.send(introduction);
    }
}

impl<T: Send + 'static, E: From<LifecycleError> + Send + 'static> Running<T, E> {
    /// Runs `work` in a thread with this `name`, and waits until it is ready. Returns what it reported then.
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

    /// Waits for the job's end.
    ///
    /// # Errors
    /// The error that ended it.
    pub fn wait(self) -> Result<T, E> {
        self.thread.join().unwrap_or_else(|_| Err(LifecycleError::Panicked.into()))
    }
}

impl<R, V> fmt::Debug for Duty<R, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duty").field("stop", &self.stop).finish_non_exhaustive()
    }
}
