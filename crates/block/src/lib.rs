//! [`Device`]: a block device whose bytes are computed or fetched when they are read, with a copy-on-write overlay.
//!
//! A [`BlockMap`] says what each block of a device is: zeros, metadata that a format renders, or a range of a file of
//! the tree. A [`Device`] is a block map with the [`Content`] of the tree's files below it ([`HostFiles`], or
//! [`BackedFiles`] in an archive or image) and an [`Overlay`] on top. A read takes these steps:
//!
//! 1. The overlay says which clusters were written or zeroed. Those come from its file, or are zeros.
//! 2. The map says what the other clusters are: zeros, metadata to render, or blocks of a file.
//! 3. A file's blocks are read straight into the reader's buffers; then the file's attributes are compared with the
//!    tree's. If it changed, the read uses the held copy; without one it fails.
//!
//! What serves a device knows it as a [`BlockDevice`], which may still be under construction ([`Pending`]).
//!
//! This crate also writes devices and archives to image files ([`write_parts`]).
//!
//! ```
//! use std::sync::Arc;
//! use inarch_block::{BLOCK_SIZE, BlockMap, Device, HostFiles, Metadata, Overlay};
//! use inarch_tree::{Attributes, Builder};
//!
//! /// A format's renderer: here each metadata block holds its own number.
//! struct Numbers;
//!
//! impl Metadata for Numbers {
//!     fn render(&self, block: u64, out: &mut [u8; BLOCK_SIZE]) {
//!         out[..8].copy_from_slice(&block.to_le_bytes());
//!     }
//! }
//!
//! let root = Attributes { mode: 0o040755, ..Attributes::default() };
//! let tree = Arc::new(Builder::new(&root)?.finish()?);
//! let files = HostFiles::new(std::fs::File::open("/")?.into(), tree, HostFiles::default_max_open());
//! // Four blocks: the second and third are metadata, the others are zeros.
//! let map = BlockMap::new(4, vec![1..3], vec![], Arc::new(Numbers))?;
//! let overlay = Overlay::ephemeral(&std::env::temp_dir(), 4)?;
//! let device = Device::new(map, Arc::new(files), Some(overlay), 4);
//!
//! let mut bytes = [0; 8];
//! device.read_at(2 * BLOCK_SIZE as u64, &[bytes.as_mut_slice().into()])?;
//! assert_eq!(u64::from_le_bytes(bytes), 2);
//! device.write_at(0, &[bytes.as_mut_slice().into()])?; // goes to the overlay
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod backing;
mod block_device;
mod changed;
mod content;
mod device;
mod events;
mod files;
mod held;
mod host;
mod image;
mod map;
mod open;
mod overlay;
mod pending;
mod raw_disk;
mod read_files;
#[allow(unsafe_code, reason = "preadv and pwritev on memory that a guest shares")]
mod scatter;
mod seen;
mod write;
#[allow(unsafe_code, reason = "sync_file_range(2)")]
mod writeback;

pub use backing::{Asked, BackedFiles, Backing, BackingFile, read_backing};
pub use block_device::BlockDevice;
pub use changed::{ChangeReason, ChangedFile, ChangedFiles};
pub use content::{Borrower, Content, Lent, Renumbered, read_content};
pub use device::{Allocation, Device, Origin};
pub use events::Events;
pub use held::{Allowance, Hold, take_least_priority};
pub use host::HostFiles;
pub use image::write_image;
pub use map::{BLOCK_SIZE, BlockMap, FileExtent, Inlay, MapError, Metadata, Run};
pub use overlay::{Overlay, OverlayError, Seal};
pub use pending::Pending;
pub use raw_disk::RawDisk;
pub use read_files::ReadFiles;
pub use scatter::Cursor;
pub use write::{
    DeviceSink, FileSink, ImageSource, MapParts, Part, PastCache, Placed, Progress, Sink, Verifier, WriteError,
    Written, stream_parts, usual_threads, write_parts,
};
pub use writeback::Writeback;
