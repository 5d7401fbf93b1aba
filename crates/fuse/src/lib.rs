//! Files of ours in the host's file tree: a server for `/dev/fuse`, without libfuse.
//!
//! - [`wire`]: what the kernel's bytes mean; parsed and made there, without any system call.
//! - [`Session`]: takes requests from `/dev/fuse` in several threads, has a [`FileSystem`] execute them, and answers.
//! - [`mount`]: puts a session somewhere in the file tree, by mount(2) or by fusermount3, and takes it away.
//! - [`ImageFile`]: a [`FileSystem`] of one file, whose content is a device.
//!
//! A session knows nothing of any file system: others are further implementations of the trait.

#![deny(unsafe_code)]

mod file_system;
mod image;
pub mod mount;
mod session;
pub mod wire;

pub use file_system::{
    Attributes, Context, DirectoryEntry, Entry, FileSystem, HandleId, NodeId, Opened, SetAttributes, Statistics,
};
pub use image::{ImageFile, ImageName};
pub use session::{Session, SessionError, SessionOptions};
