//! A guest's memory with the rings of a virtqueue in it.

use std::cell::LazyCell;

use inarch_vhost::{GuestMemory, Region, Stop};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestRegionMmap};

/// Bytes of each of the two regions; there is a hole between them.
pub const MEMORY: u64 = 1 << 16;
/// Where the descriptors are.
pub const TABLE: u64 = 0;
/// Where the available ring is.
pub const AVAIL: u64 = 0x1000;
/// Where the used ring is.
pub const USED: u64 = 0x2000;
/// Where what descriptors lead to begins.
pub const BUFFERS: u64 = 0x4000;

thread_local! {
    static GUEST: LazyCell<GuestMemory> = LazyCell::new(|| {
        let ranges = [(GuestAddress(0), MEMORY as usize), (GuestAddress(2 * MEMORY), MEMORY as usize)];
        let region = |(start, length)| Region::from(GuestRegionMmap::from_range(start, length, None).unwrap());
        GuestMemory::from_regions(ranges.into_iter().map(region).collect()).unwrap()
    });
    static STOP: LazyCell<Stop> = LazyCell::new(|| Stop::new().unwrap());
}

/// Gives a guest's memory to `run`: zeros, but for `raw` from [`BUFFERS`] on.
pub fn with_guest(raw: &[u8], run: impl FnOnce(&GuestMemory, &Stop)) {
    GUEST.with(|memory| {
        memory.write_slice(&vec![0; MEMORY as usize], GuestAddress(0)).unwrap();
        let raw = &raw[..raw.len().min((MEMORY - BUFFERS) as usize)];
        memory.write_slice(raw, GuestAddress(BUFFERS)).unwrap();
        STOP.with(|stop| run(memory, stop));
    });
}

/// A queue of `size` descriptors whose ring indexes are at `start`; none if nothing can lie there.
pub fn queue(size: u16, event_idx: bool, start: u16, (table, avail, used): (u64, u64, u64)) -> Option<Queue> {
    let mut queue = Queue::new(256).unwrap();
    queue.set_size(size);
    queue.set_event_idx(event_idx);
    queue.try_set_desc_table_address(GuestAddress(table)).ok()?;
    queue.try_set_avail_ring_address(GuestAddress(avail)).ok()?;
    queue.try_set_used_ring_address(GuestAddress(used)).ok()?;
    queue.set_next_avail(start);
    queue.set_next_used(start);
    queue.set_ready(true);
    Some(queue)
}

/// A descriptor as the guest writes it.
pub struct Descriptor {
    pub address: u64,
    pub length: u32,
    /// Whether the length is one that fits.
    pub short: bool,
    pub flags: u8,
    pub next: u8,
}

/// Writes descriptors into a table.
pub fn put_table(memory: &GuestMemory, table: u64, descriptors: impl Iterator<Item = Descriptor>) {
    for (i, descriptor) in descriptors.take(256).enumerate() {
        let length = if descriptor.short { descriptor.length % 2048 } else { descriptor.length };
        let at = table + 16 * i as u64;
        memory.write_obj(descriptor.address, GuestAddress(at)).unwrap();
        memory.write_obj(length, GuestAddress(at + 8)).unwrap();
        memory.write_obj(u16::from(descriptor.flags), GuestAddress(at + 12)).unwrap();
        memory.write_obj(u16::from(descriptor.next), GuestAddress(at + 14)).unwrap();
    }
}

/// Makes chains available from ring index `start` on, and says that there are `ahead` more.
pub fn offer(memory: &GuestMemory, heads: &[u8], size: u16, start: u16, ahead: u16) {
    for (i, head) in heads.iter().take(usize::from(size)).enumerate() {
        let slot = u64::from(start.wrapping_add(i as u16) % size);
        memory.write_obj(u16::from(*head), GuestAddress(AVAIL + 4 + 2 * slot)).unwrap();
    }
    let count = heads.len().min(usize::from(size)) as u16;
    let index = start.wrapping_add(count).wrapping_add(ahead);
    memory.write_obj(index, GuestAddress(AVAIL + 2)).unwrap();
    memory.write_obj(start, GuestAddress(USED + 2)).unwrap();
}
