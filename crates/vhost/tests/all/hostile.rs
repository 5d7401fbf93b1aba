//! Whatever a guest's kernel writes into its rings and buffers harms only that guest.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::disk::{MemoryDisk, sector};
use crate::common::*;
use inarch_vhost::Pending;
use inarch_vhost::blk::{BlkOptions, BlockDevice, MAX_RANGE_SECTORS, MAX_RANGES, MAX_REQUEST_BYTES};
use vhost::VhostBackend;
use vm_memory::VolatileSlice;

const IN: u32 = 0;
const OUT: u32 = 1;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 0x100;
const DATA: u64 = BUFFERS + 0x1000;
const UNTOUCHED: u8 = 0xee;

/// Sectors of the disk.
const SECTORS: u64 = 4096;

struct Rig {
    disk: Arc<MemoryDisk>,
    front_end: FrontEnd,
}

fn rig_of(disk: MemoryDisk, options: BlkOptions) -> Rig {
    let disk = Arc::new(disk);
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), options);
    Rig { disk, front_end: FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64) }
}

fn rig() -> Rig {
    let disk = MemoryDisk::numbered(SECTORS);
    let options = disk.options();
    rig_of(disk, options)
}

impl Rig {
    /// Runs `chain`; returns the status byte and the used length.
    fn chain(&mut self, kind: u32, sector: u64, chain: &[Descriptor]) -> (u8, u32) {
        self.front_end.put_header(HEADER, kind, sector);
        self.front_end.put(STATUS, &[UNTOUCHED]);
        let used = self.front_end.queues[0].run_chain(chain);
        (self.front_end.byte(STATUS), used)
    }

    /// Runs a well-formed request.
    fn request(&mut self, kind: u32, sector: u64, data: &[Descriptor]) -> (u8, u32) {
        let mut chain = vec![readable(HEADER, 16)];
        chain.extend_from_slice(data);
        chain.push(writable(STATUS, 1));
        self.chain(kind, sector, &chain)
    }

    /// Checks that the device got no request, and still works.
    fn check_unharmed(mut self) {
        assert_eq!(self.disk.seen(), []);
        self.check_works();
    }

    fn check_works(&mut self) {
        assert_eq!(self.request(IN, 3, &[writable(DATA, 512)]), (OK, 513));
        assert_eq!(self.front_end.get(DATA, 512), sector(3));
    }
}

#[test]
fn ranges_beyond_the_device_fail() {
    let mut rig = rig();
    let data = [writable(DATA, 1024)];
    for sector in [SECTORS - 1, SECTORS, 1 << 55, u64::MAX / 512, u64::MAX / 512 + 1, u64::MAX] {
        assert_eq!(rig.request(IN, sector, &data), (IOERR, 1), "sector {sector}");
        assert_eq!(rig.request(OUT, sector, &[readable(DATA, 1024)]), (IOERR, 1), "sector {sector}");
    }
    rig.check_unharmed();
}

#[test]
fn a_device_smaller_than_announced_is_not_read_beyond_its_end() {
    let disk = MemoryDisk::numbered(8);
    let options = BlkOptions { capacity: 1 << 30, ..disk.options() };
    let mut rig = rig_of(disk, options);
    assert_eq!(rig.request(IN, 8, &[writable(DATA, 512)]), (IOERR, 1));
    assert_eq!(rig.request(IN, 7, &[writable(DATA, 1024)]), (IOERR, 1));
    rig.check_unharmed();
}

#[test]
fn lengths_that_are_no_whole_sectors_fail() {
    let mut rig = rig();
    for length in [1, 511, 513, 1023] {
        assert_eq!(rig.request(IN, 0, &[writable(DATA, length)]), (IOERR, 1), "{length} bytes");
        assert_eq!(rig.request(OUT, 0, &[readable(DATA, length)]), (IOERR, 1), "{length} bytes");
    }
    rig.check_unharmed();
}

#[test]
fn a_request_without_data_or_with_data_of_the_wrong_direction_fails() {
    let mut rig = rig();
    assert_eq!(rig.request(IN, 0, &[]), (IOERR, 1));
    assert_eq!(rig.request(OUT, 0, &[]), (IOERR, 1));
    assert_eq!(rig.request(IN, 0, &[readable(DATA, 512)]), (IOERR, 1));
    assert_eq!(rig.request(OUT, 0, &[writable(DATA, 512)]), (IOERR, 1));
    rig.check_unharmed();
}

#[test]
fn readable_descriptors_after_writable_ones_fail() {
    let mut rig = rig();
    let chain = [readable(HEADER, 16), writable(DATA, 512), readable(DATA, 512), writable(STATUS, 1)];
    assert_eq!(rig.chain(IN, 0, &chain), (IOERR, 1));
    rig.check_unharmed();
}

#[test]
fn a_short_header_fails() {
    let mut rig = rig();
    for length in [1, 8, 15] {
        assert_eq!(rig.chain(IN, 0, &[readable(HEADER, length), writable(STATUS, 1)]), (IOERR, 1));
    }
    assert_eq!(rig.chain(IN, 0, &[writable(DATA, 512), writable(STATUS, 1)]), (IOERR, 1));
    rig.check_unharmed();
}

#[test]
fn zero_length_descriptors_fail() {
    let mut rig = rig();
    let chain = [readable(HEADER, 16), writable(DATA, 0), writable(DATA, 512), writable(STATUS, 1)];
    assert_eq!(rig.chain(IN, 0, &chain), (IOERR, 1));
    let chain = [readable(HEADER, 16), writable(STATUS, 1), writable(DATA, 0)];
    assert_eq!(rig.chain(IN, 0, &chain), (IOERR, 1));
    let chain = [readable(HEADER, 0), writable(DATA, 0)];
    assert_eq!(rig.chain(IN, 0, &chain), (UNTOUCHED, 0));
    rig.check_unharmed();
}

#[test]
fn a_chain_without_a_place_for_the_status_is_given_back() {
    let mut rig = rig();
    assert_eq!(rig.chain(IN, 0, &[readable(HEADER, 16)]), (UNTOUCHED, 0));
    assert_eq!(rig.chain(OUT, 0, &[readable(HEADER, 16), readable(DATA, 512)]), (UNTOUCHED, 0));
    // Beyond the end of memory, and beyond the end of the address space.
    for address in [2 * REGION, u64::MAX, u64::MAX - 0x1000] {
        assert_eq!(rig.chain(IN, 0, &[readable(HEADER, 16), writable(address, 513)]), (UNTOUCHED, 0));
    }
    rig.check_unharmed();
}

#[test]
fn data_outside_of_memory_fails() {
    let mut rig = rig();
    for address in [2 * REGION, 2 * REGION - 256, u64::MAX - 511, u64::MAX - 100] {
        assert_eq!(rig.request(IN, 0, &[writable(address, 512)]), (IOERR, 1), "{address:#x}");
        assert_eq!(rig.request(OUT, 0, &[readable(address, 512)]), (IOERR, 1), "{address:#x}");
    }
    assert_eq!(rig.chain(IN, 0, &[readable(1 << 40, 16), writable(DATA, 512), writable(STATUS, 1)]), (IOERR, 1));
    rig.check_unharmed();
}

#[test]
fn loops_fail() {
    let mut rig = rig();
    rig.front_end.put_header(HEADER, IN, 0);
    let queue = &mut rig.front_end.queues[0];
    let table = queue.table();
    // A loop in the writable part, and a chain that leaves the table.
    for next in [1, 64, u16::MAX] {
        queue.put_descriptor(table, 0, Descriptor { flags: NEXT, next: 1, ..readable(HEADER, 16) });
        queue.put_descriptor(table, 1, Descriptor { flags: NEXT | WRITE, next, ..writable(STATUS, 1) });
        assert_eq!(queue.run(0), 1);
    }
    // A chain with readable descriptors only.
    queue.put_descriptor(table, 0, Descriptor { flags: NEXT, next: 0, ..readable(HEADER, 16) });
    assert_eq!(queue.run(0), 0);
    rig.check_unharmed();
}

#[test]
fn indirect_tables_that_make_no_sense_fail() {
    let mut rig = rig();
    let inner = BUFFERS + 0x80000;
    rig.front_end.put_header(HEADER, IN, 0);
    let queue = &mut rig.front_end.queues[0];
    let table = queue.table();
    queue.put_chain(inner, 0, &[readable(HEADER, 16), writable(DATA, 512), writable(STATUS, 1)]);
    let indirect = |address, length| Descriptor { address, length, flags: INDIRECT, next: 0 };
    // No entries, no whole entries, too many, outside of guest memory.
    for (address, length) in [(inner, 0), (inner, 47), (inner, u32::MAX - 15), (1 << 40, 48), (u64::MAX - 15, 48)] {
        queue.put_descriptor(table, 0, indirect(address, length));
        assert_eq!(queue.run(0), 0, "{address:#x} {length}");
    }
    // A table that contains itself; a table within a table.
    queue.put_descriptor(inner, 0, indirect(inner, 48));
    queue.put_descriptor(table, 0, indirect(inner, 48));
    assert_eq!(queue.run(0), 0);
    // A loop within the table.
    queue.put_descriptor(inner, 0, Descriptor { flags: NEXT | WRITE, next: 0, ..writable(STATUS, 1) });
    assert_eq!(queue.run(0), 1);
    rig.check_unharmed();
}

#[test]
fn a_chain_of_more_pieces_than_a_queue_may_hold_fails() {
    let mut rig = rig();
    let inner = BUFFERS + 0x80000;
    rig.front_end.put_header(HEADER, IN, 0);
    let chain: Vec<Descriptor> = std::iter::once(readable(HEADER, 16))
        .chain((0..2000).map(|_| writable(DATA, 512)))
        .chain([writable(STATUS, 1)])
        .collect();
    let queue = &mut rig.front_end.queues[0];
    queue.put_chain(inner, 0, &chain);
    let length = 16 * chain.len() as u32;
    queue.put_descriptor(queue.table(), 0, Descriptor { address: inner, length, flags: INDIRECT, next: 0 });
    assert_eq!(queue.run(0), 1);
    assert_eq!(rig.front_end.byte(STATUS), IOERR);
    rig.check_unharmed();
}

/// A device larger than any, which moves no bytes.
#[derive(Default)]
struct Vast {
    lengths: Mutex<Vec<u64>>,
}

impl Vast {
    fn saw(&self, slices: &[VolatileSlice<'_>]) -> io::Result<()> {
        self.lengths.lock().unwrap().push(slices.iter().map(|slice| slice.len() as u64).sum());
        Ok(())
    }
}

impl BlockDevice for Vast {
    fn capacity(&self) -> u64 {
        1 << 50
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, _offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        self.saw(out)
    }

    fn write_at(&self, _offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        self.saw(data)
    }

    fn discard(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_zeroes(&self, _offset: u64, _length: u64, _unmap: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_chain_that_names_the_same_memory_again_and_again_is_bounded() {
    let vast = Arc::new(Vast::default());
    let options = BlkOptions { capacity: vast.capacity(), ..BlkOptions::default() };
    let served = serve(Arc::new(Pending::ready(Arc::clone(&vast))), options);
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    let inner = BUFFERS + 0x80000;
    let all = (2 * REGION) as u32;
    let most = (MAX_REQUEST_BYTES / u64::from(all)) as usize;
    for (kind, buffer) in [(IN, writable(0, all)), (OUT, readable(0, all))] {
        for (count, extra, expected) in [(most, None, OK), (most, Some(512), IOERR), (500, None, IOERR)] {
            front_end.put_header(HEADER, kind, 0);
            let mut chain = vec![readable(HEADER, 16)];
            chain.extend(std::iter::repeat_n(buffer, count));
            chain.extend(extra.map(|length| Descriptor { length, ..buffer }));
            chain.push(writable(STATUS, 1));
            let queue = &mut front_end.queues[0];
            queue.put_chain(inner, 0, &chain);
            let length = 16 * chain.len() as u32;
            queue.put_descriptor(queue.table(), 0, Descriptor { address: inner, length, flags: INDIRECT, next: 0 });
            queue.run(0);
            assert_eq!(front_end.byte(STATUS), expected, "type {kind}, {count} times {all} bytes and {extra:?}");
        }
    }
    assert_eq!(*vast.lengths.lock().unwrap(), [MAX_REQUEST_BYTES; 2]);
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn discards_are_bounded() {
    let mut rig = rig();
    for kind in [DISCARD, WRITE_ZEROES] {
        let mut refused = |bytes: Vec<u8>, expected: u8| {
            rig.front_end.put(DATA, &bytes);
            assert_eq!(rig.request(kind, 0, &[readable(DATA, bytes.len() as u32)]), (expected, 1));
        };
        refused(range(0, 8, 0)[..15].to_vec(), IOERR);
        refused([range(0, 8, 0), vec![0; 4]].concat(), IOERR);
        refused(range(0, 8, 0).repeat(MAX_RANGES as usize + 1), IOERR);
        refused(range(0, 8, 0).repeat(65536), IOERR);
        refused(range(0, MAX_RANGE_SECTORS + 1, 0), IOERR);
        refused(range(0, 0, 0), IOERR);
        refused(range(SECTORS - 1, 2, 0), IOERR);
        refused(range(u64::MAX, u32::MAX, 0), IOERR);
        refused(range(0, 8, 2), UNSUPP);
        // A valid range before an invalid one is not executed.
        refused([range(0, 8, 0), range(SECTORS, 8, 0)].concat(), IOERR);
    }
    rig.front_end.put(DATA, &range(0, 8, 1));
    assert_eq!(rig.request(DISCARD, 0, &[readable(DATA, 16)]), (UNSUPP, 1));
    assert_eq!(rig.request(DISCARD, 0, &[]), (IOERR, 1));
    rig.check_unharmed();
}

#[test]
fn unknown_requests_are_unsupported() {
    let mut rig = rig();
    for kind in [2, 3, 5, 6, 7, 9, 10, 12, 14, 15, 16, 24, u32::MAX] {
        assert_eq!(rig.request(kind, 0, &[writable(DATA, 512)]), (UNSUPP, 1), "type {kind}");
    }
    rig.check_unharmed();
}

#[test]
fn a_read_only_disk_is_never_written() {
    let disk = MemoryDisk::numbered(SECTORS);
    let options = BlkOptions { read_only: true, ..disk.options() };
    let mut rig = rig_of(disk, options);
    rig.front_end.put(DATA, &range(0, 8, 0));
    assert_eq!(rig.request(OUT, 0, &[readable(DATA, 512)]), (IOERR, 1));
    assert_eq!(rig.request(DISCARD, 0, &[readable(DATA, 16)]), (IOERR, 1));
    assert_eq!(rig.request(WRITE_ZEROES, 0, &[readable(DATA, 16)]), (IOERR, 1));
    rig.check_unharmed();
}

#[test]
fn a_panic_of_the_device_fails_its_request_only() {
    let disk = MemoryDisk { panic_offset: Some(512), ..MemoryDisk::numbered(SECTORS) };
    let options = disk.options();
    let mut rig = rig_of(disk, options);
    assert_eq!(rig.request(IN, 1, &[writable(DATA, 512)]), (IOERR, 1));
    rig.check_works();
}

/// After `spoil`, the queue answers nothing; once it is set up again, it works.
fn stops_only_its_queue(spoil: impl FnOnce(&mut DriverQueue)) {
    let disk = Arc::new(MemoryDisk::numbered(SECTORS));
    let options = BlkOptions { queues: 2, ..disk.options() };
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), options);
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 2, 64);
    spoil(&mut front_end.queues[0]);
    front_end.queues[0].kick();
    assert_eq!(front_end.queues[0].try_take_used(Duration::from_millis(100)), None);

    front_end.put_header(HEADER, IN, 3);
    let chain = [readable(HEADER, 16), writable(DATA, 512), writable(STATUS, 1)];
    assert_eq!(front_end.queues[1].run_chain(&chain), 513);

    front_end.control.get_vring_base(0).unwrap();
    front_end.reset_queue(0);
    assert_eq!(front_end.queues[0].run_chain(&chain), 513);
    drop(front_end);
    served.thread.join().unwrap().unwrap();
}

#[test]
fn an_available_index_that_runs_ahead_stops_its_queue() {
    stops_only_its_queue(|queue| queue.set_avail_index(1000));
}

#[test]
fn a_head_beyond_the_table_stops_its_queue() {
    stops_only_its_queue(|queue| queue.offer(64));
}
