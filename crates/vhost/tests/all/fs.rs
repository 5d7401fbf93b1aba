//! The file system device through its rings: valid messages, and invalid chains.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use crate::common::*;
use inarch_vfs::{FileSystem, HostDirectory, HostOptions};
use inarch_vhost::fs::{FsOptions, FsServer};
use vhost::VhostBackend;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};

/// Opcodes of Linux's include/uapi/linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
pub const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const INIT: u32 = 26;

pub const REQUEST: u64 = BUFFERS;
pub const BODY: u64 = BUFFERS + 0x1000;
pub const OUT: u64 = BUFFERS + 0x10000;
pub const UNIQUE: u64 = 77;
const UNTOUCHED: u8 = 0xee;

/// The request queue; queue 0 is the high-priority queue.
pub const QUEUE: usize = 1;

pub struct Rig {
    pub directory: tempfile::TempDir,
    pub front_end: FrontEnd,
}

pub fn options(tag: Option<&str>) -> FsOptions {
    FsOptions { queues: 2, tag: tag.map(|tag| tag.parse().unwrap()), ..FsOptions::default() }
}

fn serve_directory(directory: &tempfile::TempDir, options: FsOptions) -> UnixStream {
    let locks = options.connection.locks;
    let (stream, ours) = UnixStream::pair().unwrap();
    let path = directory.path().to_owned();
    let open = move || {
        let opened = HostDirectory::new(&path, HostOptions { locks, ..HostOptions::default() });
        opened.map(|opened| Arc::new(opened) as Arc<dyn FileSystem>).map_err(io::Error::other)
    };
    let server = FsServer::new(open, options);
    thread::spawn(move || server.serve_stream(ours));
    stream
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn rig() -> Rig {
    rig_with(options(None))
}

pub fn rig_with(options: FsOptions) -> Rig {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "content").unwrap();
    let stream = serve_directory(&directory, options);
    let features = VERSION_1 | EVENT_IDX | INDIRECT_DESC | PROTOCOL_FEATURES;
    let front_end = FrontEnd::negotiate_protocol(stream, features, VhostUserProtocolFeatures::empty());
    let mut rig = Rig { directory, front_end: front_end.with_queues(3, 64) };
    let (errno, body) = rig.call(INIT, 0, &words(&[7, 38, 0, u32::MAX, 0]));
    assert_eq!((errno, body.len()), (0, 64));
    rig
}

impl Rig {
    fn put_request(&self, opcode: u32, node: u64, body: &[u8]) -> u32 {
        let length = 40 + body.len() as u32;
        let header = [
            words(&[length, opcode]),
            UNIQUE.to_ne_bytes().to_vec(),
            node.to_ne_bytes().to_vec(),
            words(&[0, 0, 0, 0]),
        ];
        self.front_end.put(REQUEST, &header.concat());
        self.front_end.put(BODY, body);
        body.len() as u32
    }

    /// Runs a chain with this body and this room for the reply; returns the error number and what follows the header.
    pub fn call(&mut self, opcode: u32, node: u64, body: &[u8]) -> (i32, Vec<u8>) {
        let length = self.put_request(opcode, node, body);
        let chain = [readable(REQUEST, 40), readable(BODY, length), writable(OUT, 16), writable(OUT + 16, 0x2000)];
        let used = self.front_end.queues[QUEUE].run_chain(&chain);
        self.answer(used)
    }

    fn answer(&self, used: u32) -> (i32, Vec<u8>) {
        let out = self.front_end.get(OUT, used as usize);
        assert_eq!(out[..4], used.to_ne_bytes(), "the answer's length is what the used ring says");
        assert_eq!(out[8..16], UNIQUE.to_ne_bytes());
        (-i32::from_ne_bytes(out[4..8].try_into().unwrap()), out[16..].to_vec())
    }

    pub fn number(bytes: &[u8]) -> u64 {
        u64::from_ne_bytes(bytes[..8].try_into().unwrap())
    }

    pub fn lookup(&mut self) -> u64 {
        let (errno, body) = self.call(LOOKUP, 1, b"file\0");
        assert_eq!((errno, body.len()), (0, 128));
        Self::number(&body)
    }

    pub fn check_works(&mut self) {
        let node = self.lookup();
        let (errno, body) = self.call(OPEN, node, &words(&[2, 0]));
        assert_eq!(errno, 0);
        let handle = body[..8].to_vec();
        let read = [handle, 0u64.to_ne_bytes().to_vec(), words(&[100, 0, 0, 0, 0, 0])].concat();
        assert_eq!(self.call(READ, node, &read), (0, b"content".to_vec()));
    }
}

#[test]
fn data_crosses_pieces_and_regions_of_memory() {
    let mut rig = rig();
    let node = rig.lookup();
    let (_, body) = rig.call(OPEN, node, &words(&[2, 0]));
    let handle = body[..8].to_vec();
    let data: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let write = [handle.clone(), 3u64.to_ne_bytes().to_vec(), words(&[5000, 0, 0, 0, 0, 0])].concat();
    rig.put_request(WRITE, node, &write);
    rig.front_end.put(REQUEST, &words(&[40 + 40 + 5000]));
    // The data crosses the boundary of two regions.
    let at = REGION - 1001;
    rig.front_end.put(at, &data);
    let chain = [
        readable(REQUEST, 17),
        readable(REQUEST + 17, 23),
        readable(BODY, 40),
        readable(at, 2000),
        readable(at + 2000, 3000),
        writable(OUT, 24),
    ];
    let used = rig.front_end.queues[QUEUE].run_chain(&chain);
    assert_eq!(rig.answer(used), (0, words(&[5000, 0])));
    let file = fs::read(rig.directory.path().join("file")).unwrap();
    assert_eq!(file, [b"con", &data[..]].concat());
    // Back again, into pieces; the first is shorter than a header.
    let read = [handle, 3u64.to_ne_bytes().to_vec(), words(&[5000, 0, 0, 0, 0, 0])].concat();
    rig.put_request(READ, node, &read);
    let chain = [readable(REQUEST, 40), readable(BODY, 40), writable(at, 5), writable(at + 5, 5011)];
    assert_eq!(rig.front_end.queues[QUEUE].run_chain(&chain), 5016);
    assert_eq!(rig.front_end.get(at + 16, 5000), data);
}

#[test]
fn what_is_forgotten_has_no_answer() {
    let mut rig = rig();
    let node = rig.lookup();
    let length = rig.put_request(FORGET, node, &1u64.to_ne_bytes());
    rig.front_end.put(OUT, &[UNTOUCHED; 16]);
    let chain = [readable(REQUEST, 40), readable(BODY, length)];
    assert_eq!(rig.front_end.queues[0].run_chain(&chain), 0);
    assert_eq!(rig.call(GETATTR, node, &[0; 16]).0, libc_estale());
    let length = rig.put_request(FORGET, 1, &u64::MAX.to_ne_bytes());
    let chain = [readable(REQUEST, 40), readable(BODY, length), writable(OUT, 16)];
    assert_eq!(rig.front_end.queues[0].run_chain(&chain), 0);
    assert_eq!(rig.front_end.get(OUT, 16)[15], 0);
    rig.check_works();
}

/// `ESTALE` of Linux's include/uapi/asm-generic/errno.h.
fn libc_estale() -> i32 {
    116
}

#[test]
fn chains_that_make_no_sense_get_an_error_or_nothing() {
    let mut rig = rig();
    rig.put_request(GETATTR, 1, &[0; 16]);
    let invalid = 22;
    let head = [readable(REQUEST, 40), readable(BODY, 16)];
    // Readable descriptors after writable ones; descriptors outside of guest memory.
    for wrong in [
        vec![head[0], writable(OUT, 200), head[1]],
        vec![head[0], head[1], writable(OUT, 16), writable(1 << 40, 200)],
        vec![head[0], head[1], readable(u64::MAX - 3, 8), writable(OUT, 200)],
    ] {
        let used = rig.front_end.queues[QUEUE].run_chain(&wrong);
        assert_eq!(rig.answer(used).0, invalid);
    }
    // No room, no header, a truncated header, a header outside of guest memory.
    for silent in [
        vec![head[0], head[1]],
        vec![head[0], head[1], writable(OUT, 15)],
        vec![writable(OUT, 200)],
        vec![readable(REQUEST, 39), writable(OUT, 200)],
        vec![readable(2 * REGION, 40), writable(OUT, 200)],
        vec![readable(REQUEST, 0), writable(OUT, 0)],
    ] {
        assert_eq!(rig.front_end.queues[QUEUE].run_chain(&silent), 0);
    }
    let queue = &mut rig.front_end.queues[QUEUE];
    let table = queue.table();
    // A loop, and a chain that leaves the table.
    for next in [0, 64, u16::MAX] {
        queue.put_descriptor(table, 0, Descriptor { flags: NEXT, next, ..readable(REQUEST, 40) });
        assert_eq!(queue.run(0), 0);
    }
    rig.check_works();
}

#[test]
fn a_message_that_lies_about_its_length_gets_an_error() {
    let mut rig = rig();
    for length in [0, 39, 40, 55, 57, 4096, u32::MAX] {
        rig.put_request(GETATTR, 1, &[0; 16]);
        rig.front_end.put(REQUEST, &words(&[length]));
        let chain = [readable(REQUEST, 40), readable(BODY, 16), writable(OUT, 200)];
        let used = rig.front_end.queues[QUEUE].run_chain(&chain);
        assert_ne!(rig.answer(used).0, 0, "{length}");
    }
    rig.check_works();
}

#[test]
fn every_queue_executes_requests_of_one_connection() {
    let mut rig = rig();
    let node = rig.lookup();
    let length = rig.put_request(GETATTR, node, &[0; 16]);
    let chain = [readable(REQUEST, 40), readable(BODY, length), writable(OUT, 200)];
    for queue in 0..3 {
        let used = rig.front_end.queues[queue].run_chain(&chain);
        assert_eq!(rig.answer(used).0, 0, "queue {queue}");
    }
}

#[test]
fn the_tag_is_offered_only_when_it_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let protocol = |tag| {
        let mut control = Frontend::from_stream(serve_directory(&directory, options(tag)), 64);
        control.set_owner().unwrap();
        control.get_features().unwrap();
        control.get_protocol_features().unwrap()
    };
    assert!(!protocol(None).contains(VhostUserProtocolFeatures::CONFIG));
    assert!(protocol(Some("tree")).contains(VhostUserProtocolFeatures::CONFIG));
    let features = VERSION_1 | PROTOCOL_FEATURES;
    let mut front_end = FrontEnd::negotiate(serve_directory(&directory, options(Some("tree"))), features);
    let config = front_end.config(0, 40);
    assert_eq!(config[..5], *b"tree\0");
    assert_eq!(config[36..], 2u32.to_le_bytes());
    assert_eq!(front_end.control.get_queue_num().unwrap(), 3);
}
