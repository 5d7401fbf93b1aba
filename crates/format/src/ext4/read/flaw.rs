//! What ends the reading of an image, and what only costs a part of it.

use inarch_volume::VolumeError;

/// Separates what ends the reading from what is only told.
pub(super) fn tolerate<T>(result: Result<T, VolumeError>) -> Result<Result<T, String>, VolumeError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(VolumeError::Damaged(reason)) => Ok(Err(reason)),
        Err(error) => Err(error),
    }
}
