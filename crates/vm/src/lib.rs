//! Guests: their kernel, the machine they run in, and the process that is that machine.

pub mod accel;
pub mod agent;
mod counter;
pub mod cpio;
pub mod initramfs;
pub mod kernel;
pub mod machine;
mod module_file;
pub mod modules;
pub mod process;
pub mod protocol;
pub mod qemu;
pub mod session;

pub use accel::{Accel, AccelChoice};
pub use machine::{Disk, Machine, Share, Source, vhost_user_blk_arguments};
