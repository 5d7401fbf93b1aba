//! A connection with the kernel: agreed on once, then served by several threads.
//!
//! 1. The first request is `INIT`; kernel and server agree on a version, flags and sizes.
//! 2. Each thread has a descriptor of its own. It waits for a request, has the file system execute it, and answers.
//!    Data is read from the device into one buffer a thread, and answered from another: nothing is copied between.
//! 3. When the mount is gone, every thread's read ends with `ENODEV`.

mod channel;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use inarch_vfs::FileSystem;
use vm_memory::VolatileSlice;

use channel::Channel;
pub(crate) use channel::DEVICE;

use crate::dispatch::{Backings, ConnectionOptions, Dispatcher, MAX_DATA, MAX_MESSAGE, Scratch};
use crate::wire::OLDEST_MINOR_VERSION;
use crate::wire::structs::OutHeader;

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
    /// The device failed.
    #[error("{DEVICE}: {0}")]
    Device(#[from] io::Error),
}

/// How a session works.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Threads, at least 1. Requests that wait, for a device in the making or a slow disk, have one each.
    pub threads: usize,
    /// What is agreed on with the kernel.
    pub connection: ConnectionOptions,
    /// Let the kernel read and write [host files](FileSystem::host_file) itself, which takes `CAP_SYS_ADMIN`, a kernel
    /// from 6.9 on, and no [writeback](ConnectionOptions::writeback); where one of them is missing, data goes through
    /// the server. The number is how many file systems may lie over each other (`max_stack_depth`): with 1, the mount
    /// may be a layer of an overlayfs; with 2, what is behind it may be one; with 0, data always goes through the server.
    pub passthrough_depth: u32,
}

impl Default for SessionOptions {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = (2 * processors).clamp(4, 16);
        SessionOptions { threads, connection: ConnectionOptions::default(), passthrough_depth: 0 }
    }
}

/// A mounted connection whose requests `F` executes.
pub struct Session<F: ?Sized> {
    channel: Channel,
    dispatcher: Dispatcher<F>,
    threads: usize,
}

impl<F: FileSystem + ?Sized> Session<F> {
    /// A session on `device`, a mounted descriptor of `/dev/fuse`.
    pub fn new(device: OwnedFd, file_system: Arc<F>, options: SessionOptions) -> Session<F> {
        let threads = options.threads.max(1);
        let mut dispatcher = Dispatcher::new(file_system, options.connection, threads);
        // Without another descriptor data goes through the server.
        if options.passthrough_depth > 0
            && let Ok(device) = device.try_clone()
        {
            dispatcher = dispatcher.with_backings(Backings::new(device, options.passthrough_depth));
        }
        Session { channel: Channel::new(device), dispatcher, threads }
    }

    /// Serves until the mount is gone.
    ///
    /// # Errors
    /// The kernel cannot be spoken with, or the device fails. Requests that are not answered then fail when the last
    /// descriptor is closed, which is before this returns.
    pub fn run(self) -> Result<(), SessionError> {
        let mut worker = Worker::new(&self.channel, &self.dispatcher, 0);
        // Until there is an agreement, threads with descriptors of their own would be refused.
        while !self.dispatcher.is_agreed() {
            if !worker.serve_one()? {
                return Ok(());
            }
            if let Some((major, minor)) = self.dispatcher.refused_version() {
                return Err(SessionError::Version { major, minor });
            }
        }
        thread::scope(|scope| {
            let mut others = Vec::new();
            for number in 1..self.threads {
                // With fewer descriptors there are fewer threads.
                let Ok(channel) = self.channel.try_clone() else { break };
                let dispatcher = &self.dispatcher;
                let run = move || Worker::new(&channel, dispatcher, number).run();
                match thread::Builder::new().name("fuse".into()).spawn_scoped(scope, run) {
                    Ok(thread) => others.push(thread),
                    Err(_) => break,
                }
            }
            let first = worker.run();
            let others = others.into_iter().map(|thread| thread.join().unwrap_or(Ok(())));
            others.fold(first, Result::and)
        })?;
        self.dispatcher.disconnect();
        Ok(())
    }
}

/// One thread of a session.
struct Worker<'s, F: ?Sized> {
    channel: &'s Channel,
    dispatcher: &'s Dispatcher<F>,
    number: usize,
    message: Vec<u8>,
    answer: Vec<u8>,
    scratch: Scratch,
}

impl<'s, F: FileSystem + ?Sized> Worker<'s, F> {
    fn new(channel: &'s Channel, dispatcher: &'s Dispatcher<F>, number: usize) -> Worker<'s, F> {
        let answer = vec![0; MAX_DATA as usize + size_of::<OutHeader>()];
        Worker { channel, dispatcher, number, message: vec![0; MAX_MESSAGE], answer, scratch: Scratch::default() }
    }

    /// Serves until the connection ends.
    fn run(mut self) -> io::Result<()> {
        while self.serve_one()? {}
        Ok(())
    }

    /// Serves the next request; false when the connection has ended.
    fn serve_one(&mut self) -> io::Result<bool> {
        let Some(message) = self.channel.receive(&mut self.message)? else { return Ok(false) };
        let message = [VolatileSlice::from(message)];
        let out = [VolatileSlice::from(&mut self.answer[..])];
        let length = self.dispatcher.execute(self.number, &message, &out, &mut self.scratch);
        match self.answer.get(..length) {
            Some(answer) if length > 0 => self.channel.reply(answer)?,
            _ => {}
        }
        Ok(true)
    }
}
