//! Measures requests a second through one queue, without a virtual machine: 4 KiB reads of a device that does nothing,
//! so that only ring and wake-ups count. `cargo bench -p inarch-vhost`.

#[path = "../tests/all/common/mod.rs"]
mod common;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use inarch_vhost::Pending;
use inarch_vhost::blk::{BlkOptions, BlockDevice};
use vm_memory::VolatileSlice;

const CAPACITY: u64 = 1 << 30;
const BLOCK: u32 = 4096;

/// Answers without doing anything.
struct Idle;

impl BlockDevice for Idle {
    fn capacity(&self) -> u64 {
        CAPACITY
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read_at(&self, _offset: u64, _out: &[VolatileSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn write_at(&self, _offset: u64, _data: &[VolatileSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, _offset: u64, _length: u64, _unmap: bool) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads with `depth` requests in flight for a while; returns requests a second.
fn measure(features: u64, depth: u16) -> f64 {
    let options = BlkOptions { capacity: CAPACITY, read_only: true, ..BlkOptions::default() };
    let served = serve(Arc::new(Pending::ready(Arc::new(Idle))), options);
    let mut front_end = FrontEnd::start(served.stream, features, 1, 256);
    for i in 0..depth {
        let at = BUFFERS + 0x2000 * u64::from(i);
        front_end.put_header(at, 0, 8 * u64::from(i));
        let queue = &front_end.queues[0];
        queue.put_chain(queue.table(), 3 * i, &[readable(at, 16), writable(at + 0x1000, BLOCK), writable(at + 16, 1)]);
    }
    let queue = &mut front_end.queues[0];
    let (started, mut done) = (Instant::now(), 0u64);
    while started.elapsed() < Duration::from_secs(1) {
        for i in 0..depth {
            queue.offer(3 * i);
        }
        queue.kick();
        for _ in 0..depth {
            queue.spin_for_used();
        }
        done += u64::from(depth);
    }
    done as f64 / started.elapsed().as_secs_f64()
}

fn main() {
    for (name, features) in [("event index", DRIVER_FEATURES), ("no event index", DRIVER_FEATURES & !EVENT_IDX)] {
        for depth in [1, 8, 64] {
            println!("{name:>15}, {depth:2} in flight: {:9.0} requests/s", measure(features, depth));
        }
    }
}
