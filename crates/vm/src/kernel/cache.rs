//! Caches unpacked kernels between runs.
//!
//! An entry is two files: `KEY` is the vmlinux, `KEY.release` its release. The key identifies one state of one file
//! (device, inode, size, mtime, ctime), so a replaced kernel makes a new entry. Both files get their names once they
//! are on the disk: concurrent runs and crashes leave a complete file or none. An entry unused for [`MAX_AGE`] is
//! removed when another one is added.
//!
//! A guest boots the content of an entry. So an entry is used only if it belongs to this user or root; the caller
//! ensures that nobody else can write to the directory. Everything is done through the directory's descriptor: a
//! directory that takes its name later is neither written to nor cleared. Only QEMU opens an image by its name.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// How long an unused entry stays.
pub const MAX_AGE: Duration = Duration::from_secs(14 * 24 * 3600);

/// How long a used entry is not marked as used again. The cache is part of this machine's tree, and a kept run wants to
/// find that tree unchanged.
const MARKED_FOR: Duration = Duration::from_secs(24 * 3600);

const RELEASE_SUFFIX: &str = ".release";

/// Identifies one state of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// The key of the file that `metadata` describes.
    pub fn of(metadata: &Metadata) -> Key {
        let (device, inode, size) = (metadata.dev(), metadata.ino(), metadata.size());
        let (changed, fraction) = (metadata.ctime(), metadata.ctime_nsec());
        let (modified, modified_fraction) = (metadata.mtime(), metadata.mtime_nsec());
        Key(format!("{device:x}-{inode:x}-{size:x}-{modified:x}.{modified_fraction:x}-{changed:x}.{fraction:x}"))
    }
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The unpacked vmlinux.
    pub image: PathBuf,
    /// Its release.
    pub release: String,
}

/// The directory with the entries.
#[derive(Clone, Debug)]
pub struct Cache {
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Nowhere,
    /// It is opened when it is used.
    Named(PathBuf),
    /// It is open; the name is for QEMU, which opens images by name.
    Open(Arc<OwnedFd>, PathBuf),
}

impl Cache {
    /// The cache in `directory`, which need not exist yet.
    pub fn at(directory: &Path) -> Cache {
        Cache { place: Place::Named(directory.to_owned()) }
    }

    /// The cache in the open `directory` (`O_PATH` is enough), which is used only through this descriptor. Images are named as if
    /// the directory were at `name`.
    pub fn in_open(directory: OwnedFd, name: &Path) -> Cache {
        Cache { place: Place::Open(Arc::new(directory), name.to_owned()) }
    }

    /// No cache: it has no entries, and takes none.
    pub fn none() -> Cache {
        Cache { place: Place::Nowhere }
    }

    /// The directory, and its name.
    fn directory(&self) -> io::Result<(Arc<OwnedFd>, &Path)> {
        match &self.place {
            Place::Nowhere => Err(io::ErrorKind::Unsupported.into()),
            Place::Named(path) => {
                let directory =
                    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
                Ok((Arc::new(directory), path))
            }
            Place::Open(directory, path) => Ok((Arc::clone(directory), path)),
        }
    }

    /// The entry of `key`, which is marked as used.
    pub fn get(&self, key: &Key) -> Option<Hit> {
        let (directory, path) = self.directory().ok()?;
        let mut release = String::new();
        open(&directory, &release_of(key))?.read_to_string(&mut release).ok()?;
        let file = open(&directory, &key.0)?;
        let age =
            file.metadata().and_then(|metadata| metadata.modified()).map(|used| used.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age > MARKED_FOR) {
            // Only the owner may set the time; in a shared cache other users' use does not count.
            let _ = file.set_modified(SystemTime::now());
        }
        Some(Hit { image: path.join(&key.0), release })
    }

    /// Adds an entry and removes unused ones. Returns the image's path.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn insert(&self, key: &Key, release: &str, vmlinux: &[u8]) -> io::Result<PathBuf> {
        if let Place::Named(path) = &self.place {
            // Whatever the umask is.
            DirBuilder::new().recursive(true).mode(0o755).create(path)?;
        }
        let (directory, path) = self.directory()?;
        prune(&directory);
        put(&directory, &key.0, vmlinux)?;
        // The release comes last: an entry without it is ignored.
        put(&directory, &release_of(key), release.as_bytes())?;
        Ok(path.join(&key.0))
    }
}

fn release_of(key: &Key) -> String {
    format!("{}{RELEASE_SUFFIX}", key.0)
}

/// Opens a file of an entry, if it is a regular one of this user's or root's with no other name.
fn open(directory: &OwnedFd, name: &str) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    let owners = [0, rustix::process::geteuid().as_raw()];
    (metadata.is_file() && owners.contains(&metadata.uid()) && metadata.nlink() == 1).then_some(file)
}

/// Makes the file `name`, completely or not at all. It gets its name when it is on the disk, so a process that is
/// killed before leaves nothing. Only a file system without nameless files needs a temporary name.
fn put(directory: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    const OWN: Mode = Mode::RUSR.union(Mode::WUSR);
    let nameless = openat(directory, ".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, OWN);
    let Ok(mut file) = nameless.map(File::from) else { return put_by_name(directory, name, bytes, OWN) };
    file.write_all(bytes)?;
    file.sync_data()?;
    // linkat(2): a nameless file can be linked through /proc without privilege.
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = || linkat(CWD, &nameless, directory, name, AtFlags::SYMLINK_FOLLOW);
    match link() {
        // Another run was faster: a key stands for one content.
        Err(Errno::EXIST) if open(directory, name).is_some() => Ok(()),
        // Not an entry of ours.
        Err(Errno::EXIST) => {
            unlinkat(directory, name, AtFlags::empty())?;
            Ok(link()?)
        }
        result => Ok(result?),
    }
}

/// As [`put`], by a temporary name. A process that is killed leaves a file, which [`prune`] removes one day.
fn put_by_name(directory: &OwnedFd, name: &str, bytes: &[u8], mode: Mode) -> io::Result<()> {
    let temporary = format!(".new-{:016x}", RandomState::new().hash_one(std::process::id()));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, &temporary, flags, mode)?);
    let mut put = || {
        file.write_all(bytes)?;
        file.sync_data()?;
        io::Result::Ok(renameat(directory, &temporary, directory, name)?)
    };
    put().inspect_err(|_| {
        let _ = unlinkat(directory, &temporary, AtFlags::empty());
    })
}

/// Removes entries, and leftovers of interrupted runs, that are older than [`MAX_AGE`]. Failures are ignored.
fn prune(directory: &OwnedFd) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listing = openat(directory, ".", flags, Mode::empty()).and_then(Dir::new);
    for entry in listing.into_iter().flatten().flatten() {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        // An entry's age is that of its image.
        if is_old(directory, name) && !name.as_bytes().ends_with(RELEASE_SUFFIX.as_bytes()) {
            // A directory stays.
            let _ = unlinkat(directory, name, AtFlags::empty());
            let mut release = name.to_owned();
            release.push(RELEASE_SUFFIX);
            let _ = unlinkat(directory, &release, AtFlags::empty());
        }
    }
}

/// Whether a name, not what it links to, was last modified longer than [`MAX_AGE`] ago.
fn is_old(directory: &OwnedFd, name: &OsStr) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = openat(directory, name, flags, Mode::empty()).map(File::from).map_err(io::Error::from);
    let age = entry.and_then(|entry| entry.metadata()?.modified()).map(|time| time.elapsed());
    matches!(age, Ok(Ok(age)) if age > MAX_AGE)
}
