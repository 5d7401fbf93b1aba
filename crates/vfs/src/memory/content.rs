//! The content of a file in memory: pieces, with holes between them.

use std::collections::BTreeMap;

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::space::Space;

/// The size of a piece.
const PIECE: usize = 64 << 10;

/// The least that is allocated for a piece.
const LEAST: usize = 64;

/// What a piece takes in memory besides its bytes: its entry in the map, and the allocator's share.
const OVERHEAD: u64 = 96;

/// What a piece takes in memory.
fn cost(piece: &Vec<u8>) -> u64 {
    piece.capacity() as u64 + OVERHEAD
}

/// A file's bytes.
#[derive(Debug, Default)]
pub struct Content {
    size: u64,
    /// By number; each at most a piece long, and zero past its end.
    pieces: BTreeMap<u64, Vec<u8>>,
}

/// The piece of a byte, and the offset in it.
fn place(offset: u64) -> (u64, usize) {
    (offset / PIECE as u64, (offset % PIECE as u64) as usize)
}

impl Content {
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of memory.
    pub fn used(&self) -> u64 {
        self.pieces.values().map(cost).sum()
    }

    /// Bytes that are no holes.
    pub fn stored(&self) -> u64 {
        self.pieces.values().map(|piece| piece.len() as u64).sum()
    }

    /// Reads from `offset` into `out`; returns the number of bytes.
    pub fn read(&self, offset: u64, out: &[VolatileSlice<'_>]) -> usize {
        let mut at = offset;
        for slice in out {
            let mut done = 0;
            while done < slice.len() && at < self.size {
                let (number, start) = place(at);
                let left = usize::try_from(self.size - at).unwrap_or(usize::MAX);
                let count = (slice.len() - done).min(PIECE - start).min(left);
                let Ok(part) = slice.subslice(done, count) else { break };
                let piece = self.pieces.get(&number).map(Vec::as_slice).unwrap_or_default();
                let there = piece.get(start..).unwrap_or_default();
                let there = there.get(..count).unwrap_or(there);
                part.copy_from(there);
                if let Ok(rest) = part.offset(there.len()) {
                    const ZEROS: [u8; 4096] = [0; 4096];
                    let mut zeroed = 0;
                    while zeroed < rest.len() {
                        let Ok(next) = rest.offset(zeroed) else { break };
                        next.copy_from(&ZEROS[..]);
                        zeroed += ZEROS.len();
                    }
                }
                done += count;
                at += count as u64;
            }
        }
        usize::try_from(at - offset).unwrap_or(0)
    }

    /// Writes `data` at `offset`. Returns how many bytes had room, at least one, or `ENOSPC`.
    pub fn write(&mut self, space: &Space, offset: u64, data: &[VolatileSlice<'_>]) -> Result<usize, Errno> {
        let whole: usize = data.iter().map(VolatileSlice::len).sum();
        end_of(offset, whole as u64)?;
        let mut at = offset;
        for slice in data {
            let mut done = 0;
            while done < slice.len() {
                let (number, start) = place(at);
                let count = (slice.len() - done).min(PIECE - start);
                let part = slice.subslice(done, count).map_err(|_| Errno::IO)?;
                let Ok(room) = self.room(space, number, start, count) else { return self.written(offset, at) };
                part.copy_to(room);
                done += count;
                at += count as u64;
                self.size = self.size.max(at);
            }
        }
        Ok(whole)
    }

    fn written(&self, offset: u64, at: u64) -> Result<usize, Errno> {
        match at - offset {
            0 => Err(Errno::NOSPC),
            count => usize::try_from(count).map_err(|_| Errno::IO),
        }
    }

    /// Room for `count` bytes in a piece.
    fn room(&mut self, space: &Space, number: u64, start: usize, count: usize) -> Result<&mut [u8], Errno> {
        let end = start + count;
        let there = self.pieces.get(&number);
        let (length, capacity) = there.map_or((0, 0), |piece| (piece.len(), piece.capacity()));
        let overhead = if there.is_none() { OVERHEAD } else { 0 };
        if end > length {
            // With room to grow, as long as that is left.
            let most = end.next_power_of_two().clamp(LEAST, PIECE).max(capacity);
            let take = |room: usize| space.take((room - capacity) as u64 + overhead).map(|()| room);
            let room = take(most).or_else(|_| take(end.max(capacity)))?;
            let piece = self.pieces.entry(number).or_default();
            piece.reserve_exact(room - length);
            piece.resize(end, 0);
        }
        self.pieces.get_mut(&number).and_then(|piece| piece.get_mut(start..end)).ok_or(Errno::IO)
    }

    /// Truncates the file, or extends it with a hole.
    pub fn set_size(&mut self, space: &Space, size: u64) -> Result<(), Errno> {
        end_of(size, 0)?;
        if size < self.size {
            self.punch(space, size, u64::MAX);
        }
        self.size = size;
        Ok(())
    }

    /// Punches a hole from `start` to `end`, exclusive.
    pub fn punch(&mut self, space: &Space, start: u64, end: u64) {
        let (first, last) = (place(start).0, place(end.min(self.size.max(start))).0);
        let numbers: Vec<u64> = self.pieces.range(first..=last).map(|(number, _)| *number).collect();
        for number in numbers {
            let base = number * PIECE as u64;
            let from = usize::try_from(start.saturating_sub(base)).unwrap_or(PIECE).min(PIECE);
            let to = usize::try_from(end.saturating_sub(base)).unwrap_or(PIECE).min(PIECE);
            let Some(piece) = self.pieces.get_mut(&number) else { continue };
            if to >= piece.len() {
                let before = cost(piece);
                piece.truncate(from);
                piece.shrink_to_fit();
                space.give_back(before.saturating_sub(cost(piece)));
            } else if let Some(part) = piece.get_mut(from..to) {
                part.fill(0);
            }
            if piece.is_empty() {
                space.give_back(cost(piece));
                self.pieces.remove(&number);
            }
        }
    }

    /// Allocates the bytes from `start` to `end`, exclusive.
    pub fn allocate(&mut self, space: &Space, start: u64, end: u64) -> Result<(), Errno> {
        let mut at = start;
        while at < end {
            let (number, from) = place(at);
            let count = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE - from);
            self.room(space, number, from, count)?;
            at += count as u64;
        }
        Ok(())
    }

    /// The first byte from `offset` that is data, or in a hole; the end counts as a hole.
    pub fn seek(&self, offset: u64, data: bool) -> Result<u64, Errno> {
        if offset >= self.size {
            return Err(Errno::NXIO);
        }
        let (mut number, _) = place(offset);
        if data {
            let (found, _) = self.pieces.range(number..).next().ok_or(Errno::NXIO)?;
            return Ok(offset.max(found * PIECE as u64));
        }
        while self.pieces.contains_key(&number) {
            number += 1;
        }
        Ok(offset.max(number * PIECE as u64).min(self.size))
    }
}

/// `offset` plus `length`, if a file can be that long.
pub fn end_of(offset: u64, length: u64) -> Result<u64, Errno> {
    offset.checked_add(length).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::FBIG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &Content, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0xee; length];
        let (front, back) = buffer.split_at_mut(length / 3);
        let count = content.read(offset, &[front.into(), back.into()]);
        buffer.truncate(count);
        buffer
    }

    fn write(content: &mut Content, space: &Space, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let mut bytes = bytes.to_vec();
        let middle = bytes.len() / 2;
        let (front, back) = bytes.split_at_mut(middle);
        content.write(space, offset, &[front.into(), back.into()])
    }

    /// The same operations on a plain vector.
    #[test]
    fn it_is_like_plain_bytes() {
        let space = Space::new(64 << 20);
        let (mut content, mut model) = (Content::default(), Vec::<u8>::new());
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..2000u64 {
            let (offset, length) = (random(300_000), random(100_000) as usize);
            let end = offset as usize + length;
            match random(5) {
                0 | 1 => {
                    let bytes = vec![round as u8 | 1; length];
                    assert_eq!(write(&mut content, &space, offset, &bytes), Ok(length));
                    if length > 0 {
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&bytes);
                    }
                }
                2 => {
                    content.set_size(&space, offset).unwrap();
                    model.resize(offset as usize, 0);
                }
                3 => {
                    content.punch(&space, offset, end as u64);
                    let end = end.min(model.len());
                    if (offset as usize) < end {
                        model[offset as usize..end].fill(0);
                    }
                }
                _ => {
                    let expected = model.get(offset as usize..end.min(model.len())).unwrap_or_default();
                    assert_eq!(read(&content, offset, length), expected);
                }
            }
            assert_eq!(content.size(), model.len() as u64);
            assert_eq!(content.used(), (64 << 20) - space.free());
        }
        content.set_size(&space, 0).unwrap();
        assert_eq!(space.free(), 64 << 20);
    }

    #[test]
    fn holes_are_found_and_space_ends() {
        let limit = 3 * (PIECE as u64 + OVERHEAD);
        let space = Space::new(limit);
        let mut content = Content::default();
        let piece = PIECE as u64;
        write(&mut content, &space, 2 * piece, &[1; PIECE]).unwrap();
        content.set_size(&space, 5 * piece).unwrap();
        assert_eq!((content.seek(0, true), content.seek(0, false)), (Ok(2 * piece), Ok(0)));
        assert_eq!(
            (content.seek(2 * piece + 5, true), content.seek(2 * piece, false)),
            (Ok(2 * piece + 5), Ok(3 * piece))
        );
        assert_eq!(
            (content.seek(3 * piece, true), content.seek(5 * piece, false)),
            (Err(Errno::NXIO), Err(Errno::NXIO))
        );
        // The first half of what is written has space.
        assert_eq!(write(&mut content, &space, 5 * piece, &[1; 4 * PIECE]), Ok(2 * PIECE));
        assert_eq!(write(&mut content, &space, 20 * piece, &[1]), Err(Errno::NOSPC));
        assert_eq!(content.allocate(&space, 0, piece), Err(Errno::NOSPC));
        assert_eq!(content.set_size(&space, 1 << 63), Err(Errno::FBIG));
        assert_eq!(write(&mut content, &space, u64::MAX, &[1]), Err(Errno::FBIG));
        content.punch(&space, 0, u64::MAX);
        assert_eq!((space.free(), content.size()), (limit, 7 * piece));
    }

    #[test]
    fn a_byte_far_from_the_others_takes_more_than_its_own() {
        const SPACE: u64 = 1 << 20;
        let (space, mut content) = (Space::new(SPACE), Content::default());
        let written =
            (0..).take_while(|at| write(&mut content, &space, at * PIECE as u64, &[1]).is_ok()).count() as u64;
        let allocated: u64 = content.pieces.values().map(|piece| piece.capacity() as u64).sum();
        assert!(allocated + written * OVERHEAD <= SPACE && written > 1000, "{written} pieces take {allocated}");
        // An entry of the map and an allocation take a hundred bytes at least.
        assert!(written <= SPACE / 100, "{written} pieces");
    }
}
