//! A guest's kernel writes anything into its rings, descriptors and buffers.
//!
//! The device checks that no request exceeds what was offered; the target checks that every chain taken is returned.

#![no_main]

use std::io;
use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_fuzz::guest::{self, AVAIL, BUFFERS, TABLE, USED};
use inarch_vhost::blk::{BlkOptions, BlockDevice, VirtioBlk};
use inarch_vhost::{GuestMemory, Pending, process_available};
use libfuzzer_sys::fuzz_target;
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress, VolatileSlice};

const INDIRECT_TABLE: u64 = 0x3000;
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

fn put_table(memory: &GuestMemory, table: u64, descriptors: &[Descriptor]) {
    let descriptors = descriptors.iter().map(|descriptor| {
        let Descriptor { ref address, length, short, flags, next } = *descriptor;
        let address = match *address {
            Address::Buffer(at) => BUFFERS + u64::from(at),
            Address::IndirectTable => INDIRECT_TABLE,
            Address::Table => TABLE,
            Address::Anywhere(address) => address,
        };
        guest::Descriptor { address, length, short, flags, next }
    });
    guest::put_table(memory, table, descriptors);
}

fn lay_out(memory: &GuestMemory, input: &Input, size: u16) {
    put_table(memory, TABLE, &input.table);
    put_table(memory, INDIRECT_TABLE, &input.indirect);
    for header in &input.headers {
        let at = GuestAddress(BUFFERS + u64::from(header.at % 0x8000));
        let sector = if header.near { header.sector % 4096 } else { header.sector };
        memory.write_obj(u32::from(header.kind % 20), at).unwrap();
        memory.write_obj(sector, GuestAddress(at.0 + 8)).unwrap();
    }
    guest::offer(memory, &input.heads, size, input.start, input.ahead);
}

fuzz_target!(|input: Input| {
    let size = 1u16 << (input.size % 9);
    let options = BlkOptions { capacity: CAPACITY, read_only: input.read_only, ..BlkOptions::default() };
    let events = Arc::new(|event| panic_on_panic(&event));
    let device = VirtioBlk::new(Arc::new(Pending::ready(Arc::new(Checked))), options, events);
    let places = match input.misplaced {
        Some((table, avail, used)) => (u64::from(table), u64::from(avail), u64::from(used)),
        None => (TABLE, AVAIL, USED),
    };
    let Some(mut queue) = guest::queue(size, input.event_idx, input.start, places) else { return };
    guest::with_guest(&input.raw, |memory, stop| {
        lay_out(memory, &input, size);
        let handled = process_available(0, &mut queue, memory, &device, stop, || {});
        if handled.is_ok() {
            assert_eq!(queue.next_used(), queue.next_avail());
        }
    });
});

fn panic_on_panic(event: &inarch_vhost::Event) {
    assert!(!matches!(event, inarch_vhost::Event::RequestPanicked { .. }), "{event}");
}
