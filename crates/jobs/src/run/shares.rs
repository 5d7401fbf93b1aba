//! Shares directories live with a run's guest, by virtiofs or 9P.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use inarch_lifecycle::LifecycleError;
use inarch_lifecycle::confinement::{Confinement, Work};
use inarch_ninep::{ConnectionError, NinepOptions, NinepServer};
use inarch_server::Pending;
use inarch_vhost::Event;
use inarch_vhost::fs::Tag;
use inarch_vhost::vsock::VsockServer;
use inarch_vm::machine::FORWARD_ADDRESS;
use inarch_vm::protocol::{Mount, MountSource};

use super::failure::DiskFailure;
use super::sockets::pair;
use super::traced::TreeTrace;
use super::{RunError, RunFault, Way, WireOptions};
use crate::JobError;
use crate::share::Share;
use crate::share::confinement::among_others;

/// The transport of requests between guest and directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    /// A virtqueue.
    Virtiofs,
    /// A connection of the guest's virtio socket device.
    Ninep,
    /// A TCP connection that QEMU forwards, if the guest's kernel has no virtio socket driver.
    NinepOverTcp,
}

impl Wire {
    /// The guest's file system type.
    pub fn file_system(self) -> &'static str {
        match self {
            Wire::Virtiofs => "virtiofs",
            Wire::Ninep | Wire::NinepOverTcp => "9p",
        }
    }
}

/// The port of the first directory that is shared by 9P (`P9_PORT` of Linux's net/9p/trans_fd.c).
const FIRST_PORT: u16 = 564;

/// A shared directory, and where the guest mounts it.
#[derive(Clone, Debug)]
pub(super) struct SharedTree {
    /// The directory and its options.
    pub share: Share,
    /// How the guest reaches it.
    pub wire: Wire,
    /// How its requests travel.
    pub options: WireOptions,
    /// How many shares come before it.
    pub ordinal: usize,
    /// Absolute path in the guest; `/` for the root.
    pub destination: PathBuf,
    /// Whether it is the lower layer of an overlayfs in the guest, so that writes do not reach the directory.
    pub overlaid: bool,
    /// The name that the guest mounts.
    pub tag: String,
    /// Records what the guest does with it.
    pub trace: Option<TreeTrace>,
    /// How many requests its server got.
    pub requests: Arc<AtomicU64>,
}

impl SharedTree {
    /// The transport, as a user names it.
    pub fn way(&self) -> Way {
        if self.wire == Wire::Virtiofs { Way::Virtiofs } else { Way::Ninep }
    }

    /// The directory, if the guest changes it.
    fn changed(&self) -> Option<&Path> {
        (self.share.writes_through() && !self.overlaid).then_some(&*self.share.directory)
    }

    /// The largest 9P message, in bytes.
    fn msize(&self) -> u32 {
        self.options.msize.unwrap_or(NinepOptions::MAX_MSIZE)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        // A guest has at most a few dozen trees.
        FIRST_PORT.saturating_add(self.ordinal as u16)
    }

    /// How the guest mounts it.
    pub fn mount(&self) -> Mount {
        let ninep = || self.share.ninep_mount_options(self.msize());
        let (source, options) = match self.wire {
            Wire::Virtiofs => (MountSource::Name(self.tag.clone()), String::new()),
            Wire::Ninep => (MountSource::HostPort(self.port().into()), ninep()),
            Wire::NinepOverTcp => {
                let options = format!("trans=tcp,port={},{}", self.port(), ninep());
                (MountSource::Name(FORWARD_ADDRESS.to_string()), options)
            }
        };
        Mount {
            source,
            fstype: self.wire.file_system().to_owned(),
            target: self.destination.clone(),
            options,
            read_only: self.share.refuses_writes() && !self.overlaid,
            no_suid_no_dev: false,
            no_atime: true,
            overlaid: self.overlaid,
        }
    }

    /// Serves the directory by 9P on one end of a new connection; returns the other.
    pub fn connect_ninep(&self, failure: &Arc<DiskFailure>) -> Result<OwnedFd, JobError> {
        let (ours, theirs) = pair()?;
        let layer = self.share.for_many(None)?;
        let layer = match &self.trace {
            Some(trace) => trace.over(layer, false, self.changed()).map_err(LifecycleError::Thread)?,
            None => layer,
        };
        let file_system = Arc::new(Pending::ready(Arc::new(layer)));
        let loss = self.loss(failure);
        // The client is the guest's kernel, which connects only when it has booted.
        let options = NinepOptions {
            negotiation: Duration::from_secs(24 * 3600),
            msize: self.msize(),
            ..NinepOptions::default()
        };
        let server = NinepServer::new(file_system, options).count_in(Arc::clone(&self.requests));
        let confinement = among_others(&self.share)?.ends_processes();
        // The thread ends when QEMU does.
        thread::spawn(move || {
            confinement.enter();
            if let Err(error @ (ConnectionError::Panicked | ConnectionError::Protocol(_))) = server.serve_stream(ours) {
                loss.because(&error);
            }
        });
        Ok(theirs)
    }

    fn loss(&self, failure: &Arc<DiskFailure>) -> Loss {
        let directory = inarch_lifecycle::shown(&self.share.directory);
        Loss { what: format!("{directory}: it can no longer be shared"), failure: Arc::clone(failure) }
    }

    /// Serves the directory on one end of a new connection; returns the other. Fails early if the directory does not
    /// exist. `tells_tag`: the server has the tag that the guest mounts, which is the machine's otherwise.
    pub fn connect(&self, queues: u16, tells_tag: bool, failure: &Arc<DiskFailure>) -> Result<OwnedFd, JobError> {
        let (ours, theirs) = pair()?;
        let loss = self.loss(failure);
        let (trace, changed) = (self.trace.clone(), self.changed().map(Path::to_owned));
        let adapt = move |layer| match &trace {
            Some(trace) => trace.over(layer, true, changed.as_deref()),
            None => Ok(layer),
        };
        // Every name of ours is one.
        let tag = self.tag.parse::<Tag>().ok().filter(|_| tells_tag);
        let server = self.share.server(queues, tag, None, adapt)?.on_event(loss.on_event());
        let server = server.count_in(Arc::clone(&self.requests));
        let confinement = among_others(&self.share)?.ends_processes();
        // The thread ends when QEMU does.
        thread::spawn(move || {
            confinement.enter();
            if let Err(error) = server.serve_stream(ours) {
                loss.because(&error);
            }
        });
        Ok(theirs)
    }
}

/// Something without which a guest cannot continue.
#[derive(Clone)]
struct Loss {
    /// The loss, as half a line.
    what: String,
    failure: Arc<DiskFailure>,
}

impl Loss {
    fn error(&self, reason: &dyn std::fmt::Display) -> JobError {
        RunError::Lost { what: self.what.clone(), reason: reason.to_string() }.into()
    }

    /// Ends the run.
    fn because(&self, reason: &dyn std::fmt::Display) {
        self.failure.set(self.error(reason));
    }

    /// Handles a server's event: the guest would wait for ever for a stopped queue.
    fn on_event(&self) -> impl Fn(Event) + Send + Sync + 'static {
        let loss = self.clone();
        move |event: Event| match event {
            Event::QueueStopped { .. } => loss.failure.set_ring(loss.error(&event)),
            event => loss.failure.tell_fault(RunFault::Server(Arc::new(event))),
        }
    }
}

/// Serves a guest's virtio socket device on one end of a new connection; returns the other. The guest reaches
/// directories by 9P through it, and what else is at `ports`. Each port accepts one connection: that of the guest's mount, before anything else runs
/// there.
pub(super) fn connect_sockets(
    shares: &[&SharedTree],
    ports: HashMap<u32, OwnedFd>,
    failure: &Arc<DiskFailure>,
) -> Result<OwnedFd, JobError> {
    let (ours, theirs) = pair()?;
    let mut sockets = ports;
    for shared in shares {
        sockets.insert(shared.port().into(), shared.connect_ninep(failure)?);
    }
    let sockets = Mutex::new(sockets);
    let loss = Loss { what: "the guest's connections to the host are lost".to_owned(), failure: Arc::clone(failure) };
    let open = move |port| sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(&port);
    let server = VsockServer::new(open).on_event(loss.on_event());
    // The thread ends when QEMU does.
    thread::spawn(move || {
        Confinement::new(Work::Disk).ends_processes().enter();
        if let Err(error) = server.serve_stream(ours) {
            loss.because(&error);
        }
    });
    Ok(theirs)
}
