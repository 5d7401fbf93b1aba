//! File system and archive formats. Each is a pure function from a tree to a plan ([`Format`]); some are read back
//! into a tree as well ([`Opened`]). Nothing else in the program knows what a format's bytes mean.

#![forbid(unsafe_code)]

mod archive;
mod assemble;
pub mod cpio;
pub mod erofs;
pub mod ext4;
mod host;
mod notes;
pub mod oci;
mod plan;
pub mod probe;
mod read;
mod registry;
mod spool;
pub mod squashfs;
pub mod tar;
mod walk;

pub use host::{Accounts, Host, ThisHost};
pub use plan::{
    Algorithm, Compression, Format, FormatError, ImageOptions, Layout, Pack, Piece, Planned, Progress, Sink, Stream,
};
pub use read::{Damage, Opened, ReadError};
pub use registry::{Reader, format_by_extension, format_by_name, formats, reader_by_name, readers};
