//! What every server of a device needs, whatever it speaks.
//!
//! - [`BlockDevice`]: what a server asks of the device behind it.
//! - [`Pending`]: a device that may still be in the making, so that a server can listen before there is anything to serve.
//! - [`StopHandle`]: ends a server from another thread.

#![forbid(unsafe_code)]

mod device;
mod pending;
mod stop;

pub use device::BlockDevice;
pub use inarch_block::Allocation;
pub use pending::Pending;
pub use stop::{Attached, StopHandle};
