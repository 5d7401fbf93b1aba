//! `inarch disk create`, `partition`, `format` and `compare-mkfs`: make disk images, without root and without loop devices.
//!
//! - [`create`]: an empty image of any size.
//! - [`partition`]: a partition table in one.
//! - [`format`](mod@format): a file system on a partition, made by the host's own tools ([`tools`]) in a sparse file beside the image, whose data are then
//!   moved to their place.
//! - [`compare`]: what those tools make of disks of many sizes.

pub mod compare;
pub mod create;
mod error;
pub mod format;
mod image;
mod mkfs;
mod moved;
pub mod partition;
pub mod tools;

pub use error::MakeError;
pub use inarch_disk::table::{PartKind, Placed, TableError, Wanted};
