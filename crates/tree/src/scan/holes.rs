//! Finds the ranges of a sparse file that hold data.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom, Statx};
use rustix::io::Errno;

use super::entry::WANTED;
use crate::DataRange;

/// Ranges are rounded outward to multiples of this: the block size of the formats, and a page.
const GRANULE: u64 = 4096;

/// The most ranges of a file. Any further ranges become one that reaches to its end, so that no file makes a scan
/// allocate without bound.
const RANGES_MAX: usize = 1 << 16;

/// The ranges of the regular file `name` in `dir` that hold data. `None` if all of it does, if its file system keeps no
/// holes, or if it no longer matches `stat`; a reader will then find it changed.
pub(super) fn data_ranges(dir: BorrowedFd<'_>, name: &CStr, stat: &Statx) -> Result<Option<Box<[DataRange]>>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let ranges = seek_ranges(file.as_fd(), stat.stx_size)?;
    // Taken after the ranges were read: an earlier or concurrent change shows in these attributes.
    let now = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, WANTED)?;
    Ok(ranges.filter(|_| unchanged(stat, &now)))
}

/// Whether two stats show the same inode with the same content.
fn unchanged(before: &Statx, now: &Statx) -> bool {
    let facts = |stat: &Statx| {
        let times = [&stat.stx_mtime, &stat.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec));
        (stat.stx_ino, stat.stx_mode, stat.stx_size, times)
    };
    facts(before) == facts(now)
}

/// The ranges of `file`, of `size` bytes, that hold data, by `SEEK_DATA` and `SEEK_HOLE`. `None` if all of it does, or
/// if its file system keeps no holes.
fn seek_ranges(file: BorrowedFd<'_>, size: u64) -> Result<Option<Box<[DataRange]>>, Errno> {
    let mut ranges: Vec<DataRange> = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < size => data,
            // No data up to the end.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(error) => return Err(error),
        };
        let end = if ranges.len() >= RANGES_MAX { size } else { rustix::fs::seek(file, SeekFrom::Hole(data))? };
        let end = end.min(size);
        if end <= data {
            // The file is changing.
            break;
        }
        let start = data - data % GRANULE;
        match ranges.last_mut() {
            Some(last) if last.offset + last.length >= start => last.length = rounded(end, size) - last.offset,
            _ => ranges.push(DataRange { offset: start, length: rounded(end, size) - start }),
        }
        at = end;
    }
    let whole = matches!(ranges[..], [DataRange { offset: 0, length }] if length == size);
    Ok(if whole { None } else { Some(ranges.into()) })
}

fn rounded(end: u64, size: u64) -> u64 {
    end.checked_next_multiple_of(GRANULE).unwrap_or(size).min(size)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    /// A change and its name.
    type Change<'a> = (&'a str, &'a dyn Fn(&Path));

    /// The ranges of a sparse file that undergoes `change` after its stat.
    fn ranges_after(change: impl FnOnce(&Path)) -> Option<Box<[DataRange]>> {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = root.path().join("file");
        let sparse = |name: &str, at| {
            let file = File::create(root.path().join(name)).unwrap();
            file.set_len(1 << 20).unwrap();
            file.write_all_at(b"x", at).unwrap();
        };
        sparse("file", 0);
        sparse("other", 1 << 19);
        let dir = File::open(root.path()).unwrap();
        let stat = rustix::fs::statx(&dir, c"file", AtFlags::SYMLINK_NOFOLLOW, WANTED).unwrap();
        // Longer than a tick of the kernel's clock for file times.
        std::thread::sleep(Duration::from_millis(20));
        change(&path);
        data_ranges(dir.as_fd(), c"file", &stat).unwrap()
    }

    #[test]
    fn the_ranges_of_a_file_that_stays_are_taken() {
        let ranges = ranges_after(|_| ());
        assert_eq!(ranges.as_deref(), Some(&[DataRange { offset: 0, length: 4096 }][..]));
    }

    #[test]
    fn the_ranges_of_a_file_that_changed_since_it_was_looked_at_are_not_taken() {
        let writable = |path: &Path| File::options().write(true).open(path).unwrap();
        let changes: [Change<'_>; 5] = [
            ("replaced", &|path| fs::rename(path.with_file_name("other"), path).unwrap()),
            ("written to", &|path| writable(path).write_all_at(b"y", 1 << 18).unwrap()),
            ("longer", &|path| writable(path).set_len(2 << 20).unwrap()),
            ("punched", &|path| {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(writable(path), flags, 0, 4096).unwrap();
            }),
            ("of other attributes", &|path| fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap()),
        ];
        for (name, change) in changes {
            assert_eq!(ranges_after(change), None, "{name}");
        }
    }
}
