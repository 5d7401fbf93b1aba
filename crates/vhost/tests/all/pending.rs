//! A request never fails because its device is still under construction.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::disk::{MemoryDisk, sector};
use crate::common::*;
use inarch_vhost::blk::VirtioBlk;
use inarch_vhost::{GuestMemory, Pending, Region, Served, Stop, VirtioDevice, process_available};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};

const IN: u32 = 0;
const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 0x100;
const DATA: u64 = BUFFERS + 0x1000;
const UNTOUCHED: u8 = 0xee;
const SIZE: u16 = 64;

/// A moment in which an error would show.
const MOMENT: Duration = Duration::from_millis(50);

struct Rig {
    memory: GuestMemory,
    driver: DriverQueue,
    queue: Queue,
    disk: Arc<MemoryDisk>,
    pending: Arc<Pending<MemoryDisk>>,
    device: VirtioBlk<MemoryDisk>,
}

/// A queue without requests, whose device does not exist yet.
fn rig() -> Rig {
    let shared = guest_memory();
    let region = |region: &GuestRegionMmap<()>| {
        Region::from(GuestRegionMmap::with_arc(region.get_mmap(), region.start_addr()).unwrap())
    };
    let memory = GuestMemory::from_regions(shared.iter().map(region).collect()).unwrap();
    let driver = DriverQueue::new(&shared, 0, SIZE);
    let mut queue = Queue::new(SIZE).unwrap();
    queue.try_set_desc_table_address(GuestAddress(driver.table())).unwrap();
    queue.try_set_avail_ring_address(GuestAddress(driver.avail())).unwrap();
    queue.try_set_used_ring_address(GuestAddress(driver.used())).unwrap();
    queue.set_event_idx(true);
    queue.set_ready(true);
    let disk = Arc::new(MemoryDisk::numbered(64));
    let pending = Arc::new(Pending::new());
    let device = VirtioBlk::new(Arc::clone(&pending), disk.options(), Arc::new(|_| {}));
    Rig { memory, driver, queue, disk, pending, device }
}

impl Rig {
    /// Puts a read of sector `number` into the descriptors from `first` on.
    fn put_read(&self, first: u16, number: u64) {
        self.memory.write_obj(IN, GuestAddress(HEADER)).unwrap();
        self.memory.write_obj(number, GuestAddress(HEADER + 8)).unwrap();
        self.memory.write_obj(UNTOUCHED, GuestAddress(STATUS)).unwrap();
        let chain = [readable(HEADER, 16), writable(DATA, 512), writable(STATUS, 1)];
        self.driver.put_chain(self.driver.table(), first, &chain);
    }

    fn status(&self) -> u8 {
        self.memory.read_obj(GuestAddress(STATUS)).unwrap()
    }
}

/// Serves the queue like its thread.
fn serve(queue: &mut Queue, memory: &GuestMemory, device: &VirtioBlk<MemoryDisk>, stop: &Stop) {
    while process_available(0, queue, memory, device, stop, || {}).unwrap() == Served::UntilNotReady && !stop.is_set() {
        device.wait_until_ready(0, stop);
    }
}

#[test]
fn a_request_that_nobody_waited_for_before_the_batch_waits_for_the_device() {
    let mut rig = rig();
    let stop = Stop::new().unwrap();
    // The first check finds no request, so nothing is waited for.
    serve(&mut rig.queue, &rig.memory, &rig.device, &stop);
    rig.put_read(0, 7);
    rig.driver.offer(0);
    let Rig { memory, driver, queue, disk, pending, device } = &mut rig;
    thread::scope(|scope| {
        let served = scope.spawn(|| serve(queue, memory, device, &stop));
        thread::sleep(MOMENT);
        assert_eq!(driver.used_index(), 0, "answered without a device");
        pending.set(Ok(Arc::clone(disk)));
        served.join().unwrap();
    });
    assert_eq!((rig.driver.take_used(), rig.status()), ((0, 513), 0));
    let mut data = [0; 512];
    rig.memory.read_slice(&mut data, GuestAddress(DATA)).unwrap();
    assert_eq!(data[..], sector(7));
}

#[test]
fn requests_that_come_at_any_moment_are_answered_by_the_device() {
    for round in 0..50 {
        let mut rig = rig();
        let stop = Stop::new().unwrap();
        rig.put_read(0, 7);
        let Rig { memory, driver, queue, disk, pending, device } = &mut rig;
        let answer = thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.is_set() {
                    serve(queue, memory, device, &stop);
                }
            });
            thread::sleep(Duration::from_micros(20 * round));
            driver.offer(0);
            thread::sleep(Duration::from_micros(200));
            pending.set(Ok(Arc::clone(disk)));
            let answer = driver.try_take_used(PATIENCE);
            stop.set();
            answer
        });
        assert_eq!((answer, rig.status()), (Some((0, 513)), 0), "round {round}");
    }
}

#[test]
fn a_request_stays_available_if_the_queue_is_stopped_before_the_device_is_there() {
    let mut rig = rig();
    let stop = Stop::new().unwrap();
    rig.put_read(0, 7);
    rig.driver.offer(0);
    stop.set();
    serve(&mut rig.queue, &rig.memory, &rig.device, &stop);
    assert_eq!((rig.queue.next_avail(), rig.driver.used_index(), rig.status()), (0, 0, UNTOUCHED));
    rig.pending.set(Ok(Arc::clone(&rig.disk)));
    serve(&mut rig.queue, &rig.memory, &rig.device, &Stop::new().unwrap());
    assert_eq!((rig.driver.take_used(), rig.status()), ((0, 513), 0));
}
