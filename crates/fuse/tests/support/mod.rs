//! A kernel's side of a connection: messages, and the dispatcher's answers.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

use std::path::Path;
use std::sync::Arc;

use inarch_fuse::wire::opcode;
use inarch_fuse::wire::structs::{EntryOut, InHeader, InitIn, OpenIn, OpenOut, OutHeader};
use inarch_fuse::{ConnectionOptions, Dispatcher, MAX_DATA, Scratch};
use inarch_vfs::{HostDirectory, HostOptions};
use vm_memory::VolatileSlice;
use zerocopy::{FromBytes, IntoBytes};

pub const ROOT: u64 = 1;
/// The number of every request.
const UNIQUE: u64 = 0x1234_5678_9abc;

/// An answer: 0 or the error's number, and what is behind the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub errno: i32,
    pub body: Vec<u8>,
}

/// A connection with a directory of the host behind it.
pub struct Client {
    pub dispatcher: Dispatcher<HostDirectory>,
    scratch: Scratch,
}

/// A whole message.
pub fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    numbered(UNIQUE, opcode, node, body)
}

/// The same with a number of its own.
pub fn numbered(unique: u64, opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader { len, opcode, unique, nodeid: node, ..InHeader::default() };
    [header.as_bytes(), body].concat()
}

/// Names and other strings, each with a NUL.
pub fn strings(strings: &[&[u8]]) -> Vec<u8> {
    strings.iter().flat_map(|string| [string, &b"\0"[..]].concat()).collect()
}

/// A structure, and what follows.
pub fn with(structure: &(impl IntoBytes + zerocopy::Immutable), rest: &[u8]) -> Vec<u8> {
    [structure.as_bytes(), rest].concat()
}

/// Has a thread send `message` in pieces of so many bytes, with so many bytes of room for the answer; `None` if there is none.
/// What comes must be well-formed, and nothing else may be written.
pub fn exchange(
    dispatcher: &Dispatcher<HostDirectory>,
    thread: usize,
    scratch: &mut Scratch,
    message: &[u8],
    (piece, room): (usize, usize),
) -> Option<Answer> {
    const UNTOUCHED: u8 = 0xa5;
    let unique = InHeader::read_from_prefix(message).ok().map(|(header, _)| header.unique);
    let mut message = message.to_vec();
    let mut out = vec![UNTOUCHED; room];
    let length = {
        let message: Vec<_> = message.chunks_mut(piece).map(VolatileSlice::from).collect();
        let out: Vec<_> = out.chunks_mut(piece).map(VolatileSlice::from).collect();
        dispatcher.execute(thread, &message, &out, scratch)
    };
    if length == 0 {
        return None;
    }
    let (header, body) = OutHeader::read_from_prefix(&out).unwrap();
    assert_eq!((header.len as usize, Some(header.unique)), (length, unique));
    assert!(header.error <= 0 && header.error > -512, "{header:?}");
    let body = body[..length - size_of::<OutHeader>()].to_vec();
    assert!(header.error == 0 || body.is_empty());
    Some(Answer { errno: -header.error, body })
}

impl Client {
    /// Connected, but nothing said yet.
    pub fn silent(directory: &Path, connection: ConnectionOptions) -> Client {
        Client::of(directory, HostOptions::default(), connection)
    }

    /// The same with a directory that is offered in another way.
    pub fn of(directory: &Path, options: HostOptions, connection: ConnectionOptions) -> Client {
        let file_system = HostDirectory::new(directory, options).unwrap();
        Client { dispatcher: Dispatcher::new(Arc::new(file_system), connection, 1), scratch: Scratch::default() }
    }

    /// Connected and agreed.
    pub fn new(directory: &Path) -> Client {
        let mut client = Client::silent(directory, ConnectionOptions::default());
        assert_eq!(client.init().errno, 0);
        client
    }

    pub fn init(&mut self) -> Answer {
        let init = InitIn { major: 7, minor: 45, flags: u32::MAX, flags2: u32::MAX, ..InitIn::default() };
        self.call(opcode::INIT, 0, init.as_bytes())
    }

    /// See [`exchange`].
    pub fn send(&mut self, message: &[u8], piece: usize, room: usize) -> Option<Answer> {
        exchange(&self.dispatcher, 0, &mut self.scratch, message, (piece, room))
    }

    /// Sends a request that has an answer, in one piece.
    pub fn call(&mut self, opcode: u32, node: u64, body: &[u8]) -> Answer {
        let room = size_of::<OutHeader>() + MAX_DATA as usize;
        self.send(&message(opcode, node, body), usize::MAX, room).expect("an answer")
    }

    pub fn lookup(&mut self, parent: u64, name: &str) -> Result<EntryOut, i32> {
        let answer = self.call(opcode::LOOKUP, parent, &strings(&[name.as_bytes()]));
        match answer.errno {
            0 => Ok(EntryOut::read_from_bytes(&answer.body).unwrap())
                .and_then(|e| if e.nodeid == 0 { Err(2) } else { Ok(e) }),
            errno => Err(errno),
        }
    }

    pub fn open(&mut self, node: u64, flags: i32) -> Result<u64, i32> {
        let open = OpenIn { flags: flags as u32, open_flags: 0 };
        let answer = self.call(opcode::OPEN, node, open.as_bytes());
        match answer.errno {
            0 => Ok(OpenOut::read_from_bytes(&answer.body).unwrap().fh),
            errno => Err(errno),
        }
    }
}
