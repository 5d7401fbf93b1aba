//! [`DeferredRequests`]: requests of a virtqueue that are answered later, so that they do not hold up those behind them.
//!
//! The queue's own thread retries a request when the device says that an answer may have come, and from time to time. So no other thread
//! touches the ring. The content of a deferred request is copied; the address of its answer is looked up in the guest's memory each time.

use std::time::{Duration, Instant};

use virtio_queue::{DescriptorChain, Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryBackend};

use crate::device::VirtioDevice;
use crate::memory::{GuestMemory, Pieces};

/// The most that is copied of a request, in bytes: only short ones are deferred.
const LONGEST: usize = 4096;
/// The most pieces of memory for an answer.
const MOST_PIECES: usize = 16;
/// The shortest and the longest pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// A request that is answered later.
#[derive(Debug)]
pub struct Deferred {
    /// What the driver wrote.
    pub message: Vec<u8>,
    out: Vec<(GuestAddress, usize)>,
}

impl Deferred {
    /// The request in a chain.
    pub fn new(chain: DescriptorChain<&GuestMemory>, readable: &Pieces<'_>) -> Deferred {
        let mut message = Vec::new();
        for piece in readable {
            let length = piece.len().min(LONGEST - message.len());
            let start = message.len();
            message.resize(start + length, 0);
            piece.copy_to(message.get_mut(start..).unwrap_or_default());
        }
        let writable = chain.filter(|descriptor| descriptor.is_write_only()).take(MOST_PIECES);
        let out = writable.map(|descriptor| (descriptor.addr(), descriptor.len() as usize)).collect();
        Deferred { message, out }
    }

    /// Where the answer goes; empty if that is not in the guest's memory any more.
    pub fn out<'a>(&self, memory: &'a GuestMemory) -> Pieces<'a> {
        let slices = self.out.iter().map(|(address, length)| memory.get_slice(*address, *length));
        slices.collect::<Result<_, _>>().unwrap_or_default()
    }
}

/// The requests of one queue that are answered later.
#[derive(Debug)]
pub struct DeferredRequests {
    requests: Vec<(u16, Deferred)>,
    most: usize,
    /// The device's counter at the last attempt.
    seen: u64,
    pause: Duration,
    next: Instant,
}

impl DeferredRequests {
    /// An empty list, for a queue of `queue_size` descriptors. An eighth of that number may be deferred: a request takes up to
    /// four descriptors, and half of the queue stays for others, such as those that end the wait.
    pub fn new(queue_size: u16) -> DeferredRequests {
        let most = usize::from(queue_size / 8).max(1);
        DeferredRequests { requests: Vec::new(), most, seen: 0, pause: FIRST_PAUSE, next: Instant::now() }
    }

    /// Whether one more may be deferred.
    pub(crate) fn have_room(&self) -> bool {
        self.requests.len() < self.most
    }

    /// Keeps a request, by the head of its chain.
    pub(crate) fn add(&mut self, head: u16, deferred: Deferred) {
        self.requests.push((head, deferred));
        (self.pause, self.next) = (FIRST_PAUSE, Instant::now() + FIRST_PAUSE);
    }

    /// How long until they are tried again; `None` if there are none.
    pub(crate) fn patience(&self) -> Option<Duration> {
        (!self.requests.is_empty()).then(|| self.next.saturating_duration_since(Instant::now()))
    }

    /// Asks the device again, if it is time; returns whether anything was answered. With `ends`, all are answered.
    ///
    /// # Errors
    /// The used ring cannot be written.
    pub(crate) fn attend(
        &mut self,
        index: u16,
        queue: &mut Queue,
        memory: &GuestMemory,
        device: &impl VirtioDevice,
        ends: bool,
    ) -> Result<bool, virtio_queue::Error> {
        if self.requests.is_empty() {
            return Ok(false);
        }
        let changes = device.changes();
        if !ends && changes == self.seen && Instant::now() < self.next {
            return Ok(false);
        }
        self.seen = changes;
        let before = self.requests.len();
        let mut answered = Vec::new();
        self.requests.retain_mut(|(head, deferred)| match device.answer_deferred(index, deferred, memory, ends) {
            None => !ends,
            Some(written) => {
                answered.push((*head, written));
                false
            }
        });
        for (head, written) in answered {
            queue.add_used(memory, head, written)?;
        }
        let is_less = self.requests.len() < before;
        self.pause = if is_less { FIRST_PAUSE } else { (self.pause * 2).min(LAST_PAUSE) };
        self.next = Instant::now() + self.pause;
        Ok(is_less)
    }
}
