//! [`PullError`]: why an image cannot be pulled from a registry.

use std::io;
use std::path::PathBuf;

use inarch_format::ReadError;
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_lifecycle::trust::Obstacle;
use inarch_remote::registry::{NameError, RegistryError};

/// Why an image cannot be pulled from a registry.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// It is no name of an image.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The registry does not give it.
    #[error("{name}: {error}")]
    Registry {
        /// The image.
        name: String,
        /// Why not.
        error: RegistryError,
    },
    /// A blob of it cannot be fetched.
    #[error("{name}: {blob}: {error}")]
    Blob {
        /// The image.
        name: String,
        /// Its digest.
        blob: String,
        /// Why not.
        error: RegistryError,
    },
    /// What the registry answers is not what was asked for, or is no image for the machine.
    #[error("{name}: {}", plain(error))]
    Answer {
        /// The image.
        name: String,
        /// What is wrong.
        error: ReadError,
    },
    /// What the registry answers is not what was asked for.
    #[error("{name}: the registry sends something else: {reason}")]
    Other {
        /// The image.
        name: String,
        /// What.
        reason: String,
    },
    /// It cannot be kept.
    #[error("{}: cannot keep the image there: {error}{}", shown(path), advice(error))]
    Keep {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// There is no directory for it.
    #[error("there is no cache directory for images: neither XDG_CACHE_HOME nor HOME is set")]
    NoPlace,
    /// Another user could change what is there.
    #[error("{0}; set XDG_CACHE_HOME to a directory of your own")]
    Obstacle(#[from] Obstacle),
    /// A file cannot be made or named.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Another thread has failed first.
    #[error("another layer failed")]
    Stopped,
    /// The thread that reads documents cannot be started.
    #[error("no thread can be started to read what the registry answers: {0}")]
    NoThread(io::Error),
}

/// An error of the reader of images, without the name of its format.
fn plain(error: &ReadError) -> String {
    match error {
        ReadError::Format { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; 'inarch cache prune' frees room, or set XDG_CACHE_HOME to a larger disk"
        }
        _ => "",
    }
}
