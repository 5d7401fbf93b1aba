//! One output stream of the command, written by a thread of its own.
//!
//! A descriptor that we inherited must not be made non-blocking, since others share it; so whoever writes to it may block, and
//! that must not be the loop that passes on signals.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// How much of an output may be on its way from the command to its reader.
pub(super) const OUTPUT_WINDOW: u32 = 1 << 20;

/// What the writing thread has done since somebody last looked.
#[derive(Debug, Default)]
struct Progress {
    written: u64,
    failure: Option<io::Error>,
}

/// An output and its thread. Dropping it lets the thread end after what it was given.
#[derive(Debug)]
pub(super) struct Output {
    chunks: Sender<Vec<u8>>,
    progress: Arc<Mutex<Progress>>,
    /// Bytes given to the thread and not written yet.
    pending: u64,
    /// Bytes that the guest may still send.
    credit: u32,
    /// Bytes written whose credit was not given back yet.
    owed: u32,
    closed: bool,
}

impl Output {
    /// Starts the thread; it writes to `wake`, an eventfd, whenever it has made progress.
    pub(super) fn start(to: OwnedFd, wake: &OwnedFd) -> io::Result<Self> {
        let (chunks, received) = mpsc::channel();
        let progress = Arc::new(Mutex::new(Progress::default()));
        let (shared, wake) = (Arc::clone(&progress), wake.try_clone()?);
        thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || write_chunks(File::from(to), &received, &shared, &wake))?;
        Ok(Self { chunks, progress, pending: 0, credit: OUTPUT_WINDOW, owed: 0, closed: false })
    }

    /// Takes bytes from the guest; false if it had no credit for them.
    pub(super) fn take(&mut self, bytes: Vec<u8>) -> bool {
        let length = bytes.len() as u64;
        let Some(credit) = u64::from(self.credit).checked_sub(length) else { return false };
        self.credit = credit as u32;
        if !self.closed && length > 0 {
            self.pending += length;
            // The thread leaves only after a failure, which `settle` is about to see.
            let _ = self.chunks.send(bytes);
        }
        true
    }

    /// Whether everything taken has been written, or never will be.
    pub(super) fn is_settled(&self) -> bool {
        self.closed || self.pending == 0
    }

    /// Looks at what the thread has done: the credit to give back, if it is worth a frame, and the failure, which is
    /// reported once.
    pub(super) fn settle(&mut self) -> (Option<u32>, Option<io::Error>) {
        let progress = std::mem::take(&mut *self.progress.lock().unwrap_or_else(PoisonError::into_inner));
        self.pending = self.pending.saturating_sub(progress.written);
        // Never more than the window, as `take` bounds what can be written.
        self.owed = self.owed.saturating_add(u32::try_from(progress.written).unwrap_or(u32::MAX));
        self.closed |= progress.failure.is_some();
        let worth = !self.closed && self.owed >= OUTPUT_WINDOW / 4;
        let grant = worth.then(|| std::mem::take(&mut self.owed));
        self.credit = self.credit.saturating_add(grant.unwrap_or(0));
        (grant, progress.failure)
    }
}

fn write_chunks(mut to: File, chunks: &Receiver<Vec<u8>>, progress: &Mutex<Progress>, wake: &OwnedFd) {
    for chunk in chunks {
        let result = write_whole(&mut to, &chunk);
        let failed = result.is_err();
        {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.written += chunk.len() as u64;
            progress.failure = result.err();
        }
        // Fails only when 2^64 wake-ups are waiting.
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        if failed {
            return;
        }
    }
}

/// `write_all` that also waits where somebody else has made the descriptor non-blocking.
fn write_whole(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::from_borrowed_fd(to.as_fd(), PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// An eventfd that the threads of a session wake its loop with.
pub(super) fn wake_descriptor() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
