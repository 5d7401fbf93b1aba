//! A failed operation on a path.

use std::io;
use std::path::{Path, PathBuf};

use crate::text::shown;

/// A failed operation on a path.
#[derive(Debug, thiserror::Error)]
#[error("{}: {action}: {error}", shown(path))]
pub struct PathError {
    /// The path.
    pub path: PathBuf,
    /// What was tried.
    pub action: &'static str,
    /// The system's error.
    pub error: io::Error,
}

impl PathError {
    /// What the system answered when `action` was tried on the path.
    pub fn new(path: &Path, action: &'static str, error: impl Into<io::Error>) -> PathError {
        PathError { path: path.to_owned(), action, error: error.into() }
    }
}
