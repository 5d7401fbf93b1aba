//! Where a kernel of User-Mode Linux makes the file that is its memory.
//!
//! It makes a file without a name in the directory that `TMPDIR` names (`make_tempfile` of arch/um/os-Linux/mem.c). That is a
//! directory of our own, which has no name either: it is removed before the kernel starts, and reached by its descriptor. So
//! nothing is left, however the guest ends.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::UmlError;

/// Where it may be: in memory rather than on a disk.
const PLACES: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];

/// A directory with room for `bytes` of memory, that has no name any more.
///
/// # Errors
/// There is none.
pub fn memory_directory(bytes: u64) -> Result<OwnedFd, UmlError> {
    let usable = PLACES.into_iter().map(Path::new).filter(|place| has_room(place, bytes));
    usable.filter_map(|place| nameless(place).ok()).next().ok_or(UmlError::NoMemory { mib: bytes >> 20 })
}

/// Whether there is so much room, and the memory may hold programs.
fn has_room(place: &Path, bytes: u64) -> bool {
    let Ok(stat) = statvfs(place) else { return false };
    !stat.f_flag.intersects(StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY)
        && stat.f_bavail.saturating_mul(stat.f_frsize) >= bytes
}

fn nameless(place: &Path) -> io::Result<OwnedFd> {
    let directory =
        tempfile::Builder::new().prefix("inarch-").permissions(Permissions::from_mode(0o700)).tempdir_in(place)?;
    let open = File::open(directory.path())?;
    directory.close()?;
    Ok(open.into())
}
