//! A guest's kernel writes anything into the rings, descriptors and buffers of a file system device.
//!
//! The target checks that every chain taken is returned, and that no request panics.

#![no_main]

use std::cell::LazyCell;
use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_vfs::{Attributes, Context, FileSystem, HandleId, NodeId, not_supported};
use inarch_vhost::fs::{FsOptions, VirtioFs};
use inarch_vhost::{GuestMemory, Region, Stop, process_available};
use libfuzzer_sys::fuzz_target;
use rustix::io::Errno;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestRegionMmap, VolatileSlice};

const MEMORY: u64 = 1 << 16;
const TABLE: u64 = 0;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const BUFFERS: u64 = 0x4000;

#[derive(Arbitrary, Debug)]
struct Descriptor {
    at: u16,
    anywhere: Option<u64>,
    length: u32,
    short: bool,
    flags: u8,
    next: u8,
}

#[derive(Arbitrary, Debug)]
struct Header {
    at: u16,
    length: u16,
    opcode: u8,
    node: u8,
}

#[derive(Arbitrary, Debug)]
struct Input {
    event_idx: bool,
    size: u8,
    start: u16,
    table: Vec<Descriptor>,
    headers: Vec<Header>,
    heads: Vec<u8>,
    raw: Vec<u8>,
}

/// Reads and writes as much as requested.
struct Zeros;

impl FileSystem for Zeros {
    fn attributes(&self, _: &Context<'_>, _: NodeId, _: Option<HandleId>) -> Result<Attributes, Errno> {
        Err(Errno::STALE)
    }

    fn read(&self, _: &Context<'_>, _: NodeId, _: HandleId, _: u64, out: &[VolatileSlice<'_>]) -> Result<usize, Errno> {
        for slice in out {
            slice.write_slice(&vec![0; slice.len()], 0).map_err(|_| Errno::IO)?;
        }
        Ok(out.iter().map(|slice| slice.len()).sum())
    }

    not_supported! {
        lookup, absence_valid, parent, forget, disconnected, peek_attributes, set_attributes, read_link, make_node, make_directory,
        make_symlink, link, unlink, remove_directory, rename, open, create, create_unnamed, write, copy_range,
        flush, fsync, sync, fallocate, seek, release, open_directory, read_directory, release_directory, get_xattr,
        list_xattrs, set_xattr, remove_xattr, test_lock, set_lock, statistics, host_file, interrupted
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

fn lay_out(memory: &GuestMemory, input: &Input, size: u16) {
    memory.write_slice(&vec![0; MEMORY as usize], GuestAddress(0)).unwrap();
    let raw = &input.raw[..input.raw.len().min((MEMORY - BUFFERS) as usize)];
    memory.write_slice(raw, GuestAddress(BUFFERS)).unwrap();
    for (i, descriptor) in input.table.iter().take(256).enumerate() {
        let address = descriptor.anywhere.unwrap_or(BUFFERS + u64::from(descriptor.at));
        let length = if descriptor.short { descriptor.length % 2048 } else { descriptor.length };
        let at = TABLE + 16 * i as u64;
        memory.write_obj(address, GuestAddress(at)).unwrap();
        memory.write_obj(length, GuestAddress(at + 8)).unwrap();
        memory.write_obj(u16::from(descriptor.flags), GuestAddress(at + 12)).unwrap();
        memory.write_obj(u16::from(descriptor.next), GuestAddress(at + 14)).unwrap();
    }
    for header in &input.headers {
        let at = BUFFERS + u64::from(header.at % 0x8000);
        memory.write_obj(u32::from(header.length), GuestAddress(at)).unwrap();
        memory.write_obj(u32::from(header.opcode % 56), GuestAddress(at + 4)).unwrap();
        memory.write_obj(u64::from(header.node), GuestAddress(at + 16)).unwrap();
    }
    for (i, head) in input.heads.iter().take(usize::from(size)).enumerate() {
        let slot = u64::from(input.start.wrapping_add(i as u16) % size);
        memory.write_obj(u16::from(*head), GuestAddress(AVAIL + 4 + 2 * slot)).unwrap();
    }
    let heads = input.heads.len().min(usize::from(size)) as u16;
    memory.write_obj(input.start.wrapping_add(heads), GuestAddress(AVAIL + 2)).unwrap();
    memory.write_obj(input.start, GuestAddress(USED + 2)).unwrap();
}

fuzz_target!(|input: Input| {
    let size = 1u16 << (input.size % 9);
    let device = VirtioFs::new(Arc::new(Zeros), FsOptions::default());
    let mut queue = Queue::new(256).unwrap();
    queue.set_size(size);
    queue.set_event_idx(input.event_idx);
    queue.try_set_desc_table_address(GuestAddress(TABLE)).unwrap();
    queue.try_set_avail_ring_address(GuestAddress(AVAIL)).unwrap();
    queue.try_set_used_ring_address(GuestAddress(USED)).unwrap();
    queue.set_next_avail(input.start);
    queue.set_next_used(input.start);
    queue.set_ready(true);
    GUEST.with(|memory| {
        lay_out(memory, &input, size);
        STOP.with(|stop| {
            let handled = process_available(1, &mut queue, memory, &device, stop, || {});
            if handled.is_ok() {
                assert_eq!(queue.next_used(), queue.next_avail());
            }
        });
    });
});
