//! What every server of a device needs, whatever it speaks.
//!
//! - [`BlockDevice`]: what a server asks of the device behind it.
//! - [`Pending`]: a device that may still be in the making, so that a server can listen before there is anything to serve.
//! - [`StopHandle`]: ends a server from another thread.
//! - [`Listener`], [`Clients`]: clients are accepted, counted and served, each in a thread of its own.
//! - [`Receiver`], [`Sender`]: whole messages from and to a client, with patience that ends.

#![forbid(unsafe_code)]

mod connection;
mod device;
mod listener;
mod pending;
mod stop;

pub use connection::{ConnectionError, Receiver, Sender, prepare};
pub use device::BlockDevice;
pub use inarch_block::Allocation;
pub use listener::{Clients, Listener};
pub use pending::Pending;
pub use stop::{Attached, StopHandle};
