//! Chunk items: map ranges of logical addresses to stripes on devices.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// `BTRFS_STRIPE_LEN`: bytes of a stripe element, in every striped chunk.
pub(crate) const STRIPE: u64 = 64 << 10;

/// `struct btrfs_chunk`, without its stripes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Chunk {
    /// Length in bytes of the logical range.
    pub(crate) length: U64,
    owner: U64,
    pub(crate) stripe_length: U64,
    /// [`profile`] and what it is for.
    pub(crate) kind: U64,
    align_width_sector: [U32; 3],
    pub(crate) stripes: U16,
    /// Copies of each stripe element, in a RAID10.
    pub(crate) copies: U16,
}

/// `struct btrfs_stripe`
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Stripe {
    pub(crate) device: U64,
    /// Byte of the device.
    pub(crate) offset: U64,
    uuid: [u8; 16],
}

/// `BTRFS_BLOCK_GROUP_*`: what a chunk is for, and how it is laid out.
pub(crate) mod profile {
    /// For the content of files.
    pub(crate) const DATA: u64 = 1;
    /// RAID1, DUP and RAID10.
    pub(crate) const TWO_COPIES: u64 = 1 << 4 | 1 << 5 | 1 << 6;
    pub(crate) const RAID0: u64 = 1 << 3;
    pub(crate) const RAID10: u64 = 1 << 6;
    /// RAID5 and RAID6.
    pub(crate) const PARITY: u64 = 1 << 7 | 1 << 8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Chunk>(), size_of::<Stripe>()), (48, 32));
    }
}
