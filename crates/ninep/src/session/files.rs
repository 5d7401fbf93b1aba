//! `Tlopen`, `Tlcreate`, `Tread`, `Twrite`, `Tfsync`: open files.

use std::sync::Arc;

use inarch_vfs::{Attributes, Context, NewNode, OpenHandle, WriteKind, check_name};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::access::{self, EXECUTE, READ, WRITE};
use super::fids::Fid;
use super::locks::open_file;
use super::place::{DIRECTORY, Place, REGULAR, SYMLINK, TYPE_MASK};
use super::usage::{Handle, OpenDirectory, OpenFile, Use};
use super::walk::group_of;
use super::{Answer, Call, Session, attributes};
use crate::wire::{Reply, ReplyBuffer, kind, open};
use inarch_vfs::Slot;

/// The flags of open(2) that the file system also needs. The others concern the client's own descriptor, or would place
/// demands on our buffers (`O_DIRECT`).
fn host_flags(flags: u32) -> u32 {
    use rustix::fs::OFlags;
    let mut host = match flags & open::ACCESS {
        open::WRITE_ONLY => OFlags::WRONLY,
        open::READ_WRITE => OFlags::RDWR,
        _ => OFlags::RDONLY,
    };
    host.set(OFlags::TRUNC, flags & open::TRUNCATE != 0);
    host.set(OFlags::APPEND, flags & open::APPEND != 0);
    host.set(OFlags::DSYNC, flags & open::DATA_SYNC != 0);
    host.set(OFlags::SYNC, flags & open::SYNC != 0);
    host.bits()
}

/// Whether a file opened with these flags is readable, and writable.
fn ways(flags: u32) -> Result<(bool, bool), Errno> {
    match flags & open::ACCESS {
        0 => Ok((true, false)),
        open::WRITE_ONLY => Ok((false, true)),
        open::READ_WRITE => Ok((true, true)),
        _ => Err(Errno::INVAL),
    }
}

impl Session<'_> {
    /// `Tlopen`.
    pub(super) fn lopen(&self, call: &Call<'_>, number: u32, flags: u32) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(number)?;
        if fid.usage.is_some() {
            return Err(Errno::BUSY);
        }
        self.export.check_room()?;
        let (usage, attributes) = call.context(fid.uid, group_of(fid.uid), |context| {
            let attributes = self.file_system().attributes(context, fid.place.node, None)?;
            let usage = self.open_place(context, &fid.place, &attributes, flags)?;
            Ok::<_, Errno>((usage, attributes))
        })?;
        let new = Fid { usage: Some(Arc::new(usage)), ..fid.clone() };
        self.fids.replace(number, &fid, new)?;
        Ok(Reply::Lopen { qid: attributes::qid(&attributes), iounit: self.most_data() })
    }

    /// Opens a place. A device or fifo of the host is never opened for a client (CVE-2023-2861).
    fn open_place(
        &self,
        context: &Context<'_>,
        place: &Arc<Place>,
        attributes: &Attributes,
        flags: u32,
    ) -> Result<Use, Errno> {
        let (readable, writable) = ways(flags)?;
        let changes = writable || flags & open::TRUNCATE != 0;
        match attributes.mode & TYPE_MASK {
            DIRECTORY if changes => Err(Errno::ISDIR),
            DIRECTORY => {
                access::check(context.uid, attributes, READ)?;
                let slot = self.export.slot()?;
                let opened = self.file_system().open_directory(context, place.node);
                Ok(Use::Directory(OpenDirectory::new(&self.export, place, handle(opened, slot)?)))
            }
            REGULAR if flags & open::DIRECTORY != 0 => Err(Errno::NOTDIR),
            REGULAR => {
                if changes {
                    access::check(context.uid, attributes, WRITE)?;
                }
                if readable {
                    // A client's kernel reads a program to execute it, and only says that it reads.
                    access::check_any(context.uid, attributes, READ | EXECUTE)?;
                }
                let slot = self.export.slot()?;
                let handle = handle(self.file_system().open(context, place.node, host_flags(flags)), slot)?;
                Ok(Use::File(OpenFile::new(&self.export, place, handle, readable, writable)))
            }
            SYMLINK => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }

    /// `Tlcreate`: the directory's fid becomes the open file's.
    pub(super) fn lcreate(
        &self,
        call: &Call<'_>,
        number: u32,
        name: &[u8],
        flags: u32,
        (mode, gid): (u32, u32),
    ) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(number)?;
        check_name(name)?;
        if fid.usage.is_some() {
            return Err(Errno::BUSY);
        }
        self.export.check_room()?;
        let (place, usage, attributes) =
            call.context(fid.uid, gid, |context| self.create(context, &fid.place, name, flags, mode))?;
        self.fids.replace(number, &fid, Fid { place, usage: Some(Arc::new(usage)), uid: fid.uid })?;
        Ok(Reply::Lcreate { qid: attributes::qid(&attributes), iounit: self.most_data() })
    }

    /// Creates and opens a file. If it exists and that is allowed, opens it under the rules of opening.
    fn create(
        &self,
        context: &Context<'_>,
        directory: &Arc<Place>,
        name: &[u8],
        flags: u32,
        mode: u32,
    ) -> Result<(Arc<Place>, Use, Attributes), Errno> {
        let (readable, writable) = ways(flags)?;
        let exclusive = rustix::fs::OFlags::EXCL.bits();
        let new = NewNode { mode: mode & 0o7777 | REGULAR, umask: 0, device: 0 };
        let slot = self.export.slot()?;
        let made = self.check_makes(context, directory).and_then(|()| {
            self.file_system().create(context, directory.node, name, &new, host_flags(flags) | exclusive)
        });
        let there = match made {
            Ok((entry, opened)) => {
                let place = Place::new(&self.export, entry.node, entry.attributes.mode, Some(directory), name);
                let usage = OpenFile::new(&self.export, &place, Some((opened.handle, slot)), readable, writable);
                return Ok((place, Use::File(usage), entry.attributes));
            }
            // It may exist although nothing can be created here.
            Err(errno @ (Errno::EXIST | Errno::ACCESS | Errno::ROFS)) if flags & open::EXCLUSIVE == 0 => {
                self.file_system().lookup(context, directory.node, name).map_err(|_| errno)?
            }
            Err(errno) => return Err(errno),
        };
        // An existing file takes its slot when it is opened.
        drop(slot);
        let place = Place::new(&self.export, there.node, there.attributes.mode, Some(directory), name);
        let usage = self.open_place(context, &place, &there.attributes, flags)?;
        Ok((place, usage, there.attributes))
    }

    /// `Tread` of a file, or of an extended attribute's value.
    pub(super) fn read(
        &self,
        call: &Call<'_>,
        fid: u32,
        offset: u64,
        count: u32,
        out: &mut ReplyBuffer,
    ) -> Result<Answer, Errno> {
        let fid = self.fids.get(fid)?;
        let count = count.min(self.most_data()) as usize;
        let got = match fid.usage.as_deref() {
            Some(Use::File(file)) if file.readable => {
                check_range(offset, count)?;
                call.context(fid.uid, group_of(fid.uid), |context| {
                    let room = [VolatileSlice::from(out.data(count))];
                    self.file_system().read(context, file.place.node, file.handle(), offset, &room)
                })?
            }
            Some(Use::Value(value)) => {
                let data = value.from(offset);
                let data = data.get(..count).unwrap_or(data);
                out.data(data.len()).copy_from_slice(data);
                data.len()
            }
            Some(Use::Directory(_)) => return Err(Errno::ISDIR),
            _ => return Err(Errno::BADF),
        };
        out.set_data(call.tag, kind::READ, got.min(count));
        Ok(Answer::Made)
    }

    /// `Twrite` to a file, or of an extended attribute's value.
    pub(super) fn write(
        &self,
        call: &Call<'_>,
        fid: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(fid)?;
        let count = match fid.usage.as_deref() {
            Some(Use::File(file)) if file.writable => {
                check_range(offset, data.len())?;
                let kind = WriteKind { cached: false, kill_privileges: fid.uid != 0 };
                call.context(fid.uid, group_of(fid.uid), |context| {
                    let data = [VolatileSlice::from(data)];
                    self.file_system().write(context, file.place.node, file.handle(), offset, &data, kind)
                })?
            }
            Some(Use::NewValue(value)) => {
                value.write(offset, data)?;
                data.len()
            }
            _ => return Err(Errno::BADF),
        };
        Ok(Reply::Write { count: count as u32 })
    }

    /// `Tfsync` of a file or a directory.
    pub(super) fn fsync(&self, call: &Call<'_>, fid: u32, data_only: bool) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(fid)?;
        let (node, handle) = match fid.usage.as_deref() {
            Some(Use::File(file)) => (file.place.node, file.handle()),
            Some(Use::Directory(directory)) => (directory.place.node, directory.handle()),
            _ => return Err(Errno::BADF),
        };
        call.context(fid.uid, group_of(fid.uid), |context| self.file_system().fsync(context, node, handle, data_only))?;
        Ok(Reply::Fsync)
    }

    /// Passes on that a file that may have been written is closed.
    pub(super) fn flush_file(&self, call: &Call<'_>, fid: &Fid, file: &OpenFile) -> Result<(), Errno> {
        let flushed = call.context(fid.uid, group_of(fid.uid), |context| {
            self.file_system().flush(context, file.place.node, file.handle(), None)
        });
        match flushed {
            // There is nothing to flush.
            Err(Errno::NOSYS) => Ok(()),
            flushed => flushed,
        }
    }

    /// The file that `fid` has open.
    pub(super) fn opened<'f>(&self, fid: &'f Fid) -> Result<&'f OpenFile, Errno> {
        open_file(fid)
    }
}

/// The opened handle with its slot; `None` if the file system needs no opening.
fn handle(opened: Result<OpenHandle, Errno>, slot: Slot) -> Result<Option<Handle>, Errno> {
    match opened {
        Err(Errno::NOSYS) => Ok(None),
        opened => opened.map(|opened| Some((opened.handle, slot))),
    }
}

/// `EINVAL` for a range that no file can have.
fn check_range(offset: u64, count: usize) -> Result<(), Errno> {
    match offset.checked_add(count as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Errno::INVAL),
    }
}
