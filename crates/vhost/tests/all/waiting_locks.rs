//! A request that waits for a lock holds up no other request of its queue, and is answered when the lock is free.

use std::fs::File;
use std::time::Duration;

use inarch_fuse::ConnectionOptions;
use inarch_vhost::fs::FsOptions;
use rustix::fs::{FlockOperation, flock};
use vhost::VhostBackend;

use crate::common::*;
use crate::fs::{OPEN, QUEUE, Rig, options, rig_with, words};

/// Opcodes and numbers of Linux's include/uapi/linux/fuse.h and asm-generic/fcntl.h.
const SETLK: u32 = 32;
const SETLKW: u32 = 33;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;
const LK_FLOCK: u32 = 1;

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOLCK: i32 = 37;

/// Where the requests of this test that wait lie: each has a page for itself and one for its answer.
const WAITING: u64 = BUFFERS + 0x4_0000;

fn locking() -> Rig {
    let connection = ConnectionOptions { locks: true, flush: true, ..ConnectionOptions::default() };
    rig_with(FsOptions { connection, ..options(None) })
}

/// The body of a request for a lock of the whole file.
fn lock(handle: u64, owner: u64, kind: u32) -> Vec<u8> {
    let numbers = [handle, owner, 0, u64::MAX >> 1].map(u64::to_ne_bytes).concat();
    [numbers, words(&[kind, 1, LK_FLOCK, 0])].concat()
}

impl Rig {
    fn open(&mut self, node: u64) -> u64 {
        let (errno, body) = self.call(OPEN, node, &words(&[2, 0]));
        assert_eq!(errno, 0);
        Rig::number(&body)
    }

    /// Sends a request number `number` that may wait; its chain begins at a descriptor of its own.
    fn send(&mut self, number: u16, node: u64, body: &[u8]) {
        let at = WAITING + 0x2000 * u64::from(number);
        let header = [
            words(&[40 + body.len() as u32, SETLKW]),
            u64::from(1000 + number).to_ne_bytes().to_vec(),
            node.to_ne_bytes().to_vec(),
            words(&[0; 4]),
        ];
        let message = [header.concat(), body.to_vec()].concat();
        self.front_end.put(at, &message);
        let queue = &mut self.front_end.queues[QUEUE];
        let head = 8 + 2 * number;
        queue.put_chain(queue.table(), head, &[readable(at, message.len() as u32), writable(at + 0x1000, 16)]);
        queue.offer(head);
        queue.kick();
    }

    /// The next answer of those: its number and its error.
    fn receive(&mut self) -> (u16, i32) {
        let (head, length) = self.front_end.queues[QUEUE].take_used();
        let number = (head as u16 - 8) / 2;
        assert_eq!(length, 16);
        let out = self.front_end.get(WAITING + 0x2000 * u64::from(number) + 0x1000, 16);
        assert_eq!(out[8..16], u64::from(1000 + number).to_ne_bytes());
        (number, -i32::from_ne_bytes(out[4..8].try_into().unwrap()))
    }

    fn nothing_comes(&mut self) {
        assert_eq!(self.front_end.queues[QUEUE].try_take_used(Duration::from_millis(150)), None);
    }
}

#[test]
fn one_that_waits_holds_up_nothing() {
    let mut rig = locking();
    let host = File::options().read(true).write(true).open(rig.directory.path().join("file")).unwrap();
    flock(&host, FlockOperation::LockExclusive).unwrap();
    let node = rig.lookup();
    let handles = [0, 1].map(|_| rig.open(node));
    assert_eq!(rig.call(SETLK, node, &lock(handles[0], 1, F_WRLCK)).0, EAGAIN);
    rig.send(0, node, &lock(handles[0], 1, F_WRLCK));
    rig.send(1, node, &lock(handles[1], 2, F_WRLCK));
    rig.nothing_comes();
    rig.check_works();
    // One of them has it when the host's is free; the other when that is released, by another request of the queue.
    flock(&host, FlockOperation::Unlock).unwrap();
    let (first, errno) = rig.receive();
    assert_eq!(errno, 0);
    rig.nothing_comes();
    assert!(flock(&host, FlockOperation::NonBlockingLockExclusive).is_err());
    let (handle, owner) = (handles[usize::from(first)], u64::from(first) + 1);
    assert_eq!(rig.call(SETLK, node, &lock(handle, owner, F_UNLCK)).0, 0);
    assert_eq!(rig.receive(), (1 - first, 0));
    rig.check_works();
    // The end of the connection ends its locks.
    let Rig { directory: _directory, front_end } = rig;
    drop(front_end);
    assert!(within_patience(|| flock(&host, FlockOperation::NonBlockingLockExclusive).is_ok()));
}

/// A guest can offer a head again whose request has no answer yet.
#[test]
fn a_head_that_is_offered_twice_is_answered_twice() {
    let mut rig = locking();
    let host = File::options().read(true).write(true).open(rig.directory.path().join("file")).unwrap();
    flock(&host, FlockOperation::LockExclusive).unwrap();
    let node = rig.lookup();
    let handle = rig.open(node);
    rig.send(0, node, &lock(handle, 1, F_WRLCK));
    rig.nothing_comes();
    let queue = &mut rig.front_end.queues[QUEUE];
    queue.offer(8);
    queue.kick();
    rig.nothing_comes();
    flock(&host, FlockOperation::Unlock).unwrap();
    assert_eq!([rig.receive(), rig.receive()], [(0, 0), (0, 0)]);
    rig.check_works();
}

#[test]
fn an_eighth_of_a_queue_may_wait() {
    let mut rig = locking();
    let host = File::options().read(true).write(true).open(rig.directory.path().join("file")).unwrap();
    flock(&host, FlockOperation::LockExclusive).unwrap();
    let node = rig.lookup();
    let handle = rig.open(node);
    for number in 0..8 {
        rig.send(number, node, &lock(handle, 1, F_WRLCK));
    }
    rig.nothing_comes();
    rig.send(8, node, &lock(handle, 1, F_WRLCK));
    assert_eq!(rig.receive(), (8, ENOLCK));
    rig.check_works();
    // What the driver changes of a waiting request afterwards does not matter.
    rig.front_end.put(WAITING, &[0xff; 0x100]);
    // A queue that is stopped has answered all.
    rig.front_end.control.get_vring_base(QUEUE).unwrap();
    let mut answered: Vec<_> = (0..8).map(|_| rig.receive()).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..8).map(|number| (number, EINTR)).collect::<Vec<_>>());
}

fn within_patience(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while std::time::Instant::now() < deadline {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}
