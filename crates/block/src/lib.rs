//! A device's bytes, computed or fetched when they are asked for.
//!
//! A [`BlockMap`] says what each block of a device is: zeros, metadata that a format renders, or a range of a file
//! of the tree. A `Device` is a block map with the tree's files behind it and a copy-on-write `Overlay` on top.

mod map;

pub use map::{BLOCK_SIZE, BlockMap, FileExtent, MapError, Metadata, Run};
