//! The memory of a chain of descriptors whose bytes are one message each way.

use virtio_queue::DescriptorChain;

use crate::memory::{GuestMemory, Pieces, add_pieces};

/// Most pieces of memory in one direction of a chain: those of the largest message, each page for itself, several times
/// over.
const MAX_PIECES: usize = 1024;

/// The memory that a chain names.
pub(crate) struct Buffers<'a> {
    /// What the driver has written, in its order.
    pub readable: Pieces<'a>,
    /// What the device may write to, in its order.
    pub writable: Pieces<'a>,
    /// Whether the chain ends, all of it is memory, and everything readable comes first.
    pub well_formed: bool,
}

impl<'a> Buffers<'a> {
    /// Goes through a chain.
    pub fn gather(chain: DescriptorChain<&'a GuestMemory>, memory: &'a GuestMemory) -> Buffers<'a> {
        let mut buffers = Buffers { readable: Pieces::new(), writable: Pieces::new(), well_formed: true };
        let mut unfinished = true;
        for descriptor in chain {
            unfinished = descriptor.has_next();
            let pieces = if descriptor.is_write_only() {
                &mut buffers.writable
            } else {
                // Everything readable comes before everything writable.
                buffers.well_formed &= buffers.writable.is_empty();
                &mut buffers.readable
            };
            buffers.well_formed &= add_pieces(pieces, &descriptor, memory, MAX_PIECES);
        }
        // The iterator ends at loops, at descriptors beyond the table, and at what cannot be read.
        buffers.well_formed &= !unfinished;
        buffers
    }
}
