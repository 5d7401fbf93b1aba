//! Reads one directory entry: makes its inode, or reports why it is left out.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::ScanError;
use super::access::{Acl, Verdict};
use super::chunk::HardLink;
use super::holes::data_ranges;
use super::report::Reason;
use super::walk::{Task, Worker};
use super::xattr::Found;
use crate::inode::Inode;
use crate::select::IgnoreLevel;
use crate::{Attributes, FileType, Timestamp, XattrSetId};

/// One byte more than the longest possible target.
pub(super) const TARGET_BYTES: usize = 4096;

/// The `detail` of a directory to be descended that has no serial number yet.
pub(super) const DESCEND: u32 = u32::MAX - 1;

/// All attributes except the times that a tree does not store.
pub(super) const WANTED: StatxFlags = StatxFlags::BASIC_STATS.difference(StatxFlags::ATIME);

/// The device an inode is on, as one number.
pub(super) fn device(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}

/// Why an entry is not in the tree.
enum Skip {
    /// It vanished or was replaced after its name was read.
    Vanished,
    /// Report it.
    Reported(Reason),
    /// A system call failed.
    Failed(Errno),
}

impl From<Errno> for Skip {
    fn from(error: Errno) -> Skip {
        if error == Errno::NOENT { Skip::Vanished } else { Skip::Failed(error) }
    }
}

impl<'a> Worker<'_, 'a> {
    /// Adds the entry `name` to the chunk, or reports it. Returns whether it is a directory to be descended.
    pub(super) fn entry(
        &mut self,
        task: &Task<'a>,
        dir: BorrowedFd<'_>,
        name: &CStr,
        ignore: Option<&Arc<IgnoreLevel>>,
    ) -> Result<bool, ScanError> {
        let stat = match rustix::fs::statx(dir, name, self.walk.stat_flags, WANTED) {
            Ok(stat) => stat,
            // It vanished after its name was read.
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return self.failed(task.path_of(name.to_bytes()), error),
        };
        let file_type = FileType::from_mode(u32::from(stat.stx_mode));
        let path = || task.path_of(name.to_bytes());
        let Some(file_type) = file_type.filter(|_| i64::try_from(stat.stx_size).is_ok()) else {
            self.findings.report.add(path(), Reason::BadAttributes, None);
            return Ok(false);
        };
        let options = self.walk.options;
        let directory = file_type == FileType::Directory;
        if !options.filter.is_empty() && options.filter.leaves_out(&path(), directory, ignore) {
            self.findings.report.filtered += 1;
            return Ok(false);
        }
        // A mount that is left out is not asked for anything: its server may not answer.
        let found = match self.is_mount(&stat) && !options.cross {
            true => Found::nothing(),
            false => self.xattrs.read(dir, name, device(&stat)),
        };
        let mut inode = self.inode(&stat, file_type, found.set);
        match self.detail(task, dir, name, &stat, file_type, found.acl) {
            Ok(detail) => inode.detail = detail,
            Err(Skip::Vanished) => return Ok(false),
            Err(Skip::Reported(reason)) => {
                let denied = (reason == Reason::UnreadableFile).then(|| Errno::ACCESS.raw_os_error());
                self.findings.report.add(path(), reason, denied);
                return Ok(false);
            }
            Err(Skip::Failed(error)) => return self.failed(path(), error),
        }
        let Some(chunk) = self.findings.chunks.last_mut() else { return Ok(false) };
        if stat.stx_nlink > 1 && !directory {
            chunk.links.push(HardLink { entry: chunk.inodes.len(), device: device(&stat) });
        }
        let name = name.to_bytes();
        chunk.inodes.push(inode);
        chunk.name_lengths.push(name.len() as u8);
        chunk.names.extend_from_slice(name);
        Ok(directory && inode.detail == DESCEND)
    }

    /// The `detail` of an inode, as a chunk stores it.
    fn detail(
        &mut self,
        task: &Task<'a>,
        dir: BorrowedFd<'_>,
        name: &CStr,
        stat: &Statx,
        file_type: FileType,
        acl: Acl,
    ) -> Result<u32, Skip> {
        match file_type {
            FileType::Directory => match self.reason_to_stay_out(task, stat, name) {
                Some(reason) => {
                    self.findings.report.add(task.path_of(name.to_bytes()), reason, None);
                    Ok(Inode::NO_DETAIL)
                }
                None => Ok(DESCEND),
            },
            FileType::Regular => self.regular(dir, name, stat, acl),
            FileType::Symlink => self.symlink(dir, name),
            _ => Ok(Inode::NO_DETAIL),
        }
    }

    /// The inode without its `detail`.
    pub(super) fn inode(&self, stat: &Statx, file_type: FileType, xattrs: u32) -> Inode {
        let time = |time: rustix::fs::StatxTimestamp| Timestamp {
            seconds: time.tv_sec,
            nanoseconds: time.tv_nsec.min(999_999_999),
        };
        let owner = &self.walk.options.owner;
        let device = match file_type {
            FileType::CharDevice | FileType::BlockDevice => (stat.stx_rdev_major, stat.stx_rdev_minor),
            _ => (0, 0),
        };
        Inode::new(&Attributes {
            mode: u32::from(stat.stx_mode),
            uid: owner.uid(stat.stx_uid),
            gid: owner.gid(stat.stx_gid),
            size: if file_type == FileType::Regular { stat.stx_size } else { 0 },
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            source_ino: stat.stx_ino,
            device,
            xattrs: XattrSetId(xattrs),
        })
    }

    /// Whether it is a mount point.
    fn is_mount(&self, stat: &Statx) -> bool {
        // The mount decides, not the device: a btrfs subvolume has a device number of its own and is not a mount, and a
        // bind mount has the same number and is one. Before Linux 5.8 only the device number is known.
        let known = stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
        let has = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if known { has } else { device(stat) != self.walk.root_device }
    }

    /// Why a directory is not descended, if it is not.
    fn reason_to_stay_out(&self, task: &Task<'a>, stat: &Statx, name: &CStr) -> Option<Reason> {
        let options = self.walk.options;
        let has = |attribute| stat.stx_attributes.contains(attribute);
        if has(StatxAttributes::AUTOMOUNT) {
            return Some(Reason::Automount);
        }
        if self.is_mount(stat) && !options.cross {
            return Some(Reason::MountPoint);
        }
        if !options.leave_out.is_empty() {
            let path = task.path_of(name.to_bytes());
            if options.leave_out.contains(&path) {
                return Some(Reason::AskedFor);
            }
        }
        None
    }

    /// The index of a regular file's data ranges, if it is sparse.
    fn regular(&mut self, dir: BorrowedFd<'_>, name: &CStr, stat: &Statx, acl: Acl) -> Result<u32, Skip> {
        let denied = |error| match error {
            Errno::ACCESS => Skip::Reported(Reason::UnreadableFile),
            // It was replaced by a symlink.
            Errno::LOOP => Skip::Vanished,
            error => error.into(),
        };
        match self.walk.caller.reads(u32::from(stat.stx_mode), stat.stx_uid, stat.stx_gid, acl) {
            Verdict::Readable => {}
            Verdict::Unreadable => return Err(denied(Errno::ACCESS)),
            Verdict::Ask => rustix::fs::accessat(dir, name, Access::READ_OK, AtFlags::EACCESS).map_err(denied)?,
        }
        if stat.stx_size == 0 || stat.stx_blocks.saturating_mul(512) >= stat.stx_size {
            return Ok(Inode::NO_DETAIL);
        }
        // Fewer blocks than bytes: holes, compressed data, or data within the inode.
        let ranges = data_ranges(dir, name, stat).map_err(denied)?;
        let Some(ranges) = ranges else { return Ok(Inode::NO_DETAIL) };
        let Some(chunk) = self.findings.chunks.last_mut() else { return Ok(Inode::NO_DETAIL) };
        chunk.sparse.push(ranges);
        Ok((chunk.sparse.len() - 1) as u32)
    }

    /// The index of a symlink's target.
    fn symlink(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<u32, Skip> {
        let target = match rustix::fs::readlinkat_raw(dir, name, &mut self.target[..]) {
            Ok((target, _)) => target,
            // It was replaced by something that is not a symlink.
            Err(Errno::INVAL) => return Err(Skip::Vanished),
            Err(error) => return Err(error.into()),
        };
        if target.is_empty() || target.len() >= TARGET_BYTES || target.contains(&0) {
            return Err(Skip::Reported(Reason::BadAttributes));
        }
        let Some(chunk) = self.findings.chunks.last_mut() else { return Err(Skip::Vanished) };
        chunk.target_bytes.extend_from_slice(target);
        chunk.target_ends.push(chunk.target_bytes.len());
        Ok((chunk.target_ends.len() - 1) as u32)
    }
}
