//! A message of the kernel's, understood.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::opcode;
use super::structs::{
    BatchForgetIn, FallocateIn, ForgetIn, ForgetOne, FsyncIn, GetAttrIn, InHeader, InitIn, InterruptIn, LseekIn,
    OpenIn, ReadIn, ReleaseIn, SetAttrIn, WriteIn,
};

/// The bit of [`GetAttrIn`] that says that its handle counts (`FUSE_GETATTR_FH`).
const GETATTR_FH: u32 = 1 << 0;

/// A request: who asks, about which node, and what for.
#[derive(Debug)]
pub struct Request<'a> {
    /// Who, which node, and the number that the answer must have.
    pub header: InHeader,
    /// What for.
    pub operation: Operation<'a>,
}

/// What is asked for.
#[derive(Debug)]
pub enum Operation<'a> {
    /// The start.
    Init(InitIn),
    /// The node with this name in a directory.
    Lookup(&'a [u8]),
    /// The kernel takes back so many lookups of the node. Has no answer.
    Forget(u64),
    /// The same for several nodes. Has no answer.
    BatchForget(BatchForget<'a>),
    /// Attributes, by an open handle if there is one.
    GetAttr(Option<u64>),
    /// Set attributes.
    SetAttr(SetAttrIn),
    /// Open a file.
    Open(OpenIn),
    /// Read a file.
    Read(ReadIn),
    /// Write a file.
    Write(WriteIn, &'a [u8]),
    /// The file system's numbers.
    StatFs,
    /// A file is no longer open.
    Release(ReleaseIn),
    /// One of a file's descriptors was closed.
    Flush,
    /// Make a file durable.
    Fsync(FsyncIn),
    /// Open a directory.
    OpenDir(OpenIn),
    /// Read a directory.
    ReadDir(ReadIn),
    /// Read a directory, with attributes.
    ReadDirPlus(ReadIn),
    /// A directory is no longer open.
    ReleaseDir(ReleaseIn),
    /// Nobody waits for the request with this number any more. Has no answer.
    Interrupt(u64),
    /// The end.
    Destroy,
    /// Allocate, or make holes.
    Fallocate(FallocateIn),
    /// Find data or holes.
    Lseek(LseekIn),
    /// What is not understood: its opcode.
    Unknown(u32),
}

/// Nodes to forget, each with its number of lookups.
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

impl<'a> Request<'a> {
    /// Understands one whole message.
    ///
    /// # Errors
    /// It is cut short, or its parts contradict each other. What came of its header says whom to answer.
    pub fn parse(message: &'a [u8]) -> Result<Request<'a>, (Option<InHeader>, Errno)> {
        let (header, body) = InHeader::read_from_prefix(message).map_err(|_| (None, Errno::IO))?;
        if header.len as usize != message.len() {
            return Err((Some(header), Errno::IO));
        }
        // Extensions lie at the end, and none was agreed on.
        let extensions = usize::from(header.total_extlen) * 8;
        let body = body.len().checked_sub(extensions).and_then(|length| body.get(..length));
        let operation = body.and_then(|body| Operation::parse(header.opcode, body));
        operation.map(|operation| Request { header, operation }).ok_or((Some(header), Errno::INVAL))
    }
}

impl<'a> Operation<'a> {
    fn parse(code: u32, body: &'a [u8]) -> Option<Operation<'a>> {
        Some(match code {
            opcode::INIT => Operation::Init(init(body)?),
            opcode::LOOKUP => Operation::Lookup(name(body)?),
            opcode::FORGET => Operation::Forget(take::<ForgetIn>(body)?.0.nlookup),
            opcode::BATCH_FORGET => {
                let (batch, bytes) = take::<BatchForgetIn>(body)?;
                let length = (batch.count as usize).checked_mul(size_of::<ForgetOne>())?;
                Operation::BatchForget(BatchForget { bytes: bytes.get(..length)? })
            }
            opcode::GETATTR => {
                let asked = take::<GetAttrIn>(body)?.0;
                Operation::GetAttr((asked.getattr_flags & GETATTR_FH != 0).then_some(asked.fh))
            }
            opcode::SETATTR => Operation::SetAttr(take(body)?.0),
            opcode::OPEN => Operation::Open(take(body)?.0),
            opcode::READ => Operation::Read(take(body)?.0),
            opcode::WRITE => {
                let (write, data) = take::<WriteIn>(body)?;
                Operation::Write(write, data.get(..write.size as usize)?)
            }
            opcode::STATFS => Operation::StatFs,
            opcode::RELEASE => Operation::Release(take(body)?.0),
            opcode::FLUSH => Operation::Flush,
            opcode::FSYNC => Operation::Fsync(take(body)?.0),
            opcode::OPENDIR => Operation::OpenDir(take(body)?.0),
            opcode::READDIR => Operation::ReadDir(take(body)?.0),
            opcode::READDIRPLUS => Operation::ReadDirPlus(take(body)?.0),
            opcode::RELEASEDIR => Operation::ReleaseDir(take(body)?.0),
            opcode::INTERRUPT => Operation::Interrupt(take::<InterruptIn>(body)?.0.unique),
            opcode::DESTROY => Operation::Destroy,
            opcode::FALLOCATE => Operation::Fallocate(take(body)?.0),
            opcode::LSEEK => Operation::Lseek(take(body)?.0),
            code => Operation::Unknown(code),
        })
    }
}

fn take<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Option<(T, &[u8])> {
    T::read_from_prefix(body).ok()
}

/// An old kernel's is shorter: what it does not say is zeros.
fn init(body: &[u8]) -> Option<InitIn> {
    const SHORTEST: usize = 16;
    let mut whole = [0; size_of::<InitIn>()];
    let length = body.len().min(whole.len());
    if length < SHORTEST {
        return None;
    }
    whole.get_mut(..length)?.copy_from_slice(body.get(..length)?);
    InitIn::read_from_bytes(&whole).ok()
}

/// A name, which ends with the message and has one NUL there.
fn name(body: &[u8]) -> Option<&[u8]> {
    let (end, name) = body.split_last()?;
    (*end == 0 && !name.is_empty() && !name.contains(&0)).then_some(name)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, opcode, unique: 2, nodeid: 1, ..InHeader::default() };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn a_write_is_as_long_as_it_says() {
        let write = WriteIn { offset: 512, size: 3, ..WriteIn::default() };
        let whole = message(opcode::WRITE, &[write.as_bytes(), b"abc"].concat());
        let request = Request::parse(&whole).unwrap();
        assert!(matches!(request.operation, Operation::Write(WriteIn { offset: 512, .. }, b"abc")));
        let short = message(opcode::WRITE, &[write.as_bytes(), b"ab"].concat());
        assert_eq!(Request::parse(&short).unwrap_err().1, Errno::INVAL);
        for end in 0..whole.len() {
            assert!(Request::parse(&whole[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn names_end_where_the_message_ends() {
        assert!(matches!(
            Request::parse(&message(opcode::LOOKUP, b"disk.raw\0")).unwrap().operation,
            Operation::Lookup(b"disk.raw")
        ));
        for wrong in [&b""[..], b"\0", b"name", b"na\0me\0"] {
            assert!(Request::parse(&message(opcode::LOOKUP, wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_batch_that_announces_more_than_it_has_is_refused() {
        let one = ForgetOne { nodeid: 2, nlookup: 3 };
        let batch = |count| [BatchForgetIn { count, dummy: 0 }.as_bytes(), one.as_bytes()].concat();
        let whole = message(opcode::BATCH_FORGET, &batch(1));
        let Operation::BatchForget(mut nodes) = Request::parse(&whole).unwrap().operation else {
            panic!("no batch");
        };
        assert_eq!(nodes.next().map(|node| (node.nodeid, node.nlookup)), Some((2, 3)));
        assert!(nodes.next().is_none());
        for count in [2, u32::MAX] {
            assert!(Request::parse(&message(opcode::BATCH_FORGET, &batch(count))).is_err());
        }
    }
}
