//! The guest's memory, as the front end shares it.

use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

/// The guest's memory at one moment: file mappings at guest-physical addresses, at most as many as the protocol lets
/// a front end send.
pub type GuestMemory = GuestMemoryMmap<()>;

/// The guest's memory, replaced as a whole when the front end adds or removes regions.
pub(crate) type SharedMemory = GuestMemoryAtomic<GuestMemory>;
