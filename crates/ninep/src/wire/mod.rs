//! Encodes and parses the protocol's messages; other modules send and receive them.
//!
//! The messages are those that 9P2000.L keeps of 9P2000 (Plan 9's intro(5)), and those that it adds (the diod project's
//! protocol.md and Linux's include/net/9p/9p.h); names are theirs. All numbers are little-endian, names are arbitrary
//! bytes.

mod bytes;
mod flag;
mod reply;
mod request;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use bytes::Malformed;
pub use flag::{attribute, lock, open, set, unlink};
pub use reply::{Reply, ReplyBuffer, StatBody, StatfsBody};
pub use request::{DecodeError, LockRange, Names, Request, SetattrBody};

/// The protocol version of this server.
pub const VERSION: &[u8] = b"9P2000.L";
/// A server's reply to a version that it does not support.
pub const VERSION_UNKNOWN: &[u8] = b"unknown";
/// The tag of `Tversion`.
pub const NO_TAG: u16 = !0;
/// No fid.
pub const NO_FID: u32 = !0;
/// No user id.
pub const NO_UID: u32 = !0;
/// Bytes of a `Tread` or `Twrite` besides data, rounded up as clients do (`P9_IOHDRSZ`).
pub const IO_HEADER: u32 = 24;
/// The most names in a `Twalk` (`P9_MAXWELEM`).
pub const MAX_NAMES: usize = 16;
/// The file system type that `Rstatfs` reports (`V9FS_MAGIC`).
pub const V9FS_MAGIC: u32 = 0x0102_1997;

/// The header of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Bytes of the message, including this header.
    pub size: U32,
    /// One of [`kind`].
    pub kind: u8,
    /// The client's identifier of the request.
    pub tag: U16,
}

impl Header {
    /// Bytes of a header.
    pub const SIZE: usize = size_of::<Header>();
}

/// A file's identity (`qid`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Qid {
    /// [`Qid::DIRECTORY`], [`Qid::SYMLINK`] or [`Qid::FILE`].
    pub kind: u8,
    /// Changes with the content; 0 asks clients not to cache it.
    pub version: U32,
    /// The file's number, unique among those that exist.
    pub path: U64,
}

impl Qid {
    /// A directory (`QTDIR`).
    pub const DIRECTORY: u8 = 0x80;
    /// A symbolic link (`QTSYMLINK`).
    pub const SYMLINK: u8 = 0x02;
    /// Anything else (`QTFILE`).
    pub const FILE: u8 = 0;
}

/// Numbers of the messages that clients send; a reply's number is one more.
pub mod kind {
    /// The reply to a failed request (`Rlerror`).
    pub const RLERROR: u8 = 7;
    /// `Tstatfs`.
    pub const STATFS: u8 = 8;
    /// `Tlopen`.
    pub const LOPEN: u8 = 12;
    /// `Tlcreate`.
    pub const LCREATE: u8 = 14;
    /// `Tsymlink`.
    pub const SYMLINK: u8 = 16;
    /// `Tmknod`.
    pub const MKNOD: u8 = 18;
    /// `Trename`.
    pub const RENAME: u8 = 20;
    /// `Treadlink`.
    pub const READLINK: u8 = 22;
    /// `Tgetattr`.
    pub const GETATTR: u8 = 24;
    /// `Tsetattr`.
    pub const SETATTR: u8 = 26;
    /// `Txattrwalk`.
    pub const XATTRWALK: u8 = 30;
    /// `Txattrcreate`.
    pub const XATTRCREATE: u8 = 32;
    /// `Treaddir`.
    pub const READDIR: u8 = 40;
    /// `Tfsync`.
    pub const FSYNC: u8 = 50;
    /// `Tlock`.
    pub const LOCK: u8 = 52;
    /// `Tgetlock`.
    pub const GETLOCK: u8 = 54;
    /// `Tlink`.
    pub const LINK: u8 = 70;
    /// `Tmkdir`.
    pub const MKDIR: u8 = 72;
    /// `Trenameat`.
    pub const RENAMEAT: u8 = 74;
    /// `Tunlinkat`.
    pub const UNLINKAT: u8 = 76;
    /// `Tversion`.
    pub const VERSION: u8 = 100;
    /// `Tauth`.
    pub const AUTH: u8 = 102;
    /// `Tattach`.
    pub const ATTACH: u8 = 104;
    /// `Tflush`.
    pub const FLUSH: u8 = 108;
    /// `Twalk`.
    pub const WALK: u8 = 110;
    /// `Tread`.
    pub const READ: u8 = 116;
    /// `Twrite`.
    pub const WRITE: u8 = 118;
    /// `Tclunk`.
    pub const CLUNK: u8 = 120;
    /// `Tremove`.
    pub const REMOVE: u8 = 122;
}
