//! A directory as a remote: each object is a file, which gets its name when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::{Found, RemoteError, Version, WrongLength};

/// Locked while a head is replaced.
const LOCK: &str = ".lock";
/// A file without its name begins so. It is never taken for an object: those do not begin with a dot.
const NEW: &str = ".new-";
/// A push that was killed leaves such a file. One to which nothing was written for so long is removed by the next push.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// The path of an object, which has plain names only.
fn path(root: &Path, key: &str) -> PathBuf {
    root.join(key)
}

fn open(root: &Path, key: &str) -> Result<File, RemoteError> {
    let mut options = OpenOptions::new();
    // A FIFO in its place would block for ever.
    let options = options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32);
    match options.open(path(root, key)) {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) => Err(RemoteError::Missing),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(RemoteError::Missing),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn get(root: &Path, key: &str, most: u64) -> Result<Found, RemoteError> {
    let mut bytes = Vec::new();
    open(root, key)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(WrongLength::TooLong { most }.into());
    }
    Ok(Found { version: Version::of_bytes(&bytes), bytes })
}

pub(crate) fn get_range(root: &Path, key: &str, range: Range<u64>) -> Result<Vec<u8>, RemoteError> {
    let file = open(root, key)?;
    let wanted = range.end.saturating_sub(range.start);
    let size = file.metadata()?.len();
    if size < range.end {
        return Err(WrongLength::TooShort { got: size.saturating_sub(range.start), wanted }.into());
    }
    let mut bytes = vec![0; usize::try_from(wanted).map_err(|_| WrongLength::TooLong { most: u64::MAX })?];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}

pub(crate) fn size(root: &Path, key: &str) -> Result<u64, RemoteError> {
    Ok(open(root, key)?.metadata()?.len())
}

/// A file that becomes an object. Killed before, it leaves a name that begins with a dot.
pub(crate) struct NewObject {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl NewObject {
    pub fn create(root: &Path, key: &str) -> Result<NewObject, RemoteError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = path(root, key);
        let directory = path.parent().unwrap_or(root).to_owned();
        fs::create_dir_all(&directory)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        // Machines that share a directory have the same process numbers.
        let name = format!("{NEW}{}-{number}-{}", std::process::id(), time.as_nanos());
        let temporary = directory.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        Ok(NewObject { file, temporary, path })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), RemoteError> {
        Ok(self.file.write_all(bytes)?)
    }

    /// Gives it its name, when its bytes are on the disk.
    pub fn finish(self) -> Result<(), RemoteError> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        if let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for NewObject {
    fn drop(&mut self) {
        // After `finish` there is none.
        let _ = fs::remove_file(&self.temporary);
    }
}

pub(crate) fn put(root: &Path, key: &str, bytes: &[u8]) -> Result<(), RemoteError> {
    let mut new = NewObject::create(root, key)?;
    new.write(bytes)?;
    new.finish()
}

/// Replaces an object if it still has the version `expected`. The lock makes that one step for all who use this function.
pub(crate) fn put_if(
    root: &Path,
    key: &str,
    bytes: &[u8],
    expected: Option<&Version>,
    (most, patience): (u64, Duration),
) -> Result<bool, RemoteError> {
    fs::create_dir_all(root)?;
    let lock = OpenOptions::new().read(true).append(true).create(true).open(root.join(LOCK))?;
    let begun = Instant::now();
    while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if !matches!(error, Errno::INTR | Errno::WOULDBLOCK) {
            return Err(io::Error::from(error).into());
        }
        if begun.elapsed() > patience {
            return Err(RemoteError::TimeOut(patience));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let now = match get(root, key, most) {
        Ok(found) => Some(found.version),
        Err(RemoteError::Missing) => None,
        Err(error) => return Err(error),
    };
    if now.as_ref() != expected {
        return Ok(false);
    }
    put(root, key, bytes)?;
    sweep(root);
    Ok(true)
}

/// Removes what killed pushes left below `root`. What cannot be removed stays: the push has succeeded.
fn sweep(root: &Path) {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    // Objects are at most one directory deep.
    let below =
        entries(root).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
    for entry in std::iter::once(root.to_owned()).chain(below).flat_map(|directory| entries(&directory)) {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(NEW)).unwrap_or_default();
        let numbers: Result<Vec<u128>, _> = rest.split('-').map(str::parse).collect();
        if numbers.is_err() || numbers.is_ok_and(|numbers| numbers.len() != 3) {
            continue;
        }
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        if written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_push_left_goes_after_a_day() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let (old, fresh) =
            (NewObject::create(root, "packs/old").unwrap(), NewObject::create(root, "packs/fresh").unwrap());
        let (old, fresh) = (old.kill(), fresh.kill());
        put(root, "packs/.object", b"no leftover").unwrap();
        for path in [&old, &root.join("packs/.object")] {
            let long_ago = std::time::SystemTime::now() - 2 * ABANDONED;
            OpenOptions::new().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        assert!(put_if(root, "head", b"1", None, (100, Duration::from_secs(60))).unwrap());
        assert!(!old.exists() && fresh.exists() && root.join("packs/.object").exists() && root.join("head").exists());
    }

    impl NewObject {
        /// What remains if the process is killed now.
        fn kill(self) -> PathBuf {
            std::mem::ManuallyDrop::new(self).temporary.clone()
        }
    }
}
