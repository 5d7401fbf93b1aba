//! Guests: their kernel, the machine they run in, and the process that is that machine.

pub mod accel;
pub mod kernel;
pub mod machine;
pub mod process;
pub mod qemu;

pub use accel::{Accel, AccelChoice};
pub use machine::{Disk, Machine, Source, vhost_user_blk_arguments};
