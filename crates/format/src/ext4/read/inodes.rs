//! Reads inodes from the inode tables, in large pieces.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use inarch_volume::VolumeError;

use super::disk::Disk;
use crate::ext4::spec::inode::{Inode, checksum_matches};

/// Bytes of an inode table read at once.
const PIECE: usize = 64 << 10;
/// Pieces kept: 32 MiB in all.
const PIECES: usize = 512;

/// An inode as it is on the device.
pub(super) struct Slot<'a> {
    pub(super) ino: u32,
    pub(super) inode: Inode,
    /// All its bytes.
    pub(super) bytes: Cow<'a, [u8]>,
    /// Where on the device they are.
    pub(super) at: u64,
}

impl Slot<'_> {
    /// The same with its own bytes.
    pub(super) fn into_owned(self) -> Slot<'static> {
        let Slot { ino, inode, bytes, at } = self;
        Slot { ino, inode, bytes: Cow::Owned(bytes.into_owned()), at }
    }
}

/// The part of an inode table that was read.
struct Piece {
    group: u32,
    /// Which of the table's pieces.
    index: u32,
    bytes: Vec<u8>,
}

/// The inode tables. A directory's files are usually close together in them, so a piece is cached for its neighbours.
pub(super) struct Inodes {
    /// Each piece has one place, where it replaces the one before.
    pieces: Vec<Option<Piece>>,
    /// Where the tables of groups seen so far start, in bytes; the reason for those that have none.
    tables: HashMap<u32, Result<u64, String>>,
    /// The starts of the tables. If tables overlapped, the same bytes would make many inodes.
    starts: BTreeSet<u64>,
}

impl Inodes {
    pub(super) fn new() -> Inodes {
        Inodes { pieces: (0..PIECES).map(|_| None).collect(), tables: HashMap::new(), starts: BTreeSet::new() }
    }

    /// Inode `ino`, if its checksum is right.
    pub(super) fn get(&mut self, disk: &Disk, ino: u32) -> Result<Slot<'_>, VolumeError> {
        if !disk.is_inode(ino) {
            return Err(VolumeError::Damaged(format!("has the inode number {ino}, which does not exist")));
        }
        let group = (ino - 1) / disk.inodes_per_group;
        let within = ((ino - 1) % disk.inodes_per_group) as usize * disk.inode_size;
        let table = self.table(disk, group)?;
        let index = (within / PIECE) as u32;
        let place = (group as usize).wrapping_mul(31).wrapping_add(index as usize) % PIECES;
        let held = self.pieces.get_mut(place).ok_or_else(|| VolumeError::Damaged("is nowhere".to_owned()))?;
        let is_held = held.as_ref().is_some_and(|piece| (piece.group, piece.index) == (group, index));
        if !is_held {
            *held = Some(read_piece(disk, table, group, index, held.take())?);
        }
        let bytes = held.as_ref().and_then(|piece| piece.bytes.get(within % PIECE..within % PIECE + disk.inode_size));
        let bytes =
            bytes.ok_or_else(|| VolumeError::Damaged(format!("has an inode, {ino}, beyond the end of the image")))?;
        let inode = Inode::parse(bytes)
            .ok_or_else(|| VolumeError::Damaged(format!("has an inode, {ino}, with a nonsensical i_extra_isize")))?;
        if disk.verifies() && !checksum_matches(bytes, &inode, disk.seed, ino) {
            return Err(VolumeError::Damaged(format!("has an inode, {ino}, with a wrong checksum")));
        }
        Ok(Slot { ino, inode, bytes: bytes.into(), at: table + within as u64 })
    }

    fn table(&mut self, disk: &Disk, group: u32) -> Result<u64, VolumeError> {
        if let Some(known) = self.tables.get(&group) {
            return known.clone().map_err(VolumeError::Damaged);
        }
        let table = match disk.inode_table(group) {
            Err(VolumeError::Damaged(reason)) => Err(reason),
            Err(error) => return Err(error),
            Ok(at) => self
                .claim(disk, at)
                .ok_or_else(|| format!("is in block group {group}, whose inode table overlaps another")),
        };
        self.tables.insert(group, table.clone());
        table.map_err(VolumeError::Damaged)
    }

    /// The start of a table, if no other one has its bytes.
    fn claim(&mut self, disk: &Disk, at: u64) -> Option<u64> {
        let length = u64::from(disk.inodes_per_group) * disk.inode_size as u64;
        let near = at.saturating_sub(length - 1)..at.saturating_add(length);
        (self.starts.range(near).next().is_none() && self.starts.insert(at)).then_some(at)
    }
}

/// Reads a piece into the memory of an evicted one; less of it at the end of the table or image.
fn read_piece(disk: &Disk, table: u64, group: u32, index: u32, old: Option<Piece>) -> Result<Piece, VolumeError> {
    let mut bytes = old.map(|piece| piece.bytes).unwrap_or_default();
    let from = index as usize * PIECE;
    let length = (disk.inodes_per_group as usize * disk.inode_size).saturating_sub(from).min(PIECE);
    let at = table + from as u64;
    let there = disk.backing.size().saturating_sub(at).min(length as u64);
    bytes.resize(there as usize, 0);
    disk.read(at, &mut bytes)?;
    Ok(Piece { group, index, bytes })
}
