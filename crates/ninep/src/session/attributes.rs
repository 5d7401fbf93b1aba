//! `Tgetattr`, `Tsetattr`, `Tstatfs`, `Treadlink`: attributes of a node.

use inarch_tree::Timestamp;
use inarch_vfs::{Attributes, HandleId, SetAttributes, SetTime};
use rustix::io::Errno;
use zerocopy::little_endian::U64;

use super::access::{self, WRITE};
use super::fids::Fid;
use super::place::{DIRECTORY, REGULAR, SYMLINK, TYPE_MASK};
use super::usage::Use;
use super::walk::{group_of, is_xattr};
use super::{Answer, Call, Session};
use crate::wire::{Qid, Reply, ReplyBuffer, SetattrBody, StatBody, StatfsBody, V9FS_MAGIC, attribute, set};

/// The qid of a node. The version is 0 only if the file system has none, because 0 asks clients not to cache.
pub(super) fn qid(attributes: &Attributes) -> Qid {
    let version = match attributes.version {
        0 => 0,
        version => ((version ^ version >> 32) as u32).max(1),
    };
    Qid { version: version.into(), ..qid_of(attributes.inode, attributes.mode) }
}

/// The qid, as far as a directory entry tells it.
pub(super) fn qid_of(inode: u64, mode: u32) -> Qid {
    let kind = match mode & TYPE_MASK {
        DIRECTORY => Qid::DIRECTORY,
        SYMLINK => Qid::SYMLINK,
        _ => Qid::FILE,
    };
    Qid { kind, version: 0.into(), path: inode.into() }
}

/// The handle if the fid is an open file: a file without a name is reached only by it.
pub(super) fn handle_of(fid: &Fid) -> Option<HandleId> {
    match fid.usage.as_deref() {
        Some(Use::File(file)) => Some(file.handle()),
        _ => None,
    }
}

impl Session<'_> {
    /// The fid and its node's attributes; `EBADF` if it refers to an extended attribute.
    pub(super) fn attributes_of(&self, call: &Call<'_>, fid: &Fid) -> Result<Attributes, Errno> {
        if is_xattr(fid) {
            return Err(Errno::BADF);
        }
        call.context(fid.uid, group_of(fid.uid), |context| {
            self.file_system().attributes(context, fid.place.node, handle_of(fid))
        })
    }

    /// `Tgetattr`: returns all known attributes, whatever was asked for.
    pub(super) fn getattr(&self, call: &Call<'_>, fid: u32, mask: u64) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(fid)?;
        let attributes = self.attributes_of(call, &fid)?;
        Ok(Reply::Getattr(self.stat(&attributes, mask)))
    }

    fn stat(&self, attributes: &Attributes, mask: u64) -> StatBody {
        let mut valid = attribute::BASIC;
        if attributes.birth.is_some() {
            valid |= attribute::BIRTH;
        }
        if attributes.version != 0 {
            valid |= attribute::DATA_VERSION;
        }
        let time = |time: Timestamp| (U64::new(time.seconds as u64), U64::new(time.nanoseconds.into()));
        let (atime, atime_nanoseconds) = time(attributes.atime);
        let (mtime, mtime_nanoseconds) = time(attributes.mtime);
        let (ctime, ctime_nanoseconds) = time(attributes.ctime);
        let (birth, birth_nanoseconds) = attributes.birth.map(time).unwrap_or_default();
        // The basic attributes are always valid, as from Linux's own servers.
        StatBody {
            valid: (valid & (mask | attribute::BASIC)).into(),
            qid: qid(attributes),
            mode: attributes.mode.into(),
            uid: attributes.uid.into(),
            gid: attributes.gid.into(),
            links: u64::from(attributes.links).into(),
            device: attributes.device.into(),
            size: attributes.size.into(),
            block_size: self.block_size(attributes).into(),
            blocks: attributes.blocks.into(),
            atime,
            atime_nanoseconds,
            mtime,
            mtime_nanoseconds,
            ctime,
            ctime_nanoseconds,
            birth,
            birth_nanoseconds,
            generation: 0.into(),
            data_version: attributes.version.into(),
        }
    }

    /// The preferred size of a read: as many of the file's blocks as a message holds. Programs such as cat(1) read that
    /// much at once.
    fn block_size(&self, attributes: &Attributes) -> u64 {
        let block = attributes.block_size.max(1);
        let whole = self.most_data() / block * block;
        u64::from(if whole == 0 { block } else { whole })
    }

    /// `Tsetattr`.
    pub(super) fn setattr(&self, call: &Call<'_>, fid: u32, body: &SetattrBody) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(fid)?;
        let wanted = changes(body)?;
        if fid.uid != 0 || wanted == SetAttributes::default() {
            let now = self.attributes_of(call, &fid)?;
            if wanted == SetAttributes::default() {
                return Ok(Reply::Setattr);
            }
            check_change(&fid, &now, &wanted)?;
        }
        if is_xattr(&fid) {
            return Err(Errno::BADF);
        }
        if wanted.size.is_some() {
            check_has_size(&fid)?;
        }
        let changed_by_owner = wanted.size.is_some() || wanted.uid.is_some() || wanted.gid.is_some();
        let wanted = SetAttributes { kill_privileges: fid.uid != 0 && changed_by_owner, ..wanted };
        call.context(fid.uid, group_of(fid.uid), |context| {
            self.file_system().set_attributes(context, fid.place.node, handle_of(&fid), &wanted)
        })?;
        Ok(Reply::Setattr)
    }

    /// `Treadlink`.
    pub(super) fn readlink(&self, call: &Call<'_>, fid: u32, out: &mut ReplyBuffer) -> Result<Answer, Errno> {
        let fid = self.fids.get(fid)?;
        if fid.place.file_type != SYMLINK || is_xattr(&fid) {
            return Err(Errno::INVAL);
        }
        let target =
            call.context(fid.uid, group_of(fid.uid), |context| self.file_system().read_link(context, fid.place.node))?;
        if target.len() as u64 > u64::from(self.most_data()) {
            return Err(Errno::NAMETOOLONG);
        }
        out.set(call.tag, &Reply::Readlink { target: &target });
        Ok(Answer::Made)
    }

    /// `Tstatfs`.
    pub(super) fn statfs(&self, call: &Call<'_>, fid: u32) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(fid)?;
        let numbers =
            call.context(fid.uid, group_of(fid.uid), |context| self.file_system().statistics(context, fid.place.node))?;
        Ok(Reply::Statfs(StatfsBody {
            kind: V9FS_MAGIC.into(),
            block_size: numbers.block_size.into(),
            blocks: numbers.blocks.into(),
            free_blocks: numbers.free_blocks.into(),
            available_blocks: numbers.available_blocks.into(),
            files: numbers.files.into(),
            free_files: numbers.free_files.into(),
            id: 0.into(),
            name_max: numbers.name_max.into(),
        }))
    }
}

/// The changes that a `Tsetattr` asks for; `EINVAL` if they are invalid.
fn changes(body: &SetattrBody) -> Result<SetAttributes, Errno> {
    let valid = body.valid.get();
    if valid & !set::ALL != 0 {
        return Err(Errno::INVAL);
    }
    let has = |bit: u32| valid & bit != 0;
    let size = body.size.get();
    if has(set::SIZE) && size > i64::MAX as u64 {
        return Err(Errno::INVAL);
    }
    let time = |wanted: u32, given: u32, seconds: U64, nanoseconds: U64| -> Result<Option<SetTime>, Errno> {
        match (has(wanted), has(given)) {
            (false, _) => Ok(None),
            (true, false) => Ok(Some(SetTime::Now)),
            (true, true) => {
                let nanoseconds = u32::try_from(nanoseconds.get()).ok().filter(|n| *n < 1_000_000_000);
                let nanoseconds = nanoseconds.ok_or(Errno::INVAL)?;
                Ok(Some(SetTime::To(Timestamp { seconds: seconds.get() as i64, nanoseconds })))
            }
        }
    };
    Ok(SetAttributes {
        mode: has(set::MODE).then(|| body.mode.get() & 0o7777),
        uid: has(set::UID).then(|| body.uid.get()),
        gid: has(set::GID).then(|| body.gid.get()),
        size: has(set::SIZE).then_some(size),
        atime: time(set::ATIME, set::ATIME_SET, body.atime, body.atime_nanoseconds)?,
        mtime: time(set::MTIME, set::MTIME_SET, body.mtime, body.mtime_nanoseconds)?,
        kill_privileges: false,
    })
}

/// Fails, as truncate(2) does, unless the fid is a regular file.
fn check_has_size(fid: &Fid) -> Result<(), Errno> {
    match fid.place.file_type {
        REGULAR => Ok(()),
        DIRECTORY => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

/// Whether the mode change only clears set-user-ID and set-group-ID bits.
fn only_drops_privileges(now: u32, wanted: u32) -> bool {
    const PRIVILEGES: u32 = 0o6000;
    let (now, wanted) = (now & 0o7777, wanted & 0o7777);
    wanted & !now == 0 && now & !wanted & !PRIVILEGES == 0
}

/// Fails unless the fid's user may change these attributes (`setattr_prepare` of Linux's fs/attr.c).
fn check_change(fid: &Fid, now: &Attributes, wanted: &SetAttributes) -> Result<(), Errno> {
    if fid.uid == 0 {
        return Ok(());
    }
    let is_open_for_writing = matches!(fid.usage.as_deref(), Some(Use::File(file)) if file.writable);
    // A fid that was opened for writing may continue, whatever the mode is now.
    if wanted.size.is_some() && !is_open_for_writing {
        check_has_size(fid)?;
        access::check(fid.uid, now, WRITE)?;
    }
    if wanted.uid.is_some_and(|uid| uid != now.uid) {
        return Err(Errno::PERM);
    }
    // Changing the content clears these bits; Linux's client sends that as a mode change.
    let may_write = wanted.size.is_some() || is_open_for_writing || access::check(fid.uid, now, WRITE).is_ok();
    let changes_mode = wanted.mode.is_some_and(|mode| !(may_write && only_drops_privileges(now.mode, mode)));
    if changes_mode || wanted.uid.is_some() || wanted.gid.is_some() {
        access::check_owner(fid.uid, now)?;
    }
    let given = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
    if given(wanted.atime) || given(wanted.mtime) {
        return access::check_owner(fid.uid, now);
    }
    let touched = wanted.atime.is_some() || wanted.mtime.is_some();
    // A change of size includes both times, and is allowed at this point.
    if touched && wanted.size.is_none() && !is_open_for_writing {
        return access::check_owner(fid.uid, now).or_else(|_| access::check(fid.uid, now, WRITE));
    }
    Ok(())
}
