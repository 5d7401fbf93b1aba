//! `inarch disk create`: an empty image of any size, which takes no room.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use inarch_disk::container::Container;
use inarch_disk::new_qcow2;
use inarch_lifecycle::PathError;
use inarch_lifecycle::new_file::NewFile;
use rustix::io::Errno;

use super::MakeError;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// The largest file that Linux can have: offsets are signed.
const LARGEST: u64 = i64::MAX as u64 / SECTOR * SECTOR;

/// How an image is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A sparse file of the disk's size.
    Raw,
    /// An image of QEMU's, with clusters of so many bytes.
    Qcow2 {
        /// Bytes.
        cluster: u64,
    },
}

/// What to create.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The image.
    pub image: PathBuf,
    /// Bytes of the disk.
    pub size: u64,
    /// Whether it must be a raw image, or a qcow2 one. By default it is raw where the file system can hold that, unless its name ends with
    /// `.qcow2`.
    pub qcow2: Option<bool>,
    /// Replace a file that is there.
    pub force: bool,
}

/// A created image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// How it is stored.
    pub stored: Stored,
    /// Why it is no raw image, if it was not asked to be another one.
    pub because: Option<String>,
}

/// The container that a name implies, if images of it are not made here.
fn other_container(image: &Path) -> Option<Container> {
    let extension = image.extension()?;
    Container::ALL.into_iter().find(|kind| *kind != Container::Qcow2 && extension == kind.name())
}

/// Creates an image. It has its name when it is whole.
///
/// # Errors
/// There is a file already, or no image can be so large there.
pub fn create(request: &CreateRequest) -> Result<Created, MakeError> {
    let CreateRequest { image, size, qcow2, force } = request;
    if size % SECTOR != 0 || *size == 0 {
        return Err(MakeError::Sectors(*size));
    }
    match image.symlink_metadata() {
        Ok(there) if !there.is_file() => {
            let what = "is there, and no regular file; it is not replaced".to_owned();
            return Err(MakeError::NotRaw { path: image.clone(), what });
        }
        Ok(_) if !force => return Err(MakeError::Exists(image.clone())),
        _ => {}
    }
    if let Some(kind) = other_container(image).filter(|_| qcow2.is_none()) {
        let for_qemu = kind.qemu_name();
        let what = format!(
            "its name says {kind}, and disks are created raw or as qcow2; --format raw creates one of this name, \
             'qemu-img create -f {for_qemu} FILE SIZE' a {kind}"
        );
        return Err(MakeError::NotRaw { path: image.clone(), what });
    }
    let new = NewFile::create(image, || {})?;
    let is_named_so = image.extension().is_some_and(|extension| extension == "qcow2");
    let because = match (qcow2, is_named_so) {
        (Some(true), _) | (None, true) => None,
        _ => match raw(&new.file, *size) {
            Ok(()) => {
                finish(new, image, *force)?;
                return Ok(Created { stored: Stored::Raw, because: None });
            }
            Err(Limit::Other(error)) => return Err(PathError::new(image, "cannot be made so large", error).into()),
            Err(Limit::FileSystem) if *qcow2 == Some(false) => {
                let reason = format!("{}; a qcow2 image can be larger (--format qcow2)", limit_there(image));
                return Err(MakeError::TooLarge { path: image.clone(), reason });
            }
            Err(Limit::FileSystem) => Some(limit_there(image)),
        },
    };
    let Some(plan) = new_qcow2::plan(*size) else {
        let qcow2 = "a qcow2 image holds 2 EiB at most";
        let reason = match because {
            Some(reason) => format!("{reason}, and {qcow2}; put it on XFS, Btrfs or tmpfs (/dev/shm)"),
            None => format!("{qcow2}; use --format raw"),
        };
        return Err(MakeError::TooLarge { path: image.clone(), reason });
    };
    let write = || {
        new.file.set_len(plan.length)?;
        plan.pieces.iter().try_for_each(|(at, bytes)| new.file.write_all_at(bytes, *at))
    };
    write().map_err(|error: std::io::Error| PathError::new(image, "cannot write there", error))?;
    finish(new, image, *force)?;
    Ok(Created { stored: Stored::Qcow2 { cluster: plan.cluster }, because })
}

/// Gives it its name, but not that of a file which came to be meanwhile.
fn finish(new: NewFile, image: &Path, force: bool) -> Result<(), MakeError> {
    if !force && image.symlink_metadata().is_ok() {
        return Err(MakeError::Exists(image.to_owned()));
    }
    Ok(new.commit()?)
}

/// Why a file cannot be so large.
enum Limit {
    FileSystem,
    Other(Errno),
}

fn raw(file: &File, size: u64) -> Result<(), Limit> {
    if size > LARGEST {
        return Err(Limit::FileSystem);
    }
    match rustix::fs::ftruncate(file, size) {
        Ok(()) => Ok(()),
        Err(Errno::FBIG | Errno::INVAL | Errno::OVERFLOW) => Err(Limit::FileSystem),
        Err(error) => Err(Limit::Other(error)),
    }
}

/// What the file system can hold there.
fn limit_there(image: &Path) -> String {
    let parent = image.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // statfs(2): the numbers of file systems.
    match rustix::fs::statfs(parent).map(|there| there.f_type) {
        Ok(0xEF53) => "the ext file system there holds files of 16 TiB at most".to_owned(),
        Ok(0x0102_1994 | 0x5846_5342) => "no file can have 8 EiB or more".to_owned(),
        Ok(0x4D44) => "the FAT there holds files of 4 GiB at most".to_owned(),
        _ => "the file system there holds no file of this size".to_owned(),
    }
}
