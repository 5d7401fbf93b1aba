//! Cuts an image's parts into pieces of work for threads.

use std::iter::Peekable;

use inarch_tree::InodeId;

use super::part::{Part, Placed};
use crate::BLOCK_SIZE;

/// The most bytes gathered in one buffer. Buffers end at multiples of it, so that writes fill whole pages and folios.
pub(super) const GATHER: u64 = 1 << 20;

/// Bytes of one piece of a long run: enough that a file is opened once for many megabytes, and few enough that the
/// threads end together.
const SEGMENT: u64 = 16 << 20;

/// Shorter gaps are written as zeros together with their neighbours: a file cannot have smaller holes.
const SMALLEST_HOLE: u64 = BLOCK_SIZE as u64;

/// A piece of work.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Batch {
    /// Neighbouring parts for one buffer of `length` bytes, with zeros between them.
    Gathered {
        at: u64,
        length: usize,
        parts: Vec<Placed>,
        /// Files whose first part is among them.
        files: u64,
    },
    /// A long run of one file.
    Long { at: u64, inode: InodeId, offset: u64, length: u64, files: u64 },
    /// Zeros.
    Gap { at: u64, length: u64 },
}

/// Iterates over the batches of parts that come in ascending order.
pub(super) struct Batches<I: Iterator<Item = Placed>> {
    parts: Peekable<I>,
    /// The rest of a part that was cut.
    rest: Option<Placed>,
    /// The end of what was returned so far.
    end: u64,
    /// Length of the image.
    length: u64,
    /// Runs of a file of at least this many bytes are not gathered.
    long: u64,
    last_file: Option<InodeId>,
}

impl<I: Iterator<Item = Placed>> Batches<I> {
    pub(super) fn new(parts: I, length: u64, long: u64) -> Batches<I> {
        Batches { parts: parts.peekable(), rest: None, end: 0, length, long, last_file: None }
    }

    /// Changes the least length of a run that is not gathered.
    pub(super) fn set_long(&mut self, long: u64) {
        self.long = long;
    }

    fn peek(&mut self) -> Option<&Placed> {
        match &self.rest {
            Some(rest) => Some(rest),
            None => self.parts.peek(),
        }
    }

    fn take(&mut self) -> Option<Placed> {
        self.rest.take().or_else(|| self.parts.next())
    }

    /// 1 if the part belongs to another file than the previous one.
    fn count_file(&mut self, part: &Part) -> u64 {
        match part {
            Part::File { inode, .. } if self.last_file != Some(*inode) => {
                self.last_file = Some(*inode);
                1
            }
            _ => 0,
        }
    }

    /// Takes the next part up to `end`; the rest of it stays.
    fn take_until(&mut self, end: u64) -> Option<Placed> {
        let Placed { at, part } = self.take()?;
        let length = part.length();
        if at + length <= end {
            return Some(Placed { at, part });
        }
        let (first, rest) = part.split(end - at);
        self.rest = Some(Placed { at: end, part: rest });
        Some(Placed { at, part: first })
    }

    fn gather(&mut self, at: u64) -> Batch {
        let (end, limit) = (at / GATHER * GATHER + GATHER, self.long);
        let (mut parts, mut files, mut filled) = (Vec::new(), 0, at);
        while let Some(next) = self.peek() {
            let (start, gap) = (next.at, next.at.saturating_sub(filled));
            let long = is_long(&next.part, limit);
            if start >= end || gap >= SMALLEST_HOLE || (long && !parts.is_empty()) {
                break;
            }
            let Some(placed) = self.take_until(end) else { break };
            files += self.count_file(&placed.part);
            filled = placed.at + placed.part.length();
            parts.push(placed);
        }
        if parts.is_empty() {
            // The next part starts beyond the buffer's end: a gap too small for a hole crosses it.
            filled = end;
        }
        self.end = filled;
        Batch::Gathered { at, length: (filled - at) as usize, parts, files }
    }
}

fn is_long(part: &Part, long: u64) -> bool {
    matches!(part, Part::File { length, .. } if *length >= long)
}

impl<I: Iterator<Item = Placed>> Iterator for Batches<I> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let (end, long) = (self.end, self.long);
        let Some(next) = self.peek() else {
            self.end = self.length;
            return (end < self.length).then(|| Batch::Gap { at: end, length: self.length - end });
        };
        let at = next.at;
        if at.saturating_sub(end) >= SMALLEST_HOLE {
            self.end = at;
            return Some(Batch::Gap { at: end, length: at - end });
        }
        let long = is_long(&next.part, long);
        if at > end || !long {
            return Some(self.gather(end));
        }
        let placed = self.take_until(at / SEGMENT * SEGMENT + SEGMENT)?;
        let files = self.count_file(&placed.part);
        self.end = at + placed.part.length();
        match placed.part {
            Part::File { inode, offset, length } => Some(Batch::Long { at, inode, offset, length, files }),
            // Only files have long runs.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Archives leave gaps of up to 511 bytes at any offset.
    #[test]
    fn batches_cover_the_image_once_wherever_small_gaps_fall() {
        for (length, gap) in
            [(100, 412), (513, 511), (4096, 1), (GATHER - 100, 412), (GATHER, 511), (3 * GATHER + 7, 505)]
        {
            for long in [1000, u64::MAX] {
                let files = (0..40).map(|i| Placed {
                    at: i * (length + gap),
                    part: Part::File { inode: InodeId(i as u32), offset: 0, length },
                });
                let image = 40 * (length + gap) + 10_000;
                let mut end = 0;
                for batch in Batches::new(files, image, long) {
                    let (at, covered) = match batch {
                        Batch::Gathered { at, length, .. } => (at, length as u64),
                        Batch::Long { at, length, .. } | Batch::Gap { at, length } => (at, length),
                    };
                    assert!(at == end && covered > 0, "{length}, {gap}: {covered} at {at}, expected {end}");
                    end = at + covered;
                }
                assert_eq!(end, image);
            }
        }
    }
}
