//! Runs guests: finds their kernel, describes their machine, starts it, and holds the session with the agent.
//!
//! 1. [`kernel`] finds a kernel and the form of it that boots fastest, [`modules`] the drivers that it lacks, and
//!    [`initramfs`] packs them with the [`agent`].
//! 2. [`accel`] decides between KVM and TCG.
//! 3. [`Machine`] describes the devices. [`qemu`] finds the program of a virtual machine, [`uml`] that of a process (User-Mode
//!    Linux), and [`process`] runs it so that it never outlives its starter.
//! 4. [`session`] runs one command through the agent: streams, signals, terminal, time limits. [`protocol`] is their wire.
//!
//! ```no_run
//! use std::path::Path;
//! use inarch_vm::kernel::Kernel;
//! use inarch_vm::kernel::cache::Cache;
//! use inarch_vm::qemu::Qemu;
//! use inarch_vm::{Accel, Arch, Endpoint, Machine};
//!
//! let kernel = Kernel::open(Path::new("/boot/vmlinuz"), Arch::X86_64, &Cache::at(Path::new("/var/cache/kernels")))?;
//! let (_console, end) = inarch_vm::process::console_pipe()?;
//! let machine = Machine::bare(kernel, Accel::Tcg, 1, 512 << 20, Endpoint::Descriptor(end));
//! let command = machine.command(&Qemu::find(Arch::X86_64)?);
//! # let _ = command;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod accel;
pub mod agent;
pub mod arch;
pub mod command;
mod counter;
pub mod cpio;
pub mod image_disk;
pub mod initramfs;
pub mod kernel;
pub mod machine;
mod module_file;
pub mod modules;
pub mod process;
pub mod protocol;
pub mod qemu;
pub mod session;
pub mod uml;

pub use accel::{Accel, AccelChoice};
pub use arch::Arch;
pub use machine::{Disk, Endpoint, Machine, Share, vhost_user_blk_arguments};
