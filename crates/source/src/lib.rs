//! SRC, the same for every command: [`Source::parse`] finds out what a text names, and [`open()`] opens it as a tree with its content.
//!
//! ```
//! use inarch_source::{Source, open};
//! use inarch_tree::select::Selection;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! std::fs::write(directory.path().join("file"), "content")?;
//! let source = Source::parse(directory.path().as_os_str())?;
//! let opened = open(&source, &Selection::default())?;
//! assert!(opened.tree.lookup(b"file").is_some());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod cache;
mod disk;
mod disk_image;
mod domain;
mod error;
mod event;
mod foreign;
mod hashed;
pub mod identity;
pub mod in_use;
mod kind;
mod needs;
mod open;
mod registry;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use inarch_cache::{CacheError, ImageName, Location, NameError, Scope};
use inarch_format::oci;
use inarch_format::probe::Found;
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;

pub use cache::of_owner;
pub use cache::{CacheSource, REMOTE};
pub use disk::{file_system, split, subvolume, volumes, with_volumes};
pub use disk_image::DiskFile;
pub use disk_image::{Container, ContainerError, ImageFormat};
pub use disk_image::{DiskImage, OpenedDisk};
pub use domain::{Domain, read_description};
pub use error::{OpenDiskError, OpenError};
pub use event::SourceEvent;
pub use foreign::parse;
pub use inarch_disk::guest::Which;
pub use inarch_disk::{Key, Keys};
pub use kind::FileKind;
pub use needs::DiskNeeds;
pub use open::KERNEL_TREES;
pub use open::{Opened, Resources, open, open_with};
pub use open::{OpenedVolume, open_volume, spool_directory};
pub use registry::RegistrySource;

/// Where a tree comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory of this host.
    Directory(PathBuf),
    /// An archive or a disk image.
    File {
        /// Where it is.
        path: PathBuf,
        /// What it is, by its first bytes.
        kind: FileKind,
        /// What of it, if it is an archive.
        part: Box<ArchivePart>,
    },
    /// A disk with a partition table, or a volume of one.
    Disk {
        /// The disk image.
        path: PathBuf,
        /// What of it.
        part: Box<DiskPart>,
    },
    /// A tar archive that comes through a pipe: a named one, or one that a shell made of `<(COMMAND)`.
    Pipe(PathBuf),
    /// A tar archive on standard input.
    StandardInput,
    /// A container image: an OCI layout, or an archive of one or by `docker save`.
    Oci {
        /// The layout's directory, or the archive.
        path: PathBuf,
        /// Which of its images, if it has several: a tag, a name or a digest.
        reference: Option<String>,
        /// The architecture that is taken of a container image for several; by its name in images.
        machine: String,
    },
    /// A container image of a registry.
    Registry(Box<RegistrySource>),
    /// A cache of this user.
    Cache(Box<CacheSource>),
    /// Nothing: for a device that only holds what a guest writes.
    Empty,
}

/// Which part of an archive is the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivePart {
    /// The architecture that is taken of a container image for several, if this is an archive of one; by its name
    /// in images.
    pub machine: String,
    /// The directory that is the tree's root; empty for the whole.
    pub within: PathBuf,
}

impl Default for ArchivePart {
    /// The whole, for machines like this one.
    fn default() -> ArchivePart {
        ArchivePart { machine: oci::machine().to_owned(), within: PathBuf::new() }
    }
}

/// Which part of a disk image is the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPart {
    /// Which file system.
    pub which: Which,
    /// The directory of it that is the tree's root; empty for the whole.
    pub within: PathBuf,
    /// Its format, if that is known: that which libvirt has for it.
    pub format: Option<ImageFormat>,
    /// Files that the images may name: backing files, data files, extents. They get no others.
    pub with: Vec<PathBuf>,
    /// Further disks of the same guest.
    pub others: Vec<DiskFile>,
    /// The domain of libvirt whose disks these are.
    pub domain: Option<Domain>,
    /// What opens its encrypted volumes.
    pub keys: Keys,
}

impl Default for DiskPart {
    /// The whole guest.
    fn default() -> DiskPart {
        DiskPart {
            which: Which::Auto,
            within: PathBuf::new(),
            format: None,
            with: Vec::new(),
            others: Vec::new(),
            domain: None,
            keys: Keys::default(),
        }
    }
}

impl DiskPart {
    fn new(which: Which, within: PathBuf) -> Box<DiskPart> {
        Box::new(DiskPart { which, within, ..DiskPart::default() })
    }

    /// The files of all disks; `path` is that of the first.
    pub fn files(&self, path: &Path) -> Vec<DiskFile> {
        let first = DiskFile { path: path.to_owned(), format: self.format, with: self.with.clone() };
        [first].into_iter().chain(self.others.iter().cloned()).collect()
    }

    /// Opens them.
    pub fn open(&self, path: &Path) -> Result<Vec<DiskImage>, PathError> {
        self.files(path).iter().map(DiskImage::open).collect()
    }
}

/// Why a text names no source.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It does not exist, or cannot be examined.
    #[error("{}: cannot be used as a source: {error}", shown(path))]
    Inaccessible {
        /// What was named.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It cannot be told what it is.
    #[error(transparent)]
    Open(#[from] Box<OpenError>),
    /// It names no other files.
    #[error("{}: it is no disk image that names other files; leave --with out", shown(path))]
    NoOthers {
        /// What was named.
        path: PathBuf,
    },
    /// A directory of it was asked for, and it is neither a disk image nor an archive.
    #[error(
        "{}: only a disk image or an archive can yield one directory; take all (/), or use 'inarch image' with --only",
        shown(path)
    )]
    NoDirectory {
        /// What was named.
        path: PathBuf,
    },
    /// Nothing in it is encrypted.
    #[error("{}: it is no disk image with encrypted volumes; leave --key out", shown(path))]
    NoKeys {
        /// What was named.
        path: PathBuf,
    },
    /// It has no format of a disk image.
    #[error("{}: it is no disk image; leave --format out", shown(path))]
    NoFormat {
        /// What was named.
        path: PathBuf,
    },
    /// It has no other disks.
    #[error("{}: it is no disk image that another disk belongs to; leave --also out", shown(path))]
    NoDisks {
        /// What was named.
        path: PathBuf,
    },
    /// A domain of libvirt has no disks that can be read.
    #[error("libvirt:{}: {reason}", shown(Path::new(name)))]
    Domain {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// It is no cache that can be used.
    #[error(transparent)]
    Cache(Box<CacheError>),
    /// It is no name of an image.
    #[error(transparent)]
    Image(Box<NameError>),
    /// It is something else.
    #[error("{}: {found}; a source is a directory, {}", shown(path), kind::accepted())]
    Unknown {
        /// What was named.
        path: PathBuf,
        /// What it looks like.
        found: String,
    },
    /// Inarch recognises its kind, but does not read it.
    #[error("{}: {found}", shown(path))]
    NotRead {
        /// What was named.
        path: PathBuf,
        /// What it is, and what to do.
        found: String,
    },
}

impl Source {
    /// Finds out what `text` names. Reads the file's type, and some bytes of a regular file; it does not open a pipe.
    pub fn parse(text: &OsStr) -> Result<Source, SourceError> {
        if text == "-" {
            return Ok(Source::StandardInput);
        }
        if let Some(image) = text.as_bytes().strip_prefix(b"oci:") {
            return container_image(OsStr::from_bytes(image));
        }
        if let Some(domain) = text.as_bytes().strip_prefix(b"libvirt:") {
            return domain::source(domain);
        }
        if let Some(name) = text.as_bytes().strip_prefix(b"cache:") {
            return cache::source(name).map_err(Box::new).map_err(SourceError::Cache);
        }
        if let Some(image) = text.to_str().filter(|text| ImageName::is_one(text)) {
            return registry::source(image);
        }
        if let Some(url) = text.to_str().filter(|text| Location::is_one(text)) {
            return cache::remote(url).map_err(Box::new).map_err(SourceError::Cache);
        }
        let path = PathBuf::from(text);
        let fail = |error| SourceError::Inaccessible { path: path.clone(), error };
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) => {
                let (path, part) = disk::split(text).ok_or_else(|| fail(error))?;
                let Found::Source(kind @ (FileKind::Tar | FileKind::CompressedTar)) =
                    kind::recognise(&path).map_err(fail)?
                else {
                    return Ok(Source::Disk { path, part: Box::new(part) });
                };
                if part.which == Which::Auto {
                    let part = ArchivePart { within: part.within, ..ArchivePart::default() };
                    return Ok(Source::File { path, kind, part: Box::new(part) });
                }
                // A guest can write an archive's head before its partitions.
                if disk::is_disk(&path).map_err(Box::new)? {
                    return Ok(Source::Disk { path, part: Box::new(part) });
                }
                let found = "is an archive, which has no volumes; ARCHIVE:/PATH names a directory of it".to_owned();
                return Err(SourceError::NotRead { path, found });
            }
        };
        let file_type = metadata.file_type();
        if file_type.is_dir() {
            return Ok(Source::Directory(path));
        }
        if file_type.is_fifo() {
            return Ok(Source::Pipe(path));
        }
        if !file_type.is_file() && !file_type.is_block_device() {
            return Err(SourceError::Unknown {
                path,
                found: "is neither a regular file nor a block device".to_owned(),
            });
        }
        match kind::recognise(&path).map_err(fail)? {
            // A Btrfs may hold the root of an operating system in one subvolume, and what its fstab mounts in others.
            Found::Source(FileKind::Volume(reader)) if reader.name == "btrfs" => {
                Ok(Source::Disk { path, part: Box::default() })
            }
            Found::Source(kind) => Ok(Source::File { path, kind, part: Box::default() }),
            Found::Other(_) | Found::Unknown if disk::is_disk(&path).map_err(Box::new)? => {
                Ok(Source::Disk { path, part: Box::default() })
            }
            Found::Other(found) => Err(SourceError::NotRead { path, found }),
            // An empty file, or one that begins with zeros, counts as an archive: its reader says what is missing.
            Found::Zeros => Ok(Source::File { path, kind: FileKind::Tar, part: Box::default() }),
            Found::Unknown => Err(SourceError::Unknown { path, found: "is of no known kind".to_owned() }),
        }
    }

    /// The directory `path` of it, which must be a disk image or an archive unless `path` is `/`.
    ///
    /// # Errors
    /// It is neither.
    pub fn beneath(self, path: &Path) -> Result<Source, SourceError> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let is_whole = path.as_os_str().is_empty();
        match self {
            whole if is_whole => Ok(whole),
            Source::Disk { path: image, mut part } => {
                part.within = Path::new("/").join(&part.within).join(path);
                Ok(Source::Disk { path: image, part })
            }
            Source::File { path: image, kind: FileKind::Volume(_), .. } => {
                Ok(Source::Disk { path: image, part: DiskPart::new(Which::Auto, Path::new("/").join(path)) })
            }
            Source::File { path: file, kind, mut part } => {
                part.within = Path::new("/").join(&part.within).join(path);
                Ok(Source::File { path: file, kind, part })
            }
            other => Err(SourceError::NoDirectory { path: other.path().to_owned() }),
        }
    }

    /// Where it is; `-` for standard input.
    pub fn path(&self) -> &Path {
        match self {
            Source::Directory(path)
            | Source::File { path, .. }
            | Source::Disk { path, .. }
            | Source::Pipe(path)
            | Source::Oci { path, .. } => path,
            Source::StandardInput => Path::new("-"),
            Source::Registry(image) => image.path(),
            Source::Cache(cache) => Path::new(&cache.place.name),
            Source::Empty => Path::new(""),
        }
    }

    /// Lines about the state of its files that the user should read.
    pub fn notes(&self) -> Vec<String> {
        if matches!(self, Source::Cache(_) | Source::Registry(_)) {
            return Vec::new();
        }
        let Source::Disk { path, part } = self else { return in_use::note(self.path()).into_iter().collect() };
        let of_domain = part.domain.iter().flat_map(|domain| domain.notes.iter().cloned());
        let others = !part.others.is_empty();
        let of = |file: DiskFile| {
            let note = in_use::note(&file.path)?;
            Some(if others { format!("{}: {note}", shown(&file.path)) } else { note })
        };
        of_domain.chain(part.files(path).into_iter().filter_map(of)).collect()
    }

    /// Lines about it, each after its name: for messages that may be about several sources.
    pub fn named(&self, notes: &[String]) -> Vec<String> {
        notes.iter().map(|note| format!("{self}: {note}")).collect()
    }

    /// The files of the disk image and of those beside it.
    pub fn disks(&self) -> Vec<DiskFile> {
        match self {
            Source::Disk { path, part } => part.files(path),
            _ => Vec::new(),
        }
    }

    /// Whether it may turn out to be a container image when it is opened.
    pub fn may_be_an_image(&self) -> bool {
        match self {
            Source::Oci { .. } | Source::Registry(_) | Source::Pipe(_) | Source::StandardInput => true,
            Source::File { kind, .. } => matches!(kind, FileKind::Tar | FileKind::CompressedTar),
            Source::Directory(_) | Source::Disk { .. } | Source::Cache(_) | Source::Empty => false,
        }
    }

    /// The host's path of a file that has changed. `path` is from [`Content::changed`].
    ///
    /// [`Content::changed`]: inarch_block::Content::changed
    pub fn name_of(&self, path: &Path) -> PathBuf {
        match self {
            Source::Directory(root) => root.join(path),
            // The archive or image itself has changed.
            _ => path.to_owned(),
        }
    }
}

impl Source {
    /// Whether somebody else may have made its bytes to mislead its reader. Only a confined thread reads those.
    pub fn is_foreign(&self) -> bool {
        !matches!(self, Source::Directory(_) | Source::Cache(_) | Source::Empty)
    }

    /// Whether `file` is the source, or a scan of the source would find it. `file` may not exist yet. `cross` says that the scan includes
    /// other file systems.
    pub fn takes_in(&self, file: &Path, cross: bool) -> bool {
        let same = |path: &Path| file.canonicalize().is_ok_and(|file| path.canonicalize().is_ok_and(|p| p == file));
        let source = match self {
            Source::Directory(path) => path,
            Source::Oci { path, .. } if path.is_dir() => path,
            Source::Disk { path, part } => {
                return part.files(path).iter().flat_map(|disk| disk.with.iter().chain([&disk.path])).any(|p| same(p));
            }
            Source::File { path, .. } | Source::Pipe(path) | Source::Oci { path, .. } => return same(path),
            Source::StandardInput | Source::Registry(_) | Source::Cache(_) | Source::Empty => return false,
        };
        if same(source) {
            return true;
        }
        let parent = std::path::absolute(file).ok().and_then(|file| file.parent()?.canonicalize().ok());
        let (Some(parent), Ok(source)) = (parent, source.canonicalize()) else {
            return false;
        };
        let Ok(below) = parent.strip_prefix(&source) else {
            return false;
        };
        let left_out = source == Path::new("/") && KERNEL_TREES.iter().any(|name| below.starts_with(name));
        let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
        !left_out && (cross || device(&parent) == device(&source))
    }
}

/// Parses what follows `oci:`: `PATH[:REFERENCE]`. The path is the longest beginning that exists.
fn container_image(text: &OsStr) -> Result<Source, SourceError> {
    let bytes = text.as_bytes();
    let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
    let ends: Vec<usize> = colons.chain([bytes.len()]).collect();
    for end in ends.into_iter().rev() {
        let (path, rest) = bytes.split_at(end);
        let path = Path::new(OsStr::from_bytes(path));
        if path.exists() {
            let reference = rest.get(1..).filter(|reference| !reference.is_empty());
            let reference = reference.map(|reference| String::from_utf8_lossy(reference).into_owned());
            return Ok(Source::Oci { path: path.to_owned(), reference, machine: oci::machine().to_owned() });
        }
    }
    let path = PathBuf::from(OsString::from_vec([b"oci:", bytes].concat()));
    Err(SourceError::Inaccessible { path, error: io::Error::from_raw_os_error(libc::ENOENT) })
}

/// As it was written.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Oci { path, reference: Some(reference), .. } => {
                write!(f, "oci:{}:{}", shown(path), shown(Path::new(reference)))
            }
            Source::Oci { path, .. } => write!(f, "oci:{}", shown(path)),
            Source::Cache(cache) => match &cache.place.scope {
                Scope::Remote(url) => f.write_str(url),
                _ => write!(f, "cache:{}", cache.place.name),
            },
            Source::Disk { path, part } => {
                let DiskPart { which, within, domain, .. } = &**part;
                match domain {
                    Some(domain) => write!(f, "libvirt:{}", shown(Path::new(&domain.name)))?,
                    None => f.write_str(&shown(path))?,
                }
                match which {
                    Which::Named(name) => write!(f, ":{}", shown(Path::new(name)))?,
                    Which::Auto if within.starts_with("/dev") => f.write_str(":auto")?,
                    Which::Auto => {}
                }
                if within.as_os_str().is_empty() { Ok(()) } else { write!(f, ":{}", shown(within)) }
            }
            Source::File { path, part, .. } if !part.within.as_os_str().is_empty() => {
                write!(f, "{}:{}", shown(path), shown(&part.within))
            }
            _ => f.write_str(&shown(self.path())),
        }
    }
}

#[cfg(test)]
mod tests;
