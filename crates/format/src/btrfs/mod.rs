//! Reads Btrfs on demand: one device's image, with one subvolume as the root and those that are linked below it as
//! directories.
//!
//! 1. `superblock` reads the superblock, `chunks` tells which bytes of the device a logical address stands for, and
//!    `blocks` reads the blocks of trees (`block`) with their checksums. Of two copies, a sound one is taken.
//! 2. `search` finds keys in trees, `subvolumes` the trees of subvolumes, `numbers` gives their inodes numbers of their own.
//! 3. `volume` answers questions about one node: `inodes`, `names` and `directories` its metadata, `extents` where its
//!    content is, `content` reads that. Content that is not compressed stays where it is; `decode` and `lzo` decompress the
//!    rest when it is read, with a bounded cache.
//! 4. `pass` bounds a walk over all of them.
//!
//! Blocks must have the keys, level and generation that the block above says, as in the kernel. So no tree is a circle.
//! Checksums of content are not checked. The log of fsync(2) is not replayed; if there is one, [`Volume::notes`] says so.

mod block;
mod blocks;
mod checksum;
mod chunks;
mod content;
mod decode;
mod directories;
mod extents;
mod inodes;
mod listed;
mod lzo;
mod names;
mod numbers;
mod pass;
mod search;
mod space;
mod spec;
mod subvolumes;
mod superblock;
mod volume;

use std::io;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_volume::{Volume, VolumeError};

use crate::probe::{Likeness, bytes_at};
use crate::{Damage, ReadError, Reader, TreeAndContent};
use volume::BtrfsVolume;

/// The format's name on the command line and in messages.
const NAME: &str = "btrfs";

/// The reader, for the registry.
pub(crate) const READER: Reader =
    Reader { name: NAME, title: "a Btrfs file system", packs: true, probe, open: open_volume };

/// By the first superblock's magic number.
fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    let at = spec::superblock::OFFSETS.first().copied().unwrap_or_default() + spec::superblock::MAGIC_AT;
    Ok(Likeness::certain(bytes_at(image, at)? == Some(spec::superblock::MAGIC)))
}

/// The subvolume that is the root of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Root {
    /// The one that is mounted if none is named: that of `btrfs subvolume set-default`, otherwise the top one.
    #[default]
    Default,
    /// The one with this number: 5 for the top one. mount(8) has it as `subvolid`.
    Id(u64),
    /// The one at this path from the top on. mount(8) has it as `subvol`.
    Path(Vec<u8>),
}

/// How to read a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Which subvolume is the root.
    pub root: Root,
    /// What becomes of damage.
    pub damage: Damage,
}

/// Opens the default subvolume for reading on demand. Reads and checks the superblock, the chunks, and the subvolume's root.
///
/// Fails if the image needs other devices for that, or uses what is not supported: zones, RAID5 and RAID6, extent trees of
/// version 2.
pub fn open_volume(parsing: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    open_volume_with(parsing, image, &ReadOptions { damage, ..ReadOptions::default() })
}

/// Like [`open_volume`], with any subvolume as the root.
pub fn open_volume_with(
    _: Parsing,
    image: Arc<dyn Backing>,
    options: &ReadOptions,
) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(BtrfsVolume::open(image, options)?))
}

/// A subvolume, as [`subvolumes()`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSubvolume {
    /// Its number.
    pub id: u64,
    /// Where it is, from the top on, without a slash in front.
    pub path: Vec<u8>,
    /// Whether it was made as a snapshot of another.
    pub is_snapshot: bool,
    /// Whether it may not be written to.
    pub is_read_only: bool,
    /// Whether it is mounted if none is named.
    pub is_default: bool,
}

/// The subvolumes of a file system but for the top one, by number: at most 10,000. Those that are damaged or deleted are left out.
///
/// # Errors
/// The file system cannot be read.
pub fn subvolumes(_: Parsing, image: Arc<dyn Backing>) -> Result<Vec<ListedSubvolume>, ReadError> {
    let options = ReadOptions { root: Root::Id(TOP), damage: Damage::Salvaged };
    let volume = BtrfsVolume::open(image, &options)?;
    volume.listed().map_err(|error| ReadError::of_volume(NAME, error))
}

/// The number of the subvolume that all others are below.
pub const TOP: u64 = spec::TOP_LEVEL;

/// Opens a subvolume and walks it, with all subvolumes below. With salvaged damage, unreadable directories, inodes and parts
/// of files are left out.
pub fn open(parsing: Parsing, image: Arc<dyn Backing>, options: &ReadOptions) -> Result<TreeAndContent, ReadError> {
    TreeAndContent::walk(parsing, open_volume_with(parsing, image, options)?, options.damage)
}

/// An error of the image.
fn damaged(reason: impl Into<String>) -> VolumeError {
    VolumeError::Damaged(reason.into())
}

/// An error of what is not read here.
fn unsupported(reason: impl Into<String>) -> VolumeError {
    VolumeError::Unsupported(reason.into())
}

/// The same error, about `what`.
fn about(what: &str, error: VolumeError) -> VolumeError {
    match error {
        VolumeError::Damaged(reason) => VolumeError::Damaged(format!("{what} {reason}")),
        other => other,
    }
}
