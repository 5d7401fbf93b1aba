//! The byte layout of tar archives: headers, numbers, PAX records and access control lists.

pub(super) mod acl;
pub(super) mod header;
pub(super) mod number;
pub(super) mod pax;

/// The unit of an archive, in bytes.
pub(super) const BLOCK: usize = 512;

/// [`BLOCK`] as a 64-bit offset.
pub(super) const BLOCK_BYTES: u64 = BLOCK as u64;
