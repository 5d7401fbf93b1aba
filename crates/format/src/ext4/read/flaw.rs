//! Separates errors that end the reading of an image from damage that affects only part of it.

use inarch_volume::VolumeError;

/// Returns fatal errors outside, tolerable damage inside.
pub(super) fn tolerate<T>(result: Result<T, VolumeError>) -> Result<Result<T, String>, VolumeError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(VolumeError::Damaged(reason)) => Ok(Err(reason)),
        Err(error) => Err(error),
    }
}
