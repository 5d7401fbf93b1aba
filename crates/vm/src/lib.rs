//! Runs guests: their kernel, their virtual machine, QEMU's process, and the session with the agent.

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
pub use machine::{Disk, Endpoint, Machine, Share, vhost_user_blk_arguments};
