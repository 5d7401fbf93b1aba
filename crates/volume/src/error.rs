//! The errors of volumes.

use std::io;

/// Why a volume cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The host failed to read the image, or the image has changed.
    #[error("cannot read the image at byte {offset}: {error}")]
    Io {
        /// The offset in the image.
        offset: u64,
        /// The host's error.
        error: io::Error,
    },
    /// The image is inconsistent. The text follows the name of the part concerned and a colon.
    #[error("{0}")]
    Damaged(String),
    /// The image is sound as far as known, but the request cannot be fulfilled: encrypted content, or an unsupported
    /// feature. The text is like that of [`VolumeError::Damaged`].
    #[error("{0}")]
    Unsupported(String),
    /// The node has the wrong type for the request, such as a directory for a symbolic link's target.
    #[error("is of another type")]
    WrongType,
}

impl VolumeError {
    /// The error number for a program.
    ///
    /// `EUCLEAN` ("Structure needs cleaning") for damage, as Linux's file systems use it; `EIO` if the host failed.
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
