//! Reads and sets attributes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use inarch_tree::Timestamp;
use rustix::fs::{
    AtFlags, Gid, OFlags, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chownat,
    ftruncate, makedev, statx, utimensat,
};
use rustix::io::Errno;

use super::reach::Whereabouts;
use super::table::{Identity, Permissions};
use super::{HostDirectory, Submounts, read, write};
use crate::{Attributes, Changes, Context, HandleId, NodeId, SetAttributes, SetTime, Statistics};

/// The bits of a shown inode number that distinguish file systems.
const DEVICE_SHIFT: u32 = 48;

/// Whether `shown` can be the inode number that a [`HostDirectory`] shows for a file with this one on some file system of the host.
pub fn is_shown_as(inode: u64, shown: u64) -> bool {
    (inode ^ shown) & ((1 << DEVICE_SHIFT) - 1) == 0
}

/// statx(2) of `name` in a directory, or of the descriptor itself if the name is empty.
pub(super) fn stat(descriptor: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<Statx, Errno> {
    let empty = if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | empty | flags;
    statx(descriptor, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID)
}

/// The identity of a file of the host.
pub(super) fn identity(stat: &Statx) -> Identity {
    let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let birth = if has_birth { nanoseconds(&stat.stx_btime) } else { 0 };
    let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
    let kind = u32::from(stat.stx_mode) & libc::S_IFMT;
    let mount = if kind == libc::S_IFDIR { stat.stx_mnt_id } else { 0 };
    Identity { device, inode: stat.stx_ino, birth, kind, mount }
}

/// Owner, group and permissions.
pub(super) fn permissions(stat: &Statx) -> Permissions {
    Permissions::new(stat.stx_uid, stat.stx_gid, stat.stx_mode.into())
}

fn nanoseconds(time: &StatxTimestamp) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.into())
}

fn timestamp(time: &StatxTimestamp) -> Timestamp {
    Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec }
}

impl HostDirectory {
    /// statx(2) of `name` in a directory, or of the descriptor itself if the name is empty.
    pub(super) fn stat(&self, descriptor: BorrowedFd<'_>, name: &[u8]) -> Result<Statx, Errno> {
        let at_rest = self.mounts_at_rest.load(Ordering::Relaxed);
        let flags = if at_rest { self.stat_flags | AtFlags::STATX_DONT_SYNC } else { self.stat_flags };
        let mut stat = stat(descriptor, name, flags)?;
        self.leave_out_birth(&mut stat, at_rest);
        Ok(stat)
    }

    /// FUSE reports no creation time unless its server is asked. If one file of a file system was seen without one,
    /// leaves it out for all of that file system: otherwise the file would get another identity once its server is
    /// asked.
    fn leave_out_birth(&self, stat: &mut Statx, at_rest: bool) {
        let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        if !(at_rest && !has_birth || has_birth && self.has_birthless.load(Ordering::Relaxed)) {
            return;
        }
        let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
        if has_birth {
            if read(&self.birthless).contains(&device) {
                stat.stx_mask &= !StatxFlags::BTIME.bits();
            }
        } else if !read(&self.birthless).contains(&device) {
            write(&self.birthless).push(device);
            self.has_birthless.store(true, Ordering::Relaxed);
        }
    }

    /// Converts attributes to what a client sees.
    pub(super) fn attributes_from(&self, stat: &Statx) -> Attributes {
        let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        Attributes {
            inode: self.shown_inode(device, stat.stx_ino),
            mode: stat.stx_mode.into(),
            links: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            device: makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            block_size: stat.stx_blksize,
            atime: timestamp(&stat.stx_atime),
            mtime: timestamp(&stat.stx_mtime),
            ctime: timestamp(&stat.stx_ctime),
            birth: has_birth.then(|| timestamp(&stat.stx_btime)),
            version: u64::try_from(nanoseconds(&stat.stx_ctime)).unwrap_or(0),
            is_submount: self.options.submounts == Submounts::Separate && self.is_mounted_below(stat),
            valid: self.options.valid(),
        }
    }

    /// The inode number for clients, who see one file system: for other file systems of the host the high bits
    /// differ.
    pub(super) fn shown_inode(&self, device: u64, inode: u64) -> u64 {
        if device == self.root_device {
            return inode;
        }
        let known = read(&self.devices).iter().position(|known| *known == device);
        let place = known.unwrap_or_else(|| {
            let mut devices = write(&self.devices);
            let known = devices.iter().position(|known| *known == device);
            known.unwrap_or_else(|| {
                devices.push(device);
                devices.len() - 1
            })
        });
        inode ^ (place as u64 + 1).wrapping_shl(DEVICE_SHIFT)
    }

    pub(super) fn peek(&self, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        self.stat_node(node, handle).map(|stat| self.attributes_from(&stat))
    }

    pub(super) fn get_attributes(&self, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        let stat = self.stat_node(node, handle)?;
        self.tell_permissions(node, &stat);
        Ok(self.attributes_from(&stat))
    }

    fn tell_permissions(&self, node: NodeId, stat: &Statx) {
        let table = read(&self.table);
        if let Ok(node) = table.index(node).and_then(|index| table.node(index)) {
            node.tell_permissions(permissions(stat));
        }
    }

    /// The same after the client changed them.
    pub(super) fn tell_changed_permissions(&self, node: NodeId, stat: &Statx) {
        let table = read(&self.table);
        if let Ok(node) = table.index(node).and_then(|index| table.node(index)) {
            node.tell_changed_permissions(permissions(stat));
        }
    }

    /// Whether the client's kernel may have decided by outdated permissions. Root may do everything, and if nobody
    /// else changes the tree, the client's cache is right.
    pub(super) fn may_be_misled(&self, context: &Context<'_>) -> bool {
        !context.is_root() && self.options.changes == Changes::Host
    }

    /// Returns `ESTALE` if a node's permissions differ from those that the caller's kernel decided by, so that it
    /// looks again. This also detects a file that took over the inode number within the same clock tick.
    ///
    /// A window remains between this check and the action, as between check and use of any open(2).
    pub(super) fn require_told(&self, context: &Context<'_>, node: NodeId, now: BorrowedFd<'_>) -> Result<(), Errno> {
        self.require_granted(context, node, now, |told, now| told == now)
    }

    /// The same, but accepts changed permissions that still grant the request.
    fn require_granted(
        &self,
        context: &Context<'_>,
        node: NodeId,
        now: BorrowedFd<'_>,
        still_grant: impl FnOnce(Permissions, Permissions) -> bool,
    ) -> Result<(), Errno> {
        if !self.may_be_misled(context) {
            return Ok(());
        }
        let stat = self.stat(now, b"")?;
        let table = read(&self.table);
        let told = table.node(table.index(node)?)?.told_permissions();
        if still_grant(told, permissions(&stat)) { Ok(()) } else { Err(Errno::STALE) }
    }

    pub(super) fn stat_node(&self, node: NodeId, handle: Option<HandleId>) -> Result<Statx, Errno> {
        if let Some(file) = handle.and_then(|handle| self.file(node, handle).ok()) {
            return self.stat(file.descriptor.as_fd(), b"");
        }
        // By name in an open directory it takes one call and opens nothing.
        let (index, identity) = {
            let table = read(&self.table);
            let index = table.index(node)?;
            (index, table.node(index)?.identity)
        };
        match self.whereabouts(index)? {
            Whereabouts::Here(descriptor) => return self.stat(descriptor.as_fd(), b""),
            Whereabouts::In(parent, name) => {
                let parent = read(&self.table).number(parent);
                if let Ok(directory) = self.directory(parent)
                    && let Ok(stat) = self.stat(directory.as_fd(), &name)
                    && super::attributes::identity(&stat) == identity
                {
                    return Ok(stat);
                }
            }
            Whereabouts::Nowhere => {}
        }
        self.stat(self.descriptor(node)?.as_fd(), b"")
    }

    pub(super) fn change_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        self.require_open(node)?;
        let file = handle.and_then(|handle| self.file(node, handle).ok());
        let descriptor: Arc<OwnedFd> = match &file {
            Some(file) => file.descriptor.clone(),
            None => self.descriptor(node)?,
        };
        let target = descriptor.as_fd();
        let changes_permissions = set.changes_permissions();
        // What needs no more than a file open for writing was checked when it was opened.
        if changes_permissions || file.as_ref().is_none_or(|file| !file.writable) {
            self.require_granted(context, node, target, |told, now| told.still_grant(now, set))?;
        }
        if changes_permissions {
            self.before_changing(target)?;
        } else if set.size.is_some() {
            self.before_writing(target, false)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            change_owner(target, set)?;
        }
        if let Some(mode) = set.mode {
            let kind = self.kind(node)?;
            self.change_mode(target, self.granted(kind, mode))?;
        }
        if let Some(size) = set.size {
            let is_writable = file.as_ref().is_some_and(|file| file.writable);
            self.change_size(node, target, is_writable, size)?;
        }
        if set.kill_privileges {
            self.drop_privileges(target)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            change_times(target, set)?;
        }
        let stat = self.stat(target, b"")?;
        match changes_permissions {
            true => self.tell_changed_permissions(node, &stat),
            false => self.tell_permissions(node, &stat),
        }
        Ok(self.attributes_from(&stat))
    }

    fn change_size(&self, node: NodeId, target: BorrowedFd<'_>, is_writable: bool, size: u64) -> Result<(), Errno> {
        if i64::try_from(size).is_err() {
            return Err(Errno::FBIG);
        }
        if is_writable {
            return ftruncate(target, size);
        }
        self.require_regular(node)?;
        ftruncate(self.open_again(target, OFlags::WRONLY | OFlags::NONBLOCK)?, size)
    }

    pub(super) fn link_target(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let descriptor = self.descriptor(node)?;
        match rustix::fs::readlinkat(descriptor, "", Vec::with_capacity(256)) {
            // Not a symbolic link.
            Err(Errno::NOENT) => Err(Errno::INVAL),
            result => Ok(result?.into_bytes()),
        }
    }

    pub(super) fn get_statistics(&self, node: NodeId) -> Result<Statistics, Errno> {
        let descriptor = if self.is_closed(node)? { self.root.clone() } else { self.descriptor(node)? };
        let stat = rustix::fs::fstatvfs(descriptor)?;
        Ok(Statistics {
            block_size: u32::try_from(stat.f_frsize).unwrap_or(4096),
            blocks: stat.f_blocks,
            free_blocks: stat.f_bfree,
            available_blocks: stat.f_bavail,
            files: stat.f_files,
            free_files: stat.f_ffree,
            name_max: u32::try_from(stat.f_namemax).unwrap_or(255),
        })
    }
}

fn change_owner(target: BorrowedFd<'_>, set: &SetAttributes) -> Result<(), Errno> {
    // -1 would mean "no change".
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
        return Err(Errno::INVAL);
    }
    chownat(target, "", set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw), AtFlags::EMPTY_PATH)
}

fn change_times(target: BorrowedFd<'_>, set: &SetAttributes) -> Result<(), Errno> {
    let time = |time: Option<SetTime>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(time)) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.min(999_999_999).into() },
    };
    let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
    utimensat(target, "", &times, AtFlags::EMPTY_PATH)
}
