//! Caches unpacked kernels between runs.
//!
//! An entry is two files: `KEY` is the vmlinux, `KEY.release` its release. The key identifies one state of one file
//! (device, inode, size, mtime, ctime), so a replaced kernel makes a new entry. Both files get their names once they
//! are on the disk: concurrent runs and crashes leave a complete file or none. An entry unused for [`MAX_AGE`] is
//! removed when another one is added.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
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
    directory: PathBuf,
}

impl Cache {
    /// The cache in `directory`, which need not exist yet.
    pub fn at(directory: &Path) -> Cache {
        Cache { directory: directory.to_owned() }
    }

    /// The entry of `key`, which is marked as used.
    pub fn get(&self, key: &Key) -> Option<Hit> {
        let image = self.directory.join(&key.0);
        let release = fs::read_to_string(self.release_file(key)).ok()?;
        let file = File::open(&image).ok()?;
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
        fs::create_dir_all(&self.directory)?;
        self.prune();
        let image = self.directory.join(&key.0);
        self.put(&image, vmlinux)?;
        // The release comes last: an entry without it is ignored.
        self.put(&self.release_file(key), release.as_bytes())?;
        Ok(image)
    }

    /// Makes the file `path`, completely or not at all. It gets its name when it is on the disk, so a process that is
    /// killed before leaves nothing. Only a file system without nameless files needs a temporary name.
    fn put(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let nameless = rustix::fs::open(&self.directory, flags, Mode::RUSR | Mode::WUSR);
        let Ok(mut file) = nameless.map(File::from) else {
            let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&self.directory)?;
            file.write_all(bytes)?;
            file.as_file().sync_data()?;
            file.persist(path)?;
            return Ok(());
        };
        file.write_all(bytes)?;
        file.sync_data()?;
        // linkat(2): a nameless file can be linked through /proc without privilege.
        let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
        match linkat(CWD, nameless, CWD, path, AtFlags::SYMLINK_FOLLOW) {
            // Another run was faster: a key stands for one content.
            Err(Errno::EXIST) => Ok(()),
            result => Ok(result?),
        }
    }

    fn release_file(&self, key: &Key) -> PathBuf {
        self.directory.join(format!("{}{RELEASE_SUFFIX}", key.0))
    }

    /// Removes entries, and leftovers of interrupted runs, that are older than [`MAX_AGE`]. Failures are ignored.
    fn prune(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
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
}
