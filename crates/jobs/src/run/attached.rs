//! [`AttachedDisk`]: a disk image, or a block device, that a guest gets as a disk.
//!
//! A guest that writes to a raw disk can make it look like a qcow2 that names other files. So the bytes of an image
//! never decide its format. The user does, or the file's name if the bytes agree with it.

mod length;
mod qcow2;
mod serve;

pub(crate) use qcow2::{Part, Qcow2Image};

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::{Backing, BackingFile};
use inarch_confine::Parsing;
use inarch_disk::container::{QcowNames, Reference, qcow2_names, recognise};
use inarch_lifecycle::PathError;
use inarch_source::{Container, ContainerError, ImageFormat, parse};
use inarch_vm::image_disk::{self, ImageDisk, ImageFile};
use inarch_vm::machine::Endpoint;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::attach_error::AttachError;

/// The longest chain of backing files, in images.
const MAX_CHAIN: usize = 32;

/// A disk image or a block device that the guest gets as a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedDisk {
    /// Where it is.
    pub path: PathBuf,
    /// Refuse writes.
    pub read_only: bool,
    /// Raw or qcow2; `None` for what the name says: `.qcow2` or else raw.
    pub format: Option<ImageFormat>,
    /// Bytes of a sector, by which the guest reads the partition table; 512 if `None`.
    pub sector: Option<u32>,
    /// The file that was seen at the path, if one was: another one is not opened.
    pub seen: Option<FileId>,
}

/// A file of this machine, whatever its names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(file: &File) -> io::Result<FileId> {
        let metadata = file.metadata()?;
        Ok(FileId { device: metadata.dev(), inode: metadata.ino() })
    }
}

impl AttachedDisk {
    /// The same with its format settled, if the name and the bytes agree on it.
    ///
    /// # Errors
    /// It is no disk image, its format is not known, or somebody else uses it.
    pub(crate) fn settled(&self) -> Result<(AttachedDisk, ImageFormat), AttachError> {
        let image = self.open_file(Purpose::Use)?;
        let seen = FileId::of(&image.file).map_err(|error| PathError::new(&self.path, "cannot be looked at", error))?;
        let format = match decide(&image, self.format)? {
            image_disk::ImageFormat::Raw => ImageFormat::Raw,
            image_disk::ImageFormat::Qcow2 => ImageFormat::Container(Container::Qcow2),
        };
        Ok((AttachedDisk { format: Some(format), seen: Some(seen), ..self.clone() }, format))
    }

    /// Opens and locks the file. If a file was seen at the path before, it must be the same one: another user who can write to the directory could
    /// have replaced it.
    fn open_file(&self, purpose: Purpose) -> Result<OpenFile, AttachError> {
        let open = open(&self.path, self.read_only, purpose)?;
        let is = FileId::of(&open.file).map_err(|error| PathError::new(&self.path, "cannot be looked at", error))?;
        if self.seen.is_some_and(|seen| seen != is) {
            return Err(AttachError::Exchanged { path: self.path.clone() });
        }
        Ok(open)
    }
}

/// What a disk's files are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// For a guest. They are locked.
    Use,
    /// For a command line that people read. Others may use them meanwhile.
    Look,
}

/// A file that is open, and what it is in an image.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
    is_device: bool,
}

/// An image of a chain.
#[derive(Debug)]
struct OpenImage {
    image: OpenFile,
    format: image_disk::ImageFormat,
    data: Option<OpenFile>,
}

/// A disk whose files are open, and locked unless they are only looked at.
#[derive(Debug)]
pub(super) struct OpenDisk {
    /// By which the guest finds it.
    pub serial: String,
    pub read_only: bool,
    sector: u32,
    /// The image, and those below it.
    chain: Vec<OpenImage>,
}

impl OpenDisk {
    /// Opens the `ordinal`th disk of a guest, from 1. `with` are the files that images may name.
    pub fn open(
        disk: &AttachedDisk,
        with: &[PathBuf],
        ordinal: usize,
        purpose: Purpose,
    ) -> Result<OpenDisk, AttachError> {
        let AttachedDisk { path, read_only, format, sector, .. } = disk;
        let image = disk.open_file(purpose)?;
        let mut left: Vec<PathBuf> = with.to_vec();
        let format = decide(&image, *format)?;
        let mut chain = vec![OpenImage { image, format, data: None }];
        while let Some(top) = chain.last_mut()
            && top.format == image_disk::ImageFormat::Qcow2
        {
            let names = look(&top.image, |parsing, file| qcow2_names(parsing, file))?;
            let names = names.map_err(|error| AttachError::Image { path: top.image.path.clone(), error })?;
            let is_top = chain.len() == 1;
            let Some(next) = add_named(chain.last_mut(), names, &mut left, (*read_only || !is_top, purpose))? else {
                break;
            };
            if chain.len() == MAX_CHAIN {
                let error = ContainerError::TooLong;
                return Err(AttachError::Image { path: path.clone(), error });
            }
            chain.push(next);
        }
        let sector = sector.unwrap_or(512);
        Ok(OpenDisk { serial: format!("disk{ordinal}"), read_only: *read_only, sector, chain })
    }

    /// The path of the image.
    pub fn path(&self) -> &Path {
        self.chain.first().map_or(Path::new(""), |top| &top.image.path)
    }

    /// Its format, in QEMU's word.
    pub fn format(&self) -> &'static str {
        self.chain.first().map_or("raw", |top| top.format.name())
    }

    /// The disk of a machine. With `names` it has the files' names in place of descriptors, for people to read.
    pub fn of_machine(&self, names: bool) -> io::Result<ImageDisk> {
        let endpoint = |file: &OpenFile| -> io::Result<Endpoint> {
            match names {
                true => Ok(Endpoint::Path(file.path.clone())),
                false => Ok(Endpoint::Descriptor(OwnedFd::from(file.file.try_clone()?))),
            }
        };
        let file = |open: &OpenImage| -> io::Result<ImageFile> {
            let data = open.data.as_ref().map(endpoint).transpose()?;
            let OpenImage { image, format, .. } = open;
            Ok(ImageFile { file: endpoint(image)?, format: *format, is_device: image.is_device, data })
        };
        let chain = self.chain.iter().map(file).collect::<io::Result<_>>()?;
        Ok(ImageDisk { serial: self.serial.clone(), chain, read_only: self.read_only, sector: self.sector })
    }
}

/// Opens the files that an image names; returns the one below it.
fn add_named(
    top: Option<&mut OpenImage>,
    names: QcowNames,
    left: &mut Vec<PathBuf>,
    (read_only, purpose): (bool, Purpose),
) -> Result<Option<OpenImage>, AttachError> {
    let Some(top) = top else { return Ok(None) };
    let path = &top.image.path;
    let mut find = |reference: Reference| {
        let not_named = |reference| {
            let error = ContainerError::NotNamed { kind: Container::Qcow2, reference };
            AttachError::Image { path: path.clone(), error }
        };
        let place = left.iter().position(|path| reference.is_answered_by(path));
        place.map(|place| left.remove(place)).ok_or_else(|| not_named(reference))
    };
    let data = names.data.map(&mut find).transpose()?;
    let backing = names.backing.map(&mut find).transpose()?;
    let format = match (&backing, names.backing_format.as_deref()) {
        (None, _) | (_, Some(b"raw")) => image_disk::ImageFormat::Raw,
        (_, Some(b"qcow2")) => image_disk::ImageFormat::Qcow2,
        _ => return Err(AttachError::BackingFormat { path: path.clone() }),
    };
    top.data = data.map(|data| open(&data, read_only, purpose)).transpose()?;
    let below = backing.map(|backing| open(&backing, true, purpose)).transpose()?;
    Ok(below.map(|image| OpenImage { image, format, data: None }))
}

/// Opens a regular file or a block device; locks it unless it is only looked at.
fn open(path: &Path, read_only: bool, purpose: Purpose) -> Result<OpenFile, AttachError> {
    let read_only = read_only || purpose == Purpose::Look;
    let fail = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied if !read_only => PathError::new(path, "cannot open it for writing", error),
        _ => PathError::new(path, "cannot open it", error),
    };
    let in_use = || AttachError::InUse { path: path.to_owned(), to_read: read_only };
    let kind = path.metadata().map_err(fail)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let what = if kind.is_dir() { "a directory" } else { "neither a regular file nor a block device" };
        return Err(AttachError::NoFile { path: path.to_owned(), what });
    }
    // For a block device O_EXCL means that nobody else, as a mount, has it for himself. A FIFO would be waited for.
    let exclusive = if kind.is_block_device() && !read_only { libc::O_EXCL } else { 0 };
    let opened = File::options().read(true).write(!read_only).custom_flags(libc::O_NONBLOCK | exclusive).open(path);
    let file = match opened {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(in_use()),
        opened => opened.map_err(fail)?,
    };
    let is = file.metadata().map_err(fail)?.file_type();
    if (is.is_file(), is.is_block_device()) != (kind.is_file(), kind.is_block_device()) {
        return Err(AttachError::Exchanged { path: path.to_owned() });
    }
    let open = OpenFile { path: path.to_owned(), file, is_device: kind.is_block_device() };
    if purpose == Purpose::Look {
        return Ok(open);
    }
    let lock = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(&open.file, lock) {
        Ok(()) | Err(Errno::NOTSUP | Errno::NOLCK) => Ok(open),
        Err(Errno::WOULDBLOCK) => Err(in_use()),
        Err(error) => Err(PathError::new(path, "cannot be locked", error).into()),
    }
}

/// Has a confined thread look at a file.
fn look<T: Send>(open: &OpenFile, look: impl FnOnce(Parsing, &dyn Backing) -> T + Send) -> Result<T, AttachError> {
    let fail = |error| PathError::new(&open.path, "cannot be read", error);
    let file = open.file.try_clone().map_err(fail)?;
    let backing: Arc<dyn Backing> = Arc::new(BackingFile::new(file, open.path.clone()).map_err(fail)?);
    Ok(parse(|parsing| look(parsing, &*backing))?)
}

/// The format of an image.
fn decide(image: &OpenFile, said: Option<ImageFormat>) -> Result<image_disk::ImageFormat, AttachError> {
    let path = image.path.clone();
    let kind = look(image, recognise)?.map_err(|error| PathError::new(&path, "cannot be read", error))?;
    let is_named_so = path.extension().is_some_and(|extension| extension == "qcow2");
    match (said, kind) {
        (Some(ImageFormat::Raw), _) => Ok(image_disk::ImageFormat::Raw),
        (Some(ImageFormat::Container(Container::Qcow2)), Some(Container::Qcow2)) => Ok(image_disk::ImageFormat::Qcow2),
        (Some(ImageFormat::Container(Container::Qcow2)), _) => {
            Err(AttachError::NoQcow2 { path, why: "format=qcow2 says that it is a qcow2 image" })
        }
        (Some(ImageFormat::Container(kind)), _) => Err(AttachError::Container { path, kind }),
        (None, Some(Container::Qcow2)) if is_named_so => Ok(image_disk::ImageFormat::Qcow2),
        // Neither is what a guest that was given a raw disk can have made of it.
        (None, Some(kind)) if path.extension().is_some_and(|extension| extension == kind.name()) => {
            Err(AttachError::Container { path, kind })
        }
        (None, Some(kind)) => Err(AttachError::Guess { path, kind }),
        (None, None) if is_named_so => {
            Err(AttachError::NoQcow2 { path, why: "its name says that it is a qcow2 image" })
        }
        (None, None) => Ok(image_disk::ImageFormat::Raw),
    }
}
