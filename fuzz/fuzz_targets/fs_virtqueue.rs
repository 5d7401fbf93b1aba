//! A guest's kernel writes anything into the rings, descriptors and buffers of a file system device.
//!
//! The target checks that every chain taken is returned, and that no request panics.

#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_fuse::ConnectionOptions;
use inarch_fuzz::guest::{self, AVAIL, BUFFERS, TABLE, USED};
use inarch_vfs::{Attributes, Context, FileSystem, HandleId, Lock, LockOwner, NodeId, not_supported};
use inarch_vhost::fs::{FsOptions, VirtioFs};
use inarch_vhost::{GuestMemory, process_available};
use libfuzzer_sys::fuzz_target;
use rustix::io::Errno;
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress, VolatileSlice};

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
    locks: bool,
    size: u8,
    start: u16,
    table: Vec<Descriptor>,
    headers: Vec<Header>,
    heads: Vec<u8>,
    raw: Vec<u8>,
}

/// Reads and writes as much as requested; one lock is free, and others are waited for without end.
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

    fn set_lock(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: HandleId,
        owner: LockOwner,
        _: &Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        // A device without locks asks its file system as it comes, which refuses.
        if wait {
            Err(Errno::NOSYS)
        } else if owner.0 == 0 {
            Ok(())
        } else {
            Err(Errno::AGAIN)
        }
    }

    not_supported! {
        lookup, absence_valid, is_contested, parent, forget, disconnected, peek_attributes, set_attributes, read_link, make_node, make_directory,
        make_symlink, link, unlink, remove_directory, rename, open, create, create_unnamed, write, copy_range,
        flush, fsync, sync, fallocate, seek, release, open_directory, read_directory, release_directory, get_xattr,
        list_xattrs, set_xattr, remove_xattr, test_lock, statistics, host_file, interrupted
    }
}

fn lay_out(memory: &GuestMemory, input: &Input, size: u16) {
    let descriptors = input.table.iter().map(|descriptor| {
        let Descriptor { at, anywhere, length, short, flags, next } = *descriptor;
        guest::Descriptor { address: anywhere.unwrap_or(BUFFERS + u64::from(at)), length, short, flags, next }
    });
    guest::put_table(memory, TABLE, descriptors);
    for header in &input.headers {
        let at = BUFFERS + u64::from(header.at % 0x8000);
        memory.write_obj(u32::from(header.length), GuestAddress(at)).unwrap();
        memory.write_obj(u32::from(header.opcode % 56), GuestAddress(at + 4)).unwrap();
        memory.write_obj(u64::from(header.node), GuestAddress(at + 16)).unwrap();
    }
    guest::offer(memory, &input.heads, size, input.start, 0);
}

fuzz_target!(|input: Input| {
    let size = 1u16 << (input.size % 9);
    let connection = ConnectionOptions { locks: input.locks, ..ConnectionOptions::default() };
    let device = VirtioFs::new(Arc::new(Zeros), FsOptions { connection, ..FsOptions::default() });
    let mut queue = guest::queue(size, input.event_idx, input.start, (TABLE, AVAIL, USED)).unwrap();
    guest::with_guest(&input.raw, |memory, stop| {
        lay_out(memory, &input, size);
        let handled = process_available(1, &mut queue, memory, &device, stop, || {});
        if handled.is_ok() {
            assert_eq!(queue.next_used(), queue.next_avail());
        }
    });
});
