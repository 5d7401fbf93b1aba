//! Collects the memory of a descriptor chain that carries one message in each direction.

use virtio_queue::DescriptorChain;

use crate::memory::{GuestMemory, Pieces, add_pieces};

/// The most pieces of memory in one direction of a chain: several times the number of pages of the largest message.
const MAX_PIECES: usize = 1024;

/// The memory of a chain.
pub(crate) struct Buffers<'a> {
    /// The pieces that the driver has written, in order.
    pub readable: Pieces<'a>,
    /// The pieces that the device may write, in order.
    pub writable: Pieces<'a>,
    /// Whether the chain ends, all of it is in guest memory, and readable pieces come first.
    pub well_formed: bool,
}

impl<'a> Buffers<'a> {
    /// Collects a chain's pieces.
    pub fn gather(chain: DescriptorChain<&'a GuestMemory>, memory: &'a GuestMemory) -> Buffers<'a> {
        let mut buffers = Buffers { readable: Pieces::new(), writable: Pieces::new(), well_formed: true };
        let mut unfinished = true;
        for descriptor in chain {
            unfinished = descriptor.has_next();
            let pieces = if descriptor.is_write_only() {
                &mut buffers.writable
            } else {
                // Readable descriptors must come before writable ones.
                buffers.well_formed &= buffers.writable.is_empty();
                &mut buffers.readable
            };
            buffers.well_formed &= add_pieces(pieces, &descriptor, memory, MAX_PIECES);
        }
        // The iterator stops at loops, at descriptors beyond the table, and at unreadable ones.
        buffers.well_formed &= !unfinished;
        buffers
    }
}
