//! Translates each request into a call of the file system, and the result into an answer.

use std::cell::Cell;

use inarch_tree::Timestamp;
use inarch_vfs::{
    Caching, Context, FileSystem, HandleId, LockKind, LockOwner, NewNode, NodeId, OF_USERS, OPEN_TO_EXECUTE,
    OpenHandle, SetAttributes, SetTime, WriteKind, check_name, visible_to,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::message::{Reply, total, window};
use super::rights::{EXECUTE, READ, WRITE};
use super::{Dispatcher, MAX_DATA};
use crate::wire::listing::DirectoryList;
use crate::wire::open_flag;
use crate::wire::reply;
use crate::wire::request::Operation;
use crate::wire::set_attribute;
use crate::wire::structs::{
    CopyFileRangeIn, CopyFileRangeOut, CreateIn, EntryOut, FlushIn, GetXattrOut, LkIn, LkOut, LseekOut, OpenIn,
    OpenOut, ReadIn, ReleaseIn, SetAttrIn, WriteIn, WriteOut,
};

/// `FUSE_OPEN_KILL_SUIDGID`.
const OPEN_KILL_SUIDGID: u32 = 1 << 0;

/// `FUSE_WRITE_CACHE` and `FUSE_WRITE_KILL_SUIDGID`.
const WRITE_CACHE: u32 = 1 << 0;
const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// `FUSE_RELEASE_FLOCK_UNLOCK`.
const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;

/// `FUSE_FSYNC_FDATASYNC`.
const FSYNC_DATA_ONLY: u32 = 1 << 0;

/// `FUSE_LK_FLOCK`.
const LK_FLOCK: u32 = 1 << 0;

/// `FUSE_SETXATTR_ACL_KILL_SGID`.
const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Most bytes in an extended attribute's value, and of all their names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX` of Linux's
/// include/uapi/linux/limits.h).
const XATTR_SIZE_MAX: usize = 65536;

/// Most bytes in an extended attribute's name (`XATTR_NAME_MAX`).
const XATTR_NAME_MAX: usize = 255;

/// Most bytes in a symbolic link's target (`PATH_MAX` without the NUL).
const TARGET_MAX: usize = 4095;

/// Keeps those flags of open(2) that mean the same on every architecture and matter to a server. `O_DIRECT`,
/// `O_DIRECTORY`, `O_NOFOLLOW` and `O_LARGEFILE` have different values, and the client's kernel handles them.
fn portable(flags: u32) -> OFlags {
    let known = OFlags::ACCMODE
        | OFlags::APPEND
        | OFlags::TRUNC
        | OFlags::EXCL
        | OFlags::NONBLOCK
        | OFlags::DSYNC
        | OFlags::SYNC
        | OFlags::NOATIME;
    OFlags::from_bits_retain(flags) & known
}

/// A request being answered.
pub struct Asked<'r, F: ?Sized> {
    pub dispatcher: &'r Dispatcher<F>,
    pub context: &'r Context<'r>,
    /// The request's number.
    pub unique: u64,
    pub node: NodeId,
    /// The data of a write.
    pub data: &'r [VolatileSlice<'r>],
    pub out: &'r Reply<'r>,
    /// If given, a request that would wait for a lock sets it and fails: the caller must execute the request again
    /// and ignore the error. Without it, the call blocks.
    pub parked: Option<&'r Cell<bool>>,
}

impl<F: FileSystem + ?Sized> Asked<'_, F> {
    pub(super) fn fs(&self) -> &F {
        &self.dispatcher.file_system
    }

    /// Answers the request. Returns the number of bytes after the answer's header.
    pub fn answer(&self, operation: &Operation<'_>, list: &mut Vec<u8>) -> Result<usize, Errno> {
        let (fs, context, node, out) = (self.fs(), self.context, self.node, self.out);
        match operation {
            Operation::Lookup(name) => self.lookup(name),
            Operation::GetAttr(handle) => {
                out.put(&reply::attributes(&fs.attributes(context, node, handle.map(HandleId))?))
            }
            Operation::Statx(handle) => out.put(&reply::statx(&fs.attributes(context, node, handle.map(HandleId))?)),
            Operation::SetAttr(asked) => self.set_attributes(asked),
            Operation::ReadLink => out.put_bytes(&fs.read_link(context, node)?),
            Operation::Open(open) => self.open(open),
            Operation::Create(create, name) => self.create(create, Some(name)),
            Operation::Tmpfile(create) => self.create(create, None),
            Operation::Read(read) => self.read(read),
            Operation::Write(write) => self.write(write),
            Operation::CopyFileRange(copy) => {
                // The answer cannot express more; the client continues from there.
                let length = copy.len.min(u64::from(u32::MAX) & !0xfff);
                let size = u32::try_from(self.copy_range(copy, length)?).map_err(|_| Errno::IO)?;
                out.put(&WriteOut { size, padding: 0 })
            }
            Operation::CopyFileRange64(copy) => {
                out.put(&CopyFileRangeOut { bytes_copied: self.copy_range(copy, copy.len)? })
            }
            Operation::StatFs => out.put(&reply::statistics(&fs.statistics(context, node)?)),
            Operation::Release(release) => Ok(self.release(release)),
            Operation::Flush(flush) => self.flush(flush),
            Operation::Fsync(fsync) | Operation::FsyncDir(fsync) => {
                let data_only = fsync.fsync_flags & FSYNC_DATA_ONLY != 0;
                fs.fsync(context, node, HandleId(fsync.fh), data_only).map(|()| 0)
            }
            Operation::SyncFs => fs.sync(context).map(|()| 0),
            Operation::Fallocate(asked) => {
                let (mode, offset, length) = (asked.mode, asked.offset, asked.length);
                fs.fallocate(context, node, HandleId(asked.fh), mode, offset, length).map(|()| 0)
            }
            Operation::Lseek(seek) => {
                let offset = fs.seek(context, node, HandleId(seek.fh), seek.offset, seek.whence)?;
                out.put(&LseekOut { offset })
            }
            Operation::OpenDir(_) => {
                self.require_grant(node, READ)?;
                let opened = fs.open_directory(context, node)?;
                out.put(&OpenOut { fh: opened.handle.0, open_flags: directory_flags(&opened), backing_id: 0 })
            }
            Operation::ReadDir(read) => self.read_directory(read, false, list),
            Operation::ReadDirPlus(read) => self.read_directory(read, true, list),
            Operation::ReleaseDir(release) => {
                fs.release_directory(node, HandleId(release.fh));
                Ok(0)
            }
            Operation::GetLock(lock) => self.test_lock(lock),
            Operation::SetLock(lock, wait) => self.set_lock(lock, *wait),
            Operation::Destroy => {
                self.dispatcher.disconnect();
                Ok(0)
            }
            operation => self.answer_about_names(operation),
        }
    }

    /// Answers requests about names and extended attributes.
    fn answer_about_names(&self, operation: &Operation<'_>) -> Result<usize, Errno> {
        let (fs, context, node) = (self.fs(), self.context, self.node);
        match operation {
            Operation::Rename(asked, ..) => {
                self.require_grant(node, WRITE | EXECUTE)?;
                self.require_grant(NodeId(asked.newdir), WRITE | EXECUTE)?;
            }
            Operation::Symlink(..)
            | Operation::Mknod(..)
            | Operation::Mkdir(..)
            | Operation::Unlink(_)
            | Operation::Rmdir(_) => self.require_grant(node, WRITE | EXECUTE)?,
            Operation::Link(asked, _) => {
                self.require_grant(node, WRITE | EXECUTE)?;
                self.require_grant_to_link(NodeId(asked.oldnodeid))?;
            }
            Operation::SetXattr(_, _, name, _) | Operation::RemoveXattr(name) if name.starts_with(OF_USERS) => {
                self.require_grant(node, WRITE)?;
            }
            Operation::GetXattr(_, name) if name.starts_with(OF_USERS) => self.require_grant(node, READ)?,
            _ => {}
        }
        match operation {
            Operation::Symlink(name, target) => {
                check_name(name)?;
                if target.len() > TARGET_MAX {
                    return Err(Errno::NAMETOOLONG);
                }
                self.entry(fs.make_symlink(context, node, name, target))
            }
            Operation::Mknod(asked, name) => {
                check_name(name)?;
                let device = reply::to_device(asked.rdev);
                let new = NewNode { mode: asked.mode, umask: asked.umask, device };
                self.entry(fs.make_node(context, node, name, &new))
            }
            Operation::Mkdir(asked, name) => {
                check_name(name)?;
                let new = NewNode { mode: asked.mode, umask: asked.umask, device: 0 };
                self.entry(fs.make_directory(context, node, name, &new))
            }
            Operation::Unlink(name) => check_name(name).and_then(|()| fs.unlink(context, node, name)).map(|()| 0),
            Operation::Rmdir(name) => {
                check_name(name).and_then(|()| fs.remove_directory(context, node, name)).map(|()| 0)
            }
            Operation::Rename(asked, name, new_name) => {
                check_name(name)?;
                check_name(new_name)?;
                fs.rename(context, node, name, NodeId(asked.newdir), new_name, asked.flags).map(|()| 0)
            }
            Operation::Link(asked, name) => {
                check_name(name)?;
                self.entry(fs.link(context, NodeId(asked.oldnodeid), node, name))
            }
            Operation::SetXattr(..) | Operation::GetXattr(..) | Operation::ListXattr(_) | Operation::RemoveXattr(_)
                if !self.dispatcher.options.xattrs =>
            {
                Err(Errno::NOSYS)
            }
            Operation::SetXattr(asked, extended, name, value) => {
                check_xattr_name(name)?;
                if value.len() > XATTR_SIZE_MAX {
                    return Err(Errno::TOOBIG);
                }
                self.require_owner_of(name)?;
                let kill = extended.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0;
                fs.set_xattr(context, node, name, value, asked.flags, kill).map(|()| 0)
            }
            Operation::GetXattr(size, name) => {
                check_xattr_name(name)?;
                self.sized(*size, &fs.get_xattr(context, node, name)?)
            }
            Operation::ListXattr(size) => self.sized(*size, &visible_to(context, fs.list_xattrs(context, node)?)),
            Operation::RemoveXattr(name) => {
                check_xattr_name(name)?;
                self.require_owner_of(name)?;
                fs.remove_xattr(context, node, name).map(|()| 0)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<usize, Errno> {
        check_name(name)?;
        match self.fs().lookup(self.context, self.node, name) {
            Err(Errno::NOENT) => {
                let valid = self.fs().absence_valid(self.node);
                if valid.is_zero() { Err(Errno::NOENT) } else { self.out.put(&reply::absence(valid)) }
            }
            found => self.entry(found),
        }
    }

    fn entry(&self, entry: Result<inarch_vfs::Entry, Errno>) -> Result<usize, Errno> {
        self.out.put(&reply::entry(&entry?))
    }

    fn set_attributes(&self, asked: &SetAttrIn) -> Result<usize, Errno> {
        let handle = (asked.valid & set_attribute::FH != 0).then_some(HandleId(asked.fh));
        let set = to_set(asked);
        self.require_grant_to_set(&set, handle.is_some())?;
        let attributes = self.fs().set_attributes(self.context, self.node, handle, &set)?;
        self.out.put(&reply::attributes(&attributes))
    }

    fn open(&self, open: &OpenIn) -> Result<usize, Errno> {
        if !self.dispatcher.options.open {
            return Err(Errno::NOSYS);
        }
        // `fuse_send_open` of Linux's fs/fuse/file.c passes the flag of execve(2) on.
        let to_execute = OFlags::from_bits_retain(open.flags & OPEN_TO_EXECUTE);
        let flags = (portable(open.flags) - OFlags::EXCL) | to_execute;
        // Only an open that sets the size asks the file system to clear these bits.
        let kill = open.open_flags & OPEN_KILL_SUIDGID != 0 && flags.contains(OFlags::TRUNC);
        let flags = if kill { flags - OFlags::TRUNC } else { flags };
        self.require_grant_to_open(flags)?;
        let opened = self.fs().open(self.context, self.node, flags.bits())?;
        if kill {
            self.truncate(opened.handle).inspect_err(|_| self.fs().release(self.node, opened.handle, None))?;
        }
        self.out.put(&self.opened(self.node, &opened))
    }

    fn truncate(&self, handle: HandleId) -> Result<(), Errno> {
        let set = SetAttributes { size: Some(0), kill_privileges: true, ..SetAttributes::default() };
        self.fs().set_attributes(self.context, self.node, Some(handle), &set).map(drop)
    }

    fn create(&self, create: &CreateIn, name: Option<&&[u8]>) -> Result<usize, Errno> {
        self.require_grant(self.node, WRITE | EXECUTE)?;
        let new = NewNode { mode: create.mode, umask: create.umask, device: 0 };
        let flags = portable(create.flags);
        let (entry, opened) = match name {
            Some(name) => {
                check_name(name)?;
                match self.fs().create(self.context, self.node, name, &new, flags.bits()) {
                    // The kernel believed that the name was absent, so it would not check what is there now. After
                    // `ESTALE` it looks the name up again, checks what it finds, and opens that (do_filp_open of
                    // Linux's fs/namei.c).
                    Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => return Err(Errno::STALE),
                    created => created?,
                }
            }
            None => self.fs().create_unnamed(self.context, self.node, &new, flags.bits())?,
        };
        let mut answer = [0; size_of::<EntryOut>() + size_of::<OpenOut>()];
        let (first, second) = answer.split_at_mut(size_of::<EntryOut>());
        copy_structure(first, &reply::entry(&entry));
        copy_structure(second, &self.opened(entry.node, &opened));
        self.out.put_bytes(&answer)
    }

    /// The answer to an open.
    fn opened(&self, node: NodeId, opened: &OpenHandle) -> OpenOut {
        let mut open_flags = match opened.caching {
            Caching::Fresh => 0,
            Caching::Keep => open_flag::KEEP_CACHE,
            Caching::Direct => open_flag::DIRECT_IO,
        };
        if opened.parallel_direct_writes {
            open_flags |= open_flag::PARALLEL_DIRECT_WRITES;
        }
        let fh = opened.handle.0;
        match self.dispatcher.backing_of(node, opened.handle) {
            // The kernel refuses an open with both passthrough and a kept cache.
            Some(backing_id) => {
                let open_flags = open_flags & !open_flag::KEEP_CACHE | open_flag::PASSTHROUGH;
                OpenOut { fh, open_flags, backing_id }
            }
            None => OpenOut { fh, open_flags, backing_id: 0 },
        }
    }

    fn release(&self, release: &ReleaseIn) -> usize {
        let owner = (release.release_flags & RELEASE_FLOCK_UNLOCK != 0).then_some(LockOwner(release.lock_owner));
        self.dispatcher.release_backing(self.node);
        self.fs().release(self.node, HandleId(release.fh), owner);
        if owner.is_some() {
            self.dispatcher.parked.change();
        }
        0
    }

    fn flush(&self, flush: &FlushIn) -> Result<usize, Errno> {
        if !self.dispatcher.options.flush {
            return Err(Errno::NOSYS);
        }
        self.fs().flush(self.context, self.node, HandleId(flush.fh), Some(LockOwner(flush.lock_owner)))?;
        self.dispatcher.parked.change();
        Ok(0)
    }

    fn read(&self, read: &ReadIn) -> Result<usize, Errno> {
        let space = self.out.data(read.size.min(MAX_DATA) as usize);
        let length = self.fs().read(self.context, self.node, HandleId(read.fh), read.offset, &space)?;
        Ok(length.min(total(&space)))
    }

    fn write(&self, write: &WriteIn) -> Result<usize, Errno> {
        if write.size > MAX_DATA {
            return Err(Errno::INVAL);
        }
        let data = window(self.data, 0, write.size as usize);
        let kind = WriteKind {
            cached: write.write_flags & WRITE_CACHE != 0,
            kill_privileges: write.write_flags & WRITE_KILL_SUIDGID != 0,
        };
        let written = self.fs().write(self.context, self.node, HandleId(write.fh), write.offset, &data, kind)?;
        let size = u32::try_from(written).map_err(|_| Errno::IO)?;
        self.out.put(&WriteOut { size, padding: 0 })
    }

    fn copy_range(&self, copy: &CopyFileRangeIn, length: u64) -> Result<u64, Errno> {
        if copy.flags != 0 {
            return Err(Errno::INVAL);
        }
        let from = (self.node, HandleId(copy.fh_in), copy.off_in);
        let to = (NodeId(copy.nodeid_out), HandleId(copy.fh_out), copy.off_out);
        self.fs().copy_range(self.context, from, to, length)
    }

    fn read_directory(&self, read: &ReadIn, plus: bool, list: &mut Vec<u8>) -> Result<usize, Errno> {
        let limit = (read.size.min(MAX_DATA) as usize).min(self.out.room());
        let mut entries = DirectoryList::new(list, limit, plus);
        let listed = self.fs().read_directory(self.context, self.node, HandleId(read.fh), read.offset, &mut entries);
        // Entries already in the list must be delivered. The kernel asks for the rest next, and gets the error then.
        if list.is_empty() {
            listed?;
        }
        self.out.put_bytes(list)
    }

    /// Answers with `bytes` if they fit in `size`. If `size` is 0, answers with their number.
    fn sized(&self, size: u32, bytes: &[u8]) -> Result<usize, Errno> {
        if bytes.len() > XATTR_SIZE_MAX {
            return Err(Errno::TOOBIG);
        }
        if size == 0 {
            return self.out.put(&GetXattrOut { size: bytes.len() as u32, padding: 0 });
        }
        if bytes.len() > size as usize { Err(Errno::RANGE) } else { self.out.put_bytes(bytes) }
    }

    fn test_lock(&self, asked: &LkIn) -> Result<usize, Errno> {
        let lock = reply::to_lock(&asked.lk, asked.lk_flags & LK_FLOCK != 0)?;
        let (handle, owner) = (HandleId(asked.fh), LockOwner(asked.owner));
        let found = self.fs().test_lock(self.context, self.node, handle, owner, &lock)?;
        self.out.put(&LkOut { lk: reply::from_lock(found) })
    }

    fn set_lock(&self, asked: &LkIn, wait: bool) -> Result<usize, Errno> {
        let lock = reply::to_lock(&asked.lk, asked.lk_flags & LK_FLOCK != 0)?;
        let (handle, owner) = (HandleId(asked.fh), LockOwner(asked.owner));
        let Some(parked) = self.parked.filter(|_| wait) else {
            self.fs().set_lock(self.context, self.node, handle, owner, &lock, wait)?;
            if lock.kind != LockKind::Exclusive {
                self.dispatcher.parked.change();
            }
            return Ok(0);
        };
        let waiting = &self.dispatcher.parked;
        match self.fs().set_lock(self.context, self.node, handle, owner, &lock, false) {
            Err(Errno::AGAIN) => waiting.keep(self.unique)?,
            done => {
                waiting.end(self.unique);
                return done.map(|()| 0);
            }
        }
        // Checked again after an interrupt that found this request parked.
        if self.context.is_interrupted() || waiting.is_interrupted(self.unique) {
            waiting.end(self.unique);
            return Err(Errno::INTR);
        }
        parked.set(true);
        Err(Errno::AGAIN)
    }
}

fn copy_structure(to: &mut [u8], structure: &(impl zerocopy::IntoBytes + zerocopy::Immutable)) {
    to.iter_mut().zip(structure.as_bytes()).for_each(|(to, from)| *to = *from);
}

/// The caching flags of an opened directory. Without `KEEP_CACHE` the kernel drops the cached listing on each
/// opendir(3).
fn directory_flags(opened: &OpenHandle) -> u32 {
    match opened.caching {
        Caching::Fresh => open_flag::CACHE_DIR,
        Caching::Keep => open_flag::CACHE_DIR | open_flag::KEEP_CACHE,
        Caching::Direct => 0,
    }
}

fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > XATTR_NAME_MAX { Err(Errno::RANGE) } else { Ok(()) }
}

fn to_set(asked: &SetAttrIn) -> SetAttributes {
    let is_set = |attribute: u32| asked.valid & attribute != 0;
    let time = |to_now, to_this, seconds: u64, nanoseconds| match (is_set(to_now), is_set(to_this)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::To(Timestamp { seconds: seconds as i64, nanoseconds })),
        (false, false) => None,
    };
    SetAttributes {
        mode: is_set(set_attribute::MODE).then_some(asked.mode),
        uid: is_set(set_attribute::UID).then_some(asked.uid),
        gid: is_set(set_attribute::GID).then_some(asked.gid),
        size: is_set(set_attribute::SIZE).then_some(asked.size),
        atime: time(set_attribute::ATIME_NOW, set_attribute::ATIME, asked.atime, asked.atimensec),
        mtime: time(set_attribute::MTIME_NOW, set_attribute::MTIME, asked.mtime, asked.mtimensec),
        kill_privileges: is_set(set_attribute::KILL_SUIDGID),
    }
}
