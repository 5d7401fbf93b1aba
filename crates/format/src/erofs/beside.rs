//! Plans EROFS metadata for files whose bytes are on another device: an archive or image, as it is.
//!
//! Blocks have 512 bytes, like the members of a tar. The first device holds, in this order: the superblock and the
//! record of the other device; inodes in the order of the tree, extended ones of 64 bytes, each file's followed by
//! its chunk map; directory listings and symlink targets, each in blocks of its own. This takes a few hundred bytes
//! for each file and is rendered all at once.

use inarch_block::Lent;
use inarch_tree::{FileType, InodeId, Tree};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::layout::directory::Listing;
use super::layout::{refuse, refuse_file};
use super::spec::directory::{DIRENT_SIZE, Dirent};
use super::spec::inode::{DataLayout, EXTENDED_SIZE, ExtendedInode, FORMAT_EXTENDED, chunk, encode_device, entry_type};
use super::spec::superblock::{DEVICE_SLOT, DeviceSlot, MAGIC, OFFSET, Superblock, compat, incompat};
use super::spec::{NULL_BLOCK, SLOT_SIZE};
use crate::FormatError;

/// Bytes of a block.
const BLOCK: u64 = 512;

/// The first inode, behind superblock and device record.
const INODES_START: u64 = 2048;

/// Bytes of a chunk's entry: the upper half of a block address, a device's number, the lower half.
const ENTRY: u64 = 8;

/// The most bytes of a name (`EROFS_NAME_LEN`).
const NAME_MAX: usize = 255;

/// The other device's number.
const DEVICE: u16 = 1;

/// Chunks have at most 1 GiB.
const CHUNK_MAX: u32 = 30;

/// The metadata of `tree`, as the bytes of the first device, for Linux 5.19 and later. `parts` returns where a file's
/// bytes are on the other device, which has `device_bytes`, without holes.
///
/// # Errors
/// A part does not begin at a multiple of 512 bytes; the metadata would exceed `limit` bytes; the tree has extended
/// attributes or something that no EROFS inode can hold; `parts` fails.
pub fn metadata_beside(
    tree: &Tree,
    device_bytes: u64,
    limit: u64,
    mut parts: impl FnMut(InodeId) -> Result<Vec<Lent>, String>,
) -> Result<Vec<u8>, FormatError> {
    FormatError::of_long_names(tree, "EROFS", NAME_MAX)?;
    let mut plan = Plan { nids: Vec::new(), chunks: Vec::new(), blocks: Vec::new() };
    let (mut inodes_end, mut listing_blocks) = (INODES_START, 0);
    for (id, inode) in tree.inodes() {
        if !tree.xattrs(inode.xattrs()).is_empty() {
            return Err(refuse_file(tree, id, "it has extended attributes"));
        }
        let map = match inode.file_type() {
            FileType::Regular => {
                let parts = parts(id).map_err(|reason| refuse_file(tree, id, reason))?;
                Chunks::new(inode.size(), parts, device_bytes).map_err(|reason| refuse_file(tree, id, reason))?
            }
            _ => Chunks::default(),
        };
        let blocks = listing_size(tree, id).div_ceil(BLOCK);
        let nid = u32::try_from(inodes_end / SLOT_SIZE);
        plan.nids.push(nid.map_err(|_| refuse("its inodes exceed 128 GiB"))?);
        plan.blocks.push(listing_blocks);
        inodes_end += (EXTENDED_SIZE + map.bytes()).next_multiple_of(EXTENDED_SIZE);
        listing_blocks += blocks;
        plan.chunks.push(map);
        if inodes_end + listing_blocks * BLOCK > limit {
            return Err(refuse(format!("its metadata has more than {limit} bytes")));
        }
    }
    let listings = inodes_end.div_ceil(BLOCK);
    let total = (listings + listing_blocks) * BLOCK;
    let mut out = vec![0; usize::try_from(total).map_err(|_| refuse("it is too large for this machine"))?];
    put(&mut out, OFFSET as u64, superblock(&plan, total).as_bytes());
    put(&mut out, OFFSET as u64 + DEVICE_SLOT, DeviceSlot::new((device_bytes / BLOCK) as u32).as_bytes());
    for (id, _) in tree.inodes() {
        plan.render(tree, id, listings, &mut out)?;
    }
    Ok(out)
}

/// Where everything goes, in the order of inodes.
struct Plan {
    nids: Vec<u32>,
    chunks: Vec<Chunks>,
    /// The first block of a listing or target, counted from the first of all.
    blocks: Vec<u64>,
}

fn superblock(plan: &Plan, total: u64) -> Superblock {
    Superblock {
        magic: U32::new(MAGIC),
        checksum: U32::ZERO,
        feature_compat: U32::new(compat::MTIME),
        block_bits: BLOCK.ilog2() as u8,
        ext_slots: 0,
        root_nid: U16::new(plan.nids.first().map_or(0, |nid| *nid as u16)),
        inodes: U64::new(plan.nids.len() as u64),
        epoch: U64::ZERO,
        epoch_nanoseconds: U32::ZERO,
        blocks: U32::new((total / BLOCK) as u32),
        meta_block: U32::ZERO,
        xattr_block: U32::ZERO,
        uuid: [0; 16],
        volume_name: [0; 16],
        feature_incompat: U32::new(incompat::CHUNKED_FILE | incompat::DEVICE_TABLE),
        algorithms: U16::ZERO,
        extra_devices: U16::new(DEVICE),
        device_table_slot: U16::new(((OFFSET as u64 + DEVICE_SLOT) / DEVICE_SLOT) as u16),
        directory_block_bits: 0,
        xattr_prefix_count: 0,
        xattr_prefix_start: U32::ZERO,
        packed_nid: U64::ZERO,
        xattr_filter_reserved: 0,
        reserved: [0; 3],
        build_time: U32::ZERO,
        root_nid_long: U64::ZERO,
        reserved_tail: U64::ZERO,
    }
}

impl Plan {
    fn render(&self, tree: &Tree, id: InodeId, listings: u64, out: &mut [u8]) -> Result<(), FormatError> {
        let inode = tree.inode(id);
        let of = |list: &[u64]| list.get(id.index()).copied().unwrap_or_default();
        let listing = listings + of(&self.blocks);
        let no_chunks = Chunks::default();
        let chunks = self.chunks.get(id.index()).unwrap_or(&no_chunks);
        let size = if inode.file_type() == FileType::Regular { inode.size() } else { listing_size(tree, id) };
        let (layout, block) = match inode.file_type() {
            FileType::CharDevice | FileType::BlockDevice => {
                let (major, minor) = inode.device();
                let device = encode_device(major, minor);
                let too_large = || refuse_file(tree, id, format!("the device number {major}:{minor} cannot be stored"));
                (DataLayout::Plain, device.ok_or_else(too_large)?)
            }
            _ if chunks.bytes() > 0 => (DataLayout::Chunked, (chunks.bits | u32::from(chunk::INDEXES))),
            _ if size > 0 => (DataLayout::Plain, listing as u32),
            _ => (DataLayout::Plain, 0),
        };
        let record = ExtendedInode {
            format: U16::new(FORMAT_EXTENDED | (layout as u16) << 1),
            xattr_count: U16::ZERO,
            mode: U16::new(inode.mode() as u16),
            block_high: U16::ZERO,
            size: U64::new(size),
            block: U32::new(block),
            ino: U32::new(id.0.wrapping_add(1)),
            uid: U32::new(inode.uid()),
            gid: U32::new(inode.gid()),
            mtime: U64::new(inode.mtime().seconds as u64),
            mtime_nanoseconds: U32::new(inode.mtime().nanoseconds.min(999_999_999)),
            links: U32::new(inode.links()),
            reserved: [0; 16],
        };
        let at = self.nids.get(id.index()).map_or(0, |nid| u64::from(*nid) * SLOT_SIZE);
        put(out, at, record.as_bytes());
        for (place, block) in (0..).zip(chunks.blocks(size)) {
            let entry = at + EXTENDED_SIZE + place * ENTRY;
            match block {
                Some(block) => {
                    put(out, entry + 2, &DEVICE.to_le_bytes());
                    put(out, entry + 4, &block.to_le_bytes());
                }
                None => put(out, entry, &[0xFF, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]),
            }
        }
        match inode.file_type() {
            FileType::Directory => self.render_names(tree, id, listing * BLOCK, out),
            FileType::Symlink => put(out, listing * BLOCK, tree.symlink_target(id)),
            _ => {}
        }
        Ok(())
    }

    fn render_names(&self, tree: &Tree, id: InodeId, start: u64, out: &mut [u8]) {
        for (number, names) in (0..).zip(blocks_of_names(tree, id)) {
            let block = start + number * BLOCK;
            let mut name_at = names.len() * DIRENT_SIZE;
            for (place, (name, inode)) in (0..).zip(names) {
                let dirent = Dirent {
                    nid: U64::new(self.nids.get(inode.index()).copied().unwrap_or_default().into()),
                    name_offset: U16::new(name_at as u16),
                    file_type: entry_type(tree.inode(inode).file_type()),
                    reserved: 0,
                };
                put(out, block + place * DIRENT_SIZE as u64, dirent.as_bytes());
                put(out, block + name_at as u64, name);
                name_at += name.len();
            }
        }
    }
}

/// The names of a directory in their order, as many in a block as it has room for.
fn blocks_of_names(tree: &Tree, id: InodeId) -> Vec<Vec<(&[u8], InodeId)>> {
    let mut blocks: Vec<Vec<(&[u8], InodeId)>> = Vec::new();
    let mut room = 0;
    for entry in Listing::new(tree, id) {
        let size = DIRENT_SIZE + entry.name.len();
        match blocks.last_mut() {
            Some(names) if size <= room => names.push((entry.name, entry.inode)),
            _ => {
                blocks.push(vec![(entry.name, entry.inode)]);
                room = BLOCK as usize;
            }
        }
        room = room.saturating_sub(size);
    }
    blocks
}

/// Bytes of a directory's listing or a symlink's target.
fn listing_size(tree: &Tree, id: InodeId) -> u64 {
    match tree.inode(id).file_type() {
        FileType::Directory => {
            let blocks = blocks_of_names(tree, id);
            let used = |names: &Vec<(&[u8], InodeId)>| names.iter().map(|(name, _)| DIRENT_SIZE + name.len()).sum();
            let last: usize = blocks.last().map_or(0, used);
            (blocks.len() as u64).saturating_sub(1) * BLOCK + last as u64
        }
        FileType::Symlink => tree.symlink_target(id).len() as u64,
        _ => 0,
    }
}

/// A file's chunk map: chunks of one size, each a run of blocks of the other device or a hole.
#[derive(Debug, Default)]
struct Chunks {
    /// The binary logarithm of a chunk's blocks.
    bits: u32,
    count: u64,
    /// Ascending.
    parts: Vec<Lent>,
}

impl Chunks {
    fn new(size: u64, parts: Vec<Lent>, device_bytes: u64) -> Result<Chunks, String> {
        // The bits set in any offset at which a chunk must begin.
        let mut places = 0;
        let mut end = 0;
        for part in &parts {
            let (Some(part_end), Some(at_end)) = (
                part.offset.checked_add(part.length).filter(|_| part.offset >= end),
                part.at.checked_add(part.length).and_then(|end| end.checked_next_multiple_of(BLOCK)),
            ) else {
                return Err("its parts are out of order".to_owned());
            };
            if part.at % BLOCK != 0 || part.offset % BLOCK != 0 {
                return Err(format!("its content is not at a multiple of {BLOCK} bytes"));
            }
            if at_end > device_bytes || at_end / BLOCK >= u64::from(NULL_BLOCK) {
                return Err("its content is cut off, or too far behind".to_owned());
            }
            places |= part.offset;
            // Bytes past the end are never visible.
            places |= if part_end >= size { 0 } else { part_end };
            end = part_end;
        }
        let whole = size.checked_next_power_of_two().map_or(CHUNK_MAX, u64::ilog2);
        let bits = places.trailing_zeros().min(whole).min(CHUNK_MAX).max(BLOCK.ilog2());
        if places.trailing_zeros() < BLOCK.ilog2() {
            return Err(format!("its holes are not multiples of {BLOCK} bytes"));
        }
        Ok(Chunks { bits: bits - BLOCK.ilog2(), count: size.div_ceil(1 << bits), parts })
    }

    /// Bytes of the map.
    fn bytes(&self) -> u64 {
        self.count.saturating_mul(ENTRY)
    }

    /// The first block of each chunk of a file of `size` bytes; `None` for a hole.
    fn blocks(&self, size: u64) -> impl Iterator<Item = Option<u32>> {
        let chunk = BLOCK << self.bits;
        let mut parts = self.parts.iter().peekable();
        (0..self.count).map(move |number| {
            let offset = number * chunk;
            while parts.next_if(|part| part.offset + part.length <= offset).is_some() {}
            let part = parts.peek().filter(|part| part.offset <= offset && offset < size)?;
            u32::try_from((part.at + (offset - part.offset)) / BLOCK).ok()
        })
    }
}

fn put(out: &mut [u8], at: u64, bytes: &[u8]) {
    let place = usize::try_from(at).ok().and_then(|at| out.get_mut(at..)?.get_mut(..bytes.len()));
    if let Some(place) = place {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, at: u64, length: u64) -> Lent {
        Lent { offset, at, length }
    }

    fn map(size: u64, parts: &[Lent]) -> Result<(u32, Vec<Option<u32>>), String> {
        let chunks = Chunks::new(size, parts.to_vec(), 1 << 40)?;
        Ok((chunks.bits, chunks.blocks(size).collect()))
    }

    #[test]
    fn a_file_in_one_run_is_one_chunk() {
        assert_eq!(map(0, &[]), Ok((0, vec![])));
        assert_eq!(map(1, &[part(0, 1536, 1)]), Ok((0, vec![Some(3)])));
        assert_eq!(map(513, &[part(0, 1536, 513)]), Ok((1, vec![Some(3)])));
        assert_eq!(map(100_000, &[part(0, 512, 100_000)]), Ok((8, vec![Some(1)])));
        let large = map(3 << 30, &[part(0, 512, 3 << 30)]).unwrap();
        assert_eq!(large, (21, vec![Some(1), Some(1 + (1 << 21)), Some(1 + (2 << 21))]));
    }

    #[test]
    fn holes_and_parts_elsewhere_cut_a_file_into_chunks() {
        let holes = map(5000, &[part(1024, 512, 1024), part(4096, 8192, 904)]).unwrap();
        assert_eq!(holes, (1, vec![None, Some(1), None, None, Some(16)]));
        assert_eq!(map(4096, &[]), Ok((3, vec![None])));
        let moved = map(8192, &[part(0, 4096, 4096), part(4096, 512, 4096)]).unwrap();
        assert_eq!(moved, (3, vec![Some(8), Some(1)]));
    }

    #[test]
    fn what_is_not_aligned_or_not_there_is_refused() {
        for (size, parts) in [
            (10, [part(0, 100, 10)]),
            (2000, [part(100, 512, 1900)]),
            (2000, [part(0, 512, 700)]),
            (10, [part(0, 1 << 40, 10)]),
            (10, [part(0, u64::MAX - 511, 512)]),
            (10, [part(u64::MAX - 511, 512, 512)]),
        ] {
            assert!(map(size, &parts).is_err(), "{size} {parts:?}");
        }
        assert!(map(2048, &[part(512, 0, 512), part(0, 512, 512)]).is_err());
    }
}
