//! [`Vring`]: a virtqueue and the thread that serves it.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace};

use crate::call::{self, Call, LeftBehind};
use crate::deferred::DeferredRequests;
use crate::device::VirtioDevice;
use crate::event::{Event, EventSink};
use crate::memory::{GuestMemory, SharedMemory};

/// Descriptors in a virtqueue: any size that virtio allows (1.2, section 2.7), as QEMU asks for up to 1024, and crosvm for this many.
const MAX_SIZE: u16 = 32768;

/// Asks a queue's thread to end, even while it sleeps or waits for the device.
pub struct Stop {
    flag: AtomicBool,
    wakeup: OwnedFd,
}

impl Stop {
    /// Not set yet. Fails if no file descriptor is left.
    pub fn new() -> io::Result<Stop> {
        Ok(Stop { flag: AtomicBool::new(false), wakeup: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Asks the thread to end.
    pub fn set(&self) {
        self.flag.store(true, Ordering::Release);
        notify(self.wakeup.as_fd());
    }

    /// Whether the thread was asked to end.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }
}

/// Adds 1 to an eventfd. A full counter needs no more: its reader has not run yet.
pub(crate) fn notify(eventfd: BorrowedFd<'_>) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Why a virtqueue cannot be served any more.
#[derive(Debug, thiserror::Error)]
pub enum VringError {
    /// The ring is unreadable or inconsistent.
    #[error("{0}")]
    Queue(#[from] virtio_queue::Error),
    /// The available index moved, but its entries cannot be read.
    #[error(
        "the available ring names requests that cannot be read: its index was {announced}, is {now}, and {next} is the next one"
    )]
    Unreadable {
        /// The ring's index when the batch began.
        announced: u16,
        /// The same now.
        now: u16,
        /// The entry that is read next.
        next: u16,
    },
    /// Waiting for the driver's notifications failed.
    #[error("cannot wait for the driver: {0}")]
    Wait(#[from] Errno),
}

struct Worker {
    thread: JoinHandle<Queue>,
    stop: Arc<Stop>,
}

/// A virtqueue as the front end has configured it so far. It runs in a thread of its own while it has a kick descriptor
/// and addresses, and is enabled. Every change except that of the call descriptor stops the thread first.
pub(crate) struct Vring {
    index: u16,
    /// `None` while the thread has it.
    queue: Option<Queue>,
    kick: Option<OwnedFd>,
    call: Arc<Call>,
    addressed: bool,
    enabled: bool,
    worker: Option<Worker>,
}

/// What a ring's thread needs of its connection.
pub(crate) struct Context<D> {
    pub(crate) device: Arc<D>,
    pub(crate) memory: SharedMemory,
    pub(crate) events: EventSink,
}

impl<D> Clone for Context<D> {
    fn clone(&self) -> Self {
        Context { device: Arc::clone(&self.device), memory: self.memory.clone(), events: Arc::clone(&self.events) }
    }
}

impl Vring {
    pub(crate) fn new(index: u16, left_behind: &LeftBehind) -> Result<Vring, virtio_queue::Error> {
        Ok(Vring {
            index,
            queue: Some(Queue::new(MAX_SIZE)?),
            kick: None,
            call: Arc::new(Call::new(left_behind.clone())),
            addressed: false,
            enabled: false,
            worker: None,
        })
    }

    /// Stops the thread, if there is one, and returns the queue for changes.
    pub(crate) fn stop<D: VirtioDevice>(&mut self, device: &D) -> Result<&mut Queue, virtio_queue::Error> {
        if let Some(worker) = self.worker.take() {
            worker.stop.set();
            device.wake();
            // One that blocks for ever is left behind, with the queue.
            let is_over = self.call.wait_for(&worker.thread);
            self.queue = if is_over { worker.thread.join().ok() } else { None };
        }
        if self.queue.is_none() {
            // The thread panicked or blocks, and its queue is lost; the front end's next set-up starts from nothing.
            self.addressed = false;
            self.queue = Some(Queue::new(MAX_SIZE)?);
        }
        self.queue.as_mut().ok_or(virtio_queue::Error::QueueNotReady)
    }

    /// Starts the thread if the ring is completely configured, enabled, and in guest memory.
    pub(crate) fn start<D: VirtioDevice>(&mut self, context: &Context<D>) -> io::Result<()> {
        if self.worker.is_some() || !self.enabled || !self.addressed {
            return Ok(());
        }
        let Some(kick) = &self.kick else { return Ok(()) };
        // Each further thread would block behind the first one.
        if self.call.is_left_behind() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let Some(mut queue) = self.queue.take() else { return Ok(()) };
        queue.set_ready(true);
        tracing::debug!(queue = self.index, descriptors = queue.size(), "a queue is started");
        match self.spawn(kick, context, queue) {
            Ok(worker) => self.worker = Some(worker),
            Err(error) => {
                // The failed attempt consumed the queue; `stop` makes a new one.
                self.addressed = false;
                return Err(error);
            }
        }
        Ok(())
    }

    fn spawn<D: VirtioDevice>(&self, kick: &OwnedFd, context: &Context<D>, queue: Queue) -> io::Result<Worker> {
        let stop = Arc::new(Stop::new()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Edge-triggered: each write to the eventfd wakes the thread once, and nothing has to read it.
        epoll::add(&epoll, kick, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&epoll, &stop.wakeup, EventData::new_u64(1), EventFlags::IN)?;
        let mut runner = Runner {
            index: self.index,
            deferred: DeferredRequests::new(queue.size()),
            queue,
            epoll,
            call: Arc::clone(&self.call),
            stop: Arc::clone(&stop),
            context: context.clone(),
        };
        let thread = thread::Builder::new().name(format!("vring-{}", self.index)).spawn(move || {
            if let Err(error) = runner.run().and_then(|()| runner.end()) {
                let event = Event::QueueStopped { queue: runner.index, reason: error.to_string() };
                (runner.context.events)(event);
            }
            runner.queue.set_ready(false);
            runner.queue
        })?;
        Ok(Worker { thread, stop })
    }

    pub(crate) fn set_addressed(&mut self) {
        self.addressed = true;
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Replaces the descriptor by which the driver wakes the thread, which was stopped before.
    ///
    /// # Errors
    /// It is no eventfd, pipe or Unix socket.
    pub(crate) fn set_kick(&mut self, kick: Option<File>) -> io::Result<()> {
        kick.as_ref().map_or(Ok(()), call::check_kind)?;
        self.kick = kick.map(OwnedFd::from);
        Ok(())
    }

    /// Replaces the descriptor that interrupts the guest, even while the thread runs.
    pub(crate) fn set_call(&mut self, call: Option<File>) -> io::Result<()> {
        self.call.replace(call)
    }
}

/// The state of a running ring's thread.
struct Runner<D> {
    index: u16,
    deferred: DeferredRequests,
    queue: Queue,
    epoll: OwnedFd,
    call: Arc<Call>,
    stop: Arc<Stop>,
    context: Context<D>,
}

impl<D: VirtioDevice> Runner<D> {
    fn run(&mut self) -> Result<(), VringError> {
        let mut ready = Vec::with_capacity(2);
        // Requests may have come before the ring was started: check first, then sleep.
        while !self.stop.is_set() {
            if self.serve()? == Served::UntilNotReady {
                self.context.device.wait_until_ready(self.index, &self.stop);
                continue;
            }
            ready.clear();
            let patience = self.deferred.patience().map(|patience| rustix::event::Timespec {
                // At most a few milliseconds.
                tv_sec: 0,
                tv_nsec: patience.subsec_nanos().into(),
            });
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), patience.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Handles all available requests, until the driver has been asked to notify or the device is not ready.
    fn serve(&mut self) -> Result<Served, VringError> {
        let (call, memory) = (&self.call, &self.context.memory);
        let Runner { index, deferred, queue, .. } = self;
        let device = &*self.context.device;
        process_deferring((*index, deferred), queue, || memory.memory(), device, &self.stop, || call.interrupt())
    }

    /// Answers what was deferred: a queue that starts again begins with nothing.
    fn end(&mut self) -> Result<(), VringError> {
        let memory = self.context.memory.memory();
        let Runner { index, deferred, queue, .. } = self;
        if deferred.attend(*index, queue, &memory, &*self.context.device, true)? && wants_interrupt(queue, &memory)? {
            self.call.interrupt();
        }
        Ok(())
    }
}

/// How long a finished request waits for the rest of its batch before the driver is told. Well above the time of a
/// batch from the page cache, well below that of one request to a disk or network.
const LONGEST_DELAY: Duration = Duration::from_micros(100);

/// Why request handling stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// No request is available and the driver has been asked to notify; or `stop` is set.
    All,
    /// The device is not ready for the next request.
    UntilNotReady,
}

/// Handles the available requests of `queue`, until none is left and the driver has been asked to notify, the device is
/// not ready for the next one, or `stop` is set. Calls `interrupt` once for each batch if the driver wants it, and more
/// often if the batch takes long.
///
/// # Errors
/// The ring is unreadable or breaks virtio's rules; it cannot be served until the driver resets it.
pub fn process_available<D: VirtioDevice>(
    index: u16,
    queue: &mut Queue,
    memory: &GuestMemory,
    device: &D,
    stop: &Stop,
    interrupt: impl Fn(),
) -> Result<Served, VringError> {
    let mut deferred = DeferredRequests::new(queue.size());
    let served = process_deferring((index, &mut deferred), queue, || memory, device, stop, &interrupt)?;
    if deferred.attend(index, queue, memory, device, true)? && wants_interrupt(queue, memory)? {
        interrupt();
    }
    Ok(served)
}

/// As [`process_available`], with the requests of the queue that are answered later. `memory` returns the guest's memory as it is now.
///
/// # Errors
/// As there.
pub fn process_deferring<D: VirtioDevice, M: Deref<Target = GuestMemory>>(
    (index, deferred): (u16, &mut DeferredRequests),
    queue: &mut Queue,
    memory: impl Fn() -> M,
    device: &D,
    stop: &Stop,
    interrupt: impl Fn(),
) -> Result<Served, VringError> {
    loop {
        // The front end may have changed the guest's memory since the last batch. A request uses the memory that the guest has when it
        // announces the request. So the memory is loaded after the available index.
        let before = memory();
        queue.disable_notification(&*before)?;
        let mut told = Instant::now();
        let mut untold = deferred.attend(index, queue, &before, device, false)?;
        // A batch is what is available now; the driver learns of its end before more is taken.
        let batch = queue.avail_idx(&*before, Ordering::Acquire)?;
        drop(before);
        let now = memory();
        let memory = &*now;
        let mut is_ready = true;
        while queue.next_avail() != batch.0 && !stop.is_set() {
            is_ready = device.is_ready(index);
            if !is_ready {
                break;
            }
            let Some(chain) = queue.iter(memory)?.next() else {
                let now = queue.avail_idx(memory, Ordering::Acquire)?;
                return Err(VringError::Unreadable { announced: batch.0, now: now.0, next: queue.next_avail() });
            };
            let head = chain.head_index();
            match device.handle_or_defer(index, chain, memory, deferred.have_room()) {
                Err(request) => {
                    deferred.add(head, request);
                    continue;
                }
                Ok(written) => queue.add_used(memory, head, written)?,
            }
            untold = true;
            if told.elapsed() >= LONGEST_DELAY {
                if wants_interrupt(queue, memory)? {
                    interrupt();
                }
                (told, untold) = (Instant::now(), false);
            }
        }
        if untold && wants_interrupt(queue, memory)? {
            interrupt();
        }
        if !is_ready {
            return Ok(Served::UntilNotReady);
        }
        if stop.is_set() || !queue.enable_notification(memory)? {
            return Ok(Served::All);
        }
    }
}

/// Whether the driver wants an interrupt for the new entries of the used ring (virtio 1.2, section 2.7.7).
fn wants_interrupt(queue: &mut Queue, memory: &GuestMemory) -> Result<bool, VringError> {
    if queue.event_idx_enabled() {
        return Ok(queue.needs_notification(memory)?);
    }
    // The new entries must be visible before the driver's wish is read.
    fence(Ordering::SeqCst);
    let flags: u16 =
        memory.load(GuestAddress(queue.avail_ring()), Ordering::Relaxed).map_err(virtio_queue::Error::GuestMemory)?;
    Ok(u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0)
}

#[cfg(test)]
mod tests {
    use virtio_queue::DescriptorChain;

    use super::*;

    /// A device without requests.
    struct Idle;

    impl VirtioDevice for Idle {
        fn features(&self) -> u64 {
            0
        }

        fn set_features(&self, _: u64) {}

        fn queues(&self) -> u16 {
            1
        }

        fn config(&self) -> Vec<u8> {
            Vec::new()
        }

        fn write_config(&self, _: u32, _: &[u8]) -> bool {
            false
        }

        fn wake(&self) {}

        fn handle<'a>(&self, _: u16, _: DescriptorChain<&'a GuestMemory>, _: &'a GuestMemory) -> u32 {
            0
        }
    }

    #[test]
    fn a_ring_is_started_again_unless_its_thread_blocks() {
        let (device, memory) = (Arc::new(Idle), SharedMemory::new(GuestMemory::default()));
        let context = Context { device, memory, events: Arc::new(|_| {}) };
        let mut ring = Vring::new(0, &LeftBehind::default()).unwrap();
        let kick = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        ring.set_kick(Some(kick.into())).unwrap();
        ring.set_enabled(true);
        for _ in 0..2 {
            ring.set_addressed();
            ring.start(&context).unwrap();
            assert!(ring.worker.is_some());
            ring.stop(&Idle).unwrap();
        }
        ring.call.leave_behind();
        ring.set_addressed();
        assert_eq!(ring.start(&context).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(ring.worker.is_none());
    }
}
