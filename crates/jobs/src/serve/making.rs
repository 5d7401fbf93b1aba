//! Makes the device of a server that is already listening.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use inarch_block::Device;
use inarch_lifecycle::LifecycleError;
use inarch_server::Pending;
use inarch_source::Source;

use super::ServedTree;
use super::service::{Duty, Introduction, ServiceEvent, ServiceReport};
use crate::JobError;
use crate::device::{DiskReport, Prepared, Writes, confinement, contained};
use crate::notes::DiskNote;

/// A device that a thread makes.
pub(super) struct Making {
    source: Source,
    has_kept_overlay: bool,
    pending: Arc<Pending<Device>>,
    thread: JoinHandle<Result<Prepared, JobError>>,
}

impl Making {
    /// Begins to make the device of `tree`, in a thread that keeps what that takes. If it fails, the server is stopped.
    pub fn start(tree: &ServedTree, duty: &Duty) -> Making {
        let pending = Arc::new(Pending::new());
        let (recipe, outcome, stop) = (tree.recipe(), Arc::clone(&pending), duty.stop.clone());
        let events = duty.events.clone();
        let sandbox = tree.sandbox;
        let thread = thread::spawn(move || {
            let prepared = contained(recipe.source.path(), || {
                // The same confinement as the server's, which reports it.
                sandbox.enter(&confinement::of_plan(&recipe)?);
                recipe.prepare()
            });
            match &prepared {
                Ok(prepared) => {
                    prepared.notes.iter().for_each(|note| events.emit(ServiceEvent::Source(note.clone())));
                    outcome.set(Ok(Arc::clone(&prepared.device)));
                }
                Err(error) => {
                    outcome.set(Err(error.to_string()));
                    stop.stop();
                }
            }
            prepared
        });
        let has_kept_overlay = matches!(tree.writes, Writes::Kept(_));
        Making { source: tree.source.clone(), has_kept_overlay, pending, thread }
    }

    /// How to use the disk. Whether a kept overlay belongs to the tree is known when the device is made: until then, these lines wait.
    pub fn introduction(&self, lines: String) -> Introduction {
        Introduction { lines, unless_refused: self.has_kept_overlay.then(|| self.pending()) }
    }

    /// The device, or where it will be.
    pub fn pending(&self) -> Arc<Pending<Device>> {
        Arc::clone(&self.pending)
    }

    /// When the server has ended: tells what the user should know of the device's use, or why there never was one.
    pub fn finish(self, duty: &Duty) -> Result<ServiceReport, JobError> {
        // The server has ended: nobody needs to wait for the device any longer.
        duty.stop.stop();
        self.pending.wake();
        if self.pending.get().is_none() {
            // The server was stopped before the plan was finished: nobody waits for the device.
            return Ok(ServiceReport::default());
        }
        let prepared = self.thread.join().unwrap_or_else(|_| Err(LifecycleError::Panicked.into()))?;
        for note in DiskNote::of(&prepared.device, &self.source, prepared.writable_bytes()) {
            duty.events.emit(ServiceEvent::Disk(note));
        }
        Ok(ServiceReport { disk: Some(DiskReport::of(&prepared.device)) })
    }
}
