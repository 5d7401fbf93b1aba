//! A front end sends whatever it likes over the control socket, with descriptors of every kind, and cuts the memory that it shares
//! whenever it likes.

#![no_main]

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_vhost::Pending;
use inarch_vhost::blk::{BlkOptions, BlkServer, BlockDevice};
use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vm_memory::{Bytes, VolatileSlice};

const MEMORY: u64 = 1 << 16;
const USER_BASE: u64 = 0x10_0000;

#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptor {
    Memory,
    Event,
    Null,
}

/// Messages with a meaning, and such without.
#[derive(Arbitrary, Debug)]
enum Message {
    Memory { regions: u8, overlap: bool, missing: u16, padding: u8 },
    Features(u64),
    ProtocolFeatures(u64),
    Number { ring: u8, size: u16 },
    Base { ring: u8, base: u32 },
    Address { ring: u8, table: u16, used: u16, avail: u16 },
    Kick { ring: u8, descriptor: Descriptor },
    Call { ring: u8, descriptor: Descriptor },
    Enable { ring: u8, enable: bool },
    GetBase { ring: u8 },
    GetConfig { offset: u32, size: u16 },
    SetConfig { offset: u32, data: Vec<u8> },
    Raw { request: u8, flags: u8, size: Option<u32>, payload: Vec<u8>, descriptors: Vec<Descriptor> },
}

#[derive(Arbitrary, Debug)]
struct Input {
    /// What the guest's memory begins with: rings, if they are put there.
    memory: Vec<u8>,
    messages: Vec<Message>,
    /// Cut what is shared to so many bytes when a request comes to the device.
    cut: Option<u16>,
}

/// Nothing but zeros; its first request may find that memory goes away.
struct Zeros {
    shared: Vec<OwnedFd>,
    cut: Option<u16>,
}

impl Zeros {
    fn cut(&self) {
        for file in self.cut.iter().flat_map(|_| &self.shared) {
            ftruncate(file, self.cut.map_or(MEMORY, u64::from)).unwrap();
        }
    }
}

impl BlockDevice for Zeros {
    fn capacity(&self) -> u64 {
        1 << 20
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, _offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        self.cut();
        for slice in out {
            slice.write_slice(&vec![0; slice.len()], 0).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _data: &[VolatileSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, _offset: u64, _length: u64, _unmap: bool) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.cut();
        Ok(())
    }
}

fn open(descriptor: Descriptor, memory: &[u8], size: u64) -> OwnedFd {
    match descriptor {
        Descriptor::Memory => {
            let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, size).unwrap();
            rustix::io::pwrite(&file, &memory[..memory.len().min(size as usize)], 0).unwrap();
            file
        }
        Descriptor::Event => eventfd(1, EventfdFlags::NONBLOCK).unwrap(),
        Descriptor::Null => File::open("/dev/null").unwrap().into(),
    }
}

/// Payloads are made of such words.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn state(ring: u8, number: u32) -> Vec<u8> {
    [u32::from(ring).to_le_bytes(), number.to_le_bytes()].concat()
}

/// The request number, the payload, and the descriptors of a message (QEMU's docs/interop/vhost-user.rst).
fn encode(message: &Message) -> (u32, Vec<u8>, Vec<Descriptor>) {
    match message {
        Message::Features(bits) => (2, words(&[*bits]), vec![]),
        Message::ProtocolFeatures(bits) => (16, words(&[*bits]), vec![]),
        Message::Memory { regions, overlap, padding, .. } => {
            let regions = u64::from(*regions % 10);
            let mut payload = words(&[regions]);
            for i in 0..regions {
                let start = if *overlap { i * MEMORY / 2 } else { i * MEMORY };
                payload.extend(words(&[start, MEMORY, USER_BASE + start, 0]));
            }
            payload.resize(payload.len() + usize::from(*padding % 3) * 32, 0);
            (5, payload, vec![Descriptor::Memory; regions as usize])
        }
        Message::Number { ring, size } => (8, state(*ring, u32::from(*size)), vec![]),
        Message::Address { ring, table, used, avail } => {
            let at = |offset: &u16| USER_BASE + u64::from(*offset);
            (9, words(&[u64::from(*ring), at(table), at(used), at(avail), 0]), vec![])
        }
        Message::Base { ring, base } => (10, state(*ring, *base), vec![]),
        Message::GetBase { ring } => (11, state(*ring, 0), vec![]),
        Message::Kick { ring, descriptor } => (12, words(&[u64::from(*ring)]), vec![*descriptor]),
        Message::Call { ring, descriptor } => (13, words(&[u64::from(*ring)]), vec![*descriptor]),
        Message::Enable { ring, enable } => (18, state(*ring, u32::from(*enable)), vec![]),
        Message::GetConfig { offset, size } => {
            let size = *size % 512;
            let header = [*offset, u32::from(size), 0].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
            (24, [header, vec![0; usize::from(size)]].concat(), vec![])
        }
        Message::SetConfig { offset, data } => {
            let data = &data[..data.len().min(256)];
            let header =
                [*offset, data.len() as u32, 0].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
            (25, [&header[..], data].concat(), vec![])
        }
        Message::Raw { request, payload, descriptors, .. } => (
            u32::from(*request % 50),
            payload[..payload.len().min(4096)].to_vec(),
            descriptors.iter().take(33).copied().collect(),
        ),
    }
}

/// Sends a message; gives its descriptors of memory.
fn send(stream: &UnixStream, message: &Message, memory: &[u8]) -> Vec<OwnedFd> {
    let (request, payload, descriptors) = encode(message);
    let (flags, size) = match message {
        Message::Raw { flags, size, .. } => (u32::from(*flags), size.unwrap_or(payload.len() as u32)),
        _ => (1, payload.len() as u32),
    };
    let mut bytes: Vec<u8> = [request, flags, size].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(payload);
    let size = match message {
        Message::Memory { missing, .. } => MEMORY - u64::from(*missing),
        _ => MEMORY,
    };
    let shares = descriptors.contains(&Descriptor::Memory);
    let open: Vec<OwnedFd> = descriptors.into_iter().map(|descriptor| open(descriptor, memory, size)).collect();
    let borrowed: Vec<_> = open.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(33))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
    }
    // A server that has had enough, or a full socket, ends the conversation.
    let _ = sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    if shares && matches!(message, Message::Memory { .. }) { open } else { Vec::new() }
}

fuzz_target!(|input: Input| {
    let (stream, ours) = UnixStream::pair().unwrap();
    let messages = input.messages.iter().take(48);
    let shared = messages.flat_map(|message| send(&stream, message, &input.memory)).collect();
    stream.shutdown(Shutdown::Write).unwrap();
    let options = BlkOptions { queues: 2, capacity: 1 << 20, ..BlkOptions::default() };
    let device = Zeros { shared, cut: input.cut };
    // How the conversation ends is up to the front end; that it ends is not.
    let _ = BlkServer::new(Arc::new(Pending::ready(Arc::new(device))), options).serve_stream(ours);
});
