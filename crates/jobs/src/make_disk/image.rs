//! An image file that is written to: what is on it, and its lock.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::{Backing, BackingFile};
use inarch_disk::{Disk, Signature};
use inarch_format::probe::{Found, container, probe};
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_source::{in_use, parse};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

use super::MakeError;

/// Bytes in which content of an unknown kind is looked for.
const LOOKED_AT: u64 = 1 << 20;

/// A raw disk image, open for writing and locked.
pub(super) struct RawImage {
    pub path: PathBuf,
    pub file: File,
    pub size: u64,
    /// What is on it. An error if its table is damaged.
    pub disk: Result<Disk, inarch_disk::DiskError>,
}

impl RawImage {
    /// Opens the image. Only one process at a time makes something in it.
    pub fn open(path: &Path) -> Result<RawImage, MakeError> {
        let fail = |error: io::Error| PathError::new(path, "cannot open it", error);
        // A pipe would be waited for, and a directory cannot be written to.
        let kind = path.metadata().map_err(fail)?.file_type();
        if !kind.is_file() {
            let what = if kind.is_dir() {
                "a directory, not a disk image"
            } else {
                "no regular file; only image files are written to"
            };
            return Err(MakeError::NotRaw { path: path.to_owned(), what: what.to_owned() });
        }
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(fail)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOTSUP | Errno::NOLCK) => {}
            Err(error) => return Err(PathError::new(path, "is in use by another process", error).into()),
        }
        let metadata = file.metadata().map_err(fail)?;
        if in_use::has_writer(&metadata) {
            return Err(fail(io::Error::other("a running guest has it as its disk; switch that off")).into());
        }
        let size = metadata.len();
        let second = file.try_clone().map_err(fail)?;
        let image: Arc<dyn Backing> = Arc::new(BackingFile::new(second, path.to_owned()).map_err(fail)?);
        let (container, disk, found) = parse(|parsing| {
            // A table that lies in a container is not the container's own.
            let container = container(parsing, &*image);
            let disk = inarch_disk::examine(parsing, &image);
            let is_empty = disk.as_ref().is_ok_and(|disk| disk.table.is_none() && disk.content.is_none());
            (container, disk, if is_empty { probe(parsing, &*image).ok() } else { None })
        })?;
        if let Some(what) = container.map_err(fail)? {
            return Err(MakeError::NotRaw { path: path.to_owned(), what });
        }
        if let Some(Found::Other(what)) = found {
            return Err(MakeError::NotRaw { path: path.to_owned(), what });
        }
        if let Err(error @ inarch_disk::DiskError::Io { .. }) = disk {
            return Err(MakeError::Disk { path: path.to_owned(), error });
        }
        Ok(RawImage { path: path.to_owned(), file, size, disk })
    }

    /// Whether the first MiB of `length` bytes from `start` has anything but zeros: content of a kind that is not known, too, is somebody's.
    pub fn has_bytes(&self, start: u64, length: u64) -> io::Result<bool> {
        let mut bytes = vec![0; length.min(LOOKED_AT).min(self.size.saturating_sub(start)) as usize];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.iter().any(|byte| *byte != 0))
    }

    /// Sees to it that `length` bytes from `start` can be written without need for room. A file system that cannot do that shows it later.
    pub fn reserve(&self, start: u64, length: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, start, length) {
            Err(Errno::NOTSUP | Errno::NOSYS) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes `length` bytes from `start` zeros, without storing them if the file system can do that.
    pub fn clear(&self, start: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, length) {
            Err(Errno::NOTSUP | Errno::NOSYS) => {
                super::moved::copy(&mut io::repeat(0).take(length), &self.file, start).map(|_| ())
            }
            result => Ok(result?),
        }
    }
}

/// A UUID as the usual tools make one: a random one (RFC 9562, section 5.4).
pub(super) fn random_uuid() -> Result<[u8; 16], PathError> {
    let mut uuid = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut uuid));
    read.map_err(|error| PathError::new(Path::new("/dev/urandom"), "cannot read it", error))?;
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    Ok(uuid)
}

/// What is there, in a few words.
pub(super) fn told(content: &Signature) -> String {
    match &content.label {
        Some(label) => format!("{} with the label {}", content.format, shown(Path::new(label))),
        None => content.format.to_owned(),
    }
}
