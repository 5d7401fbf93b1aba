//! `inarch shell`: keeps guest disks open, and answers the questions of one verb after the other.
//!
//! 1. [`Session::add`] opens an image. Nothing of it is read.
//! 2. The first verb that asks for devices has a confined thread read partition tables and what lies above partitions (`drives`). That is kept until a
//!    drive is added or written to.
//! 3. [`Session::mount`] opens a file system. All that are mounted are one [`Guest`], whose questions confined threads answer (`mounts`).
//! 4. Verbs that make partition tables and file systems call the jobs of `inarch disk`, and have the drive read anew (`make`).
//! 5. Verbs that change files start an appliance, which stays for the verbs that follow until one only reads (`changes`).
//!
//! A session prints nothing. It writes to an image only when a verb makes or changes something in it.

mod archive;
mod changes;
pub mod content;
mod devices;
mod drives;
pub mod history;
mod make;
mod mounts;

use std::io;
use std::path::{Path, PathBuf};

use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_source::{ContainerError, DiskFile, DiskImage, ImageFormat, OpenError};
use inarch_volume::VolumeError;

use crate::appliance::{ApplianceError, Isolation};
use crate::make_disk::MakeError;
pub use changes::Links;
pub use drives::{Block, Place};
use drives::{Drive, View};
pub use inarch_disk::{Keys, Kind, Part, Signature, Table, TableKind};
use inarch_guest::examine::ExamineError;
use inarch_guest::{Guest, GuestError};
pub use make::{AddedPart, Formatting};
use mounts::Mounted;
pub use mounts::Mounting;

/// The most drives, as many letters as `/dev/sda` to `/dev/sdzz` have.
pub const MOST_DRIVES: usize = 26 + 26 * 26;

/// Why a verb failed. The text names what it is about, and not the verb.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// A file of the host.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A drive's table or image.
    #[error(transparent)]
    Examine(#[from] ExamineError),
    /// A drive's container.
    #[error("{}: {error}", shown(path))]
    Container {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: ContainerError,
    },
    /// The volumes on the drives.
    #[error(transparent)]
    Volumes(inarch_disk::DiskError),
    /// A file of a guest.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// A file system.
    #[error("{device}: {error}")]
    Volume {
        /// Its device.
        device: String,
        /// What is wrong.
        error: VolumeError,
    },
    /// A change cannot be made.
    #[error(transparent)]
    Appliance(#[from] ApplianceError),
    /// No thread can read a drive.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Something cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// An archive cannot be written.
    #[error(transparent)]
    Archive(#[from] Box<crate::JobError>),
    /// There is no such thing, or it does not fit.
    #[error("{about}: {what}")]
    Unfit {
        /// A device, a path or an option.
        about: String,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// Files are asked for, and none are there.
    #[error("nothing is mounted; mount DEVICE / does that, and list-filesystems names devices")]
    NotMounted,
    /// Drives are asked for, and there are none.
    #[error("there is no drive yet; add IMAGE adds one")]
    NoDrives,
}

impl ShellError {
    fn unfit(about: impl Into<String>, what: impl Into<String>) -> ShellError {
        ShellError::Unfit { about: about.into(), what: what.into() }
    }

    /// The error of writing what was found, if it is that.
    pub fn output(&self) -> Option<&io::Error> {
        match self {
            ShellError::Guest(GuestError::Output(error)) => Some(error),
            _ => None,
        }
    }
}

/// How a drive is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveOptions {
    /// Nothing is made on it.
    pub read_only: bool,
    /// The image's format; found out by its first bytes if it is not given.
    pub format: Option<ImageFormat>,
    /// Files that the image may name.
    pub with: Vec<PathBuf>,
    /// What stands between this machine and the appliance that changes its file systems.
    pub isolation: Isolation,
    /// What opens encrypted volumes. Those of the first drive count, for all drives.
    pub keys: Keys,
}

impl DriveOptions {
    fn file(&self, image: &Path) -> DiskFile {
        DiskFile { path: image.to_owned(), format: self.format, with: self.with.clone() }
    }
}

/// Some drives, and what of them is mounted.
#[derive(Default)]
pub struct Session {
    drives: Vec<Drive>,
    /// What is on the drives; `None` until somebody asks.
    view: Option<View>,
    mounts: Vec<Mounted>,
    /// The files of all mounts.
    guest: Option<Guest>,
    /// Partitions of tables that were begun in this session, by their drives.
    begun: Vec<(usize, make::Begun)>,
    /// What changes the files of a mount.
    changing: Option<changes::Changing>,
    notes: Vec<String>,
}

impl Session {
    /// Without drives.
    pub fn new() -> Session {
        Session::default()
    }

    /// Adds an image as the next drive; returns the drive's device.
    ///
    /// # Errors
    /// It cannot be opened, or there are too many.
    pub fn add(&mut self, image: &Path, options: DriveOptions) -> Result<String, ShellError> {
        if self.drives.len() >= MOST_DRIVES {
            return Err(ShellError::unfit(shown(image), format!("there are {MOST_DRIVES} drives, and no more names")));
        }
        let opened = DiskImage::open(&options.file(image))?;
        // The working directory may change.
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|error| PathError::new(path, "cannot open it", error));
        let with = options.with.iter().map(|path| absolute(path)).collect::<Result<_, _>>()?;
        let options = DriveOptions { with, ..options };
        self.drives.push(Drive { path: absolute(image)?, options, opened: Some(opened), disk: None });
        self.view = None;
        Ok(inarch_disk::device_name(self.drives.len() - 1))
    }

    /// The images of the drives, in the order of their devices.
    pub fn images(&self) -> impl Iterator<Item = (&Path, &DriveOptions)> {
        self.drives.iter().map(|drive| (&*drive.path, &drive.options))
    }

    /// Lines that the user should read; each is given once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The files of all that is mounted.
    ///
    /// # Errors
    /// Nothing is mounted.
    pub fn guest(&self) -> Result<&Guest, ShellError> {
        self.guest.as_ref().ok_or(ShellError::NotMounted)
    }
}
