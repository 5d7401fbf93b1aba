//! Serves a FUSE connection from several threads.
//!
//! 1. The first request is `INIT`: kernel and server negotiate a version, flags and sizes.
//! 2. Each thread has its own descriptor. It reads a request, has the file system execute it, and answers. It reads
//!    into one buffer and answers from another, so data is not copied in between.
//! 3. Where the kernel supports it, requests arrive through io_uring instead ([`queues`]). Forgets and interrupts
//!    still arrive through the device.
//! 4. When the mount is gone, every thread's read ends with `ENODEV`.

mod channel;
mod queues;
mod ring;
mod waiting;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::thread::{self, Scope, ScopedJoinHandle};

use inarch_vfs::FileSystem;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use channel::Channel;
pub(crate) use channel::DEVICE;
pub use queues::RingSupport;
use queues::{Queues, SWITCH, Start};

use crate::dispatch::{Backings, ConnectionOptions, Dispatcher, Doubts, MAX_DATA, MAX_MESSAGE, RequestCounts, Scratch};
use crate::wire::OLDEST_MINOR_VERSION;
use crate::wire::structs::{InHeader, LkIn, OutHeader};
use waiting::Waiting;

/// Why a session ended before it was unmounted.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel's version of the protocol is too old or of another kind.
    #[error(
        "this kernel speaks version {major}.{minor} of the FUSE protocol; at least 7.{OLDEST_MINOR_VERSION} is needed"
    )]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// io_uring was required and is not available.
    #[error("FUSE over io_uring: {0}")]
    NoRings(String),
    /// The device failed.
    #[error("{DEVICE}: {0}")]
    Device(#[from] io::Error),
}

/// Whether requests arrive through io_uring. A round trip then takes one system call instead of two and stays on one
/// CPU. The kernel's switch for it (see [`RingSupport`]) is machine-wide; a session does not change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rings {
    /// If available.
    #[default]
    Auto,
    /// Fail if not available.
    Required,
    /// Never.
    Never,
}

/// How a session works.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Threads, at least 1. Each request that waits, for a device being prepared or for a slow disk, occupies one.
    pub threads: usize,
    /// What to negotiate with the kernel.
    pub connection: ConnectionOptions,
    /// The maximum depth of stacked file systems (`max_stack_depth`) for passthrough of [host
    /// files](FileSystem::host_file). With 1, the mount may be a layer of an overlayfs; with 2, host files may be on
    /// one; with 0, there is no passthrough. Passthrough needs `CAP_SYS_ADMIN`, Linux 6.9, and no
    /// [writeback](ConnectionOptions::writeback); otherwise data goes through the server.
    pub passthrough_depth: u32,
    /// Whether requests arrive through io_uring.
    pub rings: Rings,
}

impl Default for SessionOptions {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = (2 * processors).clamp(4, 16);
        SessionOptions { threads, connection: ConnectionOptions::default(), passthrough_depth: 0, rings: Rings::Auto }
    }
}

/// A mounted connection, and the file system that executes its requests.
pub struct Session<F: ?Sized> {
    channel: Channel,
    dispatcher: Dispatcher<F>,
    threads: usize,
    rings: Rings,
    queues: Option<Queues>,
    /// Parked requests, if the file system keeps locks.
    waiting: Option<Waiting>,
}

impl<F: FileSystem + ?Sized> Session<F> {
    /// A session on `device`, a mounted descriptor of `/dev/fuse`.
    pub fn new(device: OwnedFd, file_system: Arc<F>, options: SessionOptions) -> Session<F> {
        let threads = options.threads.max(1);
        let queues = if options.rings == Rings::Never { None } else { Queues::detect() };
        let slots = threads + queues.as_ref().map_or(0, Queues::threads);
        let mut dispatcher = Dispatcher::new(file_system, options.connection, slots);
        // Without another descriptor, programs may see ESTALE.
        if let Ok(device) = device.try_clone() {
            dispatcher = dispatcher.with_doubts(Doubts::new(device));
        }
        // Without another descriptor, data goes through the server.
        if options.passthrough_depth > 0
            && let Ok(device) = device.try_clone()
        {
            dispatcher = dispatcher.with_backings(Backings::new(device, options.passthrough_depth));
        }
        let waiting = options.connection.locks.then(Waiting::default);
        let (channel, rings) = (Channel::new(device), options.rings);
        Session { channel, dispatcher, threads, rings, queues, waiting }
    }

    /// The counters of the requests, which go on counting.
    pub fn counts(&self) -> Arc<RequestCounts> {
        self.dispatcher.counts()
    }

    /// Serves until the mount is gone.
    ///
    /// # Errors
    /// The kernel's version is too old, or the device fails. Unanswered requests then fail when the last descriptor
    /// is closed, which happens before this returns.
    pub fn run(self) -> Result<(), SessionError> {
        let session = &self;
        let start = OnceLock::new();
        thread::scope(|scope| {
            let start = Start(&start);
            let rings = self.prepare_rings(scope, start.0)?;
            let mut worker = Worker::new(session, &self.channel, 0);
            // Before `INIT` is answered, cloned descriptors are refused.
            while !self.dispatcher.is_agreed() {
                if !worker.serve_one()? {
                    return Ok(());
                }
                if let Some((major, minor)) = self.dispatcher.refused_version() {
                    return Err(SessionError::Version { major, minor });
                }
            }
            let _ = start.0.set(self.dispatcher.uses_rings());
            let mut others = rings;
            others.extend(self.start_readers(scope));
            let attendant = self.waiting.as_ref().map(|waiting| scope.spawn(|| waiting.attend(&self.dispatcher)));
            let first = worker.run();
            let others = others.into_iter().map(|thread| thread.join().unwrap_or(Ok(())));
            let ended = others.fold(first, Result::and);
            if let (Some(waiting), Some(_)) = (&self.waiting, attendant) {
                waiting.end(&self.dispatcher);
            }
            Ok(ended?)
        })?;
        self.dispatcher.disconnect();
        Ok(())
    }

    /// Makes and offers rings, if they are wanted and available.
    fn prepare_rings<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        start: &'scope OnceLock<bool>,
    ) -> Result<Threads<'scope>, SessionError> {
        let prepared = match &self.queues {
            Some(queues) => queues.prepare(scope, &self.channel, &self.dispatcher, self.threads, start),
            None => Err(io::Error::other(format!("it is off, or missing ({SWITCH})"))),
        };
        match prepared {
            Ok(threads) => {
                self.dispatcher.offer_rings();
                Ok(threads)
            }
            Err(error) if self.rings == Rings::Required => Err(SessionError::NoRings(error.to_string())),
            Err(_) => Ok(Threads::new()),
        }
    }

    /// Starts the other threads that read from the device.
    fn start_readers<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Threads<'scope> {
        let start = |number| {
            let channel = self.channel.try_clone()?;
            let run = move || Worker::new(self, &channel, number).run();
            thread::Builder::new().name("fuse".into()).spawn_scoped(scope, run)
        };
        // If descriptors run out, there are fewer threads.
        (1..self.threads).map_while(|number| start(number).ok()).collect()
    }
}

/// Threads of a session, and their results.
type Threads<'scope> = Vec<ScopedJoinHandle<'scope, io::Result<()>>>;

/// One thread of a session.
struct Worker<'s, F: ?Sized> {
    channel: &'s Channel,
    dispatcher: &'s Dispatcher<F>,
    waiting: Option<&'s Waiting>,
    number: usize,
    message: Vec<u8>,
    answer: Vec<u8>,
    scratch: Scratch,
}

impl<'s, F: FileSystem + ?Sized> Worker<'s, F> {
    fn new(session: &'s Session<F>, channel: &'s Channel, number: usize) -> Worker<'s, F> {
        let (dispatcher, waiting) = (&session.dispatcher, session.waiting.as_ref());
        let answer = vec![0; MAX_DATA as usize + size_of::<OutHeader>()];
        let message = vec![0; MAX_MESSAGE];
        Worker { channel, dispatcher, waiting, number, message, answer, scratch: Scratch::default() }
    }

    /// Serves until the connection ends.
    fn run(mut self) -> io::Result<()> {
        while self.serve_one()? {}
        Ok(())
    }

    /// Serves the next request; returns false when the connection has ended.
    fn serve_one(&mut self) -> io::Result<bool> {
        let Some(message) = self.channel.receive(&mut self.message)? else { return Ok(false) };
        // Requests that can be parked are no longer than this.
        let start =
            self.waiting.and_then(|_| message.get(..size_of::<InHeader>() + size_of::<LkIn>()).map(<[u8]>::to_vec));
        let message = [VolatileSlice::from(message)];
        let out = [VolatileSlice::from(&mut self.answer[..])];
        let length = match (self.waiting, start) {
            (Some(waiting), Some(start)) => {
                match self.dispatcher.execute_or_park(self.number, &message, &out, &mut self.scratch) {
                    Some(length) => length,
                    None => match waiting.add(start, self.channel) {
                        Ok(()) => {
                            self.dispatcher.locks_changed();
                            0
                        }
                        Err(_) => self.dispatcher.refuse_parked(&message, &out, Errno::NOLCK),
                    },
                }
            }
            _ => self.dispatcher.execute(self.number, &message, &out, &mut self.scratch),
        };
        match self.answer.get(..length) {
            Some(answer) if length > 0 => self.channel.reply(answer)?,
            _ => {}
        }
        Ok(true)
    }
}
