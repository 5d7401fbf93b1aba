//! The replies of the transmission phase.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, Unaligned};

use super::Errno;

/// Starts a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The flag of a structured reply's last chunk.
const FLAG_DONE: u16 = 1 << 0;

/// The state of an extent: it takes no space.
pub const STATE_HOLE: u32 = 1 << 0;
/// The state of an extent: it reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;

/// A simple reply; the data of a successful read follows.
#[derive(Debug, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    magic: U32,
    error: U32,
    cookie: U64,
}

impl SimpleReply {
    /// The reply to the request with this cookie.
    pub fn new(cookie: u64, result: Result<(), Errno>) -> SimpleReply {
        let error = result.err().map_or(0, |errno| errno as u32);
        SimpleReply { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() }
    }
}

/// The content of a chunk of a structured reply.
#[derive(Clone, Copy, Debug)]
pub enum Chunk {
    /// Nothing.
    None,
    /// So many bytes from this offset; the bytes follow.
    Data(u64, u32),
    /// So many zeros from this offset.
    Hole(u64, u32),
    /// So many extents, of the metadata context with this number; the extents follow.
    BlockStatus(u32, u32),
    /// The request failed.
    Error(Errno),
    /// It failed at this offset.
    ErrorAt(Errno, u64),
}

/// One extent in a chunk of block status.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct StatusDescriptor {
    /// Bytes.
    pub length: U32,
    /// [`STATE_HOLE`], [`STATE_ZERO`].
    pub state: U32,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct ChunkHeader {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    length: U32,
}

impl Chunk {
    /// Encodes the chunk up to the data that follows it, for the request with this cookie; `done` marks the last chunk.
    pub fn encode(self, cookie: u64, done: bool) -> Vec<u8> {
        let (kind, payload, following) = match self {
            Chunk::None => (0, Vec::new(), 0),
            Chunk::Data(offset, length) => (1, offset.to_be_bytes().to_vec(), length),
            Chunk::Hole(offset, length) => (2, [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat(), 0),
            Chunk::BlockStatus(context, extents) => {
                (5, context.to_be_bytes().to_vec(), extents.saturating_mul(size_of::<StatusDescriptor>() as u32))
            }
            Chunk::Error(errno) => (1 << 15 | 1, error(errno), 0),
            Chunk::ErrorAt(errno, offset) => (1 << 15 | 2, [&error(errno)[..], &offset.to_be_bytes()].concat(), 0),
        };
        let header = ChunkHeader {
            magic: STRUCTURED_REPLY_MAGIC.into(),
            flags: if done { FLAG_DONE } else { 0 }.into(),
            kind: kind.into(),
            cookie: cookie.into(),
            length: following.saturating_add(payload.len() as u32).into(),
        };
        [header.as_bytes(), &payload].concat()
    }
}

/// The error number and an empty message.
fn error(errno: Errno) -> Vec<u8> {
    [&(errno as u32).to_be_bytes()[..], &[0; 2]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_protocols_bytes() {
        let simple = SimpleReply::new(7, Err(Errno::NoSpace));
        assert_eq!(simple.as_bytes(), b"\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x07");
        let data = Chunk::Data(4096, 512).encode(7, true);
        assert_eq!(data, b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\x02\x08\0\0\0\0\0\0\x10\0");
        let hole = Chunk::Hole(4096, 512).encode(7, false);
        assert_eq!(hole[4..8], *b"\0\0\0\x02");
        assert_eq!(hole[16..], *b"\0\0\0\x0c\0\0\0\0\0\0\x10\0\0\0\x02\0");
        let error = Chunk::ErrorAt(Errno::Io, 1).encode(7, true);
        assert_eq!(error[4..8], *b"\0\x01\x80\x02");
        assert_eq!(error[16..], *b"\0\0\0\x0e\0\0\0\x05\0\0\0\0\0\0\0\0\0\x01");
        let status = Chunk::BlockStatus(1, 2).encode(7, true);
        assert_eq!(status[16..], *b"\0\0\0\x14\0\0\0\x01");
    }
}
