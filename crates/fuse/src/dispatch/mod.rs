//! Executes requests, whatever transport carries them.
//!
//! 1. The head of a message is copied once, so later changes by the client have no effect.
//! 2. [`wire`](crate::wire) parses it and checks names.
//! 3. The file system executes the request. Data of reads and writes moves directly between the file system and the
//!    memory slices that the transport named.
//! 4. The answer's header reports the result.

mod agreement;
mod answer;
mod backing;
mod counts;
mod doubts;
mod interrupts;
mod message;
mod parked;
mod rights;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use inarch_vfs::{Context, FileSystem, NodeId};
use rustix::io::Errno;
use vm_memory::VolatileSlice;
use zerocopy::FromBytes;

pub use agreement::{ConnectionOptions, ReadDirPlus};
pub(crate) use backing::Backings;
pub use counts::RequestCounts;
pub(crate) use doubts::Doubts;
pub(crate) use parked::Pause;

use agreement::{Agreement, Transport};
use interrupts::Interrupts;
use message::Reply;
use parked::Parked;

use crate::wire::request::{Operation, Request, head_length};
use crate::wire::structs::InHeader;
use crate::wire::{MIN_READ_BUFFER, init_flag, opcode, reply};

/// The most bytes of data in one request: 256 pages, the kernel's default limit (fs.fuse.max_pages_limit).
pub const MAX_DATA: u32 = 1 << 20;

/// The most bytes of a message: a header, a body, and the data of a write or as many nodes to forget.
pub(crate) const MAX_MESSAGE: usize = MAX_DATA as usize + MIN_READ_BUFFER;

/// Memory that a thread reuses for each request.
#[derive(Debug, Default)]
pub struct Scratch {
    head: Vec<u8>,
    list: Vec<u8>,
}

/// Executes the requests of one connection. Several threads may use it at once.
pub struct Dispatcher<F: ?Sized> {
    file_system: Arc<F>,
    options: ConnectionOptions,
    agreement: Agreement,
    interrupts: Interrupts,
    backings: Option<Backings>,
    doubts: Option<Doubts>,
    rings: AtomicBool,
    parked: Parked,
    threads: usize,
    counts: Arc<RequestCounts>,
}

impl<F: FileSystem + ?Sized> Dispatcher<F> {
    /// A dispatcher for `threads` threads that calls `file_system`.
    pub fn new(file_system: Arc<F>, options: ConnectionOptions, threads: usize) -> Dispatcher<F> {
        let threads = threads.max(1);
        // One more slot, for the thread that repeats parked requests.
        let interrupts = Interrupts::new(threads + 1);
        let (agreement, rings, parked) = (Agreement::default(), AtomicBool::new(false), Parked::default());
        let (backings, doubts) = (None, None);
        Dispatcher {
            file_system,
            options,
            agreement,
            interrupts,
            backings,
            doubts,
            rings,
            parked,
            threads,
            counts: Arc::default(),
        }
    }

    /// Enables passthrough.
    pub(crate) fn with_backings(self, backings: Backings) -> Dispatcher<F> {
        Dispatcher { backings: Some(backings), ..self }
    }

    /// Enables the invalidation of attributes after `ESTALE`.
    pub(crate) fn with_doubts(self, doubts: Doubts) -> Dispatcher<F> {
        Dispatcher { doubts: Some(doubts), ..self }
    }

    /// Offers io_uring, if `INIT` is still to come.
    pub(crate) fn offer_rings(&self) {
        self.rings.store(true, Ordering::Relaxed);
    }

    /// Whether io_uring was negotiated.
    pub(crate) fn uses_rings(&self) -> bool {
        self.agreement.flags().is_some_and(|flags| flags & init_flag::OVER_IO_URING != 0)
    }

    /// The counters of the requests, which go on counting.
    pub fn counts(&self) -> Arc<RequestCounts> {
        Arc::clone(&self.counts)
    }

    /// The file system.
    pub fn file_system(&self) -> &Arc<F> {
        &self.file_system
    }

    /// Whether `INIT` succeeded.
    pub fn is_agreed(&self) -> bool {
        self.agreement.flags().is_some()
    }

    /// The version, major and minor, of a client that is too old.
    pub fn refused_version(&self) -> Option<(u32, u32)> {
        self.agreement.refused()
    }

    /// Executes the request in `message`, puts the answer into `out`, and returns its size: 0 if there is no answer.
    /// Each `thread` number may be in use by only one thread at a time.
    ///
    /// A malformed message is answered with an error, if it is long enough to contain a request number. A request for
    /// a lock blocks the thread until the lock is granted.
    pub fn execute(
        &self,
        thread: usize,
        message: &[VolatileSlice<'_>],
        out: &[VolatileSlice<'_>],
        scratch: &mut Scratch,
    ) -> usize {
        self.execute_with(thread, message, out, scratch, None)
    }

    /// Like [`Dispatcher::execute`], but does not block on locks: it returns `None` instead. Then call it again with
    /// the same message, whenever [`Dispatcher::lock_changes`] has changed and from time to time, until there is an
    /// answer.
    pub fn execute_or_park(
        &self,
        thread: usize,
        message: &[VolatileSlice<'_>],
        out: &[VolatileSlice<'_>],
        scratch: &mut Scratch,
    ) -> Option<usize> {
        let parked = Cell::new(false);
        let length = self.execute_with(thread, message, out, scratch, Some(&parked));
        (!parked.get()).then_some(length)
    }

    /// The number of the thread that repeats parked requests.
    pub(crate) fn attendant(&self) -> usize {
        self.threads
    }

    /// A counter that changes when a lock may have become free.
    pub fn lock_changes(&self) -> u64 {
        self.parked.changes()
    }

    /// Waits until [`Dispatcher::lock_changes`] differs from `seen`, or until `patience` runs out.
    pub fn wait_for_locks(&self, seen: u64, patience: Option<Duration>) {
        self.parked.wait(seen, patience);
    }

    /// Wakes the threads that wait for locks.
    pub(crate) fn locks_changed(&self) {
        self.parked.change();
    }

    /// Answers `errno` to a request that would have to be parked but cannot, or no longer. Returns the answer's size.
    pub fn refuse_parked(&self, message: &[VolatileSlice<'_>], out: &[VolatileSlice<'_>], errno: Errno) -> usize {
        let mut head = Vec::new();
        if let Some((header, _)) = take_head(message, &mut head) {
            self.parked.end(header.unique);
        }
        self.refuse(message, out, errno)
    }

    fn execute_with(
        &self,
        thread: usize,
        message: &[VolatileSlice<'_>],
        out: &[VolatileSlice<'_>],
        scratch: &mut Scratch,
        parked: Option<&Cell<bool>>,
    ) -> usize {
        let Scratch { head, list } = scratch;
        let Some((header, length)) = take_head(message, head) else { return 0 };
        self.counts.add(header.opcode);
        let long_setxattr = self.agreement.flags().is_some_and(|flags| flags & init_flag::SETXATTR_EXT != 0);
        let request = Request::parse(head, length, long_setxattr);
        if let Ok(request) = &request
            && self.take_silent(request)
        {
            return 0;
        }
        let silent = matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT);
        let Some(out) = Reply::new(out).filter(|_| !silent) else { return 0 };
        let done = request.and_then(|request| {
            let data = message::window(message, head.len(), usize::MAX);
            contain(|| self.answer(thread, &request, (&data, &out), list, parked)).and_then(|answer| answer)
        });
        if parked.is_some_and(Cell::get) {
            return 0;
        }
        out.finish(match done {
            Ok(length) => reply::success(header.unique, length),
            Err(errno) => reply::error(header.unique, errno),
        })
    }

    /// Answers with `errno` a `message` that arrived damaged, if its number is intact. Returns the answer's size.
    pub fn refuse(&self, message: &[VolatileSlice<'_>], out: &[VolatileSlice<'_>], errno: Errno) -> usize {
        let mut start = [0; size_of::<InHeader>()];
        if message::total(message) < start.len() {
            return 0;
        }
        message::copy_start(message, &mut start);
        match (InHeader::read_from_bytes(&start), Reply::new(out)) {
            (Ok(header), Some(out)) => out.finish(reply::error(header.unique, errno)),
            _ => 0,
        }
    }

    /// The client is gone: closes what it had open and forgets all nodes.
    pub fn disconnect(&self) {
        self.agreement.end();
        self.parked.clear();
        if let Some(backings) = &self.backings {
            backings.clear();
        }
        // If the file system panics here, its state is lost; nobody is left to be told.
        let _ = contain(|| self.file_system.disconnected());
    }

    /// Executes a request that has no answer; returns false for other requests.
    fn take_silent(&self, request: &Request<'_>) -> bool {
        let file_system = &*self.file_system;
        // A panic here has no answer to report it in.
        let _ = match &request.operation {
            Operation::Forget(lookups) => contain(|| file_system.forget(NodeId(request.header.nodeid), *lookups)),
            Operation::BatchForget(nodes) => {
                contain(|| nodes.for_each(|one| file_system.forget(NodeId(one.nodeid), one.nlookup)))
            }
            Operation::Interrupt(unique) => {
                self.interrupts.interrupt(*unique);
                self.parked.interrupt(*unique);
                contain(|| file_system.interrupted())
            }
            _ => return false,
        };
        true
    }

    fn answer(
        &self,
        thread: usize,
        request: &Request<'_>,
        (data, out): (&[VolatileSlice<'_>], &Reply<'_>),
        list: &mut Vec<u8>,
        parked: Option<&Cell<bool>>,
    ) -> Result<usize, Errno> {
        if let Operation::Init(asked) = &request.operation {
            if self.is_agreed() {
                // `INIT` again: the machine was reset without closing anything.
                self.disconnect();
            }
            let stack_depth = self.backings.as_ref().map_or(0, Backings::stack_depth);
            let transport = Transport { stack_depth, rings: self.rings.load(Ordering::Relaxed) };
            return out.put(&self.agreement.agree(asked, &self.options, transport)?);
        }
        if !self.is_agreed() {
            return Err(Errno::IO);
        }
        let slot = self.interrupts.slot(thread).ok_or(Errno::IO)?;
        let header = &request.header;
        slot.begin(header.unique);
        let context = Context {
            uid: header.uid,
            client_uid: None,
            gid: header.gid,
            pid: header.pid,
            supplementary_group: request.supplementary_group,
            interrupted: &|| slot.is_interrupted(),
        };
        let node = NodeId(header.nodeid);
        let (dispatcher, unique) = (self, header.unique);
        let asked = answer::Asked { dispatcher, context: &context, unique, node, data, out, parked };
        asked.answer(&request.operation, list).inspect_err(|errno| {
            if let (Errno::STALE, Some(doubts)) = (*errno, &self.doubts) {
                doubts.refused(request);
            }
        })
    }
}

/// Copies the part of a message that parsing needs to `head`. Returns its header and the size of the whole message,
/// or `None` if there is no header.
fn take_head(message: &[VolatileSlice<'_>], head: &mut Vec<u8>) -> Option<(InHeader, usize)> {
    let length = message::total(message);
    let mut start = [0; size_of::<InHeader>()];
    if length < start.len() {
        return None;
    }
    message::copy_start(message, &mut start);
    let header = InHeader::read_from_bytes(&start).ok()?;
    // A message longer than any valid one is cut here, and then refused for its length.
    head.clear();
    head.resize(head_length(&header, length).min(MAX_MESSAGE), 0);
    message::copy_start(message, head);
    // The client may have changed the header since it was copied; use the first copy.
    head.iter_mut().zip(start).for_each(|(byte, first)| *byte = first);
    Some((header, length))
}

/// Calls `work`; a panic of the file system becomes `EIO`.
fn contain<T>(work: impl FnOnce() -> T) -> Result<T, Errno> {
    // None of our state is left half-changed, and a file system must be usable from several threads.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Errno::IO)
}
