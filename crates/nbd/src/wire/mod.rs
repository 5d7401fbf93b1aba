//! Encodes and parses the protocol's messages; other modules send and receive them.
//!
//! Everything follows the NBD project's `doc/proto.md`; names are those of its constants. All numbers are big-endian.

pub mod option;
pub mod reply;
pub mod request;

use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a server says first (`NBDMAGIC`).
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// What it says next, and a client before each option (`IHAVEOPT`).
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

/// Handshake flag of both sides: options are answered.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag of both sides: no padding after the answer to `NBD_OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Transmission flags: what an export can do.
pub mod export_flag {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// It cannot be written.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Knows `NBD_CMD_FLUSH`.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Knows `NBD_CMD_FLAG_FUA`.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Knows `NBD_CMD_TRIM`.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Knows `NBD_CMD_WRITE_ZEROES`.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Knows `NBD_CMD_FLAG_DF`; only where structured replies were agreed on.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush by one connection covers the writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Knows `NBD_CMD_CACHE`.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// Knows `NBD_CMD_FLAG_FAST_ZERO`.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// A server's first message.
#[derive(Debug, IntoBytes, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Greeting {
    /// [`INIT_MAGIC`].
    pub init_magic: U64,
    /// [`OPTION_MAGIC`].
    pub option_magic: U64,
    /// [`FLAG_FIXED_NEWSTYLE`] and others.
    pub flags: U16,
}

/// An answer's or a chunk's error number. The protocol fixes the values, which are Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: the export is read-only.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// No memory.
    NoMemory = 12,
    /// The request is invalid.
    Invalid = 22,
    /// No space.
    NoSpace = 28,
    /// Too large for what was asked.
    Overflow = 75,
    /// Not supported.
    NotSupported = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

/// Maps an error of the host to one that the protocol has.
impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Errno {
        use rustix::io::Errno as Host;
        match Host::from_io_error(error) {
            Some(Host::PERM | Host::ROFS | Host::ACCESS) => Errno::Perm,
            Some(Host::NOSPC | Host::DQUOT | Host::FBIG) => Errno::NoSpace,
            Some(Host::NOMEM) => Errno::NoMemory,
            Some(Host::INVAL) => Errno::Invalid,
            _ => Errno::Io,
        }
    }
}
