//! vhost-user devices: virtio devices of a virtual machine that this process implements.
//!
//! A front end (QEMU, cloud-hypervisor, ...) connects to a Unix socket, shares the guest's memory and hands over the
//! virtqueues; from then on the guest's driver talks to this process without the front end in between.
//!
//! 1. [`blk::BlkServer`], [`fs::FsServer`] or [`vsock::VsockServer`] takes a connected socket, or accepts on a listening one.
//! 2. The connection answers the front end's control messages: features, configuration space, memory regions and the
//!    addresses of the rings. The wire format is the `vhost` crate's.
//! 3. Each virtqueue that the front end starts gets a thread. It sleeps until the driver kicks, takes every request
//!    that is available, and interrupts the guest once.
//! 4. A request is a chain of descriptors, parsed and executed by the device: [`blk`], a disk, [`fs`], a file system, or
//!    [`vsock`], connections of the guest to this process.
//!
//! The socket can be served before the device behind it exists: see [`Pending`].
//!
//! Nothing that a guest writes into its rings or buffers ends a thread or the process: a request that makes no sense
//! is answered with an error status, a ring that makes no sense is stopped until the driver resets it. Memory that a front end
//! takes away ends its connection, and no other one.

#![deny(unsafe_code)]

pub mod blk;
mod buffers;
mod connection;
mod device;
mod event;
mod faults;
pub mod fs;
mod memory;
mod serve;
mod vring;
pub mod vsock;

pub use device::VirtioDevice;
pub use event::Event;
pub use inarch_server::{Pending, StopHandle};
pub use memory::{GuestMemory, Region};
pub use serve::ServeError;
pub use vring::{Served, Stop, VringError, process_available};
