//! A device's bytes, computed or fetched when they are asked for.
//!
//! A [`BlockMap`] says what each block of a device is: zeros, metadata that a format renders, or a range of a file
//! of the tree. A [`Device`] is a block map with the [`Content`] of the tree's files
//! behind it ([`HostFiles`], or [`BackedFiles`] in an archive or image) and a copy-on-write
//! [`Overlay`] on top. A read takes its way in this order:
//!
//! 1. the overlay says which of the clusters were written or zeroed; those come from its file, or are zeros;
//! 2. the map says what the others are: zeros, metadata to render, or blocks of a file;
//! 3. a file's blocks are read straight into the reader's buffers, then its attributes are compared with the tree's; if it
//!    changed, they are read from the copy that is held of it, if there is one.

#![deny(unsafe_code)]

mod backing;
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
#[allow(unsafe_code, reason = "preadv and pwritev on memory that a guest shares")]
mod scatter;
mod seen;
mod write;

pub use backing::{BackedFiles, Backing, BackingFile, read_backing};
pub use changed::{ChangeReason, ChangedFile, ChangedFiles};
pub use content::{Borrower, Content, Lent, Renumbered, read_content};
pub use device::{Allocation, Device, Origin};
pub use events::Events;
pub use held::{Allowance, Hold, take_least_priority};
pub use host::HostFiles;
pub use image::write_image;
pub use map::{BLOCK_SIZE, BlockMap, FileExtent, Inlay, MapError, Metadata, Run};
pub use overlay::{Overlay, OverlayError};
pub use scatter::Cursor;
pub use write::{
    DeviceSink, FileSink, MapParts, Part, PastCache, Placed, Progress, SHARE_FROM, Sink, Source, Verifier, WriteError,
    Written, stream_parts, write_parts,
};
