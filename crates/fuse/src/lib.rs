//! A FUSE server: executes a Linux kernel's requests for files, whatever transport brings them.
//!
//! - [`wire`] encodes and parses the protocol. It makes no system call.
//! - [`Dispatcher`] has a [`FileSystem`](inarch_vfs::FileSystem) execute a request, and puts the answer into memory that
//!   the transport names. One transport is here; another is the virtiofs device.
//! - [`Session`] is the transport for `/dev/fuse`, with several threads or io_uring, and without libfuse. `inarch-mount`
//!   makes the mount.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use inarch_fuse::{Session, SessionOptions};
//! use inarch_mount::{FuseAccess, Mount};
//! use inarch_vfs::{HostDirectory, HostOptions};
//!
//! let source = Path::new("/usr/share");
//! let files = HostDirectory::new(source, HostOptions { read_only: true, ..HostOptions::default() })?;
//! let (mount, device) = Mount::fuse(Path::new("/mnt"), source, FuseAccess::Read)?;
//! Session::new(device, Arc::new(files), SessionOptions::default()).run()?; // until it is unmounted
//! drop(mount);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod dispatch;
mod session;
pub mod wire;

pub use dispatch::{ConnectionOptions, Dispatcher, MAX_DATA, ReadDirPlus, RequestCounts, Scratch};
pub use session::{RingSupport, Rings, Session, SessionError, SessionOptions};
