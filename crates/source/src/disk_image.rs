//! The files of a disk image. The calling thread opens them; a thread that is confined to parsing makes a disk of them.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use inarch_block::{Backing, BackingFile};
use inarch_confine::Parsing;
use inarch_disk::container::{self, NamedFiles};
pub use inarch_disk::container::{Container, ContainerError};
use inarch_lifecycle::PathError;

/// How a disk lies in an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// As it is.
    Raw,
    /// In a container.
    Container(Container),
}

impl ImageFormat {
    /// Every format, in the order of messages.
    pub fn all() -> impl Iterator<Item = ImageFormat> {
        [ImageFormat::Raw].into_iter().chain(Container::ALL.into_iter().map(ImageFormat::Container))
    }

    /// Its usual name, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Container(kind) => kind.name(),
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ImageFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<ImageFormat, String> {
        ImageFormat::all().find(|format| format.name() == text).ok_or_else(|| {
            let names: Vec<_> = ImageFormat::all().map(ImageFormat::name).collect();
            format!("'{text}' is not a format of disk images; these are: {}", names.join(", "))
        })
    }
}

/// A file that holds a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its format; found out by its first bytes if it is not given.
    pub format: Option<ImageFormat>,
    /// Files that it may name: backing files, data files, extents. It gets no others.
    pub with: Vec<PathBuf>,
}

/// A disk image that the user named, and the files that the user lets it refer to, all of them open.
pub struct DiskImage {
    image: Arc<dyn Backing>,
    format: Option<ImageFormat>,
    with: Vec<(PathBuf, Arc<dyn Backing>)>,
}

/// A disk in an image.
pub struct OpenedDisk {
    /// The bytes of the disk, whatever container they are in.
    pub disk: Arc<dyn Backing>,
    /// The container.
    pub format: ImageFormat,
    /// Files that no image asked for.
    pub unused: Vec<PathBuf>,
}

impl DiskImage {
    /// Opens regular files and block devices only.
    pub fn open(file: &DiskFile) -> Result<DiskImage, PathError> {
        let with = file.with.iter().map(|path| Ok((path.clone(), open(path)?))).collect::<Result<_, PathError>>()?;
        Ok(DiskImage { image: open(&file.path)?, format: file.format, with })
    }

    /// The disk in it.
    pub fn disk(self, parsing: Parsing) -> Result<OpenedDisk, ContainerError> {
        let kind = match self.format {
            Some(ImageFormat::Raw) => None,
            Some(ImageFormat::Container(kind)) => Some(kind),
            None => {
                container::recognise(parsing, &*self.image).map_err(|error| ContainerError::Io { offset: 0, error })?
            }
        };
        let mut files = NamedFiles::new(self.with);
        let (format, disk) = match kind {
            None => (ImageFormat::Raw, self.image),
            Some(kind) => {
                let disk = container::open(parsing, kind, self.image, &mut |reference| files.take(reference))?;
                (ImageFormat::Container(kind), disk)
            }
        };
        Ok(OpenedDisk { disk, format, unused: files.left().cloned().collect() })
    }
}

fn open(path: &Path) -> Result<Arc<dyn Backing>, PathError> {
    let fail = |error| PathError::new(path, "cannot open it", error);
    // A FIFO would wait for somebody who writes.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(fail)?;
    let kind = file.metadata().map_err(fail)?.file_type();
    let what = if kind.is_dir() {
        "a directory, not a disk image"
    } else if !kind.is_file() && !kind.is_block_device() {
        "neither a regular file nor a block device, so no disk"
    } else {
        return Ok(Arc::new(BackingFile::new(file, path.to_owned()).map_err(fail)?));
    };
    Err(PathError::new(path, "cannot be looked at", io::Error::other(what)))
}
