//! A memory table with room for more regions than it has, as User-Mode Linux sends it.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::common::disk::{MemoryDisk, sector};
use crate::common::*;
use inarch_vhost::{Pending, ServeError};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion};

const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 0x100;
const DATA: u64 = BUFFERS + 0x1000;

const SET_MEM_TABLE: u32 = 5;
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;

/// A message that says that it has `count` of `regions`, in `size` bytes.
fn message(count: u32, regions: &[[u64; 4]], size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = [SET_MEM_TABLE, VERSION | NEED_REPLY, size as u32, count, 0]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    bytes.extend(regions.iter().flatten().flat_map(|word| word.to_ne_bytes()));
    bytes.resize(12 + size, 0);
    bytes
}

/// The first region of a front end's memory, as a message has it, and its file.
fn region(front_end: &FrontEnd) -> ([u64; 4], BorrowedFd<'_>) {
    let region = front_end.memory.iter().next().unwrap();
    let start = region.start_addr().raw_value();
    ([start, region.len(), USER_BASE + start, 0], region.file_offset().unwrap().file().as_fd())
}

#[test]
fn the_regions_that_it_says_it_has_are_taken() {
    let disk = Arc::new(MemoryDisk::numbered(64));
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let mut stream = served.stream.try_clone().unwrap();
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    let (first, file) = region(&front_end);
    for size in [8 + 2 * 32, 8 + 8 * 32] {
        send_raw(&stream, &message(1, &[first], size), &[file]);
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).unwrap();
        let expected = [SET_MEM_TABLE, VERSION | 1 << 2, 8, 0, 0];
        assert_eq!(reply[..], *expected.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect::<Vec<_>>());
    }
    // The rings go on in it.
    front_end.put_header(HEADER, 0, 9);
    let chain = [readable(HEADER, 16), writable(DATA, 512), writable(STATUS, 1)];
    assert_eq!(front_end.queues[0].run_chain(&chain), 513);
    assert_eq!(front_end.get(DATA, 512), sector(9));
}

#[test]
fn one_that_is_wrong_ends_the_connection() {
    let padded = 8 + 2 * 32;
    // Without a file; with one too many; regions of no length, and beyond the end of everything.
    for (row, files) in [
        ([0, REGION, USER_BASE, 0], 0),
        ([0, REGION, USER_BASE, 0], 2),
        ([0, 0, 0, 0], 1),
        ([u64::MAX, REGION, USER_BASE, 0], 1),
        ([0, REGION, USER_BASE, REGION * 7], 1),
    ] {
        let disk = Arc::new(MemoryDisk::numbered(64));
        let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
        let stream = served.stream.try_clone().unwrap();
        let front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
        let (_, file) = region(&front_end);
        send_raw(&stream, &message(1, &[row], padded), &vec![file; files]);
        let ended = served.thread.join().unwrap();
        assert!(matches!(ended, Err(ServeError::Protocol(_))), "{row:?}, {files}: {ended:?}");
    }
}

#[test]
fn one_that_is_cut_off_is_the_end() {
    for cut in [11, 12, 19, 20, 60, 83] {
        let disk = Arc::new(MemoryDisk::numbered(64));
        let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
        let mut stream = served.stream;
        let bytes = message(1, &[[0, REGION, USER_BASE, 0]], 8 + 2 * 32);
        stream.write_all(&bytes[..cut]).unwrap();
        drop(stream);
        // Whatever it is taken for, the thread ends and does not panic.
        let _ = served.thread.join().unwrap();
    }
}
