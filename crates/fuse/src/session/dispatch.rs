//! From a request to the file system's answer.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::MAX_DATA;
use super::channel::Channel;
use super::interrupts::{Interrupts, Slot};
use crate::file_system::{Context, FileSystem, HandleId, NodeId, SetAttributes};
use crate::wire::reply::{self, DirectoryList};
use crate::wire::request::{Operation, Request};
use crate::wire::set_attribute;
use crate::wire::structs::{LseekOut, ReadIn, SetAttrIn, WriteOut};

/// One thread of a session.
pub struct Worker<'s, F> {
    pub channel: &'s Channel,
    pub file_system: &'s F,
    pub slot: &'s Slot,
    pub interrupts: &'s Interrupts,
}

/// What becomes of a request.
enum Answer<'b> {
    /// It has none.
    Silence,
    /// These bytes.
    Bytes(&'b [u8]),
}

impl<F: FileSystem> Worker<'_, F> {
    /// Serves until the connection ends. Requests are read into `buffer`.
    pub fn run(&self, mut buffer: Vec<u8>) -> io::Result<()> {
        let mut out = Vec::new();
        while let Some(message) = self.channel.receive(&mut buffer)? {
            match Request::parse(message) {
                Ok(request) => self.serve(&request, &mut out)?,
                Err((Some(header), errno)) => self.channel.reply(reply::error(header.unique, errno), &[])?,
                Err((None, _)) => {}
            }
        }
        Ok(())
    }

    fn serve(&self, request: &Request<'_>, out: &mut Vec<u8>) -> io::Result<()> {
        let unique = request.header.unique;
        self.slot.begin(unique);
        match contain(|| self.execute(request, out)).and_then(|answer| answer) {
            Ok(Answer::Silence) => Ok(()),
            Ok(Answer::Bytes(bytes)) => self.channel.reply(reply::success(unique, bytes.len()), bytes),
            Err(errno) => self.channel.reply(reply::error(unique, errno), &[]),
        }
    }

    fn execute<'b>(&self, request: &Request<'_>, out: &'b mut Vec<u8>) -> Result<Answer<'b>, Errno> {
        let header = &request.header;
        let interrupted = || self.slot.is_interrupted();
        let context = &Context { uid: header.uid, gid: header.gid, pid: header.pid, interrupted: &interrupted };
        let (fs, node) = (self.file_system, NodeId(header.nodeid));
        match &request.operation {
            Operation::Forget(lookups) => fs.forget(node, *lookups),
            Operation::BatchForget(nodes) => nodes.for_each(|one| fs.forget(NodeId(one.nodeid), one.nlookup)),
            Operation::Interrupt(unique) => {
                self.interrupts.interrupt(*unique);
                fs.interrupted();
            }
            operation => return self.answer(context, node, operation, out),
        }
        Ok(Answer::Silence)
    }

    /// Executes what has an answer.
    fn answer<'b>(
        &self,
        context: &Context<'_>,
        node: NodeId,
        operation: &Operation<'_>,
        out: &'b mut Vec<u8>,
    ) -> Result<Answer<'b>, Errno> {
        let fs = self.file_system;
        match operation {
            Operation::Lookup(name) => {
                let entry = fs.lookup(context, node, name)?;
                Ok(put(out, &reply::entry(&entry)))
            }
            Operation::GetAttr(handle) => {
                let attributes = fs.attributes(context, node, handle.map(HandleId))?;
                Ok(put(out, &reply::attributes(&attributes)))
            }
            Operation::SetAttr(asked) => {
                let attributes = fs.set_attributes(context, node, &to_set(asked))?;
                Ok(put(out, &reply::attributes(&attributes)))
            }
            Operation::Open(open) => {
                let opened = fs.open(context, node, open.flags)?;
                Ok(put(out, &reply::opened(&opened)))
            }
            Operation::Read(read) => self.read(context, node, read, out),
            Operation::Write(write, data) => {
                let size = fs.write(context, node, HandleId(write.fh), write.offset, data)?;
                Ok(put(out, &WriteOut { size, padding: 0 }))
            }
            Operation::StatFs => Ok(put(out, &reply::statistics(&fs.statistics(context)?))),
            Operation::Flush => fs.flush(context, node).map(|()| Answer::Bytes(&[])),
            Operation::Fsync(fsync) => fs.fsync(context, node, HandleId(fsync.fh)).map(|()| Answer::Bytes(&[])),
            Operation::Fallocate(asked) => {
                let (mode, offset, length) = (asked.mode, asked.offset, asked.length);
                fs.fallocate(context, node, HandleId(asked.fh), mode, offset, length).map(|()| Answer::Bytes(&[]))
            }
            Operation::Lseek(seek) => {
                let offset = fs.seek(context, node, HandleId(seek.fh), seek.offset, seek.whence)?;
                Ok(put(out, &LseekOut { offset }))
            }
            Operation::Release(release) => {
                fs.release(node, HandleId(release.fh));
                Ok(Answer::Bytes(&[]))
            }
            Operation::OpenDir(_) => Ok(put(out, &reply::opened(&fs.open_directory(context, node)?))),
            Operation::ReadDir(read) => self.read_directory(context, node, read, false, out),
            Operation::ReadDirPlus(read) => self.read_directory(context, node, read, true, out),
            Operation::ReleaseDir(release) => {
                fs.release_directory(node, HandleId(release.fh));
                Ok(Answer::Bytes(&[]))
            }
            Operation::Destroy => Ok(Answer::Bytes(&[])),
            // A second INIT is as strange as what is not known.
            _ => Err(Errno::NOSYS),
        }
    }

    /// Reads straight into the buffer that the answer is sent from.
    fn read<'b>(
        &self,
        context: &Context<'_>,
        node: NodeId,
        read: &ReadIn,
        out: &'b mut Vec<u8>,
    ) -> Result<Answer<'b>, Errno> {
        let size = read.size.min(MAX_DATA) as usize;
        if out.len() < size {
            out.resize(size, 0);
        }
        let space = out.get_mut(..size).unwrap_or_default();
        let length = self.file_system.read(context, node, HandleId(read.fh), read.offset, space)?;
        Ok(Answer::Bytes(out.get(..length.min(size)).unwrap_or_default()))
    }

    fn read_directory<'b>(
        &self,
        context: &Context<'_>,
        node: NodeId,
        read: &ReadIn,
        plus: bool,
        out: &'b mut Vec<u8>,
    ) -> Result<Answer<'b>, Errno> {
        let mut list = DirectoryList::new(out, read.size.min(MAX_DATA) as usize, plus);
        self.file_system.read_directory(context, node, HandleId(read.fh), read.offset, &mut list)?;
        Ok(Answer::Bytes(out))
    }
}

/// Does `work`; a panic of the file system becomes an error.
fn contain<T>(work: impl FnOnce() -> T) -> Result<T, Errno> {
    // Nothing of ours is left half-changed: a file system promises to be usable from several threads.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Errno::IO)
}

fn put<'b>(out: &'b mut Vec<u8>, answer: &(impl IntoBytes + zerocopy::Immutable)) -> Answer<'b> {
    out.clear();
    out.extend_from_slice(answer.as_bytes());
    Answer::Bytes(out)
}

fn to_set(asked: &SetAttrIn) -> SetAttributes {
    let is_set = |attribute: u32| asked.valid & attribute != 0;
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mtime = || {
        // More nanoseconds than a second has would be an overflow for the largest time there is.
        Duration::from_secs(asked.mtime).saturating_add(Duration::from_nanos(asked.mtimensec.into()))
    };
    SetAttributes {
        mode: is_set(set_attribute::MODE).then_some(asked.mode),
        uid: is_set(set_attribute::UID).then_some(asked.uid),
        gid: is_set(set_attribute::GID).then_some(asked.gid),
        size: is_set(set_attribute::SIZE).then_some(asked.size),
        mtime: match (is_set(set_attribute::MTIME_NOW), is_set(set_attribute::MTIME)) {
            (true, _) => Some(now()),
            (false, true) => Some(mtime()),
            (false, false) => None,
        },
    }
}
