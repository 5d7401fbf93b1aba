//! Every command, with its flags, errors and effect on the device.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::*;
use inarch_nbd::ConnectionError;

const PERM: u32 = 1;
const IO: u32 = 5;
const INVALID: u32 = 22;
const NO_SPACE: u32 = 28;
const OVERFLOW: u32 = 75;

const MIB: u64 = 1 << 20;
const END: u64 = SIZE as u64;

#[test]
fn what_was_written_is_read_however_it_is_asked_for() {
    let disk = Arc::new(Disk::new());
    let mut structured = Client::ready(&disk);
    // Across pieces, at unaligned offsets.
    for (offset, length) in [(0, 1), (4095, 2), (MIB - 1, 300_000), (3 * MIB, 5 << 20), (END - 7, 7)] {
        let data = pattern(offset, length);
        assert_eq!(structured.write(0, offset, &data), 0);
        assert!(structured.read(offset, length as u32).unwrap() == data, "{length} bytes at {offset}");
    }
    let expected = disk.bytes.lock().unwrap().clone();
    assert!(structured.read(0, 32 << 20).unwrap() == expected[..32 << 20]);
    let mut simple = Client::simple(&disk);
    for (offset, length) in [(0, 4096u32), (3, 1 << 20), (MIB, 32 << 20), (END, 0)] {
        assert_eq!(simple.simply(0, READ, offset, length), 0);
        let end = offset as usize + length as usize;
        assert!(simple.take(length as usize) == expected[offset as usize..end]);
    }
    structured.end().unwrap();
    simple.end().unwrap();
}

#[test]
fn zeros_are_told_and_not_sent() {
    let disk = Arc::new(Disk::with_data(MIB as usize, 2 * MIB as usize));
    let mut client = Client::ready(&disk);
    let chunks = client.chunks(0, READ, 0, 4 << 20);
    let sent: usize = chunks.iter().map(|chunk| chunk.payload.len()).sum();
    assert!((MIB as usize..MIB as usize + 1000).contains(&sent), "{sent} bytes for 1 MiB of data");
    assert_eq!(chunks[0].kind, 2);
    assert!(client.read(0, 4 << 20).unwrap() == disk.bytes.lock().unwrap()[..4 << 20]);
    // In one piece, if that is asked for and not too much.
    let chunks = client.chunks(DF, READ, 0, 64 << 10);
    assert_eq!((chunks.len(), chunks[0].kind, chunks[0].payload.len()), (1, 1, (64 << 10) + 8));
    let chunks = client.chunks(DF, READ, 0, 32 << 20);
    assert_eq!((chunks[0].kind, &chunks[0].payload[..4]), (0x8001, &OVERFLOW.to_be_bytes()[..]));
    client.end().unwrap();
}

#[test]
fn block_status_tells_data_from_holes() {
    let disk = Arc::new(Disk::with_data(MIB as usize, 2 * MIB as usize));
    let mut client = Client::ready(&disk);
    let mut status = |flags, offset, length| {
        let chunks = client.chunks(flags, BLOCK_STATUS, offset, length);
        assert_eq!((chunks.len(), chunks[0].kind, &chunks[0].payload[..4]), (1, 5, &[0, 0, 0, 1][..]));
        let numbers = chunks[0].payload[4..].chunks(4).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
        numbers.collect::<Vec<u32>>()
    };
    assert_eq!(status(0, 0, 3 << 20), [1 << 20, 3, 1 << 20, 0, 1 << 20, 3]);
    assert_eq!(status(0, MIB + 100, 4096), [4096, 0]);
    assert_eq!(status(REQ_ONE, MIB - 100, 3 << 20), [100, 3]);
    assert_eq!(status(0, END - 1, 1), [1, 3]);
    for (offset, length) in [(0, 0), (END - 1, 2), (u64::MAX, 2)] {
        assert_eq!(client.chunks(0, BLOCK_STATUS, offset, length)[0].kind, 0x8001);
    }
    client.end().unwrap();
}

#[test]
fn zeroing_and_trimming_and_flushing() {
    let disk = Arc::new(Disk::with_data(0, SIZE));
    let mut client = Client::ready(&disk);
    for (command, flags, offset, length) in
        [(WRITE_ZEROES, 0, 1, 4096), (WRITE_ZEROES, 2 | 16, MIB, 40 << 20), (TRIM, 0, 0, 1 << 20)]
    {
        assert_eq!(client.simply(flags, command, offset, length), 0);
        let bytes = disk.bytes.lock().unwrap();
        assert!(bytes[offset as usize..offset as usize + length as usize].iter().all(|byte| *byte == 0));
    }
    let flushes = || disk.flushes.load(Ordering::Relaxed);
    assert_eq!(flushes(), 0);
    assert_eq!(client.simply(0, FLUSH, 0, 0), 0);
    assert_eq!(flushes(), 1);
    assert_eq!(client.write(FUA, 0, b"durable"), 0);
    assert_eq!(client.simply(FUA, WRITE_ZEROES, 0, 1), 0);
    assert_eq!(client.simply(FUA, TRIM, 0, 4096), 0);
    assert_eq!(flushes(), 4);
    assert_eq!(client.simply(0, CACHE, 0, 32 << 20), 0);
    client.end().unwrap();
}

#[test]
fn what_cannot_be_done_has_the_right_error() {
    let disk = Arc::new(Disk::new());
    let mut client = Client::ready(&disk);
    for (offset, length) in [(END, 1), (END - 1, 2), (u64::MAX, 1), (0, 33 << 20)] {
        assert_eq!(client.read(offset, length), Err(INVALID));
        assert_eq!(client.simply(0, CACHE, offset, length), INVALID);
    }
    for (offset, length) in [(END, 1), (END - 1, 2), (u64::MAX - 1, 3)] {
        assert_eq!(client.write(0, offset, &vec![1; length]), NO_SPACE);
        assert_eq!(client.simply(0, WRITE_ZEROES, offset, length as u32), NO_SPACE);
        assert_eq!(client.simply(0, TRIM, offset, length as u32), INVALID);
    }
    assert_eq!(client.write(0, 0, &vec![1; 33 << 20]), INVALID, "more than was told, but taken from the wire");
    assert_eq!(client.simply(0, 99, 0, 0), INVALID, "no such command");
    assert_eq!(client.simply(1 << 9, FLUSH, 0, 0), INVALID, "no such flag");
    assert_eq!(client.write(2, 0, b"x"), INVALID, "a flag of another command");
    assert!(disk.bytes.lock().unwrap().iter().all(|byte| *byte == 0), "none of it had an effect");
    assert_eq!(client.simply(0, FLUSH, 0, 0), 0);
    client.end().unwrap();

    let mut client = Client::simple(&disk);
    assert_eq!(client.simply(0, BLOCK_STATUS, 0, 4096), INVALID);
    assert_eq!(client.simply(DF, READ, 0, 4096), INVALID);
    client.end().unwrap();
}

#[test]
fn a_read_only_export_is_not_changed() {
    let disk = Arc::new(Disk { read_only: true, ..Disk::with_data(0, 4096) });
    let mut client = Client::ready(&disk);
    assert_eq!(client.write(0, 0, b"x"), PERM);
    assert_eq!(client.simply(0, WRITE_ZEROES, 0, 4096), PERM);
    assert_eq!(client.simply(0, TRIM, 0, 4096), PERM);
    assert!(client.read(0, 4096).unwrap() == pattern(0, 4096));
    client.end().unwrap();
}

#[test]
fn a_failed_read_is_an_error_and_the_connection_goes_on() {
    let disk = Arc::new(Disk { bad: Some(8 * MIB), ..Disk::with_data(0, SIZE) });
    let mut client = Client::ready(&disk);
    assert_eq!(client.read(8 * MIB, 4096), Err(IO));
    // In the middle of an answer the error tells its place.
    let chunks = client.chunks(0, READ, 7 * MIB, 2 << 20);
    let last = chunks.last().unwrap();
    assert_eq!((last.kind, &last.payload[..4]), (0x8002, &IO.to_be_bytes()[..]));
    assert!(u64::from_be_bytes(last.payload[6..14].try_into().unwrap()) <= 8 * MIB);
    assert!(client.read(0, 4096).unwrap() == pattern(0, 4096));
    client.end().unwrap();
    let mut client = Client::simple(&disk);
    assert_eq!(client.simply(0, READ, 7 * MIB, 2 << 20), IO, "before any data was sent");
    assert_eq!(client.simply(0, READ, 0, 1), 0);
    client.end().unwrap();
}

#[test]
fn a_panic_of_the_device_ends_one_connection() {
    let disk = Arc::new(Disk::with_data(0, 4096));
    disk.panics.store(true, Ordering::Relaxed);
    let mut client = Client::ready(&disk);
    client.request(0, READ, 1, 0, 4096);
    assert!(client.is_cut());
    assert!(matches!(client.end(), Err(ConnectionError::Panicked)));
}

#[test]
fn requests_of_one_connection_are_under_way_together() {
    let disk = Arc::new(Disk::with_data(0, SIZE));
    let mut client = Client::ready(&disk);
    for cookie in 0..200 {
        client.request(0, READ, cookie, cookie * 8192, 4096);
    }
    let mut seen: Vec<u64> = (0..200)
        .map(|_| {
            let chunk = client.chunk();
            assert!(chunk.done && chunk.payload[8..] == pattern(chunk.cookie * 8192, 4096));
            chunk.cookie
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..200).collect::<Vec<_>>(), "each is answered once");
    client.end().unwrap();
}
