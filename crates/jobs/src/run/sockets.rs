//! The sockets of a machine's command line: those of servers in this process, or only their names.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use inarch_lifecycle::LifecycleError;
use inarch_vm::machine;
use inarch_vm::protocol::{SOCKET_OF_AGENT, SOCKET_OF_FIRST_TREE};

use super::failure::DiskFailure;
use crate::JobError;

/// The source of the sockets in a machine's command line.
#[derive(Clone, Copy)]
pub(super) enum Sockets<'a> {
    /// Servers of this process, which report their failure here.
    Served(&'a Arc<DiskFailure>, &'a Serving),
    /// No servers: only names, for people to read.
    Named,
}

impl Sockets<'_> {
    /// The socket that `serve` returns, or the name alone.
    pub fn get(
        self,
        name: &str,
        serve: impl FnOnce(&Arc<DiskFailure>) -> Result<OwnedFd, JobError>,
    ) -> Result<machine::Endpoint, JobError> {
        match self {
            Sockets::Served(failure, _) => serve(failure).map(machine::Endpoint::Descriptor),
            Sockets::Named => Ok(machine::Endpoint::Path(format!("{name}.sock").into())),
        }
    }

    /// Waits for a thread that serves an image until the machine has ended.
    pub fn keep(self, thread: JoinHandle<()>) {
        if let Sockets::Served(_, serving) = self {
            serving.0.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
    }
}

/// The threads that serve images, which end when the machine does. Until then the images are in use.
#[derive(Default)]
pub(super) struct Serving(Mutex<Vec<JoinHandle<()>>>);

impl Serving {
    /// Waits until the images are released.
    pub fn wait(self) {
        for thread in self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            // A server that panicked has released its image as well.
            let _ = thread.join();
        }
    }
}

/// Makes connections of the virtio socket device of the agent's port and the streams: those that are real, by their numbers.
pub(super) fn by_sockets(
    agent: machine::Endpoint,
    streams: Vec<machine::Stream>,
) -> (Option<machine::Endpoint>, Vec<machine::Stream>, HashMap<u32, OwnedFd>) {
    let ports = streams.into_iter().enumerate().map(|(at, stream)| (SOCKET_OF_FIRST_TREE + at as u32, stream.socket));
    let ports = ports.chain([(SOCKET_OF_AGENT, agent)]).filter_map(|(port, socket)| match socket {
        machine::Endpoint::Descriptor(socket) => Some((port, socket)),
        machine::Endpoint::Path(_) => None,
    });
    (None, Vec::new(), ports.collect())
}

/// A connection: our end, and the other.
pub(super) fn pair() -> Result<(UnixStream, OwnedFd), JobError> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| LifecycleError::Setup { what: "a socket", error })?;
    Ok((ours, theirs.into()))
}
