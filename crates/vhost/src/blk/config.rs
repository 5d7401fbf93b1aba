//! The configuration space of a block device (virtio 1.2, section 5.2.4).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, KnownLayout};

/// Bytes of a sector: virtio's unit, whatever the block size.
pub const SECTOR_SIZE: u64 = 512;

/// Bytes of a block by default: the guest's smallest request, and the page size of the overlay and the source's files.
pub const BLOCK_SIZE: u32 = 4096;

/// The most pieces of memory for the data of one request, however large the queue is.
pub const MAX_SEGMENTS: u32 = 1022;

/// The most segments that the driver is told to send: with header and status they are 1 MiB in 256 descriptors.
pub const OFFERED_SEGMENTS: u32 = 254;

/// The most bytes of data in one request: 1 GiB. virtio forbids chains of more than 4 GiB (virtio 1.2, section
/// 2.7.4.2); without a limit, a chain that names the same memory repeatedly would ask for terabytes. The largest known
/// requests are those of edk2's VirtioBlkDxe, 1 GiB; Linux sends a few MiB, `queue/max_sectors_kb`.
pub const MAX_REQUEST_BYTES: u64 = 1 << 30;

/// The most ranges in one discard or write-zeroes request.
pub const MAX_RANGES: u32 = 32;

/// The most sectors in one such range: 1 GiB.
pub const MAX_RANGE_SECTORS: u32 = 1 << 21;

/// Offset of the field by which the driver enables a write-back cache; the only writable field.
pub const WRITEBACK_OFFSET: u32 = 32;

/// `struct virtio_blk_config` of Linux's include/uapi/linux/virtio_blk.h, up to the last field used.
#[derive(IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlkConfig {
    capacity_sectors: U64,
    size_max: U32,
    seg_max: U32,
    geometry: U32,
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    writeback: u8,
    unused0: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}

impl BlkConfig {
    /// The configuration of a device of `capacity` bytes, rounded down to whole sectors, in blocks of `block_size` bytes.
    pub fn new(capacity: u64, block_size: u32, queues: u16, seg_max: u32, writeback: bool) -> BlkConfig {
        BlkConfig {
            capacity_sectors: U64::new(capacity / SECTOR_SIZE),
            size_max: U32::ZERO,
            seg_max: U32::new(seg_max),
            geometry: U32::ZERO,
            blk_size: U32::new(block_size),
            physical_block_exp: 0,
            alignment_offset: 0,
            min_io_size: U16::new(1),
            opt_io_size: U32::ZERO,
            writeback: u8::from(writeback),
            unused0: 0,
            num_queues: U16::new(queues),
            max_discard_sectors: U32::new(MAX_RANGE_SECTORS),
            max_discard_seg: U32::new(MAX_RANGES),
            discard_sector_alignment: U32::new(block_size / SECTOR_SIZE as u32),
            max_write_zeroes_sectors: U32::new(MAX_RANGE_SECTORS),
            max_write_zeroes_seg: U32::new(MAX_RANGES),
            write_zeroes_may_unmap: 1,
            unused1: [0; 3],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let config = BlkConfig::new(0x1234_5678_9a00, BLOCK_SIZE, 3, 126, true);
        let bytes = config.as_bytes();
        assert_eq!(bytes.len(), 60);
        assert_eq!(bytes[0..8], (0x1234_5678_9a00u64 / 512).to_le_bytes());
        assert_eq!(bytes[12..16], 126u32.to_le_bytes());
        assert_eq!(bytes[20..24], 4096u32.to_le_bytes());
        assert_eq!(bytes[WRITEBACK_OFFSET as usize], 1);
        assert_eq!(bytes[34..36], 3u16.to_le_bytes());
        assert_eq!(bytes[36..40], MAX_RANGE_SECTORS.to_le_bytes());
        assert_eq!(bytes[56], 1);
    }
}
