//! The guest's memory, as the front end shares it.

use smallvec::SmallVec;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{GuestMemoryAtomic, GuestMemoryBackend, GuestMemoryMmap, VolatileSlice};

/// The guest's memory at one moment: file mappings at guest-physical addresses, at most as many as the protocol lets
/// a front end send.
pub type GuestMemory = GuestMemoryMmap<()>;

/// The guest's memory, replaced as a whole when the front end adds or removes regions.
pub(crate) type SharedMemory = GuestMemoryAtomic<GuestMemory>;

/// Pieces of the guest's memory, one after the other.
pub(crate) type Pieces<'a> = SmallVec<[VolatileSlice<'a>; 16]>;

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
