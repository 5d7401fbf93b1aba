//! The virtio block device: executes requests against a [`BlockDevice`].

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use inarch_server::{BlockDevice, Pending};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_S_OK,
};
use virtio_queue::DescriptorChain;
use vm_memory::Bytes;
use zerocopy::IntoBytes;

use super::config::{BlkConfig, OFFERED_SEGMENTS, WRITEBACK_OFFSET};
use super::request::{self, Failure, Operation, Range, Ranges};
use super::{BlkOptions, SERIAL_SIZE, Serial};
use crate::device::VirtioDevice;
use crate::event::{Event, EventSink};
use crate::memory::{GuestMemory, Pieces};
use crate::vring::Stop;

/// The device that one driver uses.
pub struct VirtioBlk<D> {
    device: Arc<Pending<D>>,
    options: BlkOptions,
    events: EventSink,
    /// Whether writes may be acknowledged before they are durable.
    writeback: AtomicBool,
}

impl<D: BlockDevice> VirtioBlk<D> {
    /// A device before feature negotiation.
    pub fn new(device: Arc<Pending<D>>, options: BlkOptions, events: EventSink) -> VirtioBlk<D> {
        VirtioBlk { device, options, events, writeback: AtomicBool::new(true) }
    }

    /// Executes an operation; returns the number of data bytes written to the guest's buffers.
    fn execute(&self, operation: Operation<'_>) -> Result<u64, Failure> {
        let device = match self.device.get() {
            Some(Ok(device)) => device,
            // There is an outcome: `is_ready` has checked that before the request was taken.
            Some(Err(_)) | None => return Err(Failure::IoError),
        };
        match operation {
            Operation::Read(range, pieces) => {
                self.check("read", range, device.read_at(range.offset, &pieces))?;
                Ok(range.length)
            }
            Operation::Write(range, pieces) => {
                self.check_writable(device)?;
                self.check("write", range, device.write_at(range.offset, &pieces))?;
                self.write_through(device)
            }
            Operation::Flush => self.flush(device),
            Operation::Identify(pieces) => identify(&self.options.serial, &pieces),
            Operation::Discard(ranges) => {
                self.check_writable(device)?;
                self.each(&ranges, "discard", |range, _| device.discard(range.offset, range.length))
            }
            Operation::WriteZeroes(ranges) => {
                self.check_writable(device)?;
                self.each(&ranges, "write zeroes", |range, unmap| {
                    device.write_zeroes(range.offset, range.length, unmap)
                })?;
                self.write_through(device)
            }
        }
    }

    fn check_writable(&self, device: &D) -> Result<(), Failure> {
        if self.options.read_only || device.read_only() { Err(Failure::IoError) } else { Ok(()) }
    }

    fn check(&self, operation: &'static str, range: Range, result: io::Result<()>) -> Result<(), Failure> {
        result.map_err(|error| {
            let Range { offset, length } = range;
            (self.events)(Event::RequestFailed { operation, offset, length, error });
            Failure::IoError
        })
    }

    fn each(
        &self,
        ranges: &Ranges,
        operation: &'static str,
        execute: impl Fn(Range, bool) -> io::Result<()>,
    ) -> Result<u64, Failure> {
        for (range, unmap) in ranges {
            self.check(operation, *range, execute(*range, *unmap))?;
        }
        Ok(0)
    }

    fn flush(&self, device: &D) -> Result<u64, Failure> {
        self.check("flush", Range { offset: 0, length: device.capacity() }, device.flush())?;
        Ok(0)
    }

    /// After a write: makes it durable before it is acknowledged, if the driver did not accept a write-back cache.
    fn write_through(&self, device: &D) -> Result<u64, Failure> {
        if self.writeback.load(Ordering::Relaxed) { Ok(0) } else { self.flush(device) }
    }

    /// The bytes that requests may access: the announced capacity, as far as the device has it.
    fn reachable(&self) -> u64 {
        match self.device.get() {
            Some(Ok(device)) => device.capacity().min(self.options.capacity),
            _ => self.options.capacity,
        }
    }

    /// Executes an operation; turns a panic of the device into a failure.
    fn execute_contained(&self, queue: u16, operation: Operation<'_>) -> Result<u64, Failure> {
        // We leave nothing half-changed. The device is usable from several threads after a panic, and detects what it
        // poisoned.
        catch_unwind(AssertUnwindSafe(|| self.execute(operation))).unwrap_or_else(|panic| {
            (self.events)(Event::RequestPanicked { queue, message: panic_message(&*panic) });
            Err(Failure::IoError)
        })
    }
}

impl<D: BlockDevice> VirtioDevice for VirtioBlk<D> {
    fn features(&self) -> u64 {
        let bits = [
            VIRTIO_BLK_F_MQ,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_CONFIG_WCE,
        ];
        let of_access: &[u32] = match self.options.read_only {
            true => &[VIRTIO_BLK_F_RO],
            false => &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES],
        };
        bits.iter().chain(of_access).fold(0, |features, bit| features | 1 << bit)
    }

    fn set_features(&self, features: u64) {
        // A driver that cannot flush expects every write to be durable (virtio 1.2, section 5.2.6.2).
        self.writeback.store(features & (1 << VIRTIO_BLK_F_FLUSH) != 0, Ordering::Relaxed);
    }

    fn queues(&self) -> u16 {
        self.options.queues
    }

    fn config(&self) -> Vec<u8> {
        let writeback = self.writeback.load(Ordering::Relaxed);
        let BlkOptions { capacity, block_size, queues, .. } = self.options;
        BlkConfig::new(capacity, block_size, queues, OFFERED_SEGMENTS, writeback).as_bytes().to_vec()
    }

    fn write_config(&self, offset: u32, data: &[u8]) -> bool {
        match (offset, data) {
            (WRITEBACK_OFFSET, [value @ (0 | 1)]) => {
                self.writeback.store(*value == 1, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    fn is_ready(&self, _queue: u16) -> bool {
        self.device.get().is_some()
    }

    fn wait_until_ready(&self, _queue: u16, stop: &Stop) {
        self.device.wait_unless(|| stop.is_set());
    }

    fn wake(&self) {
        self.device.wake();
    }

    fn handle<'a>(&self, queue: u16, chain: DescriptorChain<&'a GuestMemory>, memory: &'a GuestMemory) -> u32 {
        let request = request::parse(chain, memory, self.reachable());
        // Without a place for the status, return the buffers to the driver and do nothing.
        let Some(status) = request.status else { return 0 };
        let done = request.operation.and_then(|operation| self.execute_contained(queue, operation));
        let (code, data) = match done {
            Ok(data) => (VIRTIO_BLK_S_OK as u8, data),
            Err(failure) => (failure as u8, 0),
        };
        match status.write_obj(code, 0) {
            // The data is at most `MAX_REQUEST_BYTES`.
            Ok(()) => u32::try_from(data.saturating_add(1)).unwrap_or(u32::MAX),
            Err(_) => 0,
        }
    }
}

/// Copies the serial number to the guest's buffer, as far as it fits.
fn identify(serial: &Serial, pieces: &Pieces<'_>) -> Result<u64, Failure> {
    let mut rest: &[u8] = serial.as_bytes();
    for piece in pieces {
        let (now, later) = rest.split_at(rest.len().min(piece.len()));
        piece.write_slice(now, 0).map_err(|_| Failure::IoError)?;
        rest = later;
    }
    Ok((SERIAL_SIZE - rest.len()) as u64)
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
