//! The bytes of tar archives.

pub(super) mod acl;
pub(super) mod header;
pub(super) mod number;
pub(super) mod pax;

/// Everything in an archive is in blocks of this many bytes.
pub(super) const BLOCK: usize = 512;

/// [`BLOCK`] as an offset counts it.
pub(super) const BLOCK_BYTES: u64 = BLOCK as u64;
