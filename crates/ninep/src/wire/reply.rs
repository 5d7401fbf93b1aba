//! The server's replies.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bytes::{Fields, put_string};
use super::{DecodeError, Header, LockRange, MAX_NAMES, Qid, kind};

/// The body of `Rgetattr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StatBody {
    /// Which of the other fields are valid: bits of [`attribute`](super::attribute).
    pub valid: U64,
    /// The file's identity.
    pub qid: Qid,
    /// Type and permissions.
    pub mode: U32,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Number of names.
    pub links: U64,
    /// The device that a device node stands for.
    pub device: U64,
    /// Bytes.
    pub size: U64,
    /// The preferred size of a read or write.
    pub block_size: U64,
    /// Space taken, in units of 512 bytes.
    pub blocks: U64,
    /// Access time, in seconds since 1970.
    pub atime: U64,
    /// And nanoseconds.
    pub atime_nanoseconds: U64,
    /// Modification time.
    pub mtime: U64,
    /// And nanoseconds.
    pub mtime_nanoseconds: U64,
    /// Change time.
    pub ctime: U64,
    /// And nanoseconds.
    pub ctime_nanoseconds: U64,
    /// Time of creation.
    pub birth: U64,
    /// And nanoseconds.
    pub birth_nanoseconds: U64,
    /// Distinguishes files that had the same number at different times; reserved.
    pub generation: U64,
    /// Increases with each change of content; reserved.
    pub data_version: U64,
}

/// The body of `Rstatfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StatfsBody {
    /// The kind of file system.
    pub kind: U32,
    /// Bytes in a block.
    pub block_size: U32,
    /// Blocks.
    pub blocks: U64,
    /// Free blocks.
    pub free_blocks: U64,
    /// Blocks free for ordinary users.
    pub available_blocks: U64,
    /// Inodes.
    pub files: U64,
    /// Free inodes.
    pub free_files: U64,
    /// The file system's number.
    pub id: U64,
    /// The most bytes in a name.
    pub name_max: U32,
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields have the names and meanings of the protocol's")]
pub enum Reply<'a> {
    Lerror { errno: u32 },
    Version { msize: u32, version: &'a [u8] },
    Attach { qid: Qid },
    Flush,
    Walk { qids: [Qid; MAX_NAMES], count: usize },
    Read { data: &'a [u8] },
    Write { count: u32 },
    Clunk,
    Remove,
    Statfs(StatfsBody),
    Lopen { qid: Qid, iounit: u32 },
    Lcreate { qid: Qid, iounit: u32 },
    Symlink { qid: Qid },
    Mknod { qid: Qid },
    Rename,
    Readlink { target: &'a [u8] },
    Getattr(StatBody),
    Setattr,
    Xattrwalk { size: u64 },
    Xattrcreate,
    Readdir { data: &'a [u8] },
    Fsync,
    Lock { status: u8 },
    Getlock(LockRange<'a>),
    Link,
    Mkdir { qid: Qid },
    Renameat,
    Unlinkat,
}

impl<'a> Reply<'a> {
    /// Decodes a reply's body, as a client does.
    ///
    /// # Errors
    /// The bytes are not the body of this reply.
    pub fn decode(number: u8, body: &'a [u8]) -> Result<Reply<'a>, DecodeError> {
        let mut fields = Fields::of(body);
        if number == kind::RLERROR {
            let errno = fields.u32()?;
            fields.end()?;
            return Ok(Reply::Lerror { errno });
        }
        let reply = match number.wrapping_sub(1) {
            kind::VERSION => Reply::Version { msize: fields.u32()?, version: fields.string()? },
            kind::ATTACH => Reply::Attach { qid: fields.structure()? },
            kind::FLUSH => Reply::Flush,
            kind::WALK => {
                let (mut qids, count) = ([Qid::default(); MAX_NAMES], usize::from(fields.u16()?));
                for qid in qids.get_mut(..count).ok_or(DecodeError::TooManyNames)? {
                    *qid = fields.structure()?;
                }
                Reply::Walk { qids, count }
            }
            kind::READ => {
                let count = fields.u32()?;
                Reply::Read { data: fields.bytes(count as usize)? }
            }
            kind::WRITE => Reply::Write { count: fields.u32()? },
            kind::CLUNK => Reply::Clunk,
            kind::REMOVE => Reply::Remove,
            kind::STATFS => Reply::Statfs(fields.structure()?),
            kind::LOPEN => Reply::Lopen { qid: fields.structure()?, iounit: fields.u32()? },
            kind::LCREATE => Reply::Lcreate { qid: fields.structure()?, iounit: fields.u32()? },
            kind::SYMLINK => Reply::Symlink { qid: fields.structure()? },
            kind::MKNOD => Reply::Mknod { qid: fields.structure()? },
            kind::RENAME => Reply::Rename,
            kind::READLINK => Reply::Readlink { target: fields.string()? },
            kind::GETATTR => Reply::Getattr(fields.structure()?),
            kind::SETATTR => Reply::Setattr,
            kind::XATTRWALK => Reply::Xattrwalk { size: fields.u64()? },
            kind::XATTRCREATE => Reply::Xattrcreate,
            kind::READDIR => {
                let count = fields.u32()?;
                Reply::Readdir { data: fields.bytes(count as usize)? }
            }
            kind::FSYNC => Reply::Fsync,
            kind::LOCK => Reply::Lock { status: fields.u8()? },
            kind::GETLOCK => Reply::Getlock(LockRange {
                kind: fields.u8()?,
                start: fields.u64()?,
                length: fields.u64()?,
                process: fields.u32()?,
                client: fields.string()?,
            }),
            kind::LINK => Reply::Link,
            kind::MKDIR => Reply::Mkdir { qid: fields.structure()? },
            kind::RENAMEAT => Reply::Renameat,
            kind::UNLINKAT => Reply::Unlinkat,
            _ => return Err(DecodeError::UnknownKind(number)),
        };
        fields.end()?;
        Ok(reply)
    }

    /// Encodes the body into `out`; returns the message's number.
    fn encode_body(&self, out: &mut Vec<u8>) -> u8 {
        let request = match self {
            Reply::Lerror { errno } => {
                out.extend_from_slice(&errno.to_le_bytes());
                return kind::RLERROR;
            }
            Reply::Version { msize, version } => {
                out.extend_from_slice(&msize.to_le_bytes());
                put_string(out, version);
                kind::VERSION
            }
            Reply::Attach { qid } => put_qid(out, qid, kind::ATTACH),
            Reply::Symlink { qid } => put_qid(out, qid, kind::SYMLINK),
            Reply::Mknod { qid } => put_qid(out, qid, kind::MKNOD),
            Reply::Mkdir { qid } => put_qid(out, qid, kind::MKDIR),
            Reply::Walk { qids, count } => {
                out.extend_from_slice(&(*count as u16).to_le_bytes());
                out.extend_from_slice(qids.get(..*count).unwrap_or_default().as_bytes());
                kind::WALK
            }
            Reply::Read { data } => put_data(out, data, kind::READ),
            Reply::Readdir { data } => put_data(out, data, kind::READDIR),
            Reply::Write { count } => {
                out.extend_from_slice(&count.to_le_bytes());
                kind::WRITE
            }
            Reply::Statfs(body) => {
                out.extend_from_slice(body.as_bytes());
                kind::STATFS
            }
            Reply::Lopen { qid, iounit } => put_opened(out, qid, *iounit, kind::LOPEN),
            Reply::Lcreate { qid, iounit } => put_opened(out, qid, *iounit, kind::LCREATE),
            Reply::Readlink { target } => {
                put_string(out, target);
                kind::READLINK
            }
            Reply::Getattr(body) => {
                out.extend_from_slice(body.as_bytes());
                kind::GETATTR
            }
            Reply::Xattrwalk { size } => {
                out.extend_from_slice(&size.to_le_bytes());
                kind::XATTRWALK
            }
            Reply::Lock { status } => {
                out.push(*status);
                kind::LOCK
            }
            Reply::Getlock(LockRange { kind, start, length, process, client }) => {
                out.push(*kind);
                out.extend_from_slice(&start.to_le_bytes());
                out.extend_from_slice(&length.to_le_bytes());
                out.extend_from_slice(&process.to_le_bytes());
                put_string(out, client);
                kind::GETLOCK
            }
            Reply::Flush => kind::FLUSH,
            Reply::Clunk => kind::CLUNK,
            Reply::Remove => kind::REMOVE,
            Reply::Rename => kind::RENAME,
            Reply::Setattr => kind::SETATTR,
            Reply::Xattrcreate => kind::XATTRCREATE,
            Reply::Fsync => kind::FSYNC,
            Reply::Link => kind::LINK,
            Reply::Renameat => kind::RENAMEAT,
            Reply::Unlinkat => kind::UNLINKAT,
        };
        request + 1
    }
}

fn put_qid(out: &mut Vec<u8>, qid: &Qid, kind: u8) -> u8 {
    out.extend_from_slice(qid.as_bytes());
    kind
}

fn put_opened(out: &mut Vec<u8>, qid: &Qid, iounit: u32, kind: u8) -> u8 {
    out.extend_from_slice(qid.as_bytes());
    out.extend_from_slice(&iounit.to_le_bytes());
    kind
}

fn put_data(out: &mut Vec<u8>, data: &[u8], kind: u8) -> u8 {
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out.extend_from_slice(data);
    kind
}

/// A buffer for replies. It is reused, and grows to the largest.
#[derive(Default)]
pub struct ReplyBuffer {
    bytes: Vec<u8>,
    length: usize,
}

/// Bytes of `Rread` and `Rreaddir` before their data.
const DATA_START: usize = Header::SIZE + size_of::<u32>();

impl ReplyBuffer {
    /// Encodes this reply.
    pub fn set(&mut self, tag: u16, reply: &Reply<'_>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0; Header::SIZE]);
        let kind = reply.encode_body(&mut self.bytes);
        self.length = self.bytes.len();
        self.put_header(tag, kind);
    }

    /// Room for `count` bytes of data of an `Rread` or `Rreaddir`, to be followed by [`ReplyBuffer::set_data`]. Its
    /// content is undefined.
    pub fn data(&mut self, count: usize) -> &mut [u8] {
        let end = DATA_START + count;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes.get_mut(DATA_START..end).unwrap_or_default()
    }

    /// Completes the reply to request `kind` with the first `count` bytes of its data.
    pub fn set_data(&mut self, tag: u16, kind: u8, count: usize) {
        self.length = (DATA_START + count).min(self.bytes.len());
        let told = self.length.saturating_sub(DATA_START) as u32;
        if let Some(field) = self.bytes.get_mut(Header::SIZE..DATA_START) {
            field.copy_from_slice(&told.to_le_bytes());
        }
        self.put_header(tag, kind + 1);
    }

    /// The whole message.
    pub fn message(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    fn put_header(&mut self, tag: u16, kind: u8) {
        let header = Header { size: (self.length as u32).into(), kind, tag: tag.into() };
        if let Some(start) = self.bytes.get_mut(..Header::SIZE) {
            start.copy_from_slice(header.as_bytes());
        }
    }
}
