//! Parses the superblock.

use inarch_volume::VolumeError;
use zerocopy::FromBytes;

use super::image::Image;
use super::{NAME, damaged, unreadable};
use crate::erofs::spec::superblock::{MAGIC, OFFSET, Superblock, checksum, compat, incompat};
use crate::{Damage, ReadError};

/// The supported incompatible features.
const KNOWN: u32 = incompat::ZERO_PADDING
    | incompat::COMPR_CFGS
    | incompat::CHUNKED_FILE
    | incompat::DEVICE_TABLE
    | incompat::ZTAILPACKING
    | incompat::FRAGMENTS
    | incompat::XATTR_PREFIXES
    | incompat::BIT48;

/// A file system's parameters.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    /// The binary logarithm of bytes in a block: 9 to 16.
    pub(crate) block_bits: u32,
    /// Byte that inode numbers count from.
    pub(crate) inodes_start: u64,
    /// Byte that addresses of shared attributes count from.
    pub(crate) xattrs_start: u64,
    pub(crate) root_nid: u64,
    /// Seconds since 1970, and nanoseconds, of compact inodes.
    pub(crate) epoch: i64,
    pub(crate) epoch_nanoseconds: u32,
    /// The inode that holds fragments of others.
    pub(crate) packed_nid: Option<u64>,
    /// How many prefixes of attribute names there are, the byte they start at, and whether that is one of the image
    /// and not of the packed inode.
    pub(crate) prefix_count: u8,
    pub(crate) prefixes_start: u64,
    pub(crate) prefixes_plain: bool,
    /// How many blocks and inodes there are.
    pub(crate) blocks: u64,
    pub(crate) inodes: u64,
}

impl Parameters {
    /// Reads and checks the superblock. With salvaged damage, errors that do not matter become `notes`.
    pub(crate) fn read(image: &Image, damage: Damage, notes: &mut Vec<String>) -> Result<Parameters, ReadError> {
        let superblock = Parameters::superblock(image).map_err(unreadable)?;
        for check in [check_length, check_sum] {
            match check(image, &superblock) {
                Err(VolumeError::Damaged(reason)) => notes.push(damage.or_refuse(NAME, reason)?),
                other => other.map_err(unreadable)?,
            }
        }
        Ok(Parameters::new(&superblock))
    }

    fn superblock(image: &Image) -> Result<Superblock, VolumeError> {
        let mut bytes = [0; 128];
        if !image.holds(OFFSET as u64, bytes.len() as u64) {
            let size = image.size();
            return Err(damaged(format!("{size} bytes are too few for an image, which has its superblock at 1024")));
        }
        image.read(OFFSET as u64, &mut bytes)?;
        let Ok(superblock) = Superblock::read_from_bytes(&bytes) else {
            return Err(damaged("internal: a superblock has 128 bytes"));
        };
        if superblock.magic.get() != MAGIC {
            let found = superblock.magic.get();
            return Err(damaged(format!("no superblock: byte 1024 holds {found:#010x}, not {MAGIC:#010x}")));
        }
        check_features(&superblock)?;
        Ok(superblock)
    }

    fn new(superblock: &Superblock) -> Parameters {
        let features = superblock.feature_incompat.get();
        let block_bits = u32::from(superblock.block_bits);
        let bit48 = features & incompat::BIT48 != 0;
        let long_root = superblock.root_nid_long.get();
        let packed = superblock.packed_nid.get();
        let prefixes = features & incompat::XATTR_PREFIXES != 0;
        let plain = superblock.feature_compat.get() & compat::PLAIN_XATTR_PFX != 0 || packed == 0;
        Parameters {
            block_bits,
            inodes_start: u64::from(superblock.meta_block.get()) << block_bits,
            xattrs_start: u64::from(superblock.xattr_block.get()) << block_bits,
            root_nid: if bit48 && long_root != 0 { long_root } else { superblock.root_nid.get().into() },
            epoch: superblock.epoch.get() as i64,
            epoch_nanoseconds: superblock.epoch_nanoseconds.get().min(999_999_999),
            packed_nid: (features & incompat::FRAGMENTS != 0 && packed != 0 || prefixes && !plain).then_some(packed),
            prefix_count: if prefixes { superblock.xattr_prefix_count } else { 0 },
            prefixes_start: u64::from(superblock.xattr_prefix_start.get()) << 2,
            prefixes_plain: plain,
            blocks: blocks(superblock),
            inodes: superblock.inodes.get(),
        }
    }

    /// Bytes of a block.
    pub(crate) fn block(&self) -> u64 {
        1 << self.block_bits
    }
}

fn check_features(superblock: &Superblock) -> Result<(), VolumeError> {
    let features = superblock.feature_incompat.get();
    if features & !KNOWN != 0 {
        let unknown = features & !KNOWN;
        return Err(damaged(format!("the features {unknown:#x} of the superblock are not supported")));
    }
    if !(9..=16).contains(&superblock.block_bits) || superblock.directory_block_bits != 0 {
        let (bits, more) = (superblock.block_bits, superblock.directory_block_bits);
        return Err(damaged(format!(
            "blocks of 2^{bits} bytes and directory blocks of 2^{more} of those are not supported"
        )));
    }
    let devices = superblock.extra_devices.get();
    if features & incompat::DEVICE_TABLE != 0 && devices > 0 {
        return Err(damaged(format!(
            "the content is on {devices} further devices; only images in one piece are supported"
        )));
    }
    Ok(())
}

/// How many blocks the file system has.
fn blocks(superblock: &Superblock) -> u64 {
    let wide = superblock.feature_incompat.get() & incompat::BIT48 != 0 && superblock.root_nid_long.get() != 0;
    let high = if wide { u64::from(superblock.root_nid.get()) << 32 } else { 0 };
    high | u64::from(superblock.blocks.get())
}

/// Whether all blocks of the file system are there.
fn check_length(image: &Image, superblock: &Superblock) -> Result<(), VolumeError> {
    let blocks = blocks(superblock);
    let (size, bits) = (image.size(), superblock.block_bits);
    match blocks.checked_mul(1 << bits) {
        Some(bytes) if bytes <= size => Ok(()),
        _ => Err(damaged(format!("the image was cut off: it has {size} bytes of {blocks} blocks of {}", 1u64 << bits))),
    }
}

fn check_sum(image: &Image, superblock: &Superblock) -> Result<(), VolumeError> {
    if superblock.feature_compat.get() & compat::SB_CHKSUM == 0 {
        return Ok(());
    }
    // The rest of the first block, or a whole block where blocks end before the superblock starts.
    let block = 1usize << superblock.block_bits;
    let mut bytes = vec![0; if block > OFFSET { block - OFFSET } else { block }];
    image.read(OFFSET as u64, &mut bytes)?;
    let (found, expected) = (superblock.checksum.get(), checksum(&bytes));
    if found != expected {
        return Err(damaged(format!(
            "the superblock's checksum is {found:#010x}, not {expected:#010x}: it is damaged"
        )));
    }
    Ok(())
}
