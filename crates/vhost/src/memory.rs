//! The guest's memory, as the front end shares it.

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

/// The guest's memory at one moment: regions at guest-physical addresses, at most as many as the protocol lets a front
/// end send.
pub type GuestMemory = GuestRegionCollection<Region>;

/// The guest's memory, replaced as a whole when the front end adds or removes regions.
pub(crate) type SharedMemory = GuestMemoryAtomic<GuestMemory>;

/// Pieces of the guest's memory, one after the other.
pub(crate) type Pieces<'a> = SmallVec<[VolatileSlice<'a>; 16]>;

/// A part of the guest's memory.
#[derive(Debug)]
pub struct Region {
    /// What holds while the front end can take the memory away. Dropped before the memory is unmapped.
    guard: Option<Guard>,
    mapped: GuestRegionMmap<()>,
}

/// Memory of this process, which nobody can take away.
impl From<GuestRegionMmap<()>> for Region {
    fn from(mapped: GuestRegionMmap<()>) -> Region {
        Region { guard: None, mapped }
    }
}

impl Region {
    /// Maps `file` as `announced`. Of memory that the file then has no more, the connection of `control` ends.
    ///
    /// # Errors
    /// The file is shorter than announced, cannot be mapped, or the region would wrap around.
    pub(crate) fn map(announced: &VhostUserMemoryRegion, file: File, control: &Arc<Control>) -> io::Result<Region> {
        let (start, length) = (announced.mmap_offset, announced.memory_size);
        let stat = fstat(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let is_whole = start.checked_add(length).is_some_and(|end| end <= size);
        // Memory that is a device, as persistent memory can be, has no size; mapping it fails beyond its end.
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

    /// Whether the front end has taken the memory away, so that others' bytes lie in its place.
    pub(crate) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }
}

/// `HUGETLBFS_MAGIC` of Linux's include/uapi/linux/magic.h.
const HUGETLBFS: u32 = 0x9584_58f6;

/// Of what a mapping of `file` must be a multiple when it is replaced: the kernel rounds up to its usual pages, not to huge ones.
fn unit(file: &File) -> io::Result<u64> {
    let stat = fstatfs(file)?;
    // The type is 32 bits; how wide its field is differs among architectures.
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

/// Adds the memory of `descriptor`; false if not all of it is memory, or it makes more than `most` pieces.
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
