//! Requests of one connection that several threads execute at once: whatever comes between, each answer is one that a quiet
//! file system could have given, and what was given back is gone.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use inarch_fuse::wire::opcode;
use inarch_fuse::wire::structs::{
    AttrOut, EntryOut, FileLock, ForgetIn, GetAttrIn, InitIn, InterruptIn, LkIn, OpenIn, OpenOut, ReadIn, ReleaseIn,
};
use inarch_fuse::{ConnectionOptions, Dispatcher, Scratch};
use inarch_vfs::{HostDirectory, HostOptions};
use support::{Answer, ROOT, exchange, numbered, strings};
use zerocopy::{FromBytes, IntoBytes};

const ENOENT: i32 = 2;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ESTALE: i32 = 116;

const ROUNDS: u32 = 1000;
const THREADS: usize = 4;

/// A connection, and the directory behind it.
struct Connection {
    directory: tempfile::TempDir,
    dispatcher: Dispatcher<HostDirectory>,
    requests: AtomicU64,
}

/// One thread's side of it.
struct Caller<'c> {
    connection: &'c Connection,
    thread: usize,
    scratch: Scratch,
}

/// Sets what other threads go on until, even if this thread panics: or they, and the test, would never end.
struct AtEnd<'d>(&'d AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Connection {
    fn new() -> Connection {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), "content").unwrap();
        let options = HostOptions { locks: true, descriptors: Some(64), ..HostOptions::default() };
        let file_system = Arc::new(HostDirectory::new(directory.path(), options).unwrap());
        let options = ConnectionOptions { locks: true, flush: true, ..ConnectionOptions::default() };
        let dispatcher = Dispatcher::new(file_system, options, THREADS);
        let connection = Connection { directory, dispatcher, requests: AtomicU64::new(1) };
        let init = InitIn { major: 7, minor: 45, flags: u32::MAX, flags2: u32::MAX, ..InitIn::default() };
        assert_eq!(connection.caller(0).call(opcode::INIT, 0, init.as_bytes()).errno, 0);
        connection
    }

    fn caller(&self, thread: usize) -> Caller<'_> {
        Caller { connection: self, thread, scratch: Scratch::default() }
    }

    fn number(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs `change` for so many rounds, and `look` in the other threads meanwhile.
    fn race(&self, change: impl Fn(&mut Caller<'_>, u32) + Sync, look: impl Fn(&mut Caller<'_>) + Sync) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let _done = AtEnd(&done);
            for thread in 1..THREADS {
                let (look, done) = (&look, &done);
                scope.spawn(move || {
                    let _done = AtEnd(done);
                    let mut caller = self.caller(thread);
                    while !done.load(Ordering::Relaxed) {
                        look(&mut caller);
                    }
                });
            }
            let mut caller = self.caller(0);
            for round in 0..ROUNDS {
                change(&mut caller, round);
            }
        });
    }
}

impl Caller<'_> {
    fn send(&mut self, unique: u64, opcode: u32, node: u64, body: &[u8]) -> Option<Answer> {
        let message = numbered(unique, opcode, node, body);
        exchange(&self.connection.dispatcher, self.thread, &mut self.scratch, &message, (usize::MAX, 4096))
    }

    fn call(&mut self, opcode: u32, node: u64, body: &[u8]) -> Answer {
        self.send(self.connection.number(), opcode, node, body).expect("an answer")
    }

    fn entry(&mut self, parent: u64, name: &str) -> Result<EntryOut, i32> {
        let answer = self.call(opcode::LOOKUP, parent, &strings(&[name.as_bytes()]));
        if answer.errno != 0 {
            return Err(answer.errno);
        }
        let entry = EntryOut::read_from_bytes(&answer.body).unwrap();
        if entry.nodeid == 0 { Err(ENOENT) } else { Ok(entry) }
    }

    fn lookup(&mut self, parent: u64, name: &str) -> Result<u64, i32> {
        self.entry(parent, name).map(|entry| entry.nodeid)
    }

    fn forget(&mut self, node: u64) {
        let forget = ForgetIn { nlookup: 1 };
        assert_eq!(self.send(self.connection.number(), opcode::FORGET, node, forget.as_bytes()), None);
    }

    fn size(&mut self, node: u64) -> Result<u64, i32> {
        let answer = self.call(opcode::GETATTR, node, GetAttrIn::default().as_bytes());
        if answer.errno == 0 {
            Ok(AttrOut::read_from_bytes(&answer.body).unwrap().attr.size)
        } else {
            Err(answer.errno)
        }
    }

    fn open(&mut self, node: u64) -> Result<u64, i32> {
        let answer = self.call(opcode::OPEN, node, OpenIn { flags: libc::O_RDWR as u32, open_flags: 0 }.as_bytes());
        if answer.errno == 0 { Ok(OpenOut::read_from_bytes(&answer.body).unwrap().fh) } else { Err(answer.errno) }
    }

    fn read(&mut self, node: u64, fh: u64) -> Vec<u8> {
        let answer = self.call(opcode::READ, node, ReadIn { fh, size: 100, ..ReadIn::default() }.as_bytes());
        assert_eq!(answer.errno, 0);
        answer.body
    }

    fn release(&mut self, node: u64, fh: u64) {
        let release = ReleaseIn { fh, ..ReleaseIn::default() };
        assert_eq!(self.call(opcode::RELEASE, node, release.as_bytes()).errno, 0);
    }

    /// Removes a name, as Linux does: what is another file by now is looked at again.
    fn unlink(&mut self, name: &str) {
        for _ in 0..ROUNDS {
            if self.call(opcode::UNLINK, ROOT, &strings(&[name.as_bytes()])).errno == 0 {
                return;
            }
            let node = self.lookup(ROOT, name).unwrap();
            self.forget(node);
        }
        panic!("{name} cannot be removed");
    }

    fn lock(&mut self, unique: u64, opcode: u32, (node, fh, owner): (u64, u64, u64), kind: i32) -> i32 {
        let lk = FileLock { start: 0, end: i64::MAX as u64, kind: kind as u32, pid: 1 };
        let lock = LkIn { fh, owner, lk, ..LkIn::default() };
        self.send(unique, opcode, node, lock.as_bytes()).expect("an answer").errno
    }
}

#[test]
fn a_node_that_all_have_forgotten_is_gone() {
    let connection = Connection::new();
    let last = AtomicU64::new(0);
    let use_it = |caller: &mut Caller<'_>| {
        let node = caller.lookup(ROOT, "a").unwrap();
        let fh = caller.open(node).unwrap();
        assert_eq!(caller.read(node, fh), b"content");
        caller.release(node, fh);
        last.store(node, Ordering::Relaxed);
        caller.forget(node);
    };
    connection.race(|caller, _| use_it(caller), use_it);
    let mut caller = connection.caller(0);
    assert_eq!(caller.size(last.load(Ordering::Relaxed)), Err(ESTALE));
    assert_eq!(caller.open(last.load(Ordering::Relaxed)), Err(ESTALE));
}

#[test]
fn what_is_opened_is_what_was_looked_up() {
    let connection = Connection::new();
    let (path, new) = (connection.directory.path().join("a"), connection.directory.path().join("new"));
    // Each file says what its inode number is, and is there before the other one goes.
    let write = || {
        fs::write(&new, "").unwrap();
        fs::write(&new, fs::metadata(&new).unwrap().ino().to_string()).unwrap();
        fs::rename(&new, &path).unwrap();
    };
    write();
    connection.race(
        |caller, round| {
            // Every other time it is gone for a while.
            if round % 2 == 0 {
                caller.unlink("a");
            }
            write();
        },
        |caller| {
            let Ok(entry) = caller.entry(ROOT, "a").inspect_err(|errno| assert_eq!(*errno, ENOENT)) else { return };
            match caller.open(entry.nodeid) {
                Ok(fh) => {
                    assert_eq!(caller.read(entry.nodeid, fh), entry.attr.ino.to_string().into_bytes());
                    caller.release(entry.nodeid, fh);
                }
                Err(errno) => assert_eq!(errno, ESTALE),
            }
            caller.forget(entry.nodeid);
        },
    );
}

#[test]
fn who_waits_for_a_lock_gets_it_or_is_interrupted() {
    let connection = Connection::new();
    let mut caller = connection.caller(0);
    let node = caller.lookup(ROOT, "a").unwrap();
    let fh = caller.open(node).unwrap();
    let [holder, waiter] = [1, 2].map(|owner| (node, fh, owner));
    for round in 0..100 {
        assert_eq!(caller.lock(connection.number(), opcode::SETLK, holder, libc::F_WRLCK), 0);
        let (waiting, answered) = (connection.number(), AtomicBool::new(false));
        let errno = thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let _answered = AtEnd(&answered);
                connection.caller(1).lock(waiting, opcode::SETLKW, waiter, libc::F_WRLCK)
            });
            scope.spawn(|| {
                let interrupt = InterruptIn { unique: waiting };
                while !answered.load(Ordering::Relaxed) {
                    let sent =
                        connection.caller(2).send(connection.number(), opcode::INTERRUPT, 0, interrupt.as_bytes());
                    assert_eq!(sent, None);
                }
            });
            // Every other time it could have it.
            if round % 2 == 0 {
                assert_eq!(caller.lock(connection.number(), opcode::SETLK, holder, libc::F_UNLCK), 0);
            }
            waits.join().unwrap()
        });
        assert!(errno == EINTR || errno == 0 && round % 2 == 0, "{errno} in round {round}");
        if errno == 0 {
            assert_eq!(caller.lock(connection.number(), opcode::SETLK, holder, libc::F_WRLCK), EAGAIN);
            assert_eq!(caller.lock(connection.number(), opcode::SETLK, waiter, libc::F_UNLCK), 0);
        }
        // The one that did not get it left nothing behind.
        assert_eq!(caller.lock(connection.number(), opcode::SETLK, holder, libc::F_WRLCK), 0);
        assert_eq!(caller.lock(connection.number(), opcode::SETLK, holder, libc::F_UNLCK), 0);
    }
}
