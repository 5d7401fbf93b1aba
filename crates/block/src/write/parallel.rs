//! Writes an image by several threads, each part at its offset.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::batch::{Batch, Batches};
use super::lane::Lane;
use super::part::Filled;
use super::share::{LongRun, Sharing};
use super::{ImageSource, Placed, Progress, Sink, WriteError, Written};

/// The least number of threads: some wait for the disk while others read.
const LEAST_THREADS: usize = 4;

/// The most threads. More would wait for each other, because a file takes one write through the page cache at a time.
const MOST_THREADS: usize = 16;

/// The default number of threads that write an image: a few, by the number of processors that this process may use. A thread
/// that opens no file cannot tell how many those are.
pub fn usual_threads() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get()).max(LEAST_THREADS)
}

/// Writes the parts of an image of `length` bytes to `sink`, with `threads` threads (0: a few, by the number of
/// processors). The parts come in ascending order and do not overlap.
///
/// Returns the first error of any thread; the content of `sink` is unusable then.
pub fn write_parts(
    parts: impl Iterator<Item = Placed> + Send,
    length: u64,
    source: ImageSource<'_>,
    sink: &dyn Sink,
    progress: &dyn Progress,
    threads: usize,
) -> Result<Written, WriteError> {
    let sharing = Sharing::new(sink);
    let work = Work {
        queue: Mutex::new(Queue { batches: Batches::new(parts, length, sharing.long()), failed: None }),
        source,
        sink,
        sharing,
        progress,
    };
    let threads = if threads == 0 { usual_threads() } else { threads };
    let written = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(MOST_THREADS)).map(|_| scope.spawn(|| work.run_contained())).collect();
        let mut written = work.run_contained();
        for other in others {
            match other.join() {
                Ok(theirs) => {
                    written.copied += theirs.copied;
                    written.shared += theirs.shared;
                }
                Err(_) => work.fail(WriteError::Panicked),
            }
        }
        written
    });
    match work.queue.into_inner().unwrap_or_else(PoisonError::into_inner).failed {
        Some(error) => Err(error),
        None => Ok(written),
    }
}

struct Queue<I: Iterator<Item = Placed>> {
    batches: Batches<I>,
    /// The first error; no more work is given out after it.
    failed: Option<WriteError>,
}

struct Work<'a, I: Iterator<Item = Placed>> {
    queue: Mutex<Queue<I>>,
    source: ImageSource<'a>,
    sink: &'a dyn Sink,
    sharing: Sharing<'a>,
    progress: &'a dyn Progress,
}

impl<I: Iterator<Item = Placed>> Work<'_, I> {
    /// One thread's work. A panic becomes an error, which ends the work of all threads.
    fn run_contained(&self) -> Written {
        // Whatever the panic leaves half-done is not used: no more work is given out.
        catch_unwind(AssertUnwindSafe(|| self.run())).unwrap_or_else(|_| {
            self.fail(WriteError::Panicked);
            Written::default()
        })
    }

    /// One thread's work.
    fn run(&self) -> Written {
        let mut lane = Lane::new(self.sink);
        let mut sum = Written::default();
        while let Some(batch) = self.next() {
            match self.write(batch, &mut lane) {
                Ok(written) => {
                    sum.copied += written.copied;
                    sum.shared += written.shared;
                }
                Err(error) => self.fail(error),
            }
        }
        if let Err(error) = lane.finish() {
            self.fail(error);
        }
        sum
    }

    fn next(&self) -> Option<Batch> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.failed.is_none() && self.progress.cancelled() {
            queue.failed = Some(WriteError::Cancelled);
        }
        if queue.failed.is_some() {
            return None;
        }
        queue.batches.set_long(self.sharing.long());
        queue.batches.next()
    }

    fn fail(&self, error: WriteError) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).failed.get_or_insert(error);
    }

    fn write(&self, batch: Batch, lane: &mut Lane<'_>) -> Result<Written, WriteError> {
        match batch {
            Batch::Gap { at, length } => {
                self.sink.zero(at, length).map_err(|error| WriteError::Output { offset: at, error })?;
                Ok(Written::default())
            }
            Batch::Long { at, inode, offset, length, files } => {
                let written = self.sharing.write(&self.source, LongRun { at, inode, offset, length }, lane)?;
                self.progress.advance(length, files);
                Ok(written)
            }
            Batch::Gathered { at, length, parts, files } => {
                let filled = fill(&parts, at, &self.source, lane.buffer(at, length))?;
                lane.write(at, length)?;
                self.progress.advance(filled.bytes, files + filled.files);
                Ok(Written { copied: length as u64, shared: 0 })
            }
        }
    }
}

/// Fills the buffer of a batch that starts at byte `at`; zeros where no part is.
pub(super) fn fill(
    parts: &[Placed],
    at: u64,
    source: &ImageSource<'_>,
    buffer: &mut [u8],
) -> Result<Filled, WriteError> {
    let (mut filled, mut end) = (Filled::default(), 0);
    for placed in parts {
        let start = (placed.at - at) as usize;
        buffer.get_mut(end..start).unwrap_or_default().fill(0);
        end = start + placed.part.length() as usize;
        let out = buffer.get_mut(start..end).unwrap_or_default();
        filled += placed.part.fill(source, out)?;
    }
    buffer.get_mut(end..).unwrap_or_default().fill(0);
    Ok(filled)
}
