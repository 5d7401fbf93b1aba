//! The behaviour that a correct driver relies on.

use std::sync::Arc;
use std::time::Duration;

use crate::common::disk::{MemoryDisk, Seen, sector};
use crate::common::*;
use inarch_vhost::Pending;
use inarch_vhost::blk::BlkOptions;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH_REQUEST: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 0x100;
const DATA: u64 = BUFFERS + 0x1000;

const UNTOUCHED: u8 = 0xee;

struct Rig {
    disk: Arc<MemoryDisk>,
    front_end: FrontEnd,
}

/// A numbered disk of 2,048 sectors behind one queue.
fn rig() -> Rig {
    rig_with(DRIVER_FEATURES, 1)
}

fn rig_with(features: u64, queues: u16) -> Rig {
    let disk = Arc::new(MemoryDisk::numbered(2048));
    let options = BlkOptions { queues, ..disk.options() };
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), options);
    let front_end = FrontEnd::start(served.stream, features, queues, 64);
    front_end.put(STATUS, &[UNTOUCHED]);
    Rig { disk, front_end }
}

impl Rig {
    /// Runs a request of a header, `data` and a status byte; returns the status and the used length.
    fn request(&mut self, kind: u32, sector: u64, data: &[Descriptor]) -> (u8, u32) {
        self.front_end.put_header(HEADER, kind, sector);
        self.front_end.put(STATUS, &[UNTOUCHED]);
        let mut chain = vec![readable(HEADER, 16)];
        chain.extend_from_slice(data);
        chain.push(writable(STATUS, 1));
        let used = self.front_end.queues[0].run_chain(&chain);
        (self.front_end.byte(STATUS), used)
    }
}

#[test]
fn a_read_fills_the_buffer_and_reports_its_length() {
    let mut rig = rig();
    assert_eq!(rig.request(IN, 7, &[writable(DATA, 1024)]), (0, 1025));
    assert_eq!(rig.front_end.get(DATA, 1024), [sector(7), sector(8)].concat());
}

#[test]
fn a_read_may_be_scattered_over_many_descriptors() {
    let mut rig = rig();
    let pieces: Vec<Descriptor> = (0..40).map(|i| writable(DATA + i * 0x1000, 512)).collect();
    assert_eq!(rig.request(IN, 100, &pieces), (0, 40 * 512 + 1));
    for i in 0..40 {
        assert_eq!(rig.front_end.get(DATA + i * 0x1000, 512), sector(100 + i));
    }
    assert_eq!(rig.disk.seen(), [Seen::Read(100 * 512, 40 * 512)]);
}

#[test]
fn a_buffer_may_cross_from_one_memory_region_into_the_next() {
    let mut rig = rig();
    assert_eq!(rig.request(IN, 3, &[writable(REGION - 512, 1024)]), (0, 1025));
    assert_eq!(rig.front_end.get(REGION - 512, 1024), [sector(3), sector(4)].concat());
}

#[test]
fn a_write_reaches_the_device() {
    let mut rig = rig();
    rig.front_end.put(DATA, &[0xaa; 512]);
    rig.front_end.put(DATA + 0x1000, &[0xbb; 512]);
    assert_eq!(rig.request(OUT, 5, &[readable(DATA, 512), readable(DATA + 0x1000, 512)]), (0, 1));
    assert_eq!(rig.disk.bytes()[5 * 512..7 * 512], [[0xaa; 512], [0xbb; 512]].concat());
}

#[test]
fn header_and_status_may_be_cut_and_joined_in_any_way() {
    let mut rig = rig();
    rig.front_end.put_header(HEADER, OUT, 9);
    rig.front_end.put(HEADER + 16, &[0xcc; 512]);
    // The header in three descriptors, the last shared with data.
    let chain = [readable(HEADER, 3), readable(HEADER + 3, 12), readable(HEADER + 15, 1 + 512), writable(STATUS, 1)];
    assert_eq!(rig.front_end.queues[0].run_chain(&chain), 1);
    assert_eq!(rig.front_end.byte(STATUS), 0);
    assert_eq!(rig.disk.bytes()[9 * 512..10 * 512], [0xcc; 512]);

    // Data that is cut in the middle of a sector, and the status byte right behind it.
    rig.front_end.put_header(HEADER, IN, 20);
    rig.front_end.put(DATA + 512, &[UNTOUCHED]);
    let chain = [readable(HEADER, 16), writable(DATA, 100), writable(DATA + 100, 412 + 1)];
    assert_eq!(rig.front_end.queues[0].run_chain(&chain), 513);
    assert_eq!(rig.front_end.get(DATA, 512), sector(20));
    assert_eq!(rig.front_end.byte(DATA + 512), 0);
}

#[test]
fn a_chain_may_lie_in_an_indirect_table() {
    let mut rig = rig();
    let table = BUFFERS + 0x80000;
    rig.front_end.put_header(HEADER, IN, 30);
    let chain: Vec<Descriptor> = std::iter::once(readable(HEADER, 16))
        .chain((0..60).map(|i| writable(DATA + i * 512, 512)))
        .chain([writable(STATUS, 1)])
        .collect();
    let queue = &mut rig.front_end.queues[0];
    queue.put_chain(table, 0, &chain);
    let length = 16 * chain.len() as u32;
    queue.put_descriptor(queue.table(), 5, Descriptor { address: table, length, flags: INDIRECT, next: 0 });
    assert_eq!(queue.run(5), 60 * 512 + 1);
    assert_eq!(rig.front_end.byte(STATUS), 0);
    assert_eq!(rig.front_end.get(DATA + 59 * 512, 512), sector(89));
}

#[test]
fn flush_reaches_the_device() {
    let mut rig = rig();
    assert_eq!(rig.request(FLUSH_REQUEST, 0, &[]), (0, 1));
    assert_eq!(rig.disk.seen(), [Seen::Flush]);
}

#[test]
fn the_serial_number_is_padded_with_zeros() {
    let mut rig = rig();
    assert_eq!(rig.request(GET_ID, 0, &[writable(DATA, 20)]), (0, 21));
    assert_eq!(rig.front_end.get(DATA, 20), b"memory\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
}

fn ranges(ranges: &[(u64, u32, u32)]) -> Vec<u8> {
    let bytes = |(sector, sectors, flags): &(u64, u32, u32)| {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    };
    ranges.iter().flat_map(bytes).collect()
}

#[test]
fn discard_and_write_zeroes_name_several_ranges() {
    let mut rig = rig();
    rig.front_end.put(DATA, &ranges(&[(8, 8, 0), (64, 16, 0)]));
    assert_eq!(rig.request(DISCARD, 0, &[readable(DATA, 32)]), (0, 1));
    rig.front_end.put(DATA, &ranges(&[(16, 8, 1), (128, 8, 0)]));
    assert_eq!(rig.request(WRITE_ZEROES, 0, &[readable(DATA, 32)]), (0, 1));
    let expected = [
        Seen::Discard(8 * 512, 8 * 512),
        Seen::Discard(64 * 512, 16 * 512),
        Seen::WriteZeroes(16 * 512, 8 * 512, true),
        Seen::WriteZeroes(128 * 512, 8 * 512, false),
    ];
    assert_eq!(rig.disk.seen(), expected);
    assert_eq!(rig.disk.bytes()[128 * 512..129 * 512], [0; 512]);
}

#[test]
fn a_device_error_fails_its_request_only() {
    let disk = Arc::new(MemoryDisk { bad_offset: Some(512), ..MemoryDisk::numbered(64) });
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    let mut rig = Rig { disk, front_end };
    assert_eq!(rig.request(IN, 1, &[writable(DATA, 512)]), (1, 1));
    assert_eq!(rig.request(IN, 2, &[writable(DATA, 512)]), (0, 513));
}

#[test]
fn every_queue_is_served() {
    let mut rig = rig_with(DRIVER_FEATURES, 4);
    for (i, queue) in rig.front_end.queues.iter_mut().enumerate() {
        let at = DATA + 0x2000 * i as u64;
        let header = at + 0x1000;
        queue.put_chain(queue.table(), 0, &[readable(header, 16), writable(at, 512), writable(header + 16, 1)]);
    }
    for i in 0..4 {
        rig.front_end.put_header(DATA + 0x2000 * i + 0x1000, IN, 40 + i);
        rig.front_end.queues[i as usize].offer(0);
        rig.front_end.queues[i as usize].kick();
    }
    for i in 0..4 {
        assert_eq!(rig.front_end.queues[i as usize].take_used(), (0, 513));
        assert_eq!(rig.front_end.get(DATA + 0x2000 * i, 512), sector(40 + i));
    }
}

#[test]
fn a_batch_is_answered_completely_and_interrupts_once() {
    let mut rig = rig();
    rig.front_end.put_header(HEADER, IN, 0);
    let queue = &mut rig.front_end.queues[0];
    for i in 0..16 {
        let at = DATA + 0x1000 * u64::from(i);
        queue.put_chain(queue.table(), 3 * i, &[readable(HEADER, 16), writable(at, 512), writable(at + 512, 1)]);
        queue.offer(3 * i);
    }
    // The driver wants an interrupt for the first answer, and must not get one for each.
    queue.set_used_event(0);
    queue.kick();
    for i in 0..16 {
        assert_eq!(queue.take_used(), (3 * i, 513));
    }
    assert!(interrupts(queue) == 1);
}

#[test]
fn an_answer_does_not_wait_for_the_rest_of_a_slow_batch() {
    let disk = Arc::new(MemoryDisk { delay: Duration::from_millis(100), ..MemoryDisk::numbered(64) });
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    front_end.put_header(HEADER, IN, 0);
    let queue = &mut front_end.queues[0];
    for i in 0..8 {
        let at = DATA + 0x1000 * u64::from(i);
        queue.put_chain(queue.table(), 3 * i, &[readable(HEADER, 16), writable(at, 512), writable(at + 512, 1)]);
        queue.offer(3 * i);
    }
    queue.kick();
    interrupts(queue);
    assert!(queue.used_index() < 8);
    for _ in 0..8 {
        queue.take_used();
    }
}

/// Counts interrupts until no more come; waits for the first.
fn interrupts(queue: &DriverQueue) -> u64 {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match queue.call.read() {
            Ok(count) => return count,
            Err(_) => assert!(std::time::Instant::now() < deadline, "no interrupt came"),
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

#[test]
fn a_driver_without_event_index_is_interrupted_unless_it_says_no() {
    let mut rig = rig_with(DRIVER_FEATURES & !EVENT_IDX, 1);
    assert_eq!(rig.request(IN, 0, &[writable(DATA, 512)]), (0, 513));
    assert_eq!(interrupts(&rig.front_end.queues[0]), 1);

    let avail = rig.front_end.queues[0].avail();
    rig.front_end.put(avail, &1u16.to_le_bytes());
    assert_eq!(rig.request(IN, 1, &[writable(DATA, 512)]), (0, 513));
    assert_eq!(rig.request(IN, 2, &[writable(DATA, 512)]), (0, 513));
    // The third request is taken only when the second is completely done.
    assert!(rig.front_end.queues[0].call.read().is_err(), "an interrupt came that the driver did not want");
}

#[test]
fn the_configuration_space_says_what_the_device_can_do() {
    let mut rig = rig_with(DRIVER_FEATURES, 3);
    let config = rig.front_end.config(0, 60);
    assert_eq!(config[0..8], 2048u64.to_le_bytes());
    assert_eq!(config[12..16], 254u32.to_le_bytes());
    assert_eq!(config[20..24], 4096u32.to_le_bytes());
    assert_eq!(config[34..36], 3u16.to_le_bytes());
    assert_eq!(rig.front_end.config(34, 2), 3u16.to_le_bytes());
    // A front end may know a longer structure.
    assert_eq!(rig.front_end.config(56, 16)[4..], [0; 12]);
}

#[test]
fn without_a_write_back_cache_a_write_is_durable_when_it_is_acknowledged() {
    let mut rig = rig();
    assert_eq!(rig.front_end.config(32, 1), [1]);
    rig.front_end.set_config(32, &[0]);
    assert_eq!(rig.front_end.config(32, 1), [0]);
    assert_eq!(rig.request(OUT, 5, &[readable(DATA, 512)]), (0, 1));
    assert_eq!(rig.disk.seen(), [Seen::Write(5 * 512, 512), Seen::Flush]);
    rig.front_end.set_config(32, &[1]);
    assert_eq!(rig.request(OUT, 6, &[readable(DATA, 512)]), (0, 1));
    assert_eq!(rig.disk.seen().len(), 3);
}

#[test]
fn a_driver_that_cannot_flush_gets_durable_writes() {
    let mut rig = rig_with(DRIVER_FEATURES & !FLUSH, 1);
    assert_eq!(rig.request(OUT, 5, &[readable(DATA, 512)]), (0, 1));
    assert_eq!(rig.disk.seen(), [Seen::Write(5 * 512, 512), Seen::Flush]);
}
