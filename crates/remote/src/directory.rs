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

use crate::{Found, RemoteError, Version};

/// Locked while a head is replaced.
const LOCK: &str = ".lock";
/// A file without its name begins so. It is never taken for an object: those do not begin with a dot.
const NEW: &str = ".new-";

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
        return Err(RemoteError::TooLong { most });
    }
    Ok(Found { version: Version::of_bytes(&bytes), bytes })
}

pub(crate) fn get_range(root: &Path, key: &str, range: Range<u64>) -> Result<Vec<u8>, RemoteError> {
    let file = open(root, key)?;
    let wanted = range.end.saturating_sub(range.start);
    let size = file.metadata()?.len();
    if size < range.end {
        return Err(RemoteError::TooShort { got: size.saturating_sub(range.start), wanted });
    }
    let mut bytes = vec![0; usize::try_from(wanted).map_err(|_| RemoteError::TooLong { most: u64::MAX })?];
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
    put(root, key, bytes).map(|()| true)
}
