//! [`MountId`]: identifies a mount, even after directories above it were renamed.

use std::fmt;
use std::num::ParseIntError;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;

use super::table::Entry;

/// A mounted file system's number: no two that are mounted at a time have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber {
    major: u32,
    minor: u32,
}

impl From<u64> for DeviceNumber {
    /// Converts a device number of stat(2).
    fn from(device: u64) -> DeviceNumber {
        DeviceNumber { major: rustix::fs::major(device), minor: rustix::fs::minor(device) }
    }
}

impl DeviceNumber {
    /// Whether it is this one.
    pub(super) fn is(self, major: Option<u32>, minor: Option<u32>) -> bool {
        (Some(self.major), Some(self.minor)) == (major, minor)
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<DeviceNumber, Self::Err> {
        let (major, minor) = text.split_once(':').unwrap_or((text, ""));
        Ok(DeviceNumber { major: major.parse()?, minor: minor.parse()? })
    }
}

/// `STATX_MNT_ID_UNIQUE` of Linux's include/uapi/linux/stat.h (since 6.8).
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// A mount, whatever the directories above it are called by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountId {
    device: DeviceNumber,
    /// The mount's number in the table. Once the mount is gone, another one may get this number and the device's.
    number: u64,
    /// A number that is never reused; `None` before Linux 6.8.
    unique: Option<u64>,
}

impl MountId {
    /// The identity of `entry`, the uppermost mount at `point`.
    pub(super) fn of(entry: &Entry, point: &Path) -> MountId {
        MountId { device: entry.device, number: entry.id, unique: unique(point) }
    }

    /// The identity of a detached mount, by its root; it stays the same when the mount is attached. `device` is the
    /// file system's number, if that is known; files of a Btrfs report other numbers.
    pub(super) fn of_detached(root: BorrowedFd<'_>, device: Option<DeviceNumber>) -> Result<MountId, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let seen = statx(root, "", flags, StatxFlags::MNT_ID)?;
        let own = DeviceNumber { major: seen.stx_dev_major, minor: seen.stx_dev_minor };
        let unique = told(root, Path::new(""), AtFlags::EMPTY_PATH);
        Ok(MountId { device: device.unwrap_or(own), number: seen.stx_mnt_id, unique })
    }

    /// Of the file system.
    pub fn device(&self) -> DeviceNumber {
        self.device
    }

    /// The mount's number in the table.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the table's entry is this mount, or a later one that reused its numbers.
    pub fn is(&self, entry: &Entry) -> bool {
        (self.device, self.number) == (entry.device, entry.id)
    }

    /// Whether the topmost mount at `point` may be this one, and does not merely reuse its numbers, as far as the
    /// kernel says.
    pub(super) fn may_be_at(&self, point: &Path) -> bool {
        self.unique.zip(unique(point)).is_none_or(|(own, there)| own == there)
    }
}

/// The number of the mount at `point` that is never reused. Does not contact the mount's server, which may be dead.
fn unique(point: &Path) -> Option<u64> {
    told(CWD, point, AtFlags::SYMLINK_NOFOLLOW)
}

fn told(directory: BorrowedFd<'_>, path: &Path, flags: AtFlags) -> Option<u64> {
    let told = statx(directory, path, flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC, UNIQUE).ok()?;
    (told.stx_mask & UNIQUE.bits() != 0).then_some(told.stx_mnt_id)
}

impl fmt::Display for MountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.device, self.number)?;
        self.unique.map_or(Ok(()), |unique| write!(f, "/{unique}"))
    }
}

impl FromStr for MountId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<MountId, ParseIntError> {
        let (device, numbers) = text.split_once('/').unwrap_or((text, ""));
        let (number, unique) =
            numbers.split_once('/').map_or((numbers, None), |(number, unique)| (number, Some(unique)));
        let unique = unique.map(str::parse).transpose()?;
        Ok(MountId { device: device.parse()?, number: number.parse()?, unique })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounted;

    #[test]
    fn a_mount_is_known_by_its_numbers() {
        let (root, proc) = (Path::new("/"), Path::new("/proc"));
        let entry = mounted(proc).unwrap();
        let id = MountId::of(&entry, proc);
        assert!(id.is(&entry) && !id.is(&mounted(root).unwrap()));
        assert!(id.may_be_at(proc) && (id.unique.is_none() || !id.may_be_at(root)));
        for id in [id, MountId { unique: None, ..id }] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for wrong in ["", "0:47", "0:47/", "0:47/x", "0:47/1/", "0:47/1/2/3"] {
            assert!(wrong.parse::<MountId>().is_err(), "{wrong}");
        }
    }
}
