//! Directories that a run's guest shares, live.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use inarch_ninep::{ConnectionError, NinepOptions, NinepServer};
use inarch_server::Pending;
use inarch_vhost::Event;
use inarch_vm::machine::FORWARD_ADDRESS;
use inarch_vm::protocol::{Mount, MountSource};

use super::attempt::{DiskFailure, pair};
use crate::JobError;
use crate::confinement::among_others;
use crate::notes::say;
use crate::share::Share;

/// What carries requests from the guest to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    /// A virtqueue.
    Virtiofs,
    /// A TCP connection to QEMU, which forwards it.
    Ninep,
}

impl Wire {
    /// The guest's name for it.
    pub fn file_system(self) -> &'static str {
        match self {
            Wire::Virtiofs => "virtiofs",
            Wire::Ninep => "9p",
        }
    }
}

/// The port of the first directory that is reached by 9P (`P9_PORT` of Linux's net/9p/trans_fd.c).
const FIRST_PORT: u16 = 564;

/// A directory and where the guest mounts it.
#[derive(Clone, Debug)]
pub(super) struct SharedTree {
    /// What is shared, and how.
    pub share: Share,
    /// How the guest reaches it.
    pub wire: Wire,
    /// How many there are before it.
    pub ordinal: usize,
    /// Absolute path in the guest; `/` for the root.
    pub destination: PathBuf,
    /// Whether the guest mounts it below an overlayfs, so that its writes do not reach the directory.
    pub overlaid: bool,
    /// The name by which the guest mounts it.
    pub tag: String,
}

impl SharedTree {
    /// The port by which the guest reaches it.
    pub fn port(&self) -> u16 {
        // A guest has a few dozen trees.
        FIRST_PORT.saturating_add(self.ordinal as u16)
    }

    /// How the guest mounts it.
    pub fn mount(&self) -> Mount {
        let (source, options) = match self.wire {
            Wire::Virtiofs => (self.tag.clone(), String::new()),
            Wire::Ninep => {
                let options = self.share.ninep_mount_options(NinepOptions::MAX_MSIZE);
                (FORWARD_ADDRESS.to_string(), format!("trans=tcp,port={},{options}", self.port()))
            }
        };
        Mount {
            source: MountSource::Name(source),
            fstype: self.wire.file_system().to_owned(),
            target: self.destination.clone(),
            options,
            read_only: self.share.refuses_writes() && !self.overlaid,
            no_suid_no_dev: false,
            no_atime: true,
            overlaid: self.overlaid,
        }
    }

    /// Serves the directory by 9P on one end of a new connection; gives the other.
    pub fn connect_ninep(&self, failure: &Arc<DiskFailure>) -> Result<OwnedFd, JobError> {
        let (ours, theirs) = pair()?;
        let file_system = Arc::new(Pending::ready(Arc::new(self.share.for_many(None)?)));
        let (directory, failure) = (self.share.directory.clone(), Arc::clone(failure));
        let server = NinepServer::new(file_system, NinepOptions::default());
        let confinement = among_others(&self.share)?.ends_processes();
        // It ends when QEMU does.
        thread::spawn(move || {
            confinement.enter();
            if let Err(error @ (ConnectionError::Panicked | ConnectionError::Protocol(_))) = server.serve_stream(ours) {
                let directory = crate::notes::shown(&directory);
                failure.set(JobError::Other(format!("{directory}: it can no longer be shared: {error}")));
            }
        });
        Ok(theirs)
    }

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
        let server = self.share.server(queues, None, None)?.on_event(on_event);
        let confinement = among_others(&self.share)?.ends_processes();
        // It ends when QEMU does.
        thread::spawn(move || {
            confinement.enter();
            if let Err(error) = server.serve_stream(ours) {
                fail(&error);
            }
        });
        Ok(theirs)
    }
}
