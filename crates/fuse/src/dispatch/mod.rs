//! From a request to the file system's answer, whatever brought the one and takes the other.
//!
//! 1. The head of a message is copied from where it lies, once; what a client changes there afterwards is not seen.
//! 2. It is understood ([`wire`](crate::wire)), and names are checked.
//! 3. The file system executes it. The data of reads and writes goes between it and the pieces of memory that the
//!    transport named; nothing is copied between.
//! 4. The answer's header says what came of it.

mod agreement;
mod answer;
mod backing;
mod doubts;
mod interrupts;
mod message;
mod parked;

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
pub(crate) use doubts::Doubts;
pub(crate) use parked::Pause;

use agreement::{Agreement, Transport};
use interrupts::Interrupts;
use message::Reply;
use parked::Parked;

use crate::wire::request::{Operation, Request, head_length};
use crate::wire::structs::InHeader;
use crate::wire::{MIN_READ_BUFFER, init_flag, opcode, reply};

/// Most bytes of data in one request: 256 pages, the kernel's own limit unless it is raised (fs.fuse.max_pages_limit).
pub const MAX_DATA: u32 = 1 << 20;

/// Most bytes of a message: a header, a body, and the data of a write or as much of names to forget.
pub const MAX_MESSAGE: usize = MAX_DATA as usize + MIN_READ_BUFFER;

/// Memory that a thread uses again for each request.
#[derive(Debug, Default)]
pub struct Scratch {
    head: Vec<u8>,
    list: Vec<u8>,
}

/// Executes one connection's requests. Used by several threads at once.
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
}

impl<F: FileSystem + ?Sized> Dispatcher<F> {
    /// Executes requests by `file_system`, in so many threads.
    pub fn new(file_system: Arc<F>, options: ConnectionOptions, threads: usize) -> Dispatcher<F> {
        let threads = threads.max(1);
        // One more for who executes again what had to wait.
        let interrupts = Interrupts::new(threads + 1);
        let (agreement, rings, parked) = (Agreement::default(), AtomicBool::new(false), Parked::default());
        let (backings, doubts) = (None, None);
        Dispatcher { file_system, options, agreement, interrupts, backings, doubts, rings, parked, threads }
    }

    /// The same; the kernel reads and writes the host's files itself where it can.
    pub(crate) fn with_backings(self, backings: Backings) -> Dispatcher<F> {
        Dispatcher { backings: Some(backings), ..self }
    }

    /// The same; the kernel is told of what it decided by and is no longer so.
    pub(crate) fn with_doubts(self, doubts: Doubts) -> Dispatcher<F> {
        Dispatcher { doubts: Some(doubts), ..self }
    }

    /// Offers to take requests by io_uring, if the agreement is yet to be.
    pub(crate) fn offer_rings(&self) {
        self.rings.store(true, Ordering::Relaxed);
    }

    /// Whether it was agreed on that requests come by io_uring.
    pub(crate) fn uses_rings(&self) -> bool {
        self.agreement.flags().is_some_and(|flags| flags & init_flag::OVER_IO_URING != 0)
    }

    /// The file system.
    pub fn file_system(&self) -> &Arc<F> {
        &self.file_system
    }

    /// Whether the client has said how it speaks, and can be spoken with.
    pub fn is_agreed(&self) -> bool {
        self.agreement.flags().is_some()
    }

    /// The protocol's version, major and minor, of a client that is too old.
    pub fn refused_version(&self) -> Option<(u32, u32)> {
        self.agreement.refused()
    }

    /// Executes the request in `message`, puts the answer into `out`, and gives its bytes: 0 if there is none. To be
    /// called by one thread at a time with the same number of a `thread`.
    ///
    /// A message that makes no sense is answered with an error, if it is long enough to have a number. A lock that is to be
    /// waited for keeps the thread until it is there.
    pub fn execute(
        &self,
        thread: usize,
        message: &[VolatileSlice<'_>],
        out: &[VolatileSlice<'_>],
        scratch: &mut Scratch,
    ) -> usize {
        self.execute_with(thread, message, out, scratch, None)
    }

    /// As [`Dispatcher::execute`]; but a request that waits for a lock keeps no thread: nothing is given, and it is to be
    /// executed again, until it has an answer, when [`Dispatcher::lock_changes`] has changed, and from time to time.
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

    /// The thread that executes requests again that had to wait.
    pub(crate) fn attendant(&self) -> usize {
        self.threads
    }

    /// Changes when a lock may have become free.
    pub fn lock_changes(&self) -> u64 {
        self.parked.changes()
    }

    /// Waits until [`Dispatcher::lock_changes`] is no longer `seen`, or for so long.
    pub fn wait_for_locks(&self, seen: u64, patience: Option<Duration>) {
        self.parked.wait(seen, patience);
    }

    /// Has who waits for locks look again.
    pub(crate) fn locks_changed(&self) {
        self.parked.change();
    }

    /// Answers a request that was to wait for a lock, and cannot: `ENOLCK`. Gives the answer's bytes.
    pub(crate) fn refuse_parked(&self, message: &[VolatileSlice<'_>], out: &[VolatileSlice<'_>]) -> usize {
        let mut head = Vec::new();
        if let Some((header, _)) = take_head(message, &mut head) {
            self.parked.end(header.unique);
        }
        self.refuse(message, out, Errno::NOLCK)
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

    /// Answers a `message` that did not arrive as it was sent, if its number did: with `errno`. Gives the answer's bytes.
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

    /// The client is gone: it has nothing open any more, and knows no node.
    pub fn disconnect(&self) {
        self.agreement.end();
        self.parked.clear();
        if let Some(backings) = &self.backings {
            backings.clear();
        }
        // What a file system that panics has left is lost; there is nobody to tell.
        let _ = contain(|| self.file_system.disconnected());
    }

    /// Executes a request that has no answer; false if it is another one.
    fn take_silent(&self, request: &Request<'_>) -> bool {
        let file_system = &*self.file_system;
        // There is nobody to tell of a panic.
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
                // A machine that was reset, and tells of nothing that it had.
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

/// Copies what must be had of a message to understand it to `head`; gives its header and the whole message's bytes.
/// `None` if it has no header.
fn take_head(message: &[VolatileSlice<'_>], head: &mut Vec<u8>) -> Option<(InHeader, usize)> {
    let length = message::total(message);
    let mut start = [0; size_of::<InHeader>()];
    if length < start.len() {
        return None;
    }
    message::copy_start(message, &mut start);
    let header = InHeader::read_from_bytes(&start).ok()?;
    // What is longer than any message is cut, and then refused because of its length.
    head.clear();
    head.resize(head_length(&header, length).min(MAX_MESSAGE), 0);
    message::copy_start(message, head);
    // The header was copied before; it must not be another one now.
    head.iter_mut().zip(start).for_each(|(byte, first)| *byte = first);
    Some((header, length))
}

/// Does `work`; a panic of the file system becomes an error.
fn contain<T>(work: impl FnOnce() -> T) -> Result<T, Errno> {
    // Nothing of ours is left half-changed: a file system promises to be usable from several threads.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Errno::IO)
}
