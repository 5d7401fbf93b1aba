//! Why a volume cannot answer.

use std::io;

/// Why a volume cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The host failed to read the image, or the image has changed: nothing can be said any more.
    #[error("cannot read the image at byte {offset}: {error}")]
    Io {
        /// Byte of the image.
        offset: u64,
        /// Why not.
        error: io::Error,
    },
    /// What the image says makes no sense. The text goes on after the name of what it is about and a colon.
    #[error("{0}")]
    Damaged(String),
    /// The image is sound as far as is known, but what was asked for cannot be had: encrypted content, a feature that is not
    /// read. The text goes on as that of [`VolumeError::Damaged`].
    #[error("{0}")]
    Unsupported(String),
    /// The node is of another type than the question: names of a file, a target of a directory.
    #[error("is of another type")]
    WrongType,
}

impl VolumeError {
    /// The number of the error for a program that asked.
    ///
    /// `EUCLEAN` ("Structure needs cleaning") for damage, as Linux's file systems have it; `EIO` where the host failed.
    pub fn errno(&self) -> i32 {
        match self {
            VolumeError::Io { .. } => libc::EIO,
            VolumeError::Damaged(_) => libc::EUCLEAN,
            VolumeError::Unsupported(_) => libc::EOPNOTSUPP,
            VolumeError::WrongType => libc::EINVAL,
        }
    }
}

impl From<VolumeError> for io::Error {
    fn from(error: VolumeError) -> io::Error {
        match error {
            VolumeError::Io { error, .. } => error,
            VolumeError::Damaged(reason) | VolumeError::Unsupported(reason) => {
                io::Error::new(io::ErrorKind::InvalidData, reason)
            }
            VolumeError::WrongType => io::ErrorKind::InvalidInput.into(),
        }
    }
}
