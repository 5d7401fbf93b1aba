//! A guest's kernel writes anything into its rings, descriptors and buffers.
//!
//! The device checks that no request exceeds what was offered; the target checks that every chain taken is returned.

#![no_main]

use std::cell::LazyCell;
use std::io;
use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_vhost::blk::{BlkOptions, BlockDevice, VirtioBlk};
use inarch_vhost::{GuestMemory, Pending, Region, Stop, process_available};
use libfuzzer_sys::fuzz_target;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestRegionMmap, VolatileSlice};

const MEMORY: u64 = 1 << 16;
const TABLE: u64 = 0;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const INDIRECT_TABLE: u64 = 0x3000;
const BUFFERS: u64 = 0x4000;
const CAPACITY: u64 = 1 << 20;

/// A descriptor whose address is more often in memory than chance would have it.
#[derive(Arbitrary, Debug)]
enum Address {
    Buffer(u16),
    IndirectTable,
    Table,
    Anywhere(u64),
}

#[derive(Arbitrary, Debug)]
struct Descriptor {
    address: Address,
    length: u32,
    short: bool,
    flags: u8,
    next: u8,
}

#[derive(Arbitrary, Debug)]
struct Header {
    at: u16,
    kind: u8,
    sector: u64,
    near: bool,
}

#[derive(Arbitrary, Debug)]
struct Input {
    event_idx: bool,
    read_only: bool,
    size: u8,
    start: u16,
    table: Vec<Descriptor>,
    indirect: Vec<Descriptor>,
    headers: Vec<Header>,
    heads: Vec<u8>,
    /// What is added to the available index beyond the heads.
    ahead: u16,
    /// Where the rings lie, if not where they should.
    misplaced: Option<(u32, u32, u32)>,
    raw: Vec<u8>,
}

/// A device that stores nothing and checks everything.
struct Checked;

fn check(offset: u64, length: u64) {
    assert!(length > 0 && length.is_multiple_of(512) && offset.is_multiple_of(512));
    assert!(offset.checked_add(length).is_some_and(|end| end <= CAPACITY));
}

fn length(slices: &[VolatileSlice<'_>]) -> u64 {
    slices.iter().map(|slice| slice.len() as u64).sum()
}

impl BlockDevice for Checked {
    fn capacity(&self) -> u64 {
        CAPACITY
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        check(offset, length(out));
        for slice in out {
            slice.write_slice(&vec![0x5a; slice.len()], 0).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        check(offset, length(data));
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        check(offset, length);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, _unmap: bool) -> io::Result<()> {
        check(offset, length);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Err(io::Error::other("never"))
    }
}

thread_local! {
    /// Two regions with a hole between them.
    static GUEST: LazyCell<GuestMemory> = LazyCell::new(|| {
        let ranges = [(GuestAddress(0), MEMORY as usize), (GuestAddress(2 * MEMORY), MEMORY as usize)];
        let region = |(start, length)| Region::from(GuestRegionMmap::from_range(start, length, None).unwrap());
        GuestMemory::from_regions(ranges.into_iter().map(region).collect()).unwrap()
    });
    static STOP: LazyCell<Stop> = LazyCell::new(|| Stop::new().unwrap());
}

fn put_table(memory: &GuestMemory, table: u64, descriptors: &[Descriptor]) {
    for (i, descriptor) in descriptors.iter().take(256).enumerate() {
        let address = match descriptor.address {
            Address::Buffer(at) => BUFFERS + u64::from(at),
            Address::IndirectTable => INDIRECT_TABLE,
            Address::Table => TABLE,
            Address::Anywhere(address) => address,
        };
        let length = if descriptor.short { descriptor.length % 2048 } else { descriptor.length };
        let at = table + 16 * i as u64;
        memory.write_obj(address, GuestAddress(at)).unwrap();
        memory.write_obj(length, GuestAddress(at + 8)).unwrap();
        memory.write_obj(u16::from(descriptor.flags), GuestAddress(at + 12)).unwrap();
        memory.write_obj(u16::from(descriptor.next), GuestAddress(at + 14)).unwrap();
    }
}

fn lay_out(memory: &GuestMemory, input: &Input, size: u16) {
    memory.write_slice(&vec![0; MEMORY as usize], GuestAddress(0)).unwrap();
    let raw = &input.raw[..input.raw.len().min((MEMORY - BUFFERS) as usize)];
    memory.write_slice(raw, GuestAddress(BUFFERS)).unwrap();
    put_table(memory, TABLE, &input.table);
    put_table(memory, INDIRECT_TABLE, &input.indirect);
    for header in &input.headers {
        let at = GuestAddress(BUFFERS + u64::from(header.at % 0x8000));
        let sector = if header.near { header.sector % 4096 } else { header.sector };
        memory.write_obj(u32::from(header.kind % 20), at).unwrap();
        memory.write_obj(sector, GuestAddress(at.0 + 8)).unwrap();
    }
    for (i, head) in input.heads.iter().take(usize::from(size)).enumerate() {
        let slot = u64::from(input.start.wrapping_add(i as u16) % size);
        memory.write_obj(u16::from(*head), GuestAddress(AVAIL + 4 + 2 * slot)).unwrap();
    }
    let heads = input.heads.len().min(usize::from(size)) as u16;
    let index = input.start.wrapping_add(heads).wrapping_add(input.ahead);
    memory.write_obj(index, GuestAddress(AVAIL + 2)).unwrap();
    memory.write_obj(input.start, GuestAddress(USED + 2)).unwrap();
}

fuzz_target!(|input: Input| {
    let size = 1u16 << (input.size % 9);
    let options = BlkOptions { capacity: CAPACITY, read_only: input.read_only, ..BlkOptions::default() };
    let events = Arc::new(|event| panic_on_panic(&event));
    let device = VirtioBlk::new(Arc::new(Pending::ready(Arc::new(Checked))), options, events);
    let mut queue = Queue::new(256).unwrap();
    queue.set_size(size);
    queue.set_event_idx(input.event_idx);
    let (table, avail, used) = match input.misplaced {
        Some((table, avail, used)) => (u64::from(table), u64::from(avail), u64::from(used)),
        None => (TABLE, AVAIL, USED),
    };
    let placed = queue.try_set_desc_table_address(GuestAddress(table)).is_ok()
        && queue.try_set_avail_ring_address(GuestAddress(avail)).is_ok()
        && queue.try_set_used_ring_address(GuestAddress(used)).is_ok();
    if !placed {
        return;
    }
    queue.set_next_avail(input.start);
    queue.set_next_used(input.start);
    queue.set_ready(true);
    GUEST.with(|memory| {
        lay_out(memory, &input, size);
        STOP.with(|stop| {
            let handled = process_available(0, &mut queue, memory, &device, stop, || {});
            if handled.is_ok() {
                assert_eq!(queue.next_used(), queue.next_avail());
            }
        });
    });
});

fn panic_on_panic(event: &inarch_vhost::Event) {
    assert!(!matches!(event, inarch_vhost::Event::RequestPanicked { .. }), "{event}");
}
