//! What all servers share, whatever protocol they speak: devices, clients, connections and stopping.
//!
//! - [`BlockDevice`]: what a server asks of the device behind it.
//! - [`Pending`]: a device that may still be under construction, so that a server can listen before it exists.
//! - [`StopHandle`]: ends a server from another thread.
//! - [`Listener`], [`Clients`]: accept and count clients, and serve each in a thread of its own.
//! - [`Receiver`], [`Sender`]: whole messages from and to a client, with timeouts.

#![forbid(unsafe_code)]

mod connection;
mod listener;
mod stop;

pub use connection::{ConnectionError, Receiver, Sender, prepare};
pub use inarch_block::{Allocation, BlockDevice, Pending};
pub use listener::{Clients, Listener};
pub use stop::{Attached, StopHandle};
