//! Writes one output stream of the command in a thread of its own.
//!
//! An inherited descriptor must not be made non-blocking, because other processes share it. So a write to it may block,
//! and must not block the loop that passes on signals.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// How many bytes of an output may be in flight from the command to its reader.
pub(super) const OUTPUT_WINDOW: u32 = 1 << 20;

/// The thread reports its progress at least this often, so that the guest continues meanwhile.
const PIECE: usize = 64 * 1024;

/// The state that the session and the writing thread share.
#[derive(Debug, Default)]
struct State {
    /// Bytes that the thread has not taken yet; small frames take no more memory than their bytes.
    queue: Vec<u8>,
    /// Nothing more will be queued.
    ended: bool,
    /// Bytes written since the last check.
    written: u64,
    failure: Option<io::Error>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    queued: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something is queued and swaps it with `empty`; returns false at the end.
    fn wait(&self, empty: &mut Vec<u8>) -> bool {
        let waiting = |state: &mut State| state.queue.is_empty() && !state.ended;
        let mut state = self.queued.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.queue, empty);
        !empty.is_empty()
    }
}

/// An output and its thread. After a drop the thread writes what is queued, then ends.
#[derive(Debug)]
pub(super) struct Output {
    shared: Arc<Shared>,
    /// Bytes queued and not written yet.
    pending: u64,
    /// Bytes that the guest may still send.
    credit: u32,
    /// Bytes written whose credit was not returned yet.
    owed: u32,
    closed: bool,
}

impl Output {
    /// Starts the thread, which signals the eventfd `wake` after each progress.
    pub(super) fn start(to: OwnedFd, wake: &OwnedFd) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (threads, wake) = (Arc::clone(&shared), wake.try_clone()?);
        thread::Builder::new().name("output".to_owned()).spawn(move || write_queue(File::from(to), &threads, &wake))?;
        Ok(Self { shared, pending: 0, credit: OUTPUT_WINDOW, owed: 0, closed: false })
    }

    /// Queues bytes from the guest; returns false if it had no credit for them.
    pub(super) fn take(&mut self, bytes: &[u8]) -> bool {
        let length = bytes.len() as u64;
        let Some(credit) = u64::from(self.credit).checked_sub(length) else { return false };
        self.credit = credit as u32;
        if !self.closed && length > 0 {
            self.pending += length;
            self.shared.lock().queue.extend_from_slice(bytes);
            self.shared.queued.notify_one();
        }
        true
    }

    /// Whether everything queued has been written, or cannot be written any more.
    pub(super) fn is_settled(&self) -> bool {
        self.closed || self.pending == 0
    }

    /// Checks the thread's progress: the credit to return, if it is worth a frame, and an error, which is reported
    /// once.
    pub(super) fn settle(&mut self) -> (Option<u32>, Option<io::Error>) {
        let (written, failure) = {
            let mut state = self.shared.lock();
            (std::mem::take(&mut state.written), state.failure.take())
        };
        self.pending = self.pending.saturating_sub(written);
        // Never more than the window, because `take` limits what can be written.
        self.owed = self.owed.saturating_add(u32::try_from(written).unwrap_or(u32::MAX));
        self.closed |= failure.is_some();
        let worth = !self.closed && self.owed >= OUTPUT_WINDOW / 4;
        let grant = worth.then(|| std::mem::take(&mut self.owed));
        self.credit = self.credit.saturating_add(grant.unwrap_or(0));
        (grant, failure)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.queued.notify_one();
    }
}

fn write_queue(mut to: File, shared: &Shared, wake: &OwnedFd) {
    let mut bytes = Vec::new();
    while shared.wait(&mut bytes) {
        for piece in bytes.chunks(PIECE) {
            let result = write_whole(&mut to, piece);
            let failed = result.is_err();
            {
                let mut state = shared.lock();
                state.written += piece.len() as u64;
                state.failure = result.err();
            }
            // Fails only if 2^64 wake-ups are pending.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
            if failed {
                return;
            }
        }
        bytes.clear();
    }
}

/// Like `write_all`, but also waits if another process has made the descriptor non-blocking, as it can with one that was inherited.
///
/// # Errors
/// Those of `write_all`.
pub fn write_whole(to: &mut (impl Write + AsFd), mut bytes: &[u8]) -> io::Result<()> {
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

/// An eventfd with which a session's threads wake its loop.
pub(super) fn wake_descriptor() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn frames_of_one_byte_need_no_more_memory_than_their_bytes() {
        let (mut reader, to) = io::pipe().unwrap();
        let mut output = Output::start(to.into(), &wake_descriptor().unwrap()).unwrap();
        let bytes: Vec<u8> = (0..OUTPUT_WINDOW).map(|i| (i % 251) as u8).collect();
        assert!(bytes.iter().all(|byte| output.take(&[*byte])));
        assert!(!output.take(b"x"), "more than the window");
        let held = output.shared.lock().queue.capacity();
        assert!(held <= 2 * OUTPUT_WINDOW as usize, "{held}");
        drop(output);
        let mut arrived = Vec::new();
        reader.read_to_end(&mut arrived).unwrap();
        assert!(arrived == bytes, "{} bytes arrived", arrived.len());
    }

    #[test]
    fn a_slow_reader_of_a_descriptor_that_does_not_wait_gets_all() {
        let (mut reader, mut to) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&to, true).unwrap();
        let bytes: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
        let expected = bytes.clone();
        let writer = std::thread::spawn(move || write_whole(&mut to, &bytes));
        let mut arrived = Vec::new();
        reader.read_to_end(&mut arrived).unwrap();
        writer.join().unwrap().unwrap();
        assert!(arrived == expected);
    }
}
