//! The virtio socket device: moves packets between descriptor chains and the switchboard.

use std::io;
use std::sync::{Arc, Mutex};

use virtio_queue::DescriptorChain;
use vm_memory::VolatileSlice;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::packet::{HEADER, Header};
use super::stream::ROOM;
use super::switchboard::{Open, Outgoing, Switchboard};
use super::{GUEST_CID, hold};
use crate::buffers::Buffers;
use crate::device::VirtioDevice;
use crate::memory::GuestMemory;
use crate::vring::Stop;

/// The queue on which the guest receives packets.
pub const RECEIVE_QUEUE: u16 = 0;

/// The queue on which it sends packets.
pub const SEND_QUEUE: u16 = 1;

/// The device that one driver uses.
pub struct VirtioVsock {
    switchboard: Switchboard,
    open: Arc<Open>,
    /// The next packet to the guest; used by that queue's thread only.
    next: Mutex<Next>,
    /// The data of the packet that the guest has sent; used by that queue's thread only.
    data: Mutex<Vec<u8>>,
}

/// A packet that the guest may have received in part.
#[derive(Default)]
struct Next {
    packet: Outgoing,
    is_there: bool,
    /// Bytes of its data that were sent in earlier packets.
    gone: usize,
}

impl VirtioVsock {
    /// A device before its driver has sent anything. `open` makes our end of a connection to a port, a stream socket;
    /// if it returns none, the connection is refused. Called in the queue's thread.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(open: Arc<Open>) -> io::Result<VirtioVsock> {
        Ok(VirtioVsock {
            switchboard: Switchboard::new(GUEST_CID)?,
            open,
            next: Mutex::default(),
            data: Mutex::default(),
        })
    }

    /// Handles the packet in `readable`. A packet shorter than its header says ends its connection.
    fn send(&self, readable: &[VolatileSlice<'_>]) {
        let mut bytes = [0; HEADER];
        let mut room = hold(&self.data);
        if copy_out(readable, 0, &mut bytes) != HEADER {
            return;
        }
        let header: Header = zerocopy::transmute!(bytes);
        let length = header.len.get() as usize;
        // Data longer than any room is ignored.
        let most = length.min(ROOM as usize);
        if room.len() < most {
            room.resize(most, 0);
        }
        let data = &mut room[..most];
        if copy_out(readable, HEADER, data) == length {
            self.switchboard.take(&header, data, &*self.open);
        } else {
            self.switchboard.take_damaged(&header);
        }
    }

    /// Writes the next packet to `writable`, as far as there is room; returns the number of bytes.
    fn receive(&self, writable: &[VolatileSlice<'_>]) -> usize {
        let mut next = hold(&self.next);
        let Next { packet, is_there, gone } = &mut *next;
        let room = writable.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.len()));
        let rest = packet.data().get(*gone..).unwrap_or_default();
        // A buffer without room for a header, or for a byte of data, is returned unused.
        if !*is_there || room < HEADER || room == HEADER && !rest.is_empty() {
            return 0;
        }
        let part = rest.get(..rest.len().min(room - HEADER)).unwrap_or(rest);
        // At most the longest packet.
        let mut header = packet.header;
        header.len = U32::new(part.len() as u32);
        let length = copy_in(writable, 0, header.as_bytes()) + copy_in(writable, HEADER, part);
        *gone += part.len();
        if *gone == packet.data().len() {
            (*is_there, *gone) = (false, 0);
        }
        length
    }
}

impl VirtioDevice for VirtioVsock {
    fn features(&self) -> u64 {
        0
    }

    fn set_features(&self, _features: u64) {
        // A machine that was stopped and continues sets them again, and its connections stay. They also stay when a
        // driver starts anew, which looks the same; that driver refuses packets for them.
    }

    fn queues(&self) -> u16 {
        // The third one, for events, belongs to the front end in QEMU and is never used here.
        3
    }

    fn config(&self) -> Vec<u8> {
        U64::new(GUEST_CID).as_bytes().to_vec()
    }

    fn write_config(&self, _offset: u32, _data: &[u8]) -> bool {
        false
    }

    fn is_ready(&self, queue: u16) -> bool {
        match queue {
            RECEIVE_QUEUE => {
                let next = &mut *hold(&self.next);
                if next.is_there && !self.switchboard.goes_on(&next.packet) {
                    (next.is_there, next.gone) = (false, 0);
                }
                next.is_there = next.is_there || self.switchboard.give(&mut next.packet);
                next.is_there
            }
            SEND_QUEUE => self.switchboard.can_take(),
            _ => false,
        }
    }

    fn wait_until_ready(&self, queue: u16, stop: &Stop) {
        match queue {
            RECEIVE_QUEUE => self.switchboard.wait_until_it_can_give(stop),
            SEND_QUEUE => self.switchboard.wait_until_it_can_take(stop),
            _ => self.switchboard.wait_until_stopped(stop),
        }
    }

    fn wake(&self) {
        self.switchboard.wake();
    }

    fn handle<'a>(&self, queue: u16, chain: DescriptorChain<&'a GuestMemory>, memory: &'a GuestMemory) -> u32 {
        let buffers = Buffers::gather(chain, memory);
        if !buffers.well_formed {
            return 0;
        }
        if queue == SEND_QUEUE {
            self.send(&buffers.readable);
            return 0;
        }
        // At most a header and the longest data.
        self.receive(&buffers.writable) as u32
    }
}

/// Skips the first `skip` bytes of the pieces of memory. Then calls `each` with every piece and the number of bytes
/// before it, until `length` bytes are done; returns how many were done.
fn go_through(
    pieces: &[VolatileSlice<'_>],
    mut skip: usize,
    length: usize,
    mut each: impl FnMut(VolatileSlice<'_>, usize),
) -> usize {
    let mut done = 0;
    for piece in pieces {
        let Ok(rest) = piece.offset(skip.min(piece.len())) else { break };
        skip -= piece.len() - rest.len();
        let Ok(part) = rest.subslice(0, rest.len().min(length - done)) else { break };
        each(part, done);
        done += part.len();
    }
    done
}

/// Copies memory into `out`; returns the number of bytes.
fn copy_out(pieces: &[VolatileSlice<'_>], skip: usize, out: &mut [u8]) -> usize {
    go_through(pieces, skip, out.len(), |piece, done| {
        if let Some(place) = out.get_mut(done..) {
            piece.copy_to(place);
        }
    })
}

/// Copies bytes into memory; returns how many fitted.
fn copy_in(pieces: &[VolatileSlice<'_>], skip: usize, bytes: &[u8]) -> usize {
    go_through(pieces, skip, bytes.len(), |piece, done| {
        if let Some(bytes) = bytes.get(done..) {
            piece.copy_from(bytes);
        }
    })
}
