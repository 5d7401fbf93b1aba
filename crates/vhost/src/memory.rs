//! The guest's memory, which the front end shares: maps it, guards it against truncation, and finds pieces of it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{FileType, fstat, fstatfs};
use smallvec::SmallVec;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use virtio_queue::desc::split::Descriptor;
use vm_memory::bitmap::BS;
use vm_memory::guest_memory::Result as MemoryResult;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryAtomic, GuestMemoryBackend, GuestMemoryRegion, GuestMemoryRegionBytes,
    GuestRegionCollection, GuestRegionMmap, GuestUsize, MemoryRegionAddress, MmapRegion, VolatileSlice,
};

use crate::faults::{Control, Guard};

/// A snapshot of the guest's memory: regions at guest-physical addresses, at most as many as the protocol permits.
pub type GuestMemory = GuestRegionCollection<Region>;

/// The guest's memory; replaced as a whole when the front end adds or removes regions.
pub(crate) type SharedMemory = GuestMemoryAtomic<GuestMemory>;

/// Pieces of guest memory, in order.
pub(crate) type Pieces<'a> = SmallVec<[VolatileSlice<'a>; 16]>;

/// A region of guest memory.
#[derive(Debug)]
pub struct Region {
    /// Guards against truncation by the front end. Dropped before the memory is unmapped.
    guard: Option<Guard>,
    mapped: GuestRegionMmap<()>,
}

/// Memory of this process, which cannot be truncated.
impl From<GuestRegionMmap<()>> for Region {
    fn from(mapped: GuestRegionMmap<()>) -> Region {
        Region { guard: None, mapped }
    }
}

impl Region {
    /// Maps `file` as `announced`. If the file is truncated later, the connection of `control` ends.
    ///
    /// # Errors
    /// The file is shorter than announced, cannot be mapped, or the region would wrap around.
    pub(crate) fn map(announced: &VhostUserMemoryRegion, file: File, control: &Arc<Control>) -> io::Result<Region> {
        let (start, length) = (announced.mmap_offset, announced.memory_size);
        let stat = fstat(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let is_whole = start.checked_add(length).is_some_and(|end| end <= size);
        // A character device, such as persistent memory, has no size; mapping beyond its end fails.
        if !is_whole && FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
            let message = format!("a memory region of {length} bytes at {start} in a file of {size} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mapped_bytes = length.checked_next_multiple_of(unit(&file)?).map(usize::try_from);
        let (Ok(length), Some(Ok(mapped_bytes))) = (usize::try_from(length), mapped_bytes) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mapped = MmapRegion::from_file(FileOffset::new(file, start), length).map_err(io::Error::other)?;
        let address = mapped.as_ptr() as usize;
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(announced.guest_phys_addr));
        let mapped = mapped.ok_or_else(|| io::Error::other("a memory region beyond the end of the address space"))?;
        Ok(Region { guard: Some(Guard::new(address, mapped_bytes, control)?), mapped })
    }

    /// Whether the front end has truncated the memory, so that zeros are mapped in its place.
    pub(crate) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }
}

/// `HUGETLBFS_MAGIC` of Linux's include/uapi/linux/magic.h.
const HUGETLBFS: u32 = 0x9584_58f6;

/// The unit of a mapping of `file`: the kernel rounds up to its usual pages, but not to huge pages.
fn unit(file: &File) -> io::Result<u64> {
    let stat = fstatfs(file)?;
    // The type has 32 bits; the width of its field differs among architectures.
    let is_huge = stat.f_type as u32 == HUGETLBFS;
    let huge = u64::try_from(stat.f_bsize).ok().filter(|size| is_huge && *size > 0);
    Ok(huge.unwrap_or(1))
}

impl GuestMemoryRegion for Region {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.mapped.len()
    }

    fn start_addr(&self) -> GuestAddress {
        self.mapped.start_addr()
    }

    fn bitmap(&self) -> BS<'_, ()> {}

    fn get_host_address(&self, address: MemoryRegionAddress) -> MemoryResult<*mut u8> {
        self.mapped.get_host_address(address)
    }

    fn file_offset(&self) -> Option<&FileOffset> {
        self.mapped.file_offset()
    }

    fn get_slice(&self, offset: MemoryRegionAddress, count: usize) -> MemoryResult<VolatileSlice<'_>> {
        self.mapped.get_slice(offset, count)
    }
}

impl GuestMemoryRegionBytes for Region {}

/// Adds the memory of `descriptor`. Returns false if part of it is not guest memory, or if there would be more than
/// `most` pieces.
pub(crate) fn add_pieces<'a>(
    pieces: &mut Pieces<'a>,
    descriptor: &Descriptor,
    memory: &'a GuestMemory,
    most: usize,
) -> bool {
    for piece in memory.get_slices(descriptor.addr(), descriptor.len() as usize) {
        match piece {
            Ok(piece) if pieces.len() < most => pieces.push(piece),
            _ => return false,
        }
    }
    true
}
