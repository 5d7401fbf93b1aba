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
#[allow(unsafe_code, reason = "preadv and pwritev on memory that a guest shares")]
mod scatter;
mod seen;
mod write;

pub use backing::{BackedFiles, Backing, BackingFile, read_backing};
pub use block_device::BlockDevice;
pub use changed::{ChangeReason, ChangedFile, ChangedFiles};
pub use content::{Borrower, Content, Lent, Renumbered, read_content};
pub use device::{Allocation, Device, Origin};
pub use events::Events;
pub use held::{Allowance, Hold, take_least_priority};
pub use host::HostFiles;
pub use image::write_image;
pub use map::{BLOCK_SIZE, BlockMap, FileExtent, Inlay, MapError, Metadata, Run};
pub use overlay::{Overlay, OverlayError};
pub use pending::Pending;
pub use scatter::Cursor;
pub use write::{
    DeviceSink, FileSink, ImageSource, MapParts, Part, PastCache, Placed, Progress, SHARE_FROM, Sink, Verifier,
    WriteError, Written, stream_parts, usual_threads, write_parts,
};
