//! Tracks the requests in flight and which of them were interrupted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The longest time between reading a request and entering it in its slot.
const MOMENT: Duration = Duration::from_millis(2);

/// The request of one thread. Request numbers of the kernel are never 0.
#[derive(Debug, Default)]
pub struct Slot {
    current: AtomicU64,
    interrupted: AtomicU64,
}

impl Slot {
    /// The thread starts to execute this request.
    pub fn begin(&self, unique: u64) {
        self.current.store(unique, Ordering::Release);
    }

    /// Whether the current request was interrupted.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire) == self.current.load(Ordering::Relaxed)
    }
}

/// The slots of all threads.
#[derive(Debug)]
pub struct Interrupts {
    slots: Box<[Slot]>,
}

impl Interrupts {
    /// Slots for `threads` threads.
    pub fn new(threads: usize) -> Interrupts {
        Interrupts { slots: (0..threads).map(|_| Slot::default()).collect() }
    }

    /// The slot of a thread; `None` if the number is too large.
    pub fn slot(&self, thread: usize) -> Option<&Slot> {
        self.slots.get(thread)
    }

    /// Marks a request as interrupted, unless it was already answered.
    pub fn interrupt(&self, unique: u64) {
        if !self.mark(unique) {
            // Another thread may have read the request without entering it yet.
            thread::sleep(MOMENT);
            self.mark(unique);
        }
    }

    fn mark(&self, unique: u64) -> bool {
        let slot = self.slots.iter().find(|slot| slot.current.load(Ordering::Acquire) == unique);
        slot.inspect(|slot| slot.interrupted.store(unique, Ordering::Release)).is_some()
    }
}
