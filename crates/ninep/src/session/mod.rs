//! [`Session`]: executes one client's requests, several at once, and replies in any order.
//!
//! A connection has a few threads. One of them has the receiver: it takes a request from the wire, passes the receiver
//! on and executes the request. Waking the next thread costs more than most requests. So a thread keeps the receiver
//! while it executes requests that are quick by nature, as long as recent ones were indeed quick, and sends their
//! replies a few at a time.

mod access;
mod attributes;
mod directories;
mod fids;
mod files;
mod lock_table;
mod locking;
mod locks;
mod names;
mod outbox;
mod place;
mod tags;
mod usage;
mod walk;
mod xattrs;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use inarch_server::{ConnectionError, Receiver, Seat, Sender};
use inarch_vfs::{Context, FileSystem};
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use crate::server::NinepOptions;
use crate::wire::{DecodeError, Header, IO_HEADER, Reply, ReplyBuffer, Request, VERSION, VERSION_UNKNOWN, kind, open};
use fids::Fids;
use locks::{Owners, WaitingLocks};
use outbox::Outbox;
pub use place::{Export, Shared};
use tags::{Cancelled, Flushed, Tags};
use usage::{Use, XattrMemory};

/// The most bytes of a message before the client has sent its version.
const FIRST_MESSAGE: u32 = 8192;
/// How long a quick request may take.
const QUICK: Duration = Duration::from_micros(300);
/// How many requests are passed on after one that was not quick.
const WARY: u32 = 64;

/// One client's connection.
pub struct Session<'s> {
    export: Arc<Export>,
    options: &'s NinepOptions,
    sender: &'s Sender<'s>,
    /// `None` once no more requests are taken.
    receiver: Mutex<Option<Receiver<'s>>>,
    /// Whether the server is ending.
    stopped: &'s (dyn Fn() -> bool + Sync),
    seat: &'s Seat<'s>,
    /// The number of the server's requests.
    requests: &'s AtomicU64,
    /// The number of threads, and how many of them execute nothing.
    threads: AtomicUsize,
    idle: AtomicUsize,
    /// How many more requests are not to be treated as quick.
    wary: AtomicU32,
    /// The agreed message size; 0 before the agreement.
    msize: AtomicU32,
    tags: Tags,
    /// Locked from when a tag becomes free until its request's reply is sent, so that the reply to a flush comes after
    /// it.
    answering: Mutex<()>,
    fids: Fids,
    xattr_memory: Arc<XattrMemory>,
    owners: Owners,
    waiting: WaitingLocks,
}

/// Buffers of one thread; they grow with use.
#[derive(Default)]
struct Worker {
    header: Option<Header>,
    body: Vec<u8>,
    reply: ReplyBuffer,
    outbox: Outbox,
}

/// What all requests in execution have in common.
struct Call<'c> {
    tag: u16,
    cancelled: &'c Cancelled,
}

/// The result of a request.
#[expect(clippy::large_enum_variant, reason = "it lives for one request, on the stack")]
enum Answer {
    /// This reply.
    Of(Reply<'static>),
    /// The buffer has the reply already.
    Made,
    /// The reply comes later, when the wait ends.
    Later,
    /// It was flushed, and ends without a reply.
    Nothing,
}

impl<'s> Session<'s> {
    /// A session without threads yet.
    pub fn new(
        export: Arc<Export>,
        options: &'s NinepOptions,
        receiver: Receiver<'s>,
        sender: &'s Sender<'s>,
        stopped: &'s (dyn Fn() -> bool + Sync),
        (seat, requests): (&'s Seat<'s>, &'s AtomicU64),
    ) -> Session<'s> {
        Session {
            export,
            options,
            sender,
            receiver: Mutex::new(Some(receiver)),
            stopped,
            seat,
            requests,
            threads: AtomicUsize::new(1),
            idle: AtomicUsize::new(0),
            wary: AtomicU32::new(0),
            msize: AtomicU32::new(0),
            tags: Tags::default(),
            answering: Mutex::new(()),
            fids: Fids::new(options.fids),
            xattr_memory: XattrMemory::new(options.xattr_bytes),
            owners: Owners::new(),
            waiting: WaitingLocks::default(),
        }
    }

    /// Serves until the client disconnects; then releases everything the client had.
    pub fn run(&self) {
        thread::scope(|scope| self.work(scope));
        self.fids.clear();
    }

    fn file_system(&self) -> &dyn FileSystem {
        self.export.file_system()
    }

    /// The loop of one thread.
    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut worker = Worker::default();
        loop {
            self.idle.fetch_add(1, Ordering::Relaxed);
            let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
            self.idle.fetch_sub(1, Ordering::Relaxed);
            let taken = self.take_requests(scope, &mut receiver, &mut worker);
            worker.outbox.send(self.sender);
            let cancelled = match taken {
                Ok(Some(cancelled)) => cancelled,
                ended => {
                    *receiver = None;
                    drop(receiver);
                    self.end(ended.err());
                    return;
                }
            };
            drop(receiver);
            self.grow(scope);
            if let Err(error) = self.execute(scope, &mut worker, &cancelled, false) {
                self.sender.fail(error);
                return;
            }
        }
    }

    /// Takes requests from the wire and executes the quick ones, until it takes one that others should not wait for.
    /// `None` if the client has ended.
    fn take_requests<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        receiver: &mut MutexGuard<'_, Option<Receiver<'s>>>,
        worker: &mut Worker,
    ) -> Result<Option<Cancelled>, ConnectionError> {
        loop {
            let Some(receiver) = receiver.as_mut() else { return Ok(None) };
            if !has_whole_request(receiver.ahead()) {
                worker.outbox.send(self.sender);
            }
            let Some(cancelled) = self.next(receiver, worker)? else { return Ok(None) };
            let number = worker.header.map_or(0, |header| header.kind);
            // Every earlier request must have ended, and no later one have begun.
            if number == kind::VERSION {
                worker.outbox.send(self.sender);
                self.execute(scope, worker, &cancelled, false)?;
                receiver.end_negotiation()?;
                continue;
            }
            let wary = self.wary.load(Ordering::Relaxed);
            if wary > 0 {
                self.wary.store(wary - 1, Ordering::Relaxed);
            }
            let takes_long = wary > 0 || !is_quick(number) || self.may_copy(number, &worker.body);
            if takes_long || (!receiver.ahead().is_empty() && is_long(number, &worker.body)) {
                return Ok(Some(cancelled));
            }
            let begun = Instant::now();
            self.execute(scope, worker, &cancelled, true)?;
            if begun.elapsed() > QUICK {
                self.wary.store(WARY, Ordering::Relaxed);
            }
        }
    }

    /// Whether a request may copy a file to an upper layer.
    fn may_copy(&self, number: u8, body: &[u8]) -> bool {
        let sets_value = |fid| {
            let fid = self.fids.get(fid);
            fid.is_ok_and(|fid| matches!(fid.usage.as_deref(), Some(Use::NewValue(_))))
        };
        self.options.copies_up
            && match (number, body.as_chunks::<4>().0) {
                (kind::LOPEN, [_, flags, ..]) => u32::from_le_bytes(*flags) & (open::ACCESS | open::TRUNCATE) != 0,
                (kind::CLUNK, [fid, ..]) => sets_value(u32::from_le_bytes(*fid)),
                (number, _) => matches!(number, kind::LCREATE | kind::LINK | kind::RENAMEAT | kind::SETATTR),
            }
    }

    /// Takes the next request from the wire. `None` if the client has ended.
    fn next(&self, receiver: &mut Receiver<'s>, worker: &mut Worker) -> Result<Option<Cancelled>, ConnectionError> {
        let mut header = Header::new_zeroed();
        if self.sender.has_ended() || !receiver.begin(header.as_mut_bytes())? {
            return Ok(None);
        }
        let most = match self.msize.load(Ordering::Relaxed) {
            0 => FIRST_MESSAGE,
            msize => msize,
        };
        let size = header.size.get();
        if size > most {
            return Err(ConnectionError::Protocol("a message is longer than was agreed on"));
        }
        let length = (size as usize)
            .checked_sub(Header::SIZE)
            .ok_or(ConnectionError::Protocol("a message is shorter than its own header"))?;
        worker.body.resize(length, 0);
        receiver.receive(&mut worker.body)?;
        worker.header = Some(header);
        self.requests.fetch_add(1, Ordering::Relaxed);
        let cancelled = self.tags.begin(header.tag.get());
        cancelled.map(Some).ok_or(ConnectionError::Protocol("a request has the tag of one that is not yet answered"))
    }

    /// Makes sure that a thread receives while this one executes.
    fn grow<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let most = self.options.threads;
        if self.idle.load(Ordering::Relaxed) > 0 || self.threads.load(Ordering::Relaxed) >= most {
            return;
        }
        if self.threads.fetch_add(1, Ordering::Relaxed) >= most
            || thread::Builder::new().spawn_scoped(scope, || self.work(scope)).is_err()
        {
            // The existing threads receive.
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes no more requests; those in execution may be cancelled.
    fn end(&self, error: Option<ConnectionError>) {
        if let Some(error) = error {
            self.sender.fail(error);
        }
        self.tags.cancel_all();
        for waiting in self.waiting.end() {
            self.tags.end(waiting.tag);
        }
        self.export.changes().changed();
        self.file_system().interrupted();
    }

    /// Executes a request and sends its reply, or puts the reply into the worker's outbox if it is to be sent
    /// `together` with others.
    fn execute<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        worker: &mut Worker,
        cancelled: &Cancelled,
        together: bool,
    ) -> Result<(), ConnectionError> {
        let Some(header) = worker.header else { return Ok(()) };
        let call = Call { tag: header.tag.get(), cancelled };
        // A panic leaves nothing of ours half-changed, and the file system is usable from several threads after one.
        // But the client waits for a reply that never comes, so the connection must end.
        let handled = catch_unwind(AssertUnwindSafe(|| {
            self.handle(scope, &call, header.kind, &mut worker.body, &mut worker.reply)
        }));
        let message = match handled.map_err(|_| ConnectionError::Panicked)? {
            Ok(Answer::Later) => return Ok(()),
            Ok(Answer::Nothing) => None,
            Ok(Answer::Made) => Some(worker.reply.message()),
            Ok(Answer::Of(reply)) => {
                worker.reply.set(call.tag, &reply);
                Some(worker.reply.message())
            }
            Err(errno) => {
                worker.reply.set(call.tag, &error_reply(errno));
                Some(worker.reply.message())
            }
        };
        match together {
            true => self.end_request(call.tag, message, |message| worker.outbox.add(self.sender, message)),
            false => self.answer(call.tag, message),
        }
        Ok(())
    }

    /// Ends a request: sends its reply, if there is one, and then those of the flushes that wait for it.
    fn answer(&self, tag: u16, message: Option<&[u8]>) {
        self.end_request(tag, message, |message| self.sender.send(&[message]));
    }

    /// Ends a request like [`Session::answer`], but sends by `send`. A thread that collects replies sends them before
    /// any thread takes another request from the wire, so that the reply to a later flush comes later.
    fn end_request(&self, tag: u16, message: Option<&[u8]>, mut send: impl FnMut(&[u8])) {
        let _answering = self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        let flushes = self.tags.end(tag);
        if let Some(message) = message {
            send(message);
        }
        let mut reply = ReplyBuffer::default();
        for flush in flushes {
            reply.set(flush, &Reply::Flush);
            send(reply.message());
        }
    }

    /// Ends a request that was parked.
    fn answer_later(&self, tag: u16, outcome: Result<Reply<'static>, Errno>) {
        let mut reply = ReplyBuffer::default();
        reply.set(tag, &outcome.unwrap_or_else(error_reply));
        self.answer(tag, Some(reply.message()));
    }

    fn handle<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        call: &Call<'_>,
        number: u8,
        body: &mut [u8],
        out: &mut ReplyBuffer,
    ) -> Result<Answer, Errno> {
        let request = Request::decode(number, body).map_err(|error| match error {
            DecodeError::UnknownKind(_) => Errno::OPNOTSUPP,
            DecodeError::Malformed(_) | DecodeError::TooManyNames => Errno::INVAL,
        })?;
        match request {
            Request::Version { msize, version } => return Ok(self.version(call, msize, version, out)),
            Request::Flush { old_tag } => return Ok(self.flush(call, old_tag)),
            _ if self.msize.load(Ordering::Relaxed) == 0 => return Err(Errno::PROTO),
            // Its data is at the end of the body.
            Request::Write { fid, offset, data } => {
                let start = body.len() - data.len();
                return self.write(call, fid, offset, body.get_mut(start..).unwrap_or_default()).map(Answer::Of);
            }
            Request::Read { fid, offset, count } => return self.read(call, fid, offset, count, out),
            Request::Readdir { fid, offset, count } => return self.readdir(call, fid, offset, count, out),
            Request::Readlink { fid } => return self.readlink(call, fid, out),
            Request::Lock { fid, range, flags } => return self.lock(scope, call, fid, &range, flags),
            Request::Getlock { fid, range } => return self.getlock(call, fid, &range, out),
            _ => {}
        }
        self.handle_plain(call, &request).map(Answer::Of)
    }

    /// Requests whose replies contain only numbers.
    fn handle_plain(&self, call: &Call<'_>, request: &Request<'_>) -> Result<Reply<'static>, Errno> {
        match *request {
            // No authentication is needed.
            Request::Auth { .. } => Err(Errno::NOENT),
            Request::Attach { fid, afid: _, uname: _, aname, uid } => self.attach(call, fid, aname, uid),
            Request::Walk { fid, new_fid, names } => self.walk(call, fid, new_fid, names.as_slice()),
            Request::Clunk { fid } => self.clunk(call, fid),
            Request::Remove { fid } => self.remove(call, fid),
            Request::Statfs { fid } => self.statfs(call, fid),
            Request::Lopen { fid, flags } => self.lopen(call, fid, flags),
            Request::Lcreate { fid, name, flags, mode, gid } => self.lcreate(call, fid, name, flags, (mode, gid)),
            Request::Symlink { directory, name, target, gid } => self.symlink(call, directory, name, target, gid),
            Request::Mknod { directory, name, mode, major, minor, gid } => {
                self.mknod(call, directory, name, mode, (major, minor), gid)
            }
            Request::Rename { fid, directory, name } => self.rename(call, fid, directory, name),
            Request::Getattr { fid, mask } => self.getattr(call, fid, mask),
            Request::Setattr { fid, set } => self.setattr(call, fid, &set),
            Request::Xattrwalk { fid, new_fid, name } => self.xattrwalk(call, fid, new_fid, name),
            Request::Xattrcreate { fid, name, size, flags } => self.xattrcreate(fid, name, size, flags),
            Request::Fsync { fid, data_only } => self.fsync(call, fid, data_only),
            Request::Link { directory, fid, name } => self.link(call, directory, fid, name),
            Request::Mkdir { directory, name, mode, gid } => self.mkdir(call, directory, name, mode, gid),
            Request::Renameat { old_directory, old_name, new_directory, new_name } => {
                self.renameat(call, (old_directory, old_name), (new_directory, new_name))
            }
            Request::Unlinkat { directory, name, flags } => self.unlinkat(call, directory, name, flags),
            // Handled by `handle`.
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// `Tversion`: ends everything before, and starts anew.
    fn version(&self, call: &Call<'_>, msize: u32, version: &[u8], out: &mut ReplyBuffer) -> Answer {
        self.tags.cancel_all();
        for waiting in self.waiting.take_all() {
            self.answer(waiting.tag, None);
        }
        self.file_system().interrupted();
        self.tags.wait_for_others();
        self.fids.clear();
        let msize = msize.min(self.options.msize);
        // There are no newer dialects to fall back from; a suffix is part of the name (version(5)).
        if version != VERSION || msize < NinepOptions::MIN_MSIZE {
            self.msize.store(0, Ordering::Relaxed);
            out.set(call.tag, &Reply::Version { msize, version: VERSION_UNKNOWN });
            return Answer::Made;
        }
        if self.msize.swap(msize, Ordering::Relaxed) == 0 {
            self.seat.served();
        }
        out.set(call.tag, &Reply::Version { msize, version: VERSION });
        Answer::Made
    }

    /// `Tflush`: the reply comes after that of the other request, if it is in flight.
    fn flush(&self, call: &Call<'_>, old_tag: u16) -> Answer {
        match self.tags.flush(call.tag, old_tag) {
            Flushed::Nothing => Answer::Of(Reply::Flush),
            Flushed::Live => {
                if self.waiting.take(old_tag).is_some() {
                    self.answer(old_tag, None);
                }
                self.file_system().interrupted();
                Answer::Later
            }
        }
    }

    /// The most bytes of data in a reply: Linux's client before 6.0 refuses data as long as a message may be.
    fn most_data(&self) -> u32 {
        self.msize.load(Ordering::Relaxed).saturating_sub(IO_HEADER)
    }
}

impl Call<'_> {
    /// Calls the file system as `uid`; new files belong to `gid`.
    fn context<T>(&self, uid: u32, gid: u32, call: impl FnOnce(&Context<'_>) -> T) -> T {
        let interrupted = || self.cancelled.load(Ordering::Acquire);
        call(&Context { uid, gid, interrupted: &interrupted, ..Context::SERVER })
    }
}

/// Whether a request usually takes less time than waking a thread.
fn is_quick(number: u8) -> bool {
    matches!(
        number,
        kind::ATTACH
            | kind::CLUNK
            | kind::FLUSH
            | kind::GETATTR
            | kind::GETLOCK
            | kind::LOCK
            | kind::LOPEN
            | kind::READ
            | kind::READDIR
            | kind::READLINK
            | kind::STATFS
            | kind::WALK
            | kind::WRITE
            | kind::XATTRWALK
            | kind::LCREATE
            | kind::MKDIR
            | kind::UNLINKAT
            | kind::RENAMEAT
            | kind::SETATTR
            | kind::SYMLINK
            | kind::LINK
            | kind::XATTRCREATE
    )
}

/// Whether a request moves so many bytes that another thread should execute it, in parallel with the others.
fn is_long(number: u8, body: &[u8]) -> bool {
    /// Copying this much takes a few times as long as waking a thread.
    const LONG: usize = 128 << 10;
    let bytes = match (number, body) {
        (kind::WRITE, _) => body.len(),
        // A fid, an offset and the number of bytes.
        (kind::READ, [_, _, _, _, _, _, _, _, _, _, _, _, count @ ..]) => {
            count.first_chunk().map_or(0, |count| u32::from_le_bytes(*count) as usize)
        }
        _ => 0,
    };
    bytes >= LONG
}

/// Whether a request was received completely.
fn has_whole_request(ahead: &[u8]) -> bool {
    ahead.first_chunk().is_some_and(|size| u32::from_le_bytes(*size) as usize <= ahead.len())
}

fn error_reply(errno: Errno) -> Reply<'static> {
    // Error numbers are positive.
    Reply::Lerror { errno: errno.raw_os_error().unsigned_abs() }
}
