//! A disk in memory, and a client that sends exactly what a test wants.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use inarch_nbd::{ConnectionError, Event, NbdOptions, NbdServer};
use inarch_server::{Allocation, BlockDevice, Pending};
use vm_memory::{Bytes, VolatileSlice};

/// Bytes of a [`Disk`].
pub const SIZE: usize = 48 << 20;
const BLOCK: usize = 4096;

/// A disk in memory whose zero blocks are holes. One block may be unreadable.
pub struct Disk {
    pub bytes: Mutex<Vec<u8>>,
    pub flushes: AtomicUsize,
    pub read_only: bool,
    /// First byte of the unreadable block.
    pub bad: Option<u64>,
    /// Whether reads panic.
    pub panics: AtomicBool,
}

impl Disk {
    pub fn new() -> Disk {
        let (flushes, panics) = (AtomicUsize::new(0), AtomicBool::new(false));
        Disk { bytes: Mutex::new(vec![0; SIZE]), flushes, read_only: false, bad: None, panics }
    }

    /// A disk with data from `start` to `end`; each byte depends on its offset.
    pub fn with_data(start: usize, end: usize) -> Disk {
        let disk = Disk::new();
        disk.bytes.lock().unwrap()[start..end].copy_from_slice(&pattern(start as u64, end - start));
        disk
    }
}

/// Bytes that depend on their offset; none is 0.
pub fn pattern(offset: u64, length: usize) -> Vec<u8> {
    (offset..).take(length).map(|at| (at / 512 % 255) as u8 + 1).collect()
}

impl BlockDevice for Disk {
    fn capacity(&self) -> u64 {
        // Larger than the content: servers must announce the content's size.
        1 << 40
    }

    fn content_size(&self) -> u64 {
        SIZE as u64
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn allocation(&self, offset: u64, limit: u64) -> (Allocation, u64) {
        let bytes = self.bytes.lock().unwrap();
        let of = |at: u64| {
            let start = at as usize / BLOCK * BLOCK;
            let zeros = bytes[start..start + BLOCK].iter().all(|byte| *byte == 0);
            if zeros { Allocation::Hole } else { Allocation::Data }
        };
        let first = of(offset);
        let mut end = offset;
        while end < offset + limit && of(end) == first {
            end = (end / BLOCK as u64 + 1) * BLOCK as u64;
        }
        (first, end.min(offset + limit) - offset)
    }

    fn read_at(&self, offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        assert!(!self.panics.load(Ordering::Relaxed), "as it was told");
        let length: usize = out.iter().map(VolatileSlice::len).sum();
        if self.bad.is_some_and(|bad| offset < bad + BLOCK as u64 && bad < offset + length as u64) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let bytes = self.bytes.lock().unwrap();
        let mut at = offset as usize;
        for slice in out {
            slice.write_slice(&bytes[at..at + slice.len()], 0).unwrap();
            at += slice.len();
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        let mut bytes = self.bytes.lock().unwrap();
        let mut at = offset as usize;
        for slice in data {
            slice.read_slice(&mut bytes[at..at + slice.len()], 0).unwrap();
            at += slice.len();
        }
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.write_zeroes(offset, length, true)
    }

    fn write_zeroes(&self, offset: u64, length: u64, _unmap: bool) -> io::Result<()> {
        self.bytes.lock().unwrap()[offset as usize..(offset + length) as usize].fill(0);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
pub const ERR_UNSUP: u32 = 1 << 31 | 1;
pub const ERR_INVALID: u32 = 1 << 31 | 3;
pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
pub const ERR_SHUTDOWN: u32 = 1 << 31 | 7;
pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;

/// One client, and the server that serves it.
pub struct Client {
    pub stream: UnixStream,
    pub server: Option<JoinHandle<Result<(), ConnectionError>>>,
}

/// A chunk of a structured reply.
#[derive(Debug, PartialEq)]
pub struct Chunk {
    pub done: bool,
    pub kind: u16,
    pub cookie: u64,
    pub payload: Vec<u8>,
}

impl Client {
    /// A client that has greeted a new server of `disk` with `flags`.
    pub fn connect(disk: &Arc<Disk>, flags: u32) -> Client {
        Client::connect_pending(Arc::new(Pending::ready(Arc::clone(disk))), flags)
    }

    pub fn connect_pending(device: Arc<Pending<Disk>>, flags: u32) -> Client {
        let options = NbdOptions { name: "disk".into(), description: "a test".into(), ..NbdOptions::default() };
        Client::connect_with(device, options, flags)
    }

    pub fn connect_with(device: Arc<Pending<Disk>>, options: NbdOptions, flags: u32) -> Client {
        let (stream, theirs) = UnixStream::pair().unwrap();
        let server =
            NbdServer::new(device, options).on_event(|event| assert!(matches!(event, Event::RequestFailed { .. })));
        let server = thread::spawn(move || server.serve_stream(theirs));
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut client = Client { stream, server: Some(server) };
        assert_eq!(client.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        client.put(&flags.to_be_bytes());
        client
    }

    /// A client that has chosen the export, with structured replies and block status.
    pub fn ready(disk: &Arc<Disk>) -> Client {
        let mut client = Client::connect(disk, 3);
        assert_eq!(client.option(OPT_STRUCTURED_REPLY, b""), [(REP_ACK, vec![])]);
        let replies = client.option(OPT_SET_META_CONTEXT, &context("disk", &["base:allocation"]));
        assert_eq!(replies.last(), Some(&(REP_ACK, vec![])));
        client.go();
        client
    }

    /// A client that has chosen the export, with simple replies.
    pub fn simple(disk: &Arc<Disk>) -> Client {
        let mut client = Client::connect(disk, 3);
        client.go();
        client
    }

    fn go(&mut self) {
        let replies = self.option(OPT_GO, b"\0\0\0\x04disk\0\0");
        assert_eq!(replies.last(), Some(&(REP_ACK, vec![])));
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn take_u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    pub fn take_u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn take_u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    /// Whether the server has disconnected.
    pub fn is_cut(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
    }

    /// Sends an option; returns the replies up to the last.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.put(&self::option(option, data));
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.take_u64(), 0x3_e889_0455_65a9);
            assert_eq!(self.take_u32(), option);
            let kind = self.take_u32();
            let length = self.take_u32();
            let payload = self.take(length as usize);
            // For errors only the number matters.
            let is_error = kind >> 31 == 1;
            replies.push((kind, if is_error { vec![] } else { payload }));
            if is_error || kind == REP_ACK {
                return replies;
            }
        }
    }

    /// Sends a request, without data.
    pub fn request(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, length: u32) {
        self.put(&request(flags, command, cookie, offset, length));
    }

    /// The error and the cookie of a simple reply.
    pub fn simple_reply(&mut self) -> (u32, u64) {
        assert_eq!(self.take_u32(), 0x6744_6698);
        (self.take_u32(), self.take_u64())
    }

    /// Sends a request and returns its simple reply's error.
    pub fn simply(&mut self, flags: u16, command: u16, offset: u64, length: u32) -> u32 {
        self.request(flags, command, 77, offset, length);
        let (error, cookie) = self.simple_reply();
        assert_eq!(cookie, 77);
        error
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        self.request(flags, WRITE, 78, offset, data.len() as u32);
        self.put(data);
        let (error, cookie) = self.simple_reply();
        assert_eq!(cookie, 78);
        error
    }

    pub fn chunk(&mut self) -> Chunk {
        assert_eq!(self.take_u32(), 0x668e_33ef);
        let (flags, kind, cookie, length) = (self.take_u16(), self.take_u16(), self.take_u64(), self.take_u32());
        Chunk { done: flags & 1 != 0, kind, cookie, payload: self.take(length as usize) }
    }

    /// Sends a request and takes all chunks of its answer.
    pub fn chunks(&mut self, flags: u16, command: u16, offset: u64, length: u32) -> Vec<Chunk> {
        self.request(flags, command, 79, offset, length);
        let mut chunks = Vec::new();
        loop {
            chunks.push(self.chunk());
            if chunks.last().unwrap().done {
                return chunks;
            }
        }
    }

    /// Reads by structured replies: the bytes, put together, or an error number.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        let mut bytes = vec![None; length as usize];
        for chunk in self.chunks(0, READ, offset, length) {
            let number = |at: usize, count: usize| {
                chunk.payload[at..at + count].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
            };
            let at = (number(0, 8.min(chunk.payload.len())).saturating_sub(offset)) as usize;
            match chunk.kind {
                0 => {}
                1 => chunk.payload[8..].iter().enumerate().for_each(|(i, byte)| bytes[at + i] = Some(*byte)),
                2 => bytes[at..at + number(8, 4) as usize].fill(Some(0)),
                _ => return Err(number(0, 4) as u32),
            }
        }
        Ok(bytes.into_iter().map(|byte| byte.expect("every byte is sent")).collect())
    }

    /// Disconnects and returns the server's result.
    pub fn end(mut self) -> Result<(), ConnectionError> {
        let server = self.server.take().unwrap();
        drop(self.stream);
        server.join().expect("the server does not panic")
    }
}

pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let (flags, command) = (flags.to_be_bytes(), command.to_be_bytes());
    let (cookie, offset, length) = (cookie.to_be_bytes(), offset.to_be_bytes(), length.to_be_bytes());
    [&0x2560_9513u32.to_be_bytes()[..], &flags, &command, &cookie, &offset, &length].concat()
}

/// The data of an option about metadata contexts.
pub fn context(export: &str, queries: &[&str]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let queries: Vec<u8> = (queries.len() as u32)
        .to_be_bytes()
        .into_iter()
        .chain(queries.iter().flat_map(|query| string(query)))
        .collect();
    [string(export), queries].concat()
}
