//! Which requests are under way, and which of them nobody waits for any more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How long a request may be in a thread's hands before it is in its slot.
const MOMENT: Duration = Duration::from_millis(2);

/// One thread's request. The kernel's numbers of requests are never 0.
#[derive(Debug, Default)]
pub struct Slot {
    current: AtomicU64,
    interrupted: AtomicU64,
}

impl Slot {
    /// The thread executes this request from now on.
    pub fn begin(&self, unique: u64) {
        self.current.store(unique, Ordering::Release);
    }

    /// Whether the request it executes was interrupted.
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
    /// For so many threads.
    pub fn new(threads: usize) -> Interrupts {
        Interrupts { slots: (0..threads).map(|_| Slot::default()).collect() }
    }

    /// A thread's slot; there is none for more threads than were announced.
    pub fn slot(&self, thread: usize) -> Option<&Slot> {
        self.slots.get(thread)
    }

    /// Nobody waits for this request any more. One that has been answered is none.
    pub fn interrupt(&self, unique: u64) {
        if !self.mark(unique) {
            // Another thread may have read it and not begun yet.
            thread::sleep(MOMENT);
            self.mark(unique);
        }
    }

    fn mark(&self, unique: u64) -> bool {
        let slot = self.slots.iter().find(|slot| slot.current.load(Ordering::Acquire) == unique);
        slot.inspect(|slot| slot.interrupted.store(unique, Ordering::Release)).is_some()
    }
}
