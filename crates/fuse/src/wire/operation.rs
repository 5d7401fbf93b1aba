//! Parses the body of a request.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::opcode;
use super::structs::{
    BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, ForgetIn, ForgetOne, FsyncIn, GetAttrIn,
    GetXattrIn, InitIn, InterruptIn, LinkIn, LkIn, LseekIn, MkdirIn, MknodIn, OpenIn, ReadIn, ReleaseIn, Rename2In,
    RenameIn, SetAttrIn, SetXattrExtIn, SetXattrIn, StatxIn, WriteIn,
};

/// The flag of [`GetAttrIn`] and [`StatxIn`] that says that the handle is valid (`FUSE_GETATTR_FH`).
const GETATTR_FH: u32 = 1 << 0;

/// What a request asks for.
#[derive(Debug)]
pub enum Operation<'a> {
    /// Start the connection.
    Init(InitIn),
    /// Look up a name in a directory.
    Lookup(&'a [u8]),
    /// Drop so many look-ups of the node. Has no answer.
    Forget(u64),
    /// The same for several nodes. Has no answer.
    BatchForget(BatchForget<'a>),
    /// Attributes, by an open handle if there is one.
    GetAttr(Option<u64>),
    /// Attributes, with the time of creation.
    Statx(Option<u64>),
    /// Set attributes.
    SetAttr(SetAttrIn),
    /// A symbolic link's target.
    ReadLink,
    /// Make a symbolic link: name and target.
    Symlink(&'a [u8], &'a [u8]),
    /// Make a file, a fifo, a socket or a device node.
    Mknod(MknodIn, &'a [u8]),
    /// Make a directory.
    Mkdir(MkdirIn, &'a [u8]),
    /// Remove a name of something that is no directory.
    Unlink(&'a [u8]),
    /// Remove a directory.
    Rmdir(&'a [u8]),
    /// Rename within or between directories: old name, new name.
    Rename(Rename2In, &'a [u8], &'a [u8]),
    /// Give a node a further name.
    Link(LinkIn, &'a [u8]),
    /// Open a file.
    Open(OpenIn),
    /// Make a file, and open it.
    Create(CreateIn, &'a [u8]),
    /// Make a file without a name, and open it.
    Tmpfile(CreateIn),
    /// Read a file.
    Read(ReadIn),
    /// Write a file; the data is behind the body.
    Write(WriteIn),
    /// Copy from file to file.
    CopyFileRange(CopyFileRangeIn),
    /// The same, with an answer of more than 32 bits.
    CopyFileRange64(CopyFileRangeIn),
    /// File system statistics.
    StatFs,
    /// Close a file: its last descriptor is gone.
    Release(ReleaseIn),
    /// One of a file's descriptors was closed.
    Flush(FlushIn),
    /// Sync a file.
    Fsync(FsyncIn),
    /// Sync the file system.
    SyncFs,
    /// Set an extended attribute: name and value.
    SetXattr(SetXattrIn, SetXattrExtIn, &'a [u8], &'a [u8]),
    /// An extended attribute's value, of so many bytes at most.
    GetXattr(u32, &'a [u8]),
    /// The names of the extended attributes, so many bytes at most.
    ListXattr(u32),
    /// Remove an extended attribute.
    RemoveXattr(&'a [u8]),
    /// Find a lock that conflicts with this one.
    GetLock(LkIn),
    /// Take or release a lock; true: wait for it.
    SetLock(LkIn, bool),
    /// Open a directory.
    OpenDir(OpenIn),
    /// Read a directory.
    ReadDir(ReadIn),
    /// Read a directory, with attributes.
    ReadDirPlus(ReadIn),
    /// Close a directory.
    ReleaseDir(ReleaseIn),
    /// Sync a directory.
    FsyncDir(FsyncIn),
    /// Interrupt the request with this number. Has no answer.
    Interrupt(u64),
    /// End the connection.
    Destroy,
    /// Allocate, or punch holes.
    Fallocate(FallocateIn),
    /// Find data or holes.
    Lseek(LseekIn),
}

/// Nodes to forget, each with its number of look-ups.
#[derive(Clone, Copy, Debug)]
pub struct BatchForget<'a> {
    bytes: &'a [u8],
}

impl Iterator for BatchForget<'_> {
    type Item = ForgetOne;

    fn next(&mut self) -> Option<ForgetOne> {
        let (one, rest) = ForgetOne::read_from_prefix(self.bytes).ok()?;
        self.bytes = rest;
        Some(one)
    }
}

impl<'a> Operation<'a> {
    /// Parses the `body` of a request with opcode `code`. `long_setxattr` says that
    /// [`SETXATTR_EXT`](super::init_flag::SETXATTR_EXT) was negotiated.
    ///
    /// # Errors
    /// `EINVAL` if it is cut short or malformed; `ENOSYS` if the opcode is not supported.
    pub fn parse(code: u32, body: &'a [u8], long_setxattr: bool) -> Result<Operation<'a>, Errno> {
        let known = match code {
            opcode::SYMLINK..=opcode::LINK => Self::of_names(code, body),
            opcode::SETXATTR..=opcode::REMOVEXATTR => Self::of_xattrs(code, body, long_setxattr),
            opcode::OPENDIR..=opcode::FSYNCDIR | opcode::READDIRPLUS => Self::of_directory(code, body),
            _ => Self::of_node(code, body),
        };
        known.unwrap_or(Err(Errno::NOSYS))
    }

    /// Parses requests that create, remove or rename. `None`: another opcode.
    fn of_names(code: u32, body: &'a [u8]) -> Option<Result<Operation<'a>, Errno>> {
        Some(match code {
            opcode::SYMLINK => strings(body).map(|(name, target)| Operation::Symlink(name, target)),
            opcode::MKNOD => with_name(body, Operation::Mknod),
            opcode::MKDIR => with_name(body, Operation::Mkdir),
            opcode::UNLINK => string(body).map(Operation::Unlink),
            opcode::RMDIR => string(body).map(Operation::Rmdir),
            opcode::RENAME => take::<RenameIn>(body).and_then(|(rename, names)| {
                let (old, new) = strings(names)?;
                Ok(Operation::Rename(Rename2In { newdir: rename.newdir, flags: 0, padding: 0 }, old, new))
            }),
            opcode::LINK => with_name(body, Operation::Link),
            _ => return None,
        })
    }

    fn of_xattrs(code: u32, body: &'a [u8], long_set: bool) -> Option<Result<Operation<'a>, Errno>> {
        Some(match code {
            opcode::SETXATTR => set_xattr(body, long_set),
            opcode::GETXATTR => with_name(body, |get: GetXattrIn, name| Operation::GetXattr(get.size, name)),
            opcode::LISTXATTR => take::<GetXattrIn>(body).map(|(list, _)| Operation::ListXattr(list.size)),
            opcode::REMOVEXATTR => string(body).map(Operation::RemoveXattr),
            _ => return None,
        })
    }

    fn of_directory(code: u32, body: &'a [u8]) -> Option<Result<Operation<'a>, Errno>> {
        Some(match code {
            opcode::OPENDIR => only(body, Operation::OpenDir),
            opcode::READDIR => only(body, Operation::ReadDir),
            opcode::READDIRPLUS => only(body, Operation::ReadDirPlus),
            opcode::RELEASEDIR => only(body, Operation::ReleaseDir),
            opcode::FSYNCDIR => only(body, Operation::FsyncDir),
            _ => return None,
        })
    }

    fn of_node(code: u32, body: &'a [u8]) -> Option<Result<Operation<'a>, Errno>> {
        Some(match code {
            opcode::INIT => init(body).map(Operation::Init),
            opcode::LOOKUP => string(body).map(Operation::Lookup),
            opcode::FORGET => only(body, |forget: ForgetIn| Operation::Forget(forget.nlookup)),
            opcode::BATCH_FORGET => batch_forget(body),
            opcode::GETATTR => only(body, |asked: GetAttrIn| Operation::GetAttr(handle(asked.getattr_flags, asked.fh))),
            opcode::STATX => only(body, |asked: StatxIn| Operation::Statx(handle(asked.getattr_flags, asked.fh))),
            opcode::SETATTR => only(body, Operation::SetAttr),
            opcode::READLINK => Ok(Operation::ReadLink),
            opcode::RENAME2 => take(body)
                .and_then(|(rename, names)| strings(names).map(|(old, new)| Operation::Rename(rename, old, new))),
            opcode::OPEN => only(body, Operation::Open),
            opcode::CREATE => with_name(body, Operation::Create),
            // A name made up by the kernel follows; it is ignored.
            opcode::TMPFILE => only(body, Operation::Tmpfile),
            opcode::READ => only(body, Operation::Read),
            opcode::WRITE => only(body, Operation::Write),
            opcode::COPY_FILE_RANGE => only(body, Operation::CopyFileRange),
            opcode::COPY_FILE_RANGE_64 => only(body, Operation::CopyFileRange64),
            opcode::STATFS => Ok(Operation::StatFs),
            opcode::RELEASE => only(body, Operation::Release),
            opcode::FLUSH => only(body, Operation::Flush),
            opcode::FSYNC => only(body, Operation::Fsync),
            opcode::SYNCFS => Ok(Operation::SyncFs),
            opcode::GETLK => only(body, Operation::GetLock),
            opcode::SETLK => only(body, |lock| Operation::SetLock(lock, false)),
            opcode::SETLKW => only(body, |lock| Operation::SetLock(lock, true)),
            opcode::INTERRUPT => only(body, |interrupt: InterruptIn| Operation::Interrupt(interrupt.unique)),
            opcode::DESTROY => Ok(Operation::Destroy),
            opcode::FALLOCATE => only(body, Operation::Fallocate),
            opcode::LSEEK => only(body, Operation::Lseek),
            _ => return None,
        })
    }
}

fn handle(flags: u32, handle: u64) -> Option<u64> {
    (flags & GETATTR_FH != 0).then_some(handle)
}

fn take<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(body).map_err(|_| Errno::INVAL)
}

/// A body of one structure.
fn only<'a, T: FromBytes + KnownLayout + Immutable>(
    body: &'a [u8],
    operation: impl FnOnce(T) -> Operation<'a>,
) -> Result<Operation<'a>, Errno> {
    take(body).map(|(asked, _)| operation(asked))
}

/// A body of a structure and a name.
fn with_name<'a, T: FromBytes + KnownLayout + Immutable>(
    body: &'a [u8],
    operation: impl FnOnce(T, &'a [u8]) -> Operation<'a>,
) -> Result<Operation<'a>, Errno> {
    let (asked, rest) = take(body)?;
    Ok(operation(asked, string(rest)?))
}

/// A string that fills the rest of the body, with its only NUL at the end.
fn string(body: &[u8]) -> Result<&[u8], Errno> {
    match body.split_last() {
        Some((0, string)) if !string.is_empty() && !string.contains(&0) => Ok(string),
        _ => Err(Errno::INVAL),
    }
}

/// A string that ends with a NUL, and the bytes after it.
fn string_and_rest(body: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = body.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
    let (string, rest) = body.split_at_checked(end).ok_or(Errno::INVAL)?;
    if string.is_empty() { Err(Errno::INVAL) } else { Ok((string, rest.get(1..).unwrap_or_default())) }
}

/// Two strings, each with a NUL; the second ends with the body.
fn strings(body: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let (first, rest) = string_and_rest(body)?;
    Ok((first, string(rest)?))
}

/// Old kernels send a shorter structure; the missing fields are zero.
fn init(body: &[u8]) -> Result<InitIn, Errno> {
    const SHORTEST: usize = 16;
    let mut whole = [0; size_of::<InitIn>()];
    let length = body.len().min(whole.len());
    if length < SHORTEST {
        return Err(Errno::INVAL);
    }
    for (to, from) in whole.iter_mut().zip(body) {
        *to = *from;
    }
    InitIn::read_from_bytes(&whole).map_err(|_| Errno::INVAL)
}

fn batch_forget(body: &[u8]) -> Result<Operation<'_>, Errno> {
    let (batch, bytes) = take::<BatchForgetIn>(body)?;
    let length = (batch.count as usize).checked_mul(size_of::<ForgetOne>());
    let bytes = length.and_then(|length| bytes.get(..length)).ok_or(Errno::INVAL)?;
    Ok(Operation::BatchForget(BatchForget { bytes }))
}

fn set_xattr(body: &[u8], long: bool) -> Result<Operation<'_>, Errno> {
    let (set, rest) = take::<SetXattrIn>(body)?;
    let (extended, rest) = if long { take(rest)? } else { (SetXattrExtIn::default(), rest) };
    let (name, value) = string_and_rest(rest)?;
    let value = value.get(..set.size as usize).ok_or(Errno::INVAL)?;
    Ok(Operation::SetXattr(set, extended, name, value))
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn names_end_where_the_message_ends() {
        assert!(matches!(Operation::parse(opcode::LOOKUP, b"disk.raw\0", false), Ok(Operation::Lookup(b"disk.raw"))));
        for wrong in [&b""[..], b"\0", b"name", b"na\0me\0"] {
            assert!(Operation::parse(opcode::LOOKUP, wrong, false).is_err(), "{wrong:?}");
        }
        let renamed = Operation::parse(opcode::RENAME, b"\x07\0\0\0\0\0\0\0old\0new\0", false);
        assert!(matches!(renamed, Ok(Operation::Rename(Rename2In { newdir: 7, flags: 0, .. }, b"old", b"new"))));
        for wrong in [&b"old\0"[..], b"old\0\0", b"\0new\0", b"old\0new", b"a\0b\0c\0"] {
            assert!(Operation::parse(opcode::SYMLINK, wrong, false).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_batch_that_announces_more_than_it_has_is_refused() {
        let one = ForgetOne { nodeid: 2, nlookup: 3 };
        let batch = |count| [BatchForgetIn { count, dummy: 0 }.as_bytes(), one.as_bytes()].concat();
        let body = batch(1);
        let Ok(Operation::BatchForget(mut nodes)) = Operation::parse(opcode::BATCH_FORGET, &body, false) else {
            panic!("no batch");
        };
        assert_eq!(nodes.next().map(|node| (node.nodeid, node.nlookup)), Some((2, 3)));
        assert!(nodes.next().is_none());
        for count in [2, u32::MAX] {
            assert!(Operation::parse(opcode::BATCH_FORGET, &batch(count), false).is_err());
        }
    }

    #[test]
    fn a_value_is_as_long_as_it_says() {
        let body = |size: u32, extended: &[u8]| {
            [SetXattrIn { size, flags: 1 }.as_bytes(), extended, b"user.a\0value"].concat()
        };
        let (short, long) = (body(5, b""), body(5, &[1, 0, 0, 0, 0, 0, 0, 0]));
        assert!(matches!(
            Operation::parse(opcode::SETXATTR, &short, false),
            Ok(Operation::SetXattr(SetXattrIn { flags: 1, .. }, _, b"user.a", b"value"))
        ));
        assert!(matches!(
            Operation::parse(opcode::SETXATTR, &long, true),
            Ok(Operation::SetXattr(_, SetXattrExtIn { setxattr_flags: 1, .. }, b"user.a", b"value"))
        ));
        for size in [6, u32::MAX] {
            assert!(Operation::parse(opcode::SETXATTR, &body(size, b""), false).is_err());
        }
    }

    #[test]
    fn whatever_is_cut_short_is_refused() {
        for code in 0..100 {
            for length in 0..200 {
                // Zero bytes are no valid name, and counts of 0 mean no data, so nothing longer than a structure can
                // be valid.
                let _ = Operation::parse(code, &vec![0; length], length % 2 == 0);
                let _ = Operation::parse(code, &vec![0xff; length], length % 2 == 0);
            }
            let empty = Operation::parse(code, b"", false);
            let bare = [opcode::READLINK, opcode::STATFS, opcode::SYNCFS, opcode::DESTROY].contains(&code);
            assert_eq!(empty.is_ok(), bare, "{code}");
        }
    }
}
