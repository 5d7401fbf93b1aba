//! Why an appliance cannot do what is asked of it.

use std::io;
use std::path::PathBuf;

use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_source::{OpenDiskError, OpenError};

use crate::JobError;
use crate::run::AttachError;

/// Why an appliance cannot do what is asked of it.
#[derive(Debug, thiserror::Error)]
pub enum ApplianceError {
    /// The image is not available.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The image cannot be opened.
    #[error(transparent)]
    Path(#[from] PathError),
    /// It cannot be looked at.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It has no such volume.
    #[error("{}: {error}", shown(path))]
    Disk {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: Box<OpenDiskError>,
    },
    /// The machine failed.
    #[error("the appliance: {0}")]
    Machine(Box<JobError>),
    /// This program's own file cannot be given to the guest.
    #[error("the appliance cannot be given this program: {0}")]
    Program(io::Error),
    /// The connection to the guest failed.
    #[error("the connection to the appliance failed: {0}")]
    Stream(io::Error),
    /// The guest said something else than was asked.
    #[error("the appliance gave an answer that makes no sense")]
    Protocol,
    /// The guest has another program.
    #[error("this program was replaced by another version while it ran; start it again")]
    Version,
    /// The machine ended while it was used. The image is as after a power cut.
    #[error("the appliance ended before it answered: {why}")]
    Ended {
        /// A file of this machine that changed meanwhile, or the last line that it said, or how it ended.
        why: String,
    },
    /// What was to be written cannot be read.
    #[error("cannot read what is to be written: {0}")]
    Input(io::Error),
    /// What was read cannot be written.
    #[error("cannot write what was read: {0}")]
    Output(io::Error),
    /// It could not be done in the guest.
    #[error("{text}")]
    Guest {
        /// What failed, and why: in the words of the tool or of the kernel.
        text: String,
        /// The system's error, if it was one.
        errno: Option<i32>,
    },
}

impl ApplianceError {
    /// Whether the file that was named is not there.
    pub fn is_absent(&self) -> bool {
        matches!(self, ApplianceError::Guest { errno: Some(errno), .. } if *errno == libc::ENOENT)
    }
}

/// Text of the guest that is safe for a terminal.
pub(super) fn one_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
