//! Reading an image's bytes, each range checked against its end.

use std::sync::Arc;

use inarch_block::{Backing, read_backing};
use inarch_volume::VolumeError;

use super::damaged;

/// An image.
#[derive(Clone)]
pub(crate) struct Image {
    backing: Arc<dyn Backing>,
    size: u64,
}

impl Image {
    pub(crate) fn new(backing: Arc<dyn Backing>) -> Image {
        let size = backing.size();
        Image { backing, size }
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether `length` bytes from `at` are within it.
    pub(crate) fn holds(&self, at: u64, length: u64) -> bool {
        at.checked_add(length).is_some_and(|end| end <= self.size)
    }

    /// Fills `out` from byte `at`.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        if !self.holds(at, out.len() as u64) {
            let (length, size) = (out.len(), self.size);
            return Err(damaged(format!("{length} bytes at byte {at} lie beyond the image's end at {size}")));
        }
        read_backing(&*self.backing, at, out).map_err(|error| VolumeError::Io { offset: at, error })
    }
}
