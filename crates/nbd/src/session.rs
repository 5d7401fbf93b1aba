//! The transmission phase: executes a client's requests, several at once, and sends the answers.
//!
//! A connection has a few threads. One of them has the receiver: it takes a request from the wire, passes the receiver
//! on and executes the request. A write's data goes to the device piece by piece as it arrives, before the receiver is
//! passed on. So a connection costs the memory of one piece for each thread, whatever the client asks for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};

use inarch_server::{Allocation, BlockDevice, ConnectionError, Receiver, Sender};
use vm_memory::VolatileSlice;
use zerocopy::{FromZeros, IntoBytes};

use crate::event::Event;
use crate::negotiate::{Agreement, BASE_ALLOCATION_ID, MAX_PAYLOAD};
use crate::server::EventSink;
use crate::wire::Errno;
use crate::wire::reply::{Chunk, STATE_HOLE, STATE_ZERO, SimpleReply, StatusDescriptor};
use crate::wire::request::{Command, Request, RequestHeader, flag};

/// Bytes that move between socket and device at once.
pub const PIECE: usize = 256 << 10;

/// The most threads of a connection.
const MAX_THREADS: usize = 8;

/// The most extents in one answer; the client asks again for the rest.
const MAX_EXTENTS: usize = 4096;

/// One client's use of the export.
pub struct Session<'s, D> {
    pub(crate) agreement: Agreement<D>,
    pub(crate) sender: &'s Sender<'s>,
    /// `None` once no more requests are taken.
    receiver: Mutex<Option<Receiver<'s>>>,
    events: EventSink,
    /// The number of threads, and how many of them execute nothing.
    threads: AtomicUsize,
    idle: AtomicUsize,
    /// A buffer for the rare read that needs more than a piece at once.
    pub(crate) large: Mutex<Vec<u8>>,
}

impl<'s, D: BlockDevice> Session<'s, D> {
    /// A session without threads yet.
    pub fn new(
        agreement: Agreement<D>,
        receiver: Receiver<'s>,
        sender: &'s Sender<'s>,
        events: EventSink,
    ) -> Session<'s, D> {
        Session {
            agreement,
            sender,
            receiver: Mutex::new(Some(receiver)),
            events,
            threads: AtomicUsize::new(1),
            idle: AtomicUsize::new(0),
            large: Mutex::default(),
        }
    }

    /// Serves until the client disconnects.
    pub fn run(&self) {
        thread::scope(|scope| self.work(scope));
    }

    /// The loop of one thread.
    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut piece = vec![0; PIECE];
        loop {
            self.idle.fetch_add(1, Ordering::Relaxed);
            let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
            self.idle.fetch_sub(1, Ordering::Relaxed);
            let taken = match receiver.as_mut().map(|receiver| self.next(receiver, &mut piece)) {
                Some(Ok(Some(taken))) => taken,
                ended => {
                    *receiver = None;
                    if let Some(Err(error)) = ended {
                        self.sender.fail(error);
                    }
                    return;
                }
            };
            drop(receiver);
            self.grow(scope);
            if let Err(error) = contain(|| self.answer(&taken, &mut piece)) {
                self.sender.fail(error);
                return;
            }
        }
    }

    /// Makes sure that a thread receives while this one executes.
    fn grow<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        if self.idle.load(Ordering::Relaxed) > 0 || self.threads.load(Ordering::Relaxed) >= MAX_THREADS {
            return;
        }
        if self.threads.fetch_add(1, Ordering::Relaxed) >= MAX_THREADS
            || thread::Builder::new().spawn_scoped(scope, || self.work(scope)).is_err()
        {
            // The existing threads receive.
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes the next request from the wire, and executes a write while it arrives. `None` if the client has ended.
    fn next(&self, receiver: &mut Receiver<'s>, piece: &mut [u8]) -> Result<Option<Taken>, ConnectionError> {
        let mut header = RequestHeader::new_zeroed();
        if self.sender.has_ended() || !receiver.begin(header.as_mut_bytes())? {
            return Ok(None);
        }
        let request = Request::parse(&header)
            .ok_or(ConnectionError::Protocol("a request does not begin with its magic number"))?;
        let so_far = match request.command {
            Some(Command::Disconnect) => return Ok(None),
            Some(Command::Write) => contain(|| self.receive_write(receiver, &request, piece))??,
            _ if request.flags_known => Ok(()),
            _ => Err(Errno::Invalid),
        };
        Ok(Some(Taken { request, so_far }))
    }

    /// Receives a write's data and writes it. It receives all of the data even if writing fails.
    fn receive_write(
        &self,
        receiver: &mut Receiver<'s>,
        request: &Request,
        piece: &mut [u8],
    ) -> Result<Result<(), Errno>, ConnectionError> {
        let mut result = self.check_payload(request).and_then(|()| self.check_change(request, Errno::NoSpace));
        let mut done = 0;
        while done < request.length {
            let now = (request.length - done).min(piece.len() as u32);
            let data = piece.split_at_mut(now as usize).0;
            receiver.receive(data)?;
            let offset = request.offset.saturating_add(done.into());
            result = result.and_then(|()| {
                self.note("write", offset, now.into(), self.device().write_at(offset, &[VolatileSlice::from(data)]))
            });
            done += now;
        }
        Ok(result)
    }

    /// Executes a request and sends its answer.
    fn answer(&self, taken: &Taken, piece: &mut [u8]) {
        let request = &taken.request;
        let result = taken.so_far.and_then(|()| match request.command {
            Some(Command::Read) => self.read(request, piece),
            Some(Command::BlockStatus) => self.block_status(request),
            command => {
                self.change(command, request, piece)?;
                self.sender.send(&[SimpleReply::new(request.cookie, Ok(())).as_bytes()]);
                Ok(())
            }
        });
        if let Err(errno) = result {
            self.answer_error(request, errno);
        }
    }

    /// Executes a request that has no data in its answer.
    fn change(&self, command: Option<Command>, request: &Request, piece: &mut [u8]) -> Result<(), Errno> {
        let (offset, length) = (request.offset, u64::from(request.length));
        match command {
            // Its data is written already.
            Some(Command::Write) => {}
            Some(Command::Flush) => return self.flush(),
            Some(Command::Trim) => {
                self.check_change(request, Errno::Invalid)?;
                self.note("trim", offset, length, self.device().discard(offset, length))?;
            }
            Some(Command::WriteZeroes) => {
                self.check_change(request, Errno::NoSpace)?;
                let unmap = !request.has(flag::NO_HOLE);
                self.note("write zeroes", offset, length, self.device().write_zeroes(offset, length, unmap))?;
            }
            Some(Command::Cache) => return self.cache(request, piece),
            _ => return Err(Errno::Invalid),
        }
        if request.has(flag::FUA) { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<(), Errno> {
        self.note("flush", 0, self.agreement.size, self.device().flush())
    }

    /// Reads the range, so that it is in the host's page cache.
    fn cache(&self, request: &Request, piece: &mut [u8]) -> Result<(), Errno> {
        self.check_payload(request)?;
        let mut offset = request.offset;
        let end = self.check_range(request)?;
        while offset < end {
            let part = piece.split_at_mut((end - offset).min(piece.len() as u64) as usize).0;
            offset += self.fill(offset, part)?;
        }
        Ok(())
    }

    /// Answers with the allocation state of the range's extents.
    fn block_status(&self, request: &Request) -> Result<(), Errno> {
        let end = self.check_range(request)?;
        if !self.agreement.block_status || request.length == 0 {
            return Err(Errno::Invalid);
        }
        let most = if request.has(flag::REQ_ONE) { 1 } else { MAX_EXTENTS };
        let mut extents = Vec::new();
        let mut offset = request.offset;
        while offset < end && extents.len() < most {
            let (allocation, length) = self.device().allocation(offset, end - offset);
            let state = if allocation == Allocation::Hole { STATE_HOLE | STATE_ZERO } else { 0 };
            // At most the request's, which is 32 bits.
            extents.push(StatusDescriptor { length: (length as u32).into(), state: state.into() });
            offset += length.max(1);
        }
        let chunk = Chunk::BlockStatus(BASE_ALLOCATION_ID, extents.len() as u32);
        self.sender.send(&[&chunk.encode(request.cookie, true), extents.as_bytes()]);
        Ok(())
    }

    fn answer_error(&self, request: &Request, errno: Errno) {
        match request.command {
            Some(Command::Read | Command::BlockStatus) if self.agreement.structured => {
                self.sender.send(&[&Chunk::Error(errno).encode(request.cookie, true)]);
            }
            _ => self.sender.send(&[SimpleReply::new(request.cookie, Err(errno)).as_bytes()]),
        }
    }

    pub(crate) fn device(&self) -> &D {
        &self.agreement.device
    }

    /// Fills `out` from the device; returns the number of bytes.
    pub(crate) fn fill(&self, offset: u64, out: &mut [u8]) -> Result<u64, Errno> {
        let length = out.len() as u64;
        self.note("read", offset, length, self.device().read_at(offset, &[VolatileSlice::from(out)]))?;
        Ok(length)
    }

    /// The end of the request's range, which must lie in the export.
    pub(crate) fn check_range(&self, request: &Request) -> Result<u64, Errno> {
        request.end().filter(|end| *end <= self.agreement.size).ok_or(Errno::Invalid)
    }

    /// Fails a request whose data would exceed the limit that was announced.
    pub(crate) fn check_payload(&self, request: &Request) -> Result<(), Errno> {
        if request.length > MAX_PAYLOAD { Err(Errno::Invalid) } else { Ok(()) }
    }

    /// Fails a change of a read-only export and, with the error `beyond`, one past the export's end.
    fn check_change(&self, request: &Request, beyond: Errno) -> Result<(), Errno> {
        if self.device().read_only() {
            return Err(Errno::Perm);
        }
        if !request.flags_known {
            return Err(Errno::Invalid);
        }
        self.check_range(request).map(drop).map_err(|_| beyond)
    }

    fn note(
        &self,
        operation: &'static str,
        offset: u64,
        length: u64,
        result: std::io::Result<()>,
    ) -> Result<(), Errno> {
        result.map_err(|error| {
            let errno = Errno::from(&error);
            (self.events)(Event::RequestFailed { operation, offset, length, error });
            errno
        })
    }
}

/// A request from the wire, and its result so far.
struct Taken {
    request: Request,
    so_far: Result<(), Errno>,
}

/// Runs `work` and turns a panic of the device into an error. The client may have got half an answer, so the connection
/// must end.
fn contain<T>(work: impl FnOnce() -> T) -> Result<T, ConnectionError> {
    // We leave nothing half-changed, and the device is usable from several threads after a panic.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| ConnectionError::Panicked)
}
