//! The virtio block device (virtio 1.2, section 5.2): serves a [`BlockDevice`] as a guest's disk.

mod config;
mod disk;
mod request;

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

pub use config::{BLOCK_SIZE, MAX_RANGE_SECTORS, MAX_RANGES, MAX_REQUEST_BYTES, SECTOR_SIZE};
pub use disk::VirtioBlk;
use inarch_server::Pending;
pub use inarch_server::{BlockDevice, StopHandle};

use crate::call::LeftBehind;
use crate::event::{Event, EventSink};
use crate::serve::{self, ServeError};

/// Bytes of a serial number (`VIRTIO_BLK_ID_BYTES`).
pub const SERIAL_SIZE: usize = 20;

/// A disk's serial number: at most [`SERIAL_SIZE`] bytes, the rest zeros. Linux shows it as
/// `/sys/block/*/serial`, udev as `/dev/disk/by-id/virtio-*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serial([u8; SERIAL_SIZE]);

impl Serial {
    /// The bytes, padded with zeros.
    pub fn as_bytes(&self) -> &[u8; SERIAL_SIZE] {
        &self.0
    }
}

/// Uses the first [`SERIAL_SIZE`] bytes.
impl From<&str> for Serial {
    fn from(text: &str) -> Serial {
        let mut serial = [0; SERIAL_SIZE];
        for (byte, from) in serial.iter_mut().zip(text.bytes()) {
            *byte = from;
        }
        Serial(serial)
    }
}

/// What the guest learns about its disk before the device exists.
#[derive(Clone, Copy, Debug)]
pub struct BlkOptions {
    /// Request queues, at least 1; each gets a thread. Usually the number of the guest's processors.
    pub queues: u16,
    /// Bytes of the disk. Requests beyond the real device's size fail.
    pub capacity: u64,
    /// Bytes of a logical block, the guest's smallest request: a power of 2 from 512 on.
    pub block_size: u32,
    /// Offer the disk as read-only.
    pub read_only: bool,
    /// The serial number.
    pub serial: Serial,
}

impl Default for BlkOptions {
    fn default() -> Self {
        BlkOptions { queues: 1, capacity: 0, block_size: BLOCK_SIZE, read_only: false, serial: Serial::default() }
    }
}

/// Serves a block device over vhost-user.
pub struct BlkServer<D> {
    device: Arc<Pending<D>>,
    options: BlkOptions,
    events: EventSink,
    left_behind: LeftBehind,
}

impl<D: BlockDevice> BlkServer<D> {
    /// A server of `device`, which may still be under construction: `options` answers for the configuration space, and
    /// requests wait.
    pub fn new(device: Arc<Pending<D>>, options: BlkOptions) -> BlkServer<D> {
        BlkServer { device, options, events: Arc::new(|_| {}), left_behind: LeftBehind::default() }
    }

    /// Calls `sink` for failures that do not end the server, from the queues' threads.
    pub fn on_event(self, sink: impl Fn(Event) + Send + Sync + 'static) -> BlkServer<D> {
        BlkServer { events: Arc::new(sink), ..self }
    }

    /// Serves one connected front end, such as the other end of a socket that QEMU inherited, until it disconnects.
    ///
    /// # Errors
    /// The front end breaks the protocol; its rings are stopped.
    pub fn serve_stream(&self, stream: UnixStream) -> Result<(), ServeError> {
        serve::serve_stream(stream, self.connect(), Arc::clone(&self.events), &self.left_behind)
    }

    /// Accepts front ends, one after the other, until `stop` is used.
    ///
    /// # Errors
    /// The listening socket fails. A front end that breaks the protocol only loses its own connection.
    pub fn serve_listener(&self, listener: UnixListener, stop: &StopHandle) -> Result<(), ServeError> {
        while let Some(stream) = serve::accept(&listener, stop)? {
            if let Err(error) = self.serve_until_stopped(stream, stop) {
                (self.events)(serve::lost(error));
            }
        }
        Ok(())
    }

    /// Accepts one front end and serves it until it disconnects, or `stop` is used.
    ///
    /// # Errors
    /// As [`BlkServer::serve_stream`], or the listening socket fails.
    pub fn serve_one(&self, listener: UnixListener, stop: &StopHandle) -> Result<(), ServeError> {
        match serve::accept(&listener, stop)? {
            Some(stream) => self.serve_until_stopped(stream, stop),
            None => Ok(()),
        }
    }

    fn serve_until_stopped(&self, stream: UnixStream, stop: &StopHandle) -> Result<(), ServeError> {
        serve::serve_until_stopped(stream, self.connect(), Arc::clone(&self.events), &self.left_behind, stop)
    }

    /// A device for a new driver.
    fn connect(&self) -> Arc<VirtioBlk<D>> {
        Arc::new(VirtioBlk::new(Arc::clone(&self.device), self.options, Arc::clone(&self.events)))
    }
}
