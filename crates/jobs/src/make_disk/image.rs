//! An image file that is written to: what is on it, and its lock.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::{Backing, BackingFile, read_backing};
use inarch_disk::container::{self, Container, ContainerError, NamedFiles};
use inarch_disk::{Disk, DiskError, Signature};
use inarch_format::probe::{self, Found};
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_source::{in_use, parse};
use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, fallocate, flock, memfd_create};
use rustix::io::Errno;

use super::{MakeError, moved};
use crate::run::{AttachError, Part, Qcow2Image};

/// Bytes in which content of an unknown kind is looked for.
const LOOKED_AT: u64 = 1 << 20;

/// A disk image, open for writing and locked.
pub(super) struct Image {
    pub path: PathBuf,
    /// Bytes of the disk.
    pub size: u64,
    /// What is on it. An error if its table is damaged.
    pub disk: Result<Disk, DiskError>,
    bytes: Arc<dyn Backing>,
    stored: Stored,
}

/// How the disk lies in its file.
enum Stored {
    Raw(File),
    Qcow2(Qcow2Image),
}

impl Image {
    /// Opens the image. Only one process at a time makes something in it. It is a raw one, or else a qcow2 one that is named so.
    pub fn open(path: &Path) -> Result<Image, MakeError> {
        let fail = |error: io::Error| PathError::new(path, "cannot open it", error);
        let check = |kind: FileType| {
            let what = match kind {
                _ if kind.is_file() => return Ok(()),
                _ if kind.is_dir() => "a directory, not a disk image",
                _ => "no regular file; only image files are written to",
            };
            Err(MakeError::NotRaw { path: path.to_owned(), what: what.to_owned() })
        };
        // A pipe would be waited for, and a directory cannot be written to.
        check(path.metadata().map_err(fail)?.file_type())?;
        let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = open.map_err(fail)?;
        // Another file may have taken its place meanwhile.
        check(file.metadata().map_err(fail)?.file_type())?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOTSUP | Errno::NOLCK) => {}
            Err(error) => return Err(in_use_by_another(path, error)),
        }
        if in_use::has_writer(&file) {
            return Err(fail(io::Error::other("a running guest has it as its disk; switch that off")).into());
        }
        let second = file.try_clone().map_err(fail)?;
        let bytes: Arc<dyn Backing> = Arc::new(BackingFile::new(second, path.to_owned()).map_err(fail)?);
        let is_named_qcow2 = path.extension().is_some_and(|extension| extension == "qcow2");
        let recognised = parse(|parsing| container::recognise(parsing, &*bytes))?.map_err(fail)?;
        if is_named_qcow2 && recognised == Some(Container::Qcow2) {
            // It is locked by its own descriptor then.
            drop((file, bytes));
            return Image::in_qcow2(path);
        }
        let (container, disk, found) = parse(|parsing| {
            // A table that lies in a container is not the container's own.
            let container = probe::container(parsing, &*bytes);
            let disk = inarch_disk::examine(parsing, &bytes);
            let is_empty = disk.as_ref().is_ok_and(|disk| disk.table.is_none() && disk.content.is_none());
            (container, disk, if is_empty { probe::probe(parsing, &*bytes).ok() } else { None })
        })?;
        if let Some(what) = container.map_err(fail)? {
            let more = if recognised == Some(Container::Qcow2) { ", or name it *.qcow2" } else { "" };
            return Err(MakeError::NotRaw { path: path.to_owned(), what: what + more });
        }
        if let Some(Found::Other(what)) = found {
            return Err(MakeError::NotRaw { path: path.to_owned(), what });
        }
        Image::examined(path, bytes, disk, Stored::Raw(file))
    }

    fn in_qcow2(path: &Path) -> Result<Image, MakeError> {
        let fail = |error: io::Error| PathError::new(path, "cannot open it", error);
        let image = Qcow2Image::open(path).map_err(|error| match error {
            AttachError::Image { path, error: ContainerError::NotNamed { .. } } => MakeError::NamesFiles(path),
            AttachError::InUse { path, .. } => in_use_by_another(&path, Errno::WOULDBLOCK),
            other => other.into(),
        })?;
        let file: Arc<dyn Backing> =
            Arc::new(BackingFile::new(image.file().map_err(fail)?, path.to_owned()).map_err(fail)?);
        let (bytes, disk) = parse(|parsing| {
            let mut no_others = NamedFiles::new(Vec::new());
            let bytes = container::open(parsing, Container::Qcow2, file, &mut |reference| no_others.take(reference))?;
            let disk = inarch_disk::examine(parsing, &bytes);
            Ok((bytes, disk))
        })?
        .map_err(|error| AttachError::Image { path: path.to_owned(), error })?;
        Image::examined(path, bytes, disk, Stored::Qcow2(image))
    }

    fn examined(
        path: &Path,
        bytes: Arc<dyn Backing>,
        disk: Result<Disk, DiskError>,
        stored: Stored,
    ) -> Result<Image, MakeError> {
        if let Err(error @ DiskError::Io { .. }) = disk {
            return Err(MakeError::Disk { path: path.to_owned(), error });
        }
        Ok(Image { path: path.to_owned(), size: bytes.size(), disk, bytes, stored })
    }

    /// Whether the first MiB of `length` bytes from `start` has anything but zeros: content of a kind that is not known, too, is somebody's.
    pub fn has_bytes(&self, start: u64, length: u64) -> io::Result<bool> {
        let mut bytes = vec![0; length.min(LOOKED_AT).min(self.size.saturating_sub(start)) as usize];
        read_backing(&*self.bytes, start, &mut bytes)?;
        Ok(bytes.iter().any(|byte| *byte != 0))
    }

    /// Sees to it that `length` bytes from `start` can be written without need for room. Where that is not possible, a lack of room shows later: on some
    /// file systems, and in a qcow2 image.
    pub fn reserve(&self, start: u64, length: u64) -> io::Result<()> {
        let Stored::Raw(file) = &self.stored else { return Ok(()) };
        match fallocate(file, FallocateFlags::KEEP_SIZE, start, length) {
            Err(Errno::NOTSUP | Errno::NOSYS) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes `length` bytes from `start` zeros, without storing them if that is possible.
    pub fn clear(&self, start: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let file = match &self.stored {
            Stored::Raw(file) => file,
            Stored::Qcow2(image) => return image.clear(Part { start, length }),
        };
        match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, length) {
            Err(Errno::NOTSUP | Errno::NOSYS) => moved::copy(&mut io::repeat(0).take(length), file, start).map(|_| ()),
            result => Ok(result?),
        }
    }

    /// Returns when what was written until now is on the disk.
    pub fn sync(&self) -> io::Result<()> {
        match &self.stored {
            Stored::Raw(file) => file.sync_data(),
            Stored::Qcow2(image) => image.file()?.sync_data(),
        }
    }

    /// Writes `bytes` to `at`.
    pub fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let image = match &self.stored {
            Stored::Raw(file) => return file.write_all_at(bytes, at),
            Stored::Qcow2(image) => image,
        };
        let file = File::from(memfd_create("piece", MemfdFlags::CLOEXEC)?);
        file.write_all_at(bytes, 0)?;
        image.put(&file, Part { start: 0, length: bytes.len() as u64 }, at)
    }

    /// Moves what `made` holds from `start` until `end` to `at`, and makes the rest of that zeros.
    pub fn take_in(&self, made: &File, (start, end): (u64, u64), at: u64) -> io::Result<()> {
        let length = end.saturating_sub(start);
        let file = match &self.stored {
            Stored::Raw(file) => file,
            Stored::Qcow2(_) if length == 0 => return Ok(()),
            Stored::Qcow2(image) => {
                image.clear(Part { start: at, length })?;
                return image.fill(made, Part { start, length }, at);
            }
        };
        // What lies under data keeps its room until it is overwritten; what lies between is cleared.
        let place = |offset: u64| at.saturating_add(offset.saturating_sub(start));
        let mut next = start;
        moved::each_extent(made, (start, end), |extent| {
            self.clear(place(next), extent.start.saturating_sub(next))?;
            next = extent.start.saturating_add(extent.length);
            moved::copy_extent(made, extent, file, place(extent.start))
        })?;
        self.clear(place(next), end.saturating_sub(next))
    }
}

fn in_use_by_another(path: &Path, error: Errno) -> MakeError {
    PathError::new(path, "is in use by another process", error).into()
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
