//! Reads F2FS on demand, as Linux's include/linux/f2fs_fs.h has it. All numbers are little-endian.
//!
//! 1. `checkpoint` reads one of the two superblocks, and takes the newer of two checkpoints that are whole. The checkpoint says which copy of each
//!    block of the NAT (node address table) counts, and has the newest entries in a journal.
//! 2. `nodes` finds the block of a node by its number, and goes through the addresses of a file's blocks: those in the inode, and in nodes below it.
//!    Each node names its file and its place in the file, so that no node counts twice.
//! 3. `names` reads directories, whose entries are in blocks or in the inode; `xattrs` extended attributes.
//! 4. `volume` answers questions about one node, which is the inode's number. `pass` bounds a walk over all of them.
//!
//! Content stays where it is. Compressed and encrypted files are refused by name. Inarch does not look for what fsync(2) wrote after the last
//! checkpoint; [`Volume::notes`] says so if the file system was not unmounted.

mod checkpoint;
mod names;
mod nodes;
mod pass;
mod volume;
mod xattrs;

use std::io;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_volume::{Volume, VolumeError};

use crate::probe::{Likeness, bytes_at};
use crate::{Damage, ReadError, Reader};

const NAME: &str = "f2fs";

/// Bytes of a block. Other sizes are those of machines with larger pages.
const BLOCK: usize = 4096;

/// The reader, for the registry.
pub(crate) const READER: Reader =
    Reader { name: NAME, title: "an F2FS file system", packs: false, probe, open: open_volume };

fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    Ok(Likeness::certain(bytes_at(image, checkpoint::SUPERBLOCK)? == Some(checkpoint::MAGIC.to_le_bytes())))
}

/// Opens an F2FS for reading on demand. Reads and checks the superblock, a checkpoint and the root.
///
/// Fails if they are damaged, or if the file system lies on several devices or has blocks of another size than 4096 bytes.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(volume::F2fsVolume::open(image, damage)?))
}

fn damaged(reason: impl Into<String>) -> VolumeError {
    VolumeError::Damaged(reason.into())
}

fn unsupported(reason: impl Into<String>) -> VolumeError {
    VolumeError::Unsupported(reason.into())
}

/// A number at a place; zero where there is none, which does not happen within a block.
fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(number(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(number(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}
