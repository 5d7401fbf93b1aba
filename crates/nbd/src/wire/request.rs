//! Parses the requests of a client in the transmission phase (NBD's doc/proto.md): magic, flags, command, range.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Starts a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;

/// The flags of a request.
pub mod flag {
    /// Write to stable storage before replying.
    pub const FUA: u16 = 1 << 0;
    /// Write zeros that stay allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Reply with one chunk or an error.
    pub const DF: u16 = 1 << 2;
    /// Reply with one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail if this is not faster than writing zeros.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// A request; the data of a write follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// [`flag`]s.
    pub flags: U16,
    /// Which command.
    pub command: U16,
    /// The client's identifier of the request.
    pub cookie: U64,
    /// First byte.
    pub offset: U64,
    /// Number of bytes.
    pub length: U32,
}

impl RequestHeader {
    /// Bytes of it.
    pub const SIZE: usize = size_of::<RequestHeader>();
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `NBD_CMD_READ`.
    Read,
    /// `NBD_CMD_WRITE`.
    Write,
    /// `NBD_CMD_DISC`: no more requests, and no answer.
    Disconnect,
    /// `NBD_CMD_FLUSH`.
    Flush,
    /// `NBD_CMD_TRIM`.
    Trim,
    /// `NBD_CMD_CACHE`.
    Cache,
    /// `NBD_CMD_WRITE_ZEROES`.
    WriteZeroes,
    /// `NBD_CMD_BLOCK_STATUS`.
    BlockStatus,
}

impl Command {
    /// The flags that the command may have. Every command may have FUA.
    fn flags(self) -> u16 {
        flag::FUA
            | match self {
                Command::Read => flag::DF,
                Command::WriteZeroes => flag::NO_HOLE | flag::FAST_ZERO,
                Command::BlockStatus => flag::REQ_ONE,
                _ => 0,
            }
    }
}

/// A parsed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's identifier of the request.
    pub cookie: u64,
    /// What to do; `None` for an unknown command.
    pub command: Option<Command>,
    /// Whether the command permits all of its flags.
    pub flags_known: bool,
    /// [`flag`]s.
    pub flags: u16,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
}

impl Request {
    /// Parses a header. `None` if the magic number is wrong: what follows cannot be parsed either.
    pub fn parse(header: &RequestHeader) -> Option<Request> {
        if header.magic.get() != REQUEST_MAGIC {
            return None;
        }
        let command = match header.command.get() {
            0 => Some(Command::Read),
            1 => Some(Command::Write),
            2 => Some(Command::Disconnect),
            3 => Some(Command::Flush),
            4 => Some(Command::Trim),
            5 => Some(Command::Cache),
            6 => Some(Command::WriteZeroes),
            7 => Some(Command::BlockStatus),
            _ => None,
        };
        let flags = header.flags.get();
        Some(Request {
            cookie: header.cookie.get(),
            command,
            flags_known: command.is_some_and(|command| flags & !command.flags() == 0),
            flags,
            offset: header.offset.get(),
            length: header.length.get(),
        })
    }

    /// Whether it has this [`flag`].
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The end of the range (exclusive); `None` on overflow.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_protocols_bytes() {
        let bytes = b"\x25\x60\x95\x13\0\x12\0\x06cookie!!\0\0\0\0\0\0\x10\0\0\0\x20\0";
        let header = RequestHeader::read_from_bytes(bytes).unwrap();
        let request = Request {
            cookie: u64::from_be_bytes(*b"cookie!!"),
            command: Some(Command::WriteZeroes),
            flags_known: true,
            flags: flag::NO_HOLE | flag::FAST_ZERO,
            offset: 4096,
            length: 8192,
        };
        assert_eq!(Request::parse(&header), Some(request));
    }

    #[test]
    fn flags_of_other_commands_are_not_known() {
        let mut header = RequestHeader::read_from_bytes(&[0; RequestHeader::SIZE]).unwrap();
        assert_eq!(Request::parse(&header), None);
        header.magic = REQUEST_MAGIC.into();
        header.flags = flag::NO_HOLE.into();
        assert!(!Request::parse(&header).unwrap().flags_known);
        header.command = 99.into();
        assert_eq!(Request::parse(&header).unwrap().command, None);
    }
}
