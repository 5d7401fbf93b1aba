//! A server as a value: it runs in threads of its own, and its starter waits for it or stops it.

use std::fmt;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use inarch_server::StopHandle;

use crate::JobError;
use crate::events::Events;
use crate::lifecycle::confinement::{Confinement, Sandbox, Work};

/// Something that happened while a server ran. Its text is one line.
#[derive(Clone, Debug)]
pub enum ServiceEvent {
    /// What the user should know of the tree: what was left out, which files changed meanwhile.
    Note(String),
    /// A request or a connection failed, and the server goes on.
    Fault(String),
}

impl fmt::Display for ServiceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ServiceEvent::Note(line) | ServiceEvent::Fault(line)) = self;
        f.write_str(line)
    }
}

/// A server that was started, and takes requests.
#[derive(Debug)]
pub struct Service {
    introduction: String,
    stop: StopHandle,
    sandbox: Sandbox,
    thread: JoinHandle<Result<(), JobError>>,
}

/// What the thread of a server is given.
pub(crate) struct Duty {
    /// Used when the server is to end.
    pub stop: StopHandle,
    /// Who is told what happens.
    pub events: Events<ServiceEvent>,
    ready: Sender<String>,
}

impl Duty {
    /// Tells the starter that requests are taken, and how to use what is served: whole lines.
    pub fn is_ready(&self, introduction: String) {
        // A starter that is gone knows all that it wants to know.
        let _ = self.ready.send(introduction);
    }

    /// Tells what the user should know.
    pub fn note(&self, line: impl fmt::Display) {
        self.events.emit(ServiceEvent::Note(line.to_string()));
    }

    /// What a server calls with each failure that does not end it.
    pub fn on_fault<F: fmt::Display>(&self) -> impl Fn(F) + Send + Sync + 'static + use<F> {
        let events = self.events.clone();
        move |fault| events.emit(ServiceEvent::Fault(fault.to_string()))
    }
}

impl Service {
    /// Runs `serve` in a thread of its own, and waits until that is ready.
    ///
    /// # Errors
    /// Those of `serve` before it is ready.
    pub(crate) fn start(
        sandbox: Sandbox,
        events: Events<ServiceEvent>,
        serve: impl FnOnce(&Duty) -> Result<(), JobError> + Send + 'static,
    ) -> Result<Service, JobError> {
        let stop = StopHandle::new().map_err(|error| JobError::Setup { what: "an eventfd", error })?;
        let (ready, starter) = mpsc::channel();
        let duty = Duty { stop: stop.clone(), events, ready };
        let thread = thread::Builder::new().name("server".to_owned()).spawn(move || serve(&duty));
        let thread = thread.map_err(JobError::Thread)?;
        match starter.recv() {
            Ok(introduction) => Ok(Service { introduction, stop, sandbox, thread }),
            Err(_) => {
                ended(thread)?;
                Err(JobError::Stopped)
            }
        }
    }

    /// How to use what is served, and what confines the server: lines for people.
    pub fn introduction(&self) -> &str {
        &self.introduction
    }

    /// Ends the server from any thread.
    pub fn stopper(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Leaves the calling thread, and those that it starts, nothing but to wait for the server and to stop it: for a program
    /// that does nothing else, so that a server that is taken over finds no thread with more rights.
    pub fn confine_waiter(&self) {
        self.sandbox.enter(&Confinement::new(Work::Disk).only(Vec::new()));
    }

    /// Waits for the server's end: it was stopped, or told to serve one client, who has gone.
    ///
    /// # Errors
    /// What ended it otherwise.
    pub fn wait(self) -> Result<(), JobError> {
        ended(self.thread)
    }
}

fn ended(thread: JoinHandle<Result<(), JobError>>) -> Result<(), JobError> {
    thread.join().unwrap_or(Err(JobError::Panicked))
}

/// Why the server's loop ended that was not told to.
pub(crate) fn listening_failed(error: io::Error) -> JobError {
    JobError::Other(format!("the listening socket failed: {error}"))
}
