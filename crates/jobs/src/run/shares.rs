//! Directories that a run's guest shares, live.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use inarch_vhost::Event;

use super::attempt::{DiskFailure, pair};
use crate::JobError;
use crate::notes::say;
use crate::share::Share;

/// A directory and where the guest mounts it.
#[derive(Clone, Debug)]
pub(super) struct SharedTree {
    /// What is shared, and how.
    pub share: Share,
    /// Absolute path in the guest; `/` for the root.
    pub destination: PathBuf,
    /// Whether the guest mounts it below an overlayfs, so that its writes do not reach the directory.
    pub overlaid: bool,
    /// The name by which the guest mounts it.
    pub tag: String,
}

impl SharedTree {
    /// Serves the directory on one end of a new connection; gives the other. Fails early if there is no such directory.
    pub fn connect(&self, queues: u16, failure: &Arc<DiskFailure>) -> Result<OwnedFd, JobError> {
        let (ours, theirs) = pair()?;
        let directory = self.share.directory.clone();
        let failure = Arc::clone(failure);
        let fail = Arc::new(move |reason: &dyn std::fmt::Display| {
            let directory = crate::notes::shown(&directory);
            failure.set(JobError::Other(format!("{directory}: it can no longer be shared: {reason}")));
        });
        let on_event = {
            let fail = Arc::clone(&fail);
            // A queue that stands still would let the guest wait for ever.
            move |event: Event| match event {
                Event::QueueStopped { .. } => fail(&event),
                event => say(event),
            }
        };
        let server = self.share.server(queues, None)?.on_event(on_event);
        // It ends when QEMU does.
        thread::spawn(move || {
            if let Err(error) = server.serve_stream(ours) {
                fail(&error);
            }
        });
        Ok(theirs)
    }
}
