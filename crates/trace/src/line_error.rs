//! Errors of files that are read line by line.

use std::path::{Path, PathBuf};

use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;

/// Why a list or a trace is not read.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The file cannot be read.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A line is wrong.
    #[error("{}: line {number}: {reason}", shown(path))]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1 on.
        number: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The file as a whole is wrong.
    #[error("{}: {reason}", shown(path))]
    Whole {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl LineError {
    /// Number 0 is the whole file.
    pub(super) fn new(path: &Path, number: u64, reason: String) -> LineError {
        let path = path.to_owned();
        match number {
            0 => LineError::Whole { path, reason },
            number => LineError::Line { path, number, reason },
        }
    }
}
