//! The clients' requests.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bytes::{Fields, Malformed, put_string};
use super::{Header, MAX_NAMES, kind};

/// Why a message is not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Its length does not match its fields.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A `Twalk` of more than 16 names.
    #[error("a walk has more than {MAX_NAMES} names")]
    TooManyNames,
    /// No request has this number.
    #[error("no request has the number {0}")]
    UnknownKind(u8),
}

/// The names of a `Twalk`, at most 16.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Names<'a> {
    names: [&'a [u8]; MAX_NAMES],
    count: usize,
}

impl<'a> Names<'a> {
    /// These names; `None` if there are too many.
    pub fn new(given: &[&'a [u8]]) -> Option<Names<'a>> {
        let mut names: [&'a [u8]; MAX_NAMES] = [&[]; MAX_NAMES];
        names.get_mut(..given.len())?.copy_from_slice(given);
        Some(Names { names, count: given.len() })
    }

    /// The names in order.
    pub fn as_slice(&self) -> &[&'a [u8]] {
        self.names.get(..self.count).unwrap_or_default()
    }
}

impl std::fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice().iter().map(|name| name.escape_ascii().to_string())).finish()
    }
}

/// The body of `Tsetattr` after its fid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetattrBody {
    /// Which of the other fields are valid: bits of [`set`](super::set).
    pub valid: U32,
    /// Permissions.
    pub mode: U32,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Bytes.
    pub size: U64,
    /// Access time, in seconds since 1970.
    pub atime: U64,
    /// And nanoseconds.
    pub atime_nanoseconds: U64,
    /// Modification time.
    pub mtime: U64,
    /// And nanoseconds.
    pub mtime_nanoseconds: U64,
}

/// A lock in `Tlock` and `Tgetlock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange<'a> {
    /// [`lock::SHARED`](super::lock::SHARED), `EXCLUSIVE` or `UNLOCK`.
    pub kind: u8,
    /// The first byte.
    pub start: u64,
    /// The number of bytes; 0 for all that follow.
    pub length: u64,
    /// The process.
    pub process: u32,
    /// The machine.
    pub client: &'a [u8],
}

/// A request.
#[expect(clippy::large_enum_variant, reason = "it lives for one request, on the stack")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields have the names and meanings of the protocol's")]
pub enum Request<'a> {
    Version { msize: u32, version: &'a [u8] },
    Auth { afid: u32, uname: &'a [u8], aname: &'a [u8], uid: u32 },
    Attach { fid: u32, afid: u32, uname: &'a [u8], aname: &'a [u8], uid: u32 },
    Flush { old_tag: u16 },
    Walk { fid: u32, new_fid: u32, names: Names<'a> },
    Read { fid: u32, offset: u64, count: u32 },
    Write { fid: u32, offset: u64, data: &'a [u8] },
    Clunk { fid: u32 },
    Remove { fid: u32 },
    Statfs { fid: u32 },
    Lopen { fid: u32, flags: u32 },
    Lcreate { fid: u32, name: &'a [u8], flags: u32, mode: u32, gid: u32 },
    Symlink { directory: u32, name: &'a [u8], target: &'a [u8], gid: u32 },
    Mknod { directory: u32, name: &'a [u8], mode: u32, major: u32, minor: u32, gid: u32 },
    Rename { fid: u32, directory: u32, name: &'a [u8] },
    Readlink { fid: u32 },
    Getattr { fid: u32, mask: u64 },
    Setattr { fid: u32, set: SetattrBody },
    Xattrwalk { fid: u32, new_fid: u32, name: &'a [u8] },
    Xattrcreate { fid: u32, name: &'a [u8], size: u64, flags: u32 },
    Readdir { fid: u32, offset: u64, count: u32 },
    Fsync { fid: u32, data_only: bool },
    Lock { fid: u32, range: LockRange<'a>, flags: u32 },
    Getlock { fid: u32, range: LockRange<'a> },
    Link { directory: u32, fid: u32, name: &'a [u8] },
    Mkdir { directory: u32, name: &'a [u8], mode: u32, gid: u32 },
    Renameat { old_directory: u32, old_name: &'a [u8], new_directory: u32, new_name: &'a [u8] },
    Unlinkat { directory: u32, name: &'a [u8], flags: u32 },
}

impl<'a> Request<'a> {
    /// Decodes a message's body.
    ///
    /// # Errors
    /// The bytes are not the body of this request.
    pub fn decode(kind: u8, body: &'a [u8]) -> Result<Request<'a>, DecodeError> {
        let mut fields = Fields::of(body);
        let request = match kind {
            kind::VERSION => Request::Version { msize: fields.u32()?, version: fields.string()? },
            kind::AUTH => Request::Auth {
                afid: fields.u32()?,
                uname: fields.string()?,
                aname: fields.string()?,
                uid: fields.u32()?,
            },
            kind::ATTACH => Request::Attach {
                fid: fields.u32()?,
                afid: fields.u32()?,
                uname: fields.string()?,
                aname: fields.string()?,
                uid: fields.u32()?,
            },
            kind::FLUSH => Request::Flush { old_tag: fields.u16()? },
            kind::WALK => Request::Walk { fid: fields.u32()?, new_fid: fields.u32()?, names: names(&mut fields)? },
            kind::READ => Request::Read { fid: fields.u32()?, offset: fields.u64()?, count: fields.u32()? },
            kind::WRITE => Request::Write { fid: fields.u32()?, offset: fields.u64()?, data: data(&mut fields)? },
            kind::CLUNK => Request::Clunk { fid: fields.u32()? },
            kind::REMOVE => Request::Remove { fid: fields.u32()? },
            _ => Self::decode_added(kind, &mut fields)?,
        };
        fields.end()?;
        Ok(request)
    }

    /// Decodes the messages that 9P2000.L adds.
    fn decode_added(kind: u8, fields: &mut Fields<'a>) -> Result<Request<'a>, DecodeError> {
        // A structure's initializers run in the order written here, which is the protocol's.
        Ok(match kind {
            kind::STATFS => Request::Statfs { fid: fields.u32()? },
            kind::LOPEN => Request::Lopen { fid: fields.u32()?, flags: fields.u32()? },
            kind::LCREATE => Request::Lcreate {
                fid: fields.u32()?,
                name: fields.string()?,
                flags: fields.u32()?,
                mode: fields.u32()?,
                gid: fields.u32()?,
            },
            kind::SYMLINK => Request::Symlink {
                directory: fields.u32()?,
                name: fields.string()?,
                target: fields.string()?,
                gid: fields.u32()?,
            },
            kind::MKNOD => Request::Mknod {
                directory: fields.u32()?,
                name: fields.string()?,
                mode: fields.u32()?,
                major: fields.u32()?,
                minor: fields.u32()?,
                gid: fields.u32()?,
            },
            kind::RENAME => Request::Rename { fid: fields.u32()?, directory: fields.u32()?, name: fields.string()? },
            kind::READLINK => Request::Readlink { fid: fields.u32()? },
            kind::GETATTR => Request::Getattr { fid: fields.u32()?, mask: fields.u64()? },
            kind::SETATTR => Request::Setattr { fid: fields.u32()?, set: fields.structure()? },
            kind::XATTRWALK => {
                Request::Xattrwalk { fid: fields.u32()?, new_fid: fields.u32()?, name: fields.string()? }
            }
            kind::XATTRCREATE => Request::Xattrcreate {
                fid: fields.u32()?,
                name: fields.string()?,
                size: fields.u64()?,
                flags: fields.u32()?,
            },
            kind::READDIR => Request::Readdir { fid: fields.u32()?, offset: fields.u64()?, count: fields.u32()? },
            // Linux sends whether syncing the data is enough; early clients did not.
            kind::FSYNC => Request::Fsync {
                fid: fields.u32()?,
                data_only: if fields.is_empty() { false } else { fields.u32()? != 0 },
            },
            kind::LOCK => lock(fields)?,
            kind::GETLOCK => Request::Getlock {
                fid: fields.u32()?,
                range: LockRange {
                    kind: fields.u8()?,
                    start: fields.u64()?,
                    length: fields.u64()?,
                    process: fields.u32()?,
                    client: fields.string()?,
                },
            },
            kind::LINK => Request::Link { directory: fields.u32()?, fid: fields.u32()?, name: fields.string()? },
            kind::MKDIR => Request::Mkdir {
                directory: fields.u32()?,
                name: fields.string()?,
                mode: fields.u32()?,
                gid: fields.u32()?,
            },
            kind::RENAMEAT => Request::Renameat {
                old_directory: fields.u32()?,
                old_name: fields.string()?,
                new_directory: fields.u32()?,
                new_name: fields.string()?,
            },
            kind::UNLINKAT => {
                Request::Unlinkat { directory: fields.u32()?, name: fields.string()?, flags: fields.u32()? }
            }
            other => return Err(DecodeError::UnknownKind(other)),
        })
    }

    /// Encodes the whole message into `out`, as a client sends it.
    pub fn encode(&self, tag: u16, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; Header::SIZE]);
        let kind = self.encode_body(out);
        let size = (out.len() - start) as u32;
        if let Some(header) = out.get_mut(start..start + Header::SIZE) {
            header.copy_from_slice(Header { size: size.into(), kind, tag: tag.into() }.as_bytes());
        }
    }

    /// Encodes the body; returns the message's number.
    fn encode_body(&self, out: &mut Vec<u8>) -> u8 {
        use Field::{Byte, Data, Long, Short, Text, Word};
        let mut put = |kind: u8, fields: &[Field<'_>]| {
            fields.iter().for_each(|field| field.put(out));
            kind
        };
        match *self {
            Request::Version { msize, version } => put(kind::VERSION, &[Word(msize), Text(version)]),
            Request::Auth { afid, uname, aname, uid } => {
                put(kind::AUTH, &[Word(afid), Text(uname), Text(aname), Word(uid)])
            }
            Request::Attach { fid, afid, uname, aname, uid } => {
                put(kind::ATTACH, &[Word(fid), Word(afid), Text(uname), Text(aname), Word(uid)])
            }
            Request::Flush { old_tag } => put(kind::FLUSH, &[Short(old_tag)]),
            Request::Walk { fid, new_fid, names } => {
                put(kind::WALK, &[Word(fid), Word(new_fid), Short(names.count as u16)]);
                names.as_slice().iter().for_each(|name| put_string(out, name));
                kind::WALK
            }
            Request::Read { fid, offset, count } => put(kind::READ, &[Word(fid), Long(offset), Word(count)]),
            Request::Write { fid, offset, data } => {
                put(kind::WRITE, &[Word(fid), Long(offset), Word(data.len() as u32), Data(data)])
            }
            Request::Clunk { fid } => put(kind::CLUNK, &[Word(fid)]),
            Request::Remove { fid } => put(kind::REMOVE, &[Word(fid)]),
            Request::Statfs { fid } => put(kind::STATFS, &[Word(fid)]),
            Request::Lopen { fid, flags } => put(kind::LOPEN, &[Word(fid), Word(flags)]),
            Request::Lcreate { fid, name, flags, mode, gid } => {
                put(kind::LCREATE, &[Word(fid), Text(name), Word(flags), Word(mode), Word(gid)])
            }
            Request::Symlink { directory, name, target, gid } => {
                put(kind::SYMLINK, &[Word(directory), Text(name), Text(target), Word(gid)])
            }
            Request::Mknod { directory, name, mode, major, minor, gid } => {
                put(kind::MKNOD, &[Word(directory), Text(name), Word(mode), Word(major), Word(minor), Word(gid)])
            }
            Request::Rename { fid, directory, name } => put(kind::RENAME, &[Word(fid), Word(directory), Text(name)]),
            Request::Readlink { fid } => put(kind::READLINK, &[Word(fid)]),
            Request::Getattr { fid, mask } => put(kind::GETATTR, &[Word(fid), Long(mask)]),
            Request::Setattr { fid, ref set } => put(kind::SETATTR, &[Word(fid), Data(set.as_bytes())]),
            Request::Xattrwalk { fid, new_fid, name } => put(kind::XATTRWALK, &[Word(fid), Word(new_fid), Text(name)]),
            Request::Xattrcreate { fid, name, size, flags } => {
                put(kind::XATTRCREATE, &[Word(fid), Text(name), Long(size), Word(flags)])
            }
            Request::Readdir { fid, offset, count } => put(kind::READDIR, &[Word(fid), Long(offset), Word(count)]),
            Request::Fsync { fid, data_only } => put(kind::FSYNC, &[Word(fid), Word(data_only.into())]),
            Request::Lock { fid, range: LockRange { kind, start, length, process, client }, flags } => put(
                kind::LOCK,
                &[Word(fid), Byte(kind), Word(flags), Long(start), Long(length), Word(process), Text(client)],
            ),
            Request::Getlock { fid, range: LockRange { kind, start, length, process, client } } => {
                put(kind::GETLOCK, &[Word(fid), Byte(kind), Long(start), Long(length), Word(process), Text(client)])
            }
            Request::Link { directory, fid, name } => put(kind::LINK, &[Word(directory), Word(fid), Text(name)]),
            Request::Mkdir { directory, name, mode, gid } => {
                put(kind::MKDIR, &[Word(directory), Text(name), Word(mode), Word(gid)])
            }
            Request::Renameat { old_directory, old_name, new_directory, new_name } => {
                put(kind::RENAMEAT, &[Word(old_directory), Text(old_name), Word(new_directory), Text(new_name)])
            }
            Request::Unlinkat { directory, name, flags } => {
                put(kind::UNLINKAT, &[Word(directory), Text(name), Word(flags)])
            }
        }
    }
}

/// A field to be encoded.
enum Field<'a> {
    Byte(u8),
    Short(u16),
    Word(u32),
    Long(u64),
    Text(&'a [u8]),
    Data(&'a [u8]),
}

impl Field<'_> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Field::Byte(number) => out.push(*number),
            Field::Short(number) => out.extend_from_slice(&number.to_le_bytes()),
            Field::Word(number) => out.extend_from_slice(&number.to_le_bytes()),
            Field::Long(number) => out.extend_from_slice(&number.to_le_bytes()),
            Field::Text(text) => put_string(out, text),
            Field::Data(data) => out.extend_from_slice(data),
        }
    }
}

fn names<'a>(fields: &mut Fields<'a>) -> Result<Names<'a>, DecodeError> {
    let count = usize::from(fields.u16()?);
    let mut names: [&'a [u8]; MAX_NAMES] = [&[]; MAX_NAMES];
    for name in names.get_mut(..count).ok_or(DecodeError::TooManyNames)? {
        *name = fields.string()?;
    }
    Ok(Names { names, count })
}

fn data<'a>(fields: &mut Fields<'a>) -> Result<&'a [u8], Malformed> {
    let length = fields.u32()?;
    fields.bytes(usize::try_from(length).map_err(|_| Malformed)?)
}

fn lock<'a>(fields: &mut Fields<'a>) -> Result<Request<'a>, Malformed> {
    let (fid, kind, flags) = (fields.u32()?, fields.u8()?, fields.u32()?);
    let range = LockRange {
        kind,
        start: fields.u64()?,
        length: fields.u64()?,
        process: fields.u32()?,
        client: fields.string()?,
    };
    Ok(Request::Lock { fid, range, flags })
}
