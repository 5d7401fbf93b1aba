//! A directory as a remote: each object is a file, which gets its name when it is complete.
//!
//! Others may write below the directory that the user names. No symbolic link there is followed: a push would write where it leads.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, flock, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::{Found, RemoteError, Version, WrongLength};

/// Locked while a head is replaced.
const LOCK: &str = ".lock";
/// A file without its name begins so. It is never taken for an object: those do not begin with a dot.
const NEW: &str = ".new-";
/// A push that was killed leaves such a file. One to which nothing was written for so long is removed by the next push.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// For a directory on the way; and for one that is listed or synced.
const ON_THE_WAY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const LISTED: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// All may write and read, as far as the umask permits.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// The directory of a remote.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    /// What the user names: links on the way there are the user's own.
    pub base: PathBuf,
    /// Plain names below it, joined by `/`; or nothing.
    pub prefix: String,
}

impl Root {
    /// Opens the directory that plain names, joined by `/`, mean below the root. With `make`, those that are missing are made.
    fn descend(&self, names: &str, make: bool) -> Result<OwnedFd, RemoteError> {
        if make {
            fs::create_dir_all(&self.base)?;
        }
        let found =
            |error: Errno| if error == Errno::NOENT { RemoteError::Missing } else { io::Error::from(error).into() };
        let mut at = openat(CWD, &self.base, ON_THE_WAY, Mode::empty()).map_err(found)?;
        for name in self.prefix.split('/').chain(names.split('/')).filter(|name| !name.is_empty()) {
            if make {
                match mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
                    Err(error) if error != Errno::EXIST => return Err(io::Error::from(error).into()),
                    _ => {}
                }
            }
            at = openat(&at, name, ON_THE_WAY | OFlags::NOFOLLOW, Mode::empty()).map_err(|error| match error {
                Errno::NOTDIR | Errno::LOOP => RemoteError::NotADirectory(name.to_owned()),
                error => found(error),
            })?;
        }
        Ok(at)
    }

    /// Makes it.
    pub fn make(&self) -> Result<(), RemoteError> {
        self.descend("", true).map(drop)
    }

    /// The directory of an object, and its name there.
    fn directory<'k>(&self, key: &'k str, make: bool) -> Result<(OwnedFd, &'k str), RemoteError> {
        let (directories, name) = key.rsplit_once('/').unwrap_or(("", key));
        Ok((self.descend(directories, make)?, name))
    }
}

fn open(root: &Root, key: &str) -> Result<File, RemoteError> {
    let (directory, name) = root.directory(key, false)?;
    // A FIFO in its place would block for ever.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(directory, name, flags, Mode::empty()).map(File::from) {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) | Err(Errno::NOENT) => Err(RemoteError::Missing),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

pub(crate) fn get(root: &Root, key: &str, most: u64) -> Result<Found, RemoteError> {
    let mut bytes = Vec::new();
    open(root, key)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(WrongLength::TooLong { most }.into());
    }
    Ok(Found { version: Version::of_bytes(&bytes), bytes })
}

pub(crate) fn get_range(root: &Root, key: &str, range: Range<u64>) -> Result<Vec<u8>, RemoteError> {
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

pub(crate) fn size(root: &Root, key: &str) -> Result<u64, RemoteError> {
    Ok(open(root, key)?.metadata()?.len())
}

/// A file that becomes an object. Killed before, it leaves a name that begins with a dot.
pub(crate) struct NewObject {
    file: File,
    directory: OwnedFd,
    temporary: String,
    name: String,
}

impl NewObject {
    pub fn create(root: &Root, key: &str) -> Result<NewObject, RemoteError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (directory, name) = root.directory(key, true)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Machines that share a directory have the same process numbers.
        let temporary = format!("{NEW}{}-{number}-{}", std::process::id(), time.as_nanos());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory, &*temporary, flags, MODE).map_err(io::Error::from)?;
        Ok(NewObject { file: file.into(), directory, temporary, name: name.to_owned() })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), RemoteError> {
        Ok(self.file.write_all(bytes)?)
    }

    /// Gives it its name, when its bytes are on the disk.
    pub fn finish(self) -> Result<(), RemoteError> {
        self.file.sync_all()?;
        renameat(&self.directory, &*self.temporary, &self.directory, &*self.name).map_err(io::Error::from)?;
        let directory = openat(&self.directory, ".", LISTED, Mode::empty()).map_err(io::Error::from)?;
        Ok(File::from(directory).sync_all()?)
    }
}

impl Drop for NewObject {
    fn drop(&mut self) {
        // After `finish` there is none.
        let _ = unlinkat(&self.directory, &*self.temporary, AtFlags::empty());
    }
}

pub(crate) fn put(root: &Root, key: &str, bytes: &[u8]) -> Result<(), RemoteError> {
    let mut new = NewObject::create(root, key)?;
    new.write(bytes)?;
    new.finish()
}

/// Replaces an object if it still has the version `expected`. The lock makes that one step for all who use this function.
pub(crate) fn put_if(
    root: &Root,
    key: &str,
    bytes: &[u8],
    expected: Option<&Version>,
    (most, patience): (u64, Duration),
) -> Result<bool, RemoteError> {
    let directory = root.descend("", true)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let lock = openat(&directory, LOCK, flags, MODE).map_err(io::Error::from)?;
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
    sweep(directory.as_fd());
    Ok(true)
}

/// Removes what killed pushes left in a remote's directory. What cannot be removed stays: the push has succeeded.
fn sweep(root: BorrowedFd<'_>) {
    // Objects are at most one directory deep.
    for name in sweep_one(root, ".") {
        sweep_one(root, &name);
    }
}

/// The same of one directory in it. Returns the names of its directories.
fn sweep_one(root: BorrowedFd<'_>, name: &str) -> Vec<String> {
    let mut directories = Vec::new();
    let Ok(directory) = openat(root, name, LISTED, Mode::empty()) else { return directories };
    let Ok(entries) = Dir::read_from(&directory) else { return directories };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        let Ok(found) = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if FileType::from_raw_mode(found.st_mode).is_dir() {
            if !name.starts_with('.') {
                directories.push(name.to_owned());
            }
            continue;
        }
        let numbers = name.strip_prefix(NEW).unwrap_or_default().split('-').map(str::parse);
        let is_leftover = numbers.collect::<Result<Vec<u128>, _>>().is_ok_and(|numbers| numbers.len() == 3);
        let written = UNIX_EPOCH + Duration::from_secs(u64::try_from(found.st_mtime).unwrap_or(0));
        if is_leftover && written.elapsed().is_ok_and(|age| age > ABANDONED) {
            let _ = unlinkat(&directory, name, AtFlags::empty());
        }
    }
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_push_left_goes_after_a_day() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        let root = &Root { base: path.to_owned(), prefix: String::new() };
        let (old, fresh) =
            (NewObject::create(root, "packs/old").unwrap(), NewObject::create(root, "packs/fresh").unwrap());
        let (old, fresh) = (old.kill(), fresh.kill());
        put(root, "packs/.object", b"no leftover").unwrap();
        let [old, fresh, object] = [&old, &fresh, ".object"].map(|name| path.join("packs").join(name));
        for path in [&old, &object] {
            let long_ago = SystemTime::now() - 2 * ABANDONED;
            File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
        assert!(put_if(root, "head", b"1", None, (100, Duration::from_secs(60))).unwrap());
        assert!(!old.exists() && fresh.exists() && object.exists() && path.join("head").exists());
    }

    /// Somebody else who may write in the directory has made links before a push.
    #[test]
    fn no_link_is_followed() {
        let (outside, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let limits = (100, Duration::from_secs(60));
        let link = |name: &str, to: &str| {
            std::os::unix::fs::symlink(outside.path().join(to), shared.path().join(name)).unwrap();
        };
        let root = |prefix: &str| Root { base: shared.path().to_owned(), prefix: prefix.to_owned() };
        link("cache", "");
        fs::create_dir(shared.path().join("other")).unwrap();
        link("other/packs", "");
        link("other/.lock", "lock");
        for (prefix, key) in [("cache", "head"), ("cache/name", "packs/1"), ("other", "packs/1")] {
            assert!(put(&root(prefix), key, b"1").is_err(), "{prefix}/{key}");
            assert!(get(&root(prefix), key, 100).is_err(), "{prefix}/{key}");
        }
        assert!(root("cache/name").make().is_err());
        assert!(put_if(&root("other"), "head", b"1", None, limits).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        // The user's own link to the directory is one that he means.
        let own = outside.path().join("own");
        std::os::unix::fs::symlink(shared.path(), &own).unwrap();
        let root = Root { base: own, prefix: "third/name".to_owned() };
        assert!(put_if(&root, "head", b"1", None, limits).unwrap());
        assert_eq!(get(&root, "head", 100).unwrap().bytes, b"1");
    }

    impl NewObject {
        /// What remains if the process is killed now.
        fn kill(self) -> String {
            std::mem::ManuallyDrop::new(self).temporary.clone()
        }
    }
}
