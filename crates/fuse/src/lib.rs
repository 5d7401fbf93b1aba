//! The FUSE protocol's server: what executes requests of a Linux kernel for files, whichever way they come.
//!
//! - [`wire`]: what the kernel's bytes mean; parsed and made there, without any system call.
//! - [`Dispatcher`]: has a [`FileSystem`](inarch_vfs::FileSystem) execute a request and makes the answer, in pieces of
//!   memory that a transport names. One transport is here, another one is the virtiofs device.
//! - [`Session`]: takes requests from `/dev/fuse` in several threads, or by io_uring, and sends the answers, without libfuse;
//!   `inarch-mount` puts it somewhere in the file tree.

#![deny(unsafe_code)]

mod dispatch;
mod session;
pub mod wire;

pub use dispatch::{ConnectionOptions, Dispatcher, MAX_DATA, MAX_MESSAGE, ReadDirPlus, Scratch};
pub use session::{RingSupport, Rings, Session, SessionError, SessionOptions};
