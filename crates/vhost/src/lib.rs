//! vhost-user devices: virtio devices of a virtual machine that this process implements.
//!
//! A front end (QEMU, cloud-hypervisor and others) connects to a Unix socket, shares the guest's memory and hands over
//! the virtqueues. From then on the guest's driver talks to this process directly.
//!
//! 1. [`blk::BlkServer`], [`fs::FsServer`] or [`vsock::VsockServer`] takes a connected socket, or accepts on a
//!    listening one.
//! 2. The connection answers the front end's control messages: features, configuration space, memory regions and ring
//!    addresses. The `vhost` crate encodes and decodes them.
//! 3. Each virtqueue that the front end starts gets a thread. It sleeps until the driver kicks, takes every available
//!    request, and interrupts the guest once.
//! 4. A request is a descriptor chain. The device parses and executes it: [`blk`], a disk; [`fs`], a file system; or
//!    [`vsock`], connections from the guest to this process.
//!
//! A socket can be served before its device exists: see [`Pending`].
//!
//! Nothing that a guest writes to its rings or buffers ends a thread or the process. An invalid request gets an error
//! status; an invalid ring is stopped until the driver resets it. If a front end truncates its memory, only its own
//! connection ends.
//!
//! ```no_run
//! use std::os::unix::net::UnixListener;
//! use std::sync::Arc;
//! use inarch_vhost::blk::{BlkOptions, BlkServer, BlockDevice};
//! use inarch_vhost::{Pending, StopHandle};
//!
//! fn serve(disk: impl BlockDevice) -> Result<(), Box<dyn std::error::Error>> {
//!     let options = BlkOptions { capacity: disk.capacity(), ..BlkOptions::default() };
//!     let server = BlkServer::new(Arc::new(Pending::ready(Arc::new(disk))), options);
//!     server.serve_listener(UnixListener::bind("/run/disk.sock")?, &StopHandle::new()?)?;
//!     Ok(())
//! }
//! ```

#![deny(unsafe_code)]

pub mod blk;
mod buffers;
mod call;
mod connection;
mod deferred;
mod device;
mod event;
mod faults;
pub mod fs;
mod memory;
mod padded;
mod serve;
mod vring;
pub mod vsock;

pub use deferred::{Deferred, DeferredRequests};
pub use device::VirtioDevice;
pub use event::Event;
pub use inarch_server::{Pending, StopHandle};
pub use memory::{GuestMemory, Region};
pub use serve::ServeError;
pub use vring::{Served, Stop, VringError, process_available, process_deferring};
