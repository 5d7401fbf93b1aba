//! Numbers in little-endian and big-endian order, from bytes that may be too few.

use inarch_block::{Backing, read_backing};

use crate::DiskError;

/// The bytes from `at`; none if they go beyond the end.
pub fn bytes(image: &dyn Backing, at: u64, length: usize) -> Result<Option<Vec<u8>>, DiskError> {
    if at.checked_add(length as u64).is_none_or(|end| end > image.size()) {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    read_backing(image, at, &mut bytes).map_err(|error| DiskError::Io { offset: at, error })?;
    Ok(Some(bytes))
}

/// The `N` bytes from `at`.
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// A 16-bit number, little-endian.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

/// A 32-bit number, little-endian.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

/// A 64-bit number, little-endian.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}
