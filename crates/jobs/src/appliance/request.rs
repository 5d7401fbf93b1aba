//! What an appliance is for, and what it reports.

use std::ffi::OsStr;
use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use inarch_lifecycle::PathError;
use inarch_source::{DiskPart, Which, split};
use inarch_vm::accel::AccelChoice;

use super::volumes::Wanted;
use super::{ApplianceError, Timeline};
use crate::run::{AttachedDisk, RunEvent};

/// What is done with the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// They are mounted, and read only: nothing is written to the image.
    Read,
    /// They are mounted.
    Write,
    /// They are not mounted, and read only: for checking. If none is named, all that hold files are meant.
    Check,
    /// They are not mounted: for repairing. If none is named, all that hold files are meant.
    Repair,
    /// It is not mounted: for resizing.
    Resize,
}

impl Access {
    /// Whether nothing is written to the image.
    pub fn is_read_only(self) -> bool {
        matches!(self, Access::Read | Access::Check)
    }

    /// Whether the volumes are mounted.
    pub fn is_mounted(self) -> bool {
        matches!(self, Access::Read | Access::Write)
    }
}

/// What stands between this machine and an appliance, in which drivers of the kernel read what others have written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// A process where that can be done, which starts fastest; else a virtual machine.
    #[default]
    Auto,
    /// A process: a kernel of User-Mode Linux that has been enclosed. Whoever takes it over is within a process of this machine.
    Process,
    /// A virtual machine.
    Vm,
}

/// An appliance that is wanted.
#[derive(Clone, Debug)]
pub struct ApplianceRequest {
    /// The image; whether it is read-only follows from `access`.
    pub image: AttachedDisk,
    /// Files that the image may name.
    pub with: Vec<PathBuf>,
    /// Which of its volumes.
    pub which: Which,
    /// What is done with them.
    pub access: Access,
    /// What stands between it and this machine.
    pub isolation: Isolation,
    /// The kernel; by default the newest in /boot, or the installed one of User-Mode Linux.
    pub kernel: Option<PathBuf>,
    /// The accelerator.
    pub accel: AccelChoice,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// How long the machine may take to start.
    pub boot_timeout: Duration,
}

impl ApplianceRequest {
    /// An appliance that writes to volumes of an image.
    pub fn new(image: PathBuf, which: Which) -> ApplianceRequest {
        ApplianceRequest {
            image: AttachedDisk { path: image, read_only: false, format: None, sector: None, seen: None },
            with: Vec::new(),
            which,
            access: Access::Write,
            isolation: Isolation::Auto,
            kernel: None,
            accel: AccelChoice::Auto,
            memory: None,
            boot_timeout: Duration::from_secs(60),
        }
    }
}

impl ApplianceRequest {
    /// Which volumes are meant.
    pub(super) fn wanted(&self) -> Wanted<'_> {
        match (self.access, &self.which) {
            (Access::Check | Access::Repair, Which::Auto) => Wanted::All,
            _ => Wanted::Named(&self.which),
        }
    }

    /// Checks that the image can be opened, so that a caller can fail before it does other work.
    ///
    /// # Errors
    /// It is not there or in use, this user may not write to it, or its format is not known.
    pub fn check(&self) -> Result<(), ApplianceError> {
        let image = AttachedDisk { read_only: self.access.is_read_only(), ..self.image.clone() };
        Ok(image.settled().map(drop)?)
    }
}

/// What happens in an appliance. Its text is one line.
#[derive(Clone, Debug)]
pub enum ApplianceEvent {
    /// In the machine.
    Machine(RunEvent),
    /// A line of a tool in the guest, or about what was left out.
    Note(String),
    /// An appliance that served a mount has ended.
    Ended(ApplianceReport),
}

impl fmt::Display for ApplianceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplianceEvent::Machine(event) => event.fmt(f),
            ApplianceEvent::Note(line) => f.write_str(line),
            ApplianceEvent::Ended(report) => {
                write!(f, "the appliance ran {:.1} s", report.timeline.total().as_secs_f64())
            }
        }
    }
}

/// How it went.
#[derive(Clone, Debug)]
pub struct ApplianceReport {
    /// What took how long.
    pub timeline: Timeline,
}

/// What a text names: an image, a volume of it, and a path in that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The image.
    pub image: PathBuf,
    /// Which of its volumes.
    pub which: Which,
    /// The path, from the volume's root; empty if none is given.
    pub path: PathBuf,
}

impl Target {
    /// Parses `IMAGE[:VOLUME][:/PATH]`. The image is the longest beginning that exists. Opens nothing.
    ///
    /// # Errors
    /// There is no such image.
    pub fn parse(text: &OsStr) -> Result<Target, PathError> {
        let fail = |error| PathError::new(Path::new(text), "cannot be used as a disk image", error);
        let whole = Path::new(text);
        let is_image = |kind: FileType| kind.is_file() || kind.is_block_device();
        match whole.metadata() {
            Ok(metadata) if is_image(metadata.file_type()) => {
                Ok(Target { image: whole.to_owned(), which: Which::Auto, path: PathBuf::new() })
            }
            Ok(_) => Err(fail(io::Error::other("it is neither a file nor a block device"))),
            Err(error) => match split(text) {
                Some((image, DiskPart { which, within, .. })) => Ok(Target { image, which, path: within }),
                None => Err(fail(error)),
            },
        }
    }
}
