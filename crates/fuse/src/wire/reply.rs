//! Builds the answers to the kernel.

use std::time::Duration;

use inarch_tree::Timestamp;
use inarch_vfs::{Attributes, Entry, Lock, LockKind, NodeId, Statistics};
use rustix::fs::{major, makedev, minor};
use rustix::io::Errno;

use super::structs::{
    Attr, AttrOut, EntryOut, FileLock, NotifyInvalInodeOut, OutHeader, StatFsOut, Statx, StatxOut, SxTime,
};

/// `STATX_BASIC_STATS` and `STATX_BTIME` of Linux's include/uapi/linux/stat.h.
const STATX_BASIC_STATS: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

/// The last byte of a lock without an end (`OFFSET_MAX`).
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Marks a directory as the root of another file system (`FUSE_ATTR_SUBMOUNT`). Kernels that did not offer
/// [`init_flag::SUBMOUNTS`](super::init_flag::SUBMOUNTS) ignore it.
const ATTRIBUTES_OF_SUBMOUNT: u32 = 1 << 0;

/// The header of an answer with a body of `length` bytes.
pub fn success(unique: u64, length: usize) -> OutHeader {
    // An answer fits in the buffer that the request gave, whose size has 32 bits.
    let len = u32::try_from(size_of::<OutHeader>().saturating_add(length)).unwrap_or(u32::MAX);
    OutHeader { len, error: 0, unique }
}

/// The header of an error.
pub fn error(unique: u64, errno: Errno) -> OutHeader {
    OutHeader { len: size_of::<OutHeader>() as u32, error: -errno.raw_os_error(), unique }
}

/// Tells the kernel to invalidate a node's attributes and access control lists, and to keep its content.
pub fn forget_attributes(node: NodeId) -> (OutHeader, NotifyInvalInodeOut) {
    /// `FUSE_NOTIFY_INVAL_INODE`, which is not an answer to a request.
    const INVAL_INODE: i32 = 2;
    const NO_CONTENT: i64 = -1;
    let body = NotifyInvalInodeOut { ino: node.0, off: NO_CONTENT, len: 0 };
    let len = (size_of::<OutHeader>() + size_of_val(&body)) as u32;
    (OutHeader { len, error: INVAL_INODE, unique: 0 }, body)
}

/// The answer to `GETATTR` and `SETATTR`.
pub fn attributes(attributes: &Attributes) -> AttrOut {
    let (attr_valid, attr_valid_nsec) = seconds(attributes.valid);
    AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attr(attributes) }
}

/// The answer to `STATX`.
pub fn statx(attributes: &Attributes) -> StatxOut {
    let (attr_valid, attr_valid_nsec) = seconds(attributes.valid);
    let time = |time: Timestamp| SxTime { tv_sec: time.seconds, tv_nsec: time.nanoseconds, reserved: 0 };
    let stat = Statx {
        mask: STATX_BASIC_STATS | attributes.birth.map_or(0, |_| STATX_BTIME),
        blksize: attributes.block_size,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        mode: attributes.mode as u16,
        ino: attributes.inode,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: time(attributes.atime),
        btime: attributes.birth.map(time).unwrap_or_default(),
        ctime: time(attributes.ctime),
        mtime: time(attributes.mtime),
        rdev_major: major(attributes.device),
        rdev_minor: minor(attributes.device),
        ..Statx::default()
    };
    StatxOut { attr_valid, attr_valid_nsec, stat, ..StatxOut::default() }
}

/// The answer to `LOOKUP` and to requests that create a node.
pub fn entry(entry: &Entry) -> EntryOut {
    let (entry_valid, entry_valid_nsec) = seconds(entry.valid);
    let (attr_valid, attr_valid_nsec) = seconds(entry.attributes.valid);
    EntryOut {
        nodeid: entry.node.0,
        generation: entry.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr(&entry.attributes),
    }
}

/// A negative entry with the TTL `valid`: the answer to `LOOKUP` of an absent name.
pub fn absence(valid: Duration) -> EntryOut {
    let (entry_valid, entry_valid_nsec) = seconds(valid);
    EntryOut { entry_valid, entry_valid_nsec, ..EntryOut::default() }
}

/// The answer to `STATFS`.
pub fn statistics(statistics: &Statistics) -> StatFsOut {
    StatFsOut {
        blocks: statistics.blocks,
        bfree: statistics.free_blocks,
        bavail: statistics.available_blocks,
        files: statistics.files,
        ffree: statistics.free_files,
        bsize: statistics.block_size,
        namelen: statistics.name_max,
        frsize: statistics.block_size,
        ..StatFsOut::default()
    }
}

/// Parses a lock.
///
/// # Errors
/// `EINVAL` if its type is unknown.
pub fn to_lock(lock: &FileLock, whole_file: bool) -> Result<Lock, Errno> {
    let kind = match lock.kind {
        0 => LockKind::Shared,
        1 => LockKind::Exclusive,
        2 => LockKind::None,
        _ => return Err(Errno::INVAL),
    };
    let end = if lock.end >= OFFSET_MAX { u64::MAX } else { lock.end };
    Ok(Lock { kind, start: lock.start, end, pid: lock.pid, whole_file })
}

/// The answer to `GETLK`: the conflicting lock, if there is one.
pub fn from_lock(lock: Option<Lock>) -> FileLock {
    const UNLOCKED: u32 = 2;
    let Some(lock) = lock else { return FileLock { kind: UNLOCKED, ..FileLock::default() } };
    let kind = match lock.kind {
        LockKind::Shared => 0,
        LockKind::Exclusive => 1,
        LockKind::None => UNLOCKED,
    };
    FileLock { start: lock.start, end: lock.end.min(OFFSET_MAX), kind, pid: lock.pid }
}

/// Converts a request's device number (`new_decode_dev` of Linux's include/linux/kdev_t.h) to that of makedev(3).
pub fn to_device(device: u32) -> u64 {
    makedev((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00))
}

/// Converts a device number to the kernel's encoding (`new_encode_dev`), which has 20 bits for the minor number.
fn from_device(device: u64) -> u32 {
    let (major, minor) = (major(device), minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn attr(attributes: &Attributes) -> Attr {
    Attr {
        ino: attributes.inode,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: attributes.atime.seconds as u64,
        mtime: attributes.mtime.seconds as u64,
        ctime: attributes.ctime.seconds as u64,
        atimensec: attributes.atime.nanoseconds,
        mtimensec: attributes.mtime.nanoseconds,
        ctimensec: attributes.ctime.nanoseconds,
        mode: attributes.mode,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: from_device(attributes.device),
        blksize: attributes.block_size,
        flags: if attributes.is_submount { ATTRIBUTES_OF_SUBMOUNT } else { 0 },
    }
}

fn seconds(duration: Duration) -> (u64, u32) {
    (duration.as_secs(), duration.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_way_there_and_back() {
        for (major, minor) in [(1, 3), (8, 0x1_2345), (0xfff, 0xf_ffff), (0, 0xff)] {
            let device = makedev(major, minor);
            assert_eq!(to_device(from_device(device)), device, "{major}:{minor}");
        }
    }

    #[test]
    fn a_lock_to_the_end_of_all_files_stays_one() {
        let asked = FileLock { start: 5, end: OFFSET_MAX, kind: 1, pid: 9 };
        let lock = to_lock(&asked, false).unwrap();
        assert_eq!((lock.kind, lock.end), (LockKind::Exclusive, u64::MAX));
        assert_eq!(from_lock(Some(lock)).end, OFFSET_MAX);
        assert!(to_lock(&FileLock { kind: 3, ..asked }, false).is_err());
    }
}
