//! What all servers share, whatever protocol they speak: devices, clients, connections and stopping.
//!
//! - [`BlockDevice`]: what a server asks of the device behind it.
//! - [`Pending`]: a device that may still be under construction, so that a server can listen before it exists.
//! - [`StopHandle`]: ends a server from another thread.
//! - [`Listener`], [`Clients`]: accept and count clients, and serve each in a thread of its own.
//! - [`Receiver`], [`Sender`]: whole messages from and to a client, with timeouts.
//!
//! ```
//! use std::sync::Arc;
//! use std::thread;
//! use inarch_server::Pending;
//!
//! let pending = Arc::new(Pending::new());
//! let serving = thread::spawn({
//!     let pending = Arc::clone(&pending);
//!     move || pending.wait() // a request waits for its device
//! });
//! pending.set(Ok(Arc::new("a device")));
//! assert_eq!(serving.join().unwrap(), Ok(Arc::new("a device")));
//! ```

#![forbid(unsafe_code)]

mod connection;
mod listener;
mod stop;

pub use connection::{ConnectionError, Receiver, Sender, prepare};
pub use inarch_block::{Allocation, BlockDevice, Pending};
pub use listener::{Clients, Listener, Seat};
pub use stop::{Attached, StopHandle};
