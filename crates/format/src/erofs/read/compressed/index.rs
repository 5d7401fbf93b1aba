//! Finding the piece that holds a byte, in an index of either kind (`fs/erofs/zmap.c`).

use zerocopy::FromBytes;

use super::{Compressed, End, Form, Piece, Place};
use crate::erofs::read::damaged;
use crate::erofs::read::image::Image;
use crate::erofs::spec::compress::{BLOCK_COUNT, CONTENT_MAX, ClusterIndex, FULL_INDEX_GAP, Kind, PIECE_MAX, advice};
use inarch_volume::VolumeError;

/// Bytes of an index that are read at once.
const WINDOW: u64 = 512;

/// What an index says of one logical cluster.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    kind: Kind,
    /// Where in the cluster a piece begins.
    offset: u64,
    /// How many clusters before this one a piece begins, and how many behind; at least 1 in good indexes.
    back: u64,
    ahead: u64,
    /// The block of the piece that begins here.
    block: u64,
    /// Instead of `back`, which is then 1: the blocks of the piece that begins there.
    blocks: Option<u64>,
    /// Byte of the image behind this part of the index.
    next_at: u64,
}

/// A cluster in which a piece begins.
#[derive(Clone, Copy, Debug)]
struct Head {
    number: u64,
    cluster: Cluster,
}

/// Reads one file's index.
pub(super) struct Index<'a> {
    image: &'a Image,
    file: &'a Compressed,
    window_at: u64,
    window: Vec<u8>,
}

fn bad_distance(number: u64) -> VolumeError {
    damaged(format!("the index of its logical cluster {number} leads nowhere"))
}

impl<'a> Index<'a> {
    pub(super) fn new(image: &'a Image, file: &'a Compressed) -> Index<'a> {
        Index { image, file, window_at: 0, window: Vec::new() }
    }

    /// The piece that holds byte `offset` of the file, which is within its size.
    pub(super) fn piece(&mut self, offset: u64) -> Result<Piece, VolumeError> {
        let file = self.file;
        if let End::WholeFragment(at) = file.end {
            return Ok(Piece { start: 0, length: file.size, place: Place::Packed(at) });
        }
        let last = match file.end {
            End::Blocks => None,
            _ => Some(self.head(file.size - 1)?),
        };
        let head = self.head(offset)?;
        let start = self.start(&head);
        if let Some(last) = last.filter(|last| last.number == head.number) {
            return self.last_piece(&last, start);
        }
        let length = self.length(&head, start)?;
        let at = head.cluster.block.checked_shl(file.block_bits).unwrap_or(u64::MAX);
        let stored = self.blocks(&head)? << file.block_bits;
        self.stored_piece(&head, start, length, at, stored)
    }

    /// The piece that has a place of its own at the file's end.
    fn last_piece(&mut self, head: &Head, start: u64) -> Result<Piece, VolumeError> {
        let file = self.file;
        let length = file.size - start;
        match file.end {
            End::Fragment(low) => {
                let high = if file.packed_index { 0 } else { head.cluster.block << 32 };
                Ok(Piece { start, length, place: Place::Packed(low | high) })
            }
            End::Inline(stored) => {
                let at = self.cluster(self.number(file.size - 1), false)?.next_at;
                self.stored_piece(head, start, length, at, stored)
            }
            End::Blocks | End::WholeFragment(_) => Err(damaged("internal: its end has no place of its own")),
        }
    }

    fn stored_piece(&self, head: &Head, start: u64, length: u64, at: u64, stored: u64) -> Result<Piece, VolumeError> {
        let block = 1 << self.file.block_bits;
        let form = match head.cluster.kind {
            Kind::Plain if self.file.has(advice::INTERLACED) => Form::Rotated,
            Kind::Plain => Form::Plain,
            Kind::First => Form::Compressed(self.file.algorithm(0)?),
            Kind::Second => Form::Compressed(self.file.algorithm(1)?),
            Kind::Inside => return Err(bad_distance(head.number)),
        };
        let fits = match form {
            Form::Plain => length <= stored,
            Form::Rotated => length <= stored && stored <= block,
            Form::Compressed(_) => length <= CONTENT_MAX,
        };
        if !fits || length == 0 || stored == 0 || stored > PIECE_MAX || !self.image.holds(at, stored) {
            return Err(damaged(format!("{length} bytes from byte {start} cannot be in {stored} at byte {at}")));
        }
        Ok(Piece { start, length, place: Place::Image { at, length: stored, form } })
    }

    fn number(&self, offset: u64) -> u64 {
        offset >> self.file.cluster_bits
    }

    fn start(&self, head: &Head) -> u64 {
        (head.number << self.file.cluster_bits) + head.cluster.offset
    }

    /// Clusters that a piece may reach over, with those that it shares at both ends.
    fn reach(&self) -> u64 {
        (CONTENT_MAX >> self.file.cluster_bits) + 2
    }

    /// The cluster in which the piece begins that holds byte `offset`.
    fn head(&mut self, offset: u64) -> Result<Head, VolumeError> {
        let from = self.number(offset);
        let mut number = from;
        let mut cluster = self.cluster(number, false)?;
        let within = offset & ((1 << self.file.cluster_bits) - 1);
        let mut back = if cluster.kind == Kind::Inside { cluster.back } else { 1 };
        if cluster.kind != Kind::Inside && within >= cluster.offset {
            return Ok(Head { number, cluster });
        }
        loop {
            number = number.checked_sub(back).filter(|_| back > 0).ok_or_else(|| bad_distance(number))?;
            cluster = self.cluster(number, false)?;
            if cluster.kind != Kind::Inside {
                return Ok(Head { number, cluster });
            }
            if from - number > self.reach() {
                return Err(bad_distance(from));
            }
            back = cluster.back;
        }
    }

    /// Bytes of the piece that begins at `head`: up to where the next one does.
    fn length(&mut self, head: &Head, start: u64) -> Result<u64, VolumeError> {
        let size = self.file.size;
        let mut number = head.number + 1;
        while number << self.file.cluster_bits < size {
            let cluster = self.cluster(number, true)?;
            if cluster.kind != Kind::Inside {
                let end = (number << self.file.cluster_bits) + cluster.offset;
                return Ok(end.min(size) - start);
            }
            // A distance of 0 is what mkfs.erofs before 1.0 wrote for 1.
            number += cluster.ahead.max(1);
            if number - head.number > self.reach() {
                return Err(bad_distance(head.number));
            }
        }
        size.checked_sub(start).ok_or_else(|| bad_distance(head.number))
    }

    /// Blocks of the piece that begins at `head`.
    fn blocks(&mut self, head: &Head) -> Result<u64, VolumeError> {
        let big = match head.cluster.kind {
            Kind::First => advice::BIG_1,
            _ => advice::BIG_2,
        };
        let next = head.number + 1;
        if !self.file.has(big) || next << self.file.cluster_bits >= self.file.size {
            return Ok(1);
        }
        let cluster = self.cluster(next, false)?;
        match cluster.kind {
            Kind::Inside => cluster.blocks.filter(|blocks| *blocks > 0).ok_or_else(|| bad_distance(next)),
            _ => Ok(1),
        }
    }

    /// Reads the index of a logical cluster; `ahead` is found only where it is asked for.
    fn cluster(&mut self, number: u64, ahead: bool) -> Result<Cluster, VolumeError> {
        let cluster = if self.file.packed_index { self.packed(number, ahead)? } else { self.full(number)? };
        if cluster.kind != Kind::Inside && cluster.offset >= 1 << self.file.cluster_bits {
            return Err(bad_distance(number));
        }
        Ok(cluster)
    }

    fn full(&mut self, number: u64) -> Result<Cluster, VolumeError> {
        let at = number.checked_mul(8).and_then(|at| at.checked_add(self.file.index_at + FULL_INDEX_GAP));
        let at = at.ok_or_else(|| bad_distance(number))?;
        let index = ClusterIndex::read_from_bytes(self.bytes(at, 8)?).map_err(|_| bad_distance(number))?;
        let value = index.block_or_distances.get();
        let kind = Kind::from_bits(index.kind.get().into());
        let counts = kind == Kind::Inside && value & BLOCK_COUNT != 0;
        let big = self.file.has(advice::BIG_1 | advice::BIG_2);
        if counts && !big {
            return Err(bad_distance(number));
        }
        let distance = value & 0xFFFF;
        Ok(Cluster {
            kind,
            offset: index.offset.get().into(),
            back: if counts { 1 } else { distance.into() },
            ahead: (value >> 16).into(),
            block: value.into(),
            blocks: counts.then_some((distance & !BLOCK_COUNT).into()),
            next_at: at + 8,
        })
    }

    /// The `count` bytes of the image from `at`, at most [`WINDOW`] and not across a multiple of it.
    fn bytes(&mut self, at: u64, count: usize) -> Result<&[u8], VolumeError> {
        let window_at = at & !(WINDOW - 1);
        if self.window.is_empty() || self.window_at != window_at {
            let length = WINDOW.min(self.image.size().saturating_sub(window_at));
            self.window.resize(length as usize, 0);
            self.image.read(window_at, &mut self.window)?;
            self.window_at = window_at;
        }
        let from = (at - window_at) as usize;
        let size = self.image.size();
        let beyond = || damaged(format!("its index at byte {at} lies beyond the image's end at {size}"));
        self.window.get(from..from + count).ok_or_else(beyond)
    }
}

/// One pack of a packed index: entries of 14 or 16 bits, then the block of the piece before the pack's first.
struct Pack<'a> {
    bytes: &'a [u8],
    count: usize,
    /// Bits of an entry's lower part, a place or distance; its kind is in the two above.
    low_bits: u32,
}

impl Pack<'_> {
    fn entry(&self, place: usize) -> (Kind, u32) {
        let bits = (self.bytes.len() - 4) * 8 / self.count * place;
        let word = self.bytes.get(bits / 8..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or_default();
        let value = u32::from_le_bytes(word) >> (bits % 8);
        (Kind::from_bits(value >> self.low_bits), value & ((1 << self.low_bits) - 1))
    }

    /// How far behind `place` a piece begins. The pack's last entry has that number, where it is [`Kind::Inside`].
    fn ahead(&self, place: usize) -> u64 {
        let mut distance = 0;
        let mut last = 0;
        for place in place..self.count {
            let (kind, low) = self.entry(place);
            if kind != Kind::Inside {
                return distance;
            }
            distance += 1;
            last = low;
        }
        if last & BLOCK_COUNT == 0 { (distance + u64::from(last)).saturating_sub(1) } else { distance }
    }

    /// Blocks of the pieces in this pack before the one that begins at `place`, if each piece has one block; and one
    /// more, because the pack's number is that of the piece before the pack.
    fn blocks_before(&self, place: usize) -> u64 {
        let mut blocks = 1;
        let mut at = place;
        while let Some(before) = at.checked_sub(1) {
            let (kind, low) = self.entry(before);
            let head = if kind == Kind::Inside { before.checked_sub(low as usize) } else { Some(before) };
            let Some(head) = head else { break };
            blocks += 1;
            at = head;
        }
        blocks
    }

    /// The same where pieces have any number of blocks, which the entry behind a piece's first gives.
    fn big_blocks_before(&self, place: usize) -> Option<u64> {
        let mut blocks = 0;
        let mut at = place;
        while let Some(before) = at.checked_sub(1) {
            let (kind, low) = self.entry(before);
            at = before;
            match kind {
                Kind::Inside if low & BLOCK_COUNT != 0 => {
                    blocks += u64::from(low & !BLOCK_COUNT);
                    at = before.saturating_sub(1);
                }
                // The entry behind the piece's first comes next.
                Kind::Inside => at = before.saturating_sub(low.checked_sub(2)? as usize),
                _ => blocks += 1,
            }
        }
        Some(blocks)
    }
}

impl Index<'_> {
    fn packed(&mut self, number: u64, ahead: bool) -> Result<Cluster, VolumeError> {
        let file = self.file;
        let clusters = file.size.div_ceil(1 << file.block_bits);
        if number >= clusters {
            return Err(bad_distance(number));
        }
        // Entries of four bytes up to a multiple of 32, of two while sixteen of them are left, then of four again.
        let first = ((32 - file.index_at % 32) / 4) & 7;
        let two_bytes = file.has(advice::PACKED_2B) && first < clusters;
        let second = if two_bytes { (clusters - first) & !15 } else { 0 };
        let (at, entry_bytes) = if number < first {
            (number * 4, 4)
        } else if number - first < second {
            (first * 4 + (number - first) * 2, 2)
        } else {
            (first * 4 + second * 2 + (number - first - second) * 4, 4)
        };
        let at = at.checked_add(file.index_at).ok_or_else(|| bad_distance(number))?;
        let count = if entry_bytes == 4 { 2 } else { 16 };
        if entry_bytes == 2 && file.cluster_bits > 12 {
            return Err(damaged("its packed index has entries too short for its clusters"));
        }
        let length = count * entry_bytes;
        let start = at & !(length - 1);
        let place = ((at - start) / entry_bytes) as usize;
        let low_bits = file.cluster_bits.max(BLOCK_COUNT.ilog2() + 1);
        let pack = Pack { bytes: self.bytes(start, length as usize)?, count: count as usize, low_bits };
        let cluster = packed_cluster(file, &pack, place, ahead, start + length);
        cluster.ok_or_else(|| bad_distance(number))
    }
}

fn packed_cluster(file: &Compressed, pack: &Pack<'_>, place: usize, ahead: bool, next_at: u64) -> Option<Cluster> {
    let (kind, low) = pack.entry(place);
    let big = file.has(advice::BIG_1);
    let none = Cluster { kind, offset: 0, back: 0, ahead: 0, block: 0, blocks: None, next_at };
    if kind != Kind::Inside {
        let before = if big { pack.big_blocks_before(place)? } else { pack.blocks_before(place) };
        let base = pack.bytes.last_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
        // The kernel counts in 32 bits: before the device's first block comes its last.
        let block = base.wrapping_add(before as u32).into();
        return Some(Cluster { offset: low.into(), block, ..none });
    }
    let ahead = if ahead { pack.ahead(place) } else { 0 };
    if low & BLOCK_COUNT != 0 {
        let blocks = Some((low & !BLOCK_COUNT).into());
        return big.then_some(Cluster { back: 1, ahead, blocks, ..none });
    }
    if place + 1 != pack.count {
        return Some(Cluster { back: low.into(), ahead, ..none });
    }
    // The last entry's number is the distance ahead; the one before has the distance back.
    let (kind, low) = pack.entry(place - 1);
    let back = match kind {
        Kind::Inside if low & BLOCK_COUNT != 0 => 2,
        Kind::Inside => u64::from(low) + 1,
        _ => 1,
    };
    Some(Cluster { back, ahead, ..none })
}
