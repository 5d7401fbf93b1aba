//! A connection with the kernel: agreed on once, then served by several threads.
//!
//! 1. The first request is `INIT`; kernel and server agree on a version, flags and sizes.
//! 2. Each thread has a descriptor of its own. It waits for a request, has the file system execute it, and answers.
//!    Data is read from the device into one buffer a thread, and answered from another: nothing is copied between.
//! 3. When the mount is gone, every thread's read ends with `ENODEV`.

mod channel;
mod dispatch;
mod interrupts;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use channel::Channel;
pub(crate) use channel::DEVICE;
use dispatch::Worker;
use interrupts::Interrupts;

use crate::FileSystem;
use crate::wire::request::{Operation, Request};
use crate::wire::structs::InitOut;
use crate::wire::{KERNEL_MINOR_VERSION, KERNEL_VERSION, MIN_READ_BUFFER, OLDEST_MINOR_VERSION, init_flag, reply};

/// Most bytes of data in one request: 256 pages, the kernel's own limit unless it is raised (fs.fuse.max_pages_limit).
pub(crate) const MAX_DATA: u32 = 1 << 20;

const PAGE: u32 = 4096;

/// What the kernel may do that we can take.
const WANTED: u32 = init_flag::ASYNC_READ
    | init_flag::BIG_WRITES
    | init_flag::DO_READDIRPLUS
    | init_flag::READDIRPLUS_AUTO
    | init_flag::ASYNC_DIO
    | init_flag::PARALLEL_DIROPS
    | init_flag::MAX_PAGES
    | init_flag::EXPLICIT_INVAL_DATA;

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
    /// The first request was another one than `INIT`.
    #[error("the kernel's first request is no INIT")]
    NoInit,
    /// The device failed.
    #[error("{DEVICE}: {0}")]
    Device(#[from] io::Error),
}

/// How a session works.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Threads, at least 1. Requests that wait, for a device in the making or a slow disk, have one each.
    pub threads: usize,
    /// Most requests of readahead and of direct I/O that the kernel has under way.
    pub max_background: u16,
}

impl Default for SessionOptions {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        SessionOptions { threads: (2 * processors).clamp(4, 16), max_background: 64 }
    }
}

/// A mounted connection whose requests `F` executes.
pub struct Session<F> {
    channel: Channel,
    file_system: Arc<F>,
    options: SessionOptions,
}

impl<F: FileSystem> Session<F> {
    /// A session on `device`, a mounted descriptor of `/dev/fuse`.
    pub fn new(device: OwnedFd, file_system: Arc<F>, options: SessionOptions) -> Session<F> {
        Session { channel: Channel::new(device), file_system, options }
    }

    /// Serves until the mount is gone.
    ///
    /// # Errors
    /// The kernel cannot be spoken with, or the device fails. Requests that are not answered then fail when the last
    /// descriptor is closed, which is before this returns.
    pub fn run(self) -> Result<(), SessionError> {
        let mut buffer = vec![0; MAX_DATA as usize + MIN_READ_BUFFER];
        if !self.initialize(&mut buffer)? {
            return Ok(());
        }
        let interrupts = Interrupts::new(self.options.threads.max(1));
        let file_system = &*self.file_system;
        thread::scope(|scope| {
            let mut others = Vec::new();
            for (slot, interrupts) in interrupts.slots().skip(1) {
                // With fewer descriptors there are fewer threads.
                let Ok(channel) = self.channel.try_clone() else { break };
                let run = move || {
                    let buffer = vec![0; MAX_DATA as usize + MIN_READ_BUFFER];
                    Worker { channel: &channel, file_system, slot, interrupts }.run(buffer)
                };
                match thread::Builder::new().name("fuse".into()).spawn_scoped(scope, run) {
                    Ok(thread) => others.push(thread),
                    Err(_) => break,
                }
            }
            let first = match interrupts.slots().next() {
                Some((slot, interrupts)) => {
                    Worker { channel: &self.channel, file_system, slot, interrupts }.run(buffer)
                }
                None => Ok(()),
            };
            let others = others.into_iter().map(|thread| thread.join().unwrap_or(Ok(())));
            others.fold(first, Result::and)
        })?;
        Ok(())
    }

    /// Answers `INIT`; false if there is no mount any more.
    fn initialize(&self, buffer: &mut [u8]) -> Result<bool, SessionError> {
        loop {
            let Some(message) = self.channel.receive(buffer)? else { return Ok(false) };
            let Ok(Request { header, operation: Operation::Init(asked) }) = Request::parse(message) else {
                return Err(SessionError::NoInit);
            };
            let (major, minor) = (asked.major, asked.minor);
            if major < KERNEL_VERSION || major == KERNEL_VERSION && minor < OLDEST_MINOR_VERSION {
                self.channel.reply(reply::error(header.unique, Errno::PROTO), &[])?;
                return Err(SessionError::Version { major, minor });
            }
            let mut answer = InitOut { major: KERNEL_VERSION, minor: KERNEL_MINOR_VERSION, ..InitOut::default() };
            if major == KERNEL_VERSION {
                let background = self.options.max_background;
                answer = InitOut {
                    max_readahead: asked.max_readahead,
                    flags: asked.flags & WANTED,
                    max_background: background,
                    congestion_threshold: background - background / 4,
                    max_write: MAX_DATA,
                    time_gran: 1,
                    max_pages: (MAX_DATA / PAGE) as u16,
                    ..answer
                };
            }
            self.channel.reply(reply::success(header.unique, size_of::<InitOut>()), answer.as_bytes())?;
            if major == KERNEL_VERSION {
                return Ok(true);
            }
            // A newer kernel tries again with our version.
        }
    }
}
