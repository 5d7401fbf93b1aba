//! Reads XFS file systems, of version 4 (`crc=0`) and version 5.
//!
//! The facts are those of Linux's `fs/xfs/libxfs/` (`xfs_format.h`, `xfs_da_format.h`, `xfs_log_format.h`) and of "XFS
//! Algorithms & Data Structures", third edition. All numbers on the disk are big-endian; only checksums are
//! little-endian.

mod read;
mod spec;

use std::io;

use inarch_block::Backing;

pub use read::{open, open_volume, open_with};

use crate::Reader;
use crate::probe::{Likeness, bytes_at};

/// The format's name on the command line and in messages.
const NAME: &str = "xfs";

/// The reader, for the registry.
pub(crate) const READER: Reader =
    Reader { name: NAME, title: "an XFS file system", packs: false, probe, open: open_volume };

/// By the superblock's magic number.
fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    Ok(Likeness::certain(bytes_at(image, 0)? == Some(spec::superblock::MAGIC)))
}
