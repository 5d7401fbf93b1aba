//! An NBD client sends anything, from its first byte to its last.

#![no_main]

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;

use arbitrary::Arbitrary;
use inarch_nbd::{NbdOptions, NbdServer};
use inarch_server::{Allocation, BlockDevice, Pending};
use libfuzzer_sys::fuzz_target;
use vm_memory::{Bytes, VolatileSlice};

const SIZE: u64 = 1 << 20;

/// Valid messages, and invalid ones.
#[derive(Arbitrary, Debug)]
enum Message {
    StructuredReplies,
    Context { allocation: bool, set: bool },
    Info { choose: bool, name: Vec<u8>, infos: Vec<u16> },
    Option { number: u8, data: Vec<u8> },
    LongOption { number: u32, length: u32 },
    Request { flags: u8, command: u8, offset: u32, length: u32 },
    Write { flags: u8, offset: u32, length: u16 },
    Far { command: u8, offset: u64, length: u32 },
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Input {
    flags: u8,
    before: Vec<Message>,
    choose: bool,
    messages: Vec<Message>,
}

/// A small disk whose odd blocks are holes.
struct Disk(Mutex<Vec<u8>>);

impl BlockDevice for Disk {
    fn capacity(&self) -> u64 {
        SIZE
    }

    fn read_only(&self) -> bool {
        false
    }

    fn allocation(&self, offset: u64, limit: u64) -> (Allocation, u64) {
        assert!(offset + limit <= SIZE && limit > 0);
        let allocation = if offset / 65536 % 2 == 1 { Allocation::Hole } else { Allocation::Data };
        (allocation, limit.min(65536 - offset % 65536))
    }

    fn read_at(&self, offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        let bytes = self.0.lock().unwrap();
        let mut at = offset as usize;
        for slice in out {
            slice.write_slice(&bytes[at..at + slice.len()], 0).unwrap();
            at += slice.len();
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap();
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
        self.0.lock().unwrap()[offset as usize..(offset + length) as usize].fill(0);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn request(flags: u8, command: u8, offset: u64, length: u32) -> Vec<u8> {
    let head = [&0x2560_9513u32.to_be_bytes()[..], &[0, flags, 0, command]].concat();
    [&head[..], b"a cookie", &offset.to_be_bytes(), &length.to_be_bytes()].concat()
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Message::StructuredReplies => option(8, b""),
            Message::Context { allocation, set } => {
                let query: &[u8] = if *allocation { b"base:allocation" } else { b"base:" };
                option(if *set { 10 } else { 9 }, &[string(b""), vec![0, 0, 0, 1], string(query)].concat())
            }
            Message::Info { choose, name, infos } => {
                let numbers: Vec<u8> = infos.iter().flat_map(|info| info.to_be_bytes()).collect();
                let count = (infos.len() as u16).to_be_bytes();
                option(if *choose { 7 } else { 6 }, &[string(name), count.to_vec(), numbers].concat())
            }
            Message::Option { number, data } => option((*number).into(), data),
            Message::LongOption { number, length } => {
                [b"IHAVEOPT", &number.to_be_bytes()[..], &length.to_be_bytes()].concat()
            }
            Message::Request { flags, command, offset, length } => {
                request(*flags, *command, u64::from(*offset) % (SIZE * 2), length % (SIZE as u32 * 2))
            }
            Message::Write { flags, offset, length } => {
                let head = request(*flags, 1, u64::from(*offset) % (SIZE * 2), (*length).into());
                [head, vec![*flags; (*length).into()]].concat()
            }
            Message::Far { command, offset, length } => request(0, *command, *offset, *length),
            Message::Raw(bytes) => bytes.clone(),
        }
    }
}

fuzz_target!(|input: Input| {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let chosen = if input.choose { option(7, b"\0\0\0\0\0\0") } else { Vec::new() };
    let bytes = |messages: &[Message]| messages.iter().flat_map(Message::bytes).collect::<Vec<_>>();
    let said = [vec![0, 0, 0, input.flags & 3], bytes(&input.before), chosen, bytes(&input.messages)].concat();
    let mut listening = ours.try_clone().unwrap();
    let listener = thread::spawn(move || io::copy(&mut listening, &mut io::sink()));
    let speaker = thread::spawn(move || {
        // The server may disconnect first.
        let _ = ours.write_all(&said);
        let _ = ours.shutdown(Shutdown::Write);
    });
    let disk = Arc::new(Disk(Mutex::new(vec![1; SIZE as usize])));
    // A connection may end in any way, but without a panic.
    let ended = NbdServer::new(Arc::new(Pending::ready(disk)), NbdOptions::default()).serve_stream(theirs);
    assert!(!matches!(ended, Err(inarch_nbd::ConnectionError::Panicked)));
    speaker.join().unwrap();
    let _ = listener.join().unwrap();
});
