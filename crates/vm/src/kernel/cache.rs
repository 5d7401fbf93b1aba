//! Caches unpacked kernels between runs.
//!
//! An entry is two files: `KEY` is the vmlinux, `KEY.release` its release. The key identifies one state of one file
//! (device, inode, size, mtime, ctime), so a replaced kernel makes a new entry. Both files get their names once they
//! are on the disk: concurrent runs and crashes leave a complete file or none. An entry unused for [`MAX_AGE`] is
//! removed when another one is added.
//!
//! A guest boots the content of an entry. So an entry is used only if it belongs to this user or root; the caller
//! ensures that nobody else can write to the directory.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
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
    directory: Option<PathBuf>,
}

impl Cache {
    /// The cache in `directory`, which need not exist yet.
    pub fn at(directory: &Path) -> Cache {
        Cache { directory: Some(directory.to_owned()) }
    }

    /// No cache: it has no entries, and takes none.
    pub fn none() -> Cache {
        Cache { directory: None }
    }

    /// The entry of `key`, which is marked as used.
    pub fn get(&self, key: &Key) -> Option<Hit> {
        let (image, release_file) = files(self.directory.as_deref()?, key);
        let mut release = String::new();
        open(&release_file)?.read_to_string(&mut release).ok()?;
        let file = open(&image)?;
        let age =
            file.metadata().and_then(|metadata| metadata.modified()).map(|used| used.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age > MARKED_FOR) {
            // Only the owner may set the time; in a shared cache other users' use does not count.
            let _ = file.set_modified(SystemTime::now());
        }
        Some(Hit { image, release })
    }

    /// Adds an entry and removes unused ones. Returns the image's path.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn insert(&self, key: &Key, release: &str, vmlinux: &[u8]) -> io::Result<PathBuf> {
        let directory = self.directory.as_deref().ok_or(io::ErrorKind::Unsupported)?;
        // Whatever the umask is.
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        prune(directory);
        let (image, release_file) = files(directory, key);
        put(directory, &image, vmlinux)?;
        // The release comes last: an entry without it is ignored.
        put(directory, &release_file, release.as_bytes())?;
        Ok(image)
    }
}

/// The image of an entry, and its release.
fn files(directory: &Path, key: &Key) -> (PathBuf, PathBuf) {
    (directory.join(&key.0), directory.join(format!("{}{RELEASE_SUFFIX}", key.0)))
}

/// Opens a file of an entry, if it is a regular one of this user's or root's with no other name.
fn open(path: &Path) -> Option<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let owners = [0, rustix::process::geteuid().as_raw()];
    (metadata.is_file() && owners.contains(&metadata.uid()) && metadata.nlink() == 1).then_some(file)
}

/// Makes the file `path`, completely or not at all. It gets its name when it is on the disk, so a process that is
/// killed before leaves nothing. Only a file system without nameless files needs a temporary name.
fn put(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let nameless = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR);
    let Ok(mut file) = nameless.map(File::from) else {
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(directory)?;
        file.write_all(bytes)?;
        file.as_file().sync_data()?;
        file.persist(path)?;
        return Ok(());
    };
    file.write_all(bytes)?;
    file.sync_data()?;
    // linkat(2): a nameless file can be linked through /proc without privilege.
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = || linkat(CWD, &nameless, CWD, path, AtFlags::SYMLINK_FOLLOW);
    match link() {
        // Another run was faster: a key stands for one content.
        Err(Errno::EXIST) if open(path).is_some() => Ok(()),
        // Not an entry of ours.
        Err(Errno::EXIST) => {
            fs::remove_file(path)?;
            Ok(link()?)
        }
        result => Ok(result?),
    }
}

/// Removes entries, and leftovers of interrupted runs, that are older than [`MAX_AGE`]. Failures are ignored.
fn prune(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|time| time.elapsed());
        let old = matches!(age, Ok(Ok(age)) if age > MAX_AGE);
        // An entry's age is that of its image.
        if old && !entry.file_name().as_encoded_bytes().ends_with(RELEASE_SUFFIX.as_bytes()) {
            let _ = fs::remove_file(entry.path());
            let mut release = entry.path().into_os_string();
            release.push(RELEASE_SUFFIX);
            let _ = fs::remove_file(release);
        }
    }
}
