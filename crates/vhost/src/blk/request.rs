//! Parses a descriptor chain into a block request (virtio 1.2, section 5.2.6).
//!
//! A chain is a header and data that the device reads, then data and a final status byte that it writes. The driver may
//! cut these into descriptors as it likes: the header may be split, and the status byte may share a descriptor with
//! data.

use smallvec::SmallVec;
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::DescriptorChain;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestMemoryBackend, VolatileSlice};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::config::{MAX_RANGE_SECTORS, MAX_RANGES, MAX_REQUEST_BYTES, MAX_SEGMENTS, SECTOR_SIZE};
use crate::memory::{GuestMemory, Pieces, add_pieces};

/// The most pieces of memory in one direction of a chain: data, and a header or status byte that crosses a boundary.
const MAX_PIECES: usize = MAX_SEGMENTS as usize + 2;

/// The status byte of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Failure {
    /// The device failed, or the request is malformed.
    IoError = VIRTIO_BLK_S_IOERR as u8,
    /// The device does not support the request.
    Unsupported = VIRTIO_BLK_S_UNSUPP as u8,
}

/// A range of the device's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// Ranges of a discard or write-zeroes request, each with whether it may be unmapped.
pub type Ranges = SmallVec<[(Range, bool); 1]>;

/// An operation that the driver requests.
#[derive(Debug)]
pub enum Operation<'a> {
    /// Fill the pieces from the range.
    Read(Range, Pieces<'a>),
    /// Write the pieces to the range.
    Write(Range, Pieces<'a>),
    /// Make acknowledged writes durable.
    Flush,
    /// Write the serial number to the pieces.
    Identify(Pieces<'a>),
    /// Discard the ranges' content.
    Discard(Ranges),
    /// Make the ranges read as zeros.
    WriteZeroes(Ranges),
}

/// A parsed request.
pub struct Request<'a> {
    /// The place of the status byte, if there is one.
    pub status: Option<VolatileSlice<'a>>,
    /// The operation, or the reason why none can be executed.
    pub operation: Result<Operation<'a>, Failure>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RangeHeader {
    sector: U64,
    sectors: U32,
    flags: U32,
}

/// Parses `chain` as a request to a device of `capacity` bytes.
pub fn parse<'a>(chain: DescriptorChain<&'a GuestMemory>, memory: &'a GuestMemory, capacity: u64) -> Request<'a> {
    let mut buffers = Buffers::gather(chain, memory);
    let status = buffers.take_status(memory);
    let operation = match status {
        Some(_) => buffers.operation(capacity),
        None => Err(Failure::IoError),
    };
    Request { status, operation }
}

/// The memory of a chain.
struct Buffers<'a> {
    readable: Pieces<'a>,
    writable: Pieces<'a>,
    /// The last writable descriptor that is not empty: its last byte is the status byte, even in a malformed chain.
    last_writable: Option<Descriptor>,
    well_formed: bool,
}

impl<'a> Buffers<'a> {
    fn gather(chain: DescriptorChain<&'a GuestMemory>, memory: &'a GuestMemory) -> Buffers<'a> {
        let mut buffers =
            Buffers { readable: Pieces::new(), writable: Pieces::new(), last_writable: None, well_formed: true };
        let mut unfinished = true;
        for descriptor in chain {
            unfinished = descriptor.has_next();
            buffers.well_formed &= descriptor.len() > 0;
            let pieces = if descriptor.is_write_only() {
                if descriptor.len() > 0 {
                    buffers.last_writable = Some(descriptor);
                }
                &mut buffers.writable
            } else {
                // Readable descriptors must come before writable ones.
                buffers.well_formed &= buffers.last_writable.is_none();
                &mut buffers.readable
            };
            buffers.well_formed = buffers.well_formed && add_pieces(pieces, &descriptor, memory, MAX_PIECES);
        }
        // The iterator stops at loops, at descriptors beyond the table, and at unreadable ones.
        buffers.well_formed &= !unfinished;
        buffers
    }

    /// Takes the final writable byte.
    fn take_status(&mut self, memory: &'a GuestMemory) -> Option<VolatileSlice<'a>> {
        let last = self.last_writable?;
        let address = last.addr().checked_add(u64::from(last.len()).checked_sub(1)?)?;
        let status = memory.get_slices(address, 1).next()?.ok()?;
        if let Some(piece) = self.writable.pop()
            && let Some(rest) = piece.len().checked_sub(1).filter(|rest| *rest > 0)
        {
            match piece.subslice(0, rest) {
                Ok(rest) => self.writable.push(rest),
                Err(_) => self.well_formed = false,
            }
        }
        Some(status)
    }

    fn operation(mut self, capacity: u64) -> Result<Operation<'a>, Failure> {
        if !self.well_formed {
            return Err(Failure::IoError);
        }
        let mut header = Header::new_zeroed();
        self.read(header.as_mut_bytes())?;
        let range = |pieces: &Pieces<'_>| range(header.sector.get(), total(pieces)?, capacity);
        match header.kind.get() {
            VIRTIO_BLK_T_IN => Ok(Operation::Read(range(&self.writable)?, self.writable)),
            VIRTIO_BLK_T_OUT => Ok(Operation::Write(range(&self.readable)?, self.readable)),
            VIRTIO_BLK_T_FLUSH => Ok(Operation::Flush),
            VIRTIO_BLK_T_GET_ID => Ok(Operation::Identify(self.writable)),
            VIRTIO_BLK_T_DISCARD => self.ranges(capacity, 0).map(Operation::Discard),
            VIRTIO_BLK_T_WRITE_ZEROES => {
                self.ranges(capacity, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP).map(Operation::WriteZeroes)
            }
            _ => Err(Failure::Unsupported),
        }
    }

    /// Takes the ranges of a discard or write-zeroes request.
    fn ranges(&mut self, capacity: u64, known_flags: u32) -> Result<Ranges, Failure> {
        let length = total(&self.readable)?;
        let size = size_of::<RangeHeader>() as u64;
        if length == 0 || !length.is_multiple_of(size) || length / size > u64::from(MAX_RANGES) {
            return Err(Failure::IoError);
        }
        let mut ranges = Ranges::new();
        for _ in 0..length / size {
            let mut header = RangeHeader::new_zeroed();
            self.read(header.as_mut_bytes())?;
            let (sectors, flags) = (header.sectors.get(), header.flags.get());
            if flags & !known_flags != 0 {
                return Err(Failure::Unsupported);
            }
            if sectors > MAX_RANGE_SECTORS {
                return Err(Failure::IoError);
            }
            let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
            ranges.push((range(header.sector.get(), u64::from(sectors) * SECTOR_SIZE, capacity)?, unmap));
        }
        Ok(ranges)
    }

    /// Takes bytes off the front of the readable pieces.
    fn read(&mut self, mut out: &mut [u8]) -> Result<(), Failure> {
        while !out.is_empty() {
            let piece = self.readable.first_mut().ok_or(Failure::IoError)?;
            let count = piece.len().min(out.len());
            let (now, later) = out.split_at_mut(count);
            piece.read_slice(now, 0).map_err(|_| Failure::IoError)?;
            out = later;
            if count == piece.len() {
                self.readable.remove(0);
            } else {
                *piece = piece.offset(count).map_err(|_| Failure::IoError)?;
            }
        }
        Ok(())
    }
}

/// Bytes in all of `pieces`; fails above [`MAX_REQUEST_BYTES`].
fn total(pieces: &Pieces<'_>) -> Result<u64, Failure> {
    let total = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len() as u64));
    total.filter(|total| *total <= MAX_REQUEST_BYTES).ok_or(Failure::IoError)
}

/// The range of `length` bytes from `sector`: whole sectors, at least one, within the capacity.
fn range(sector: u64, length: u64, capacity: u64) -> Result<Range, Failure> {
    let offset = sector.checked_mul(SECTOR_SIZE).ok_or(Failure::IoError)?;
    let end = offset.checked_add(length).ok_or(Failure::IoError)?;
    if length == 0 || !length.is_multiple_of(SECTOR_SIZE) || end > capacity {
        return Err(Failure::IoError);
    }
    Ok(Range { offset, length })
}
