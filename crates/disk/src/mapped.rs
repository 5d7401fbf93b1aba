//! [`Mapped`]: a volume whose bytes lie in ranges of other backings, as the device mapper's linear and striped targets and
//! MD's linear and RAID 0 lay them out.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use inarch_block::{Asked, Backing, Borrower, ChangedFile, Cursor, Lent};

/// Bytes of a sector: LVM and MD count in these, whatever the disk's are.
pub const SECTOR: u64 = 512;

/// Where bytes lie: `at` bytes from the start of a backing.
#[derive(Clone)]
pub struct Leg {
    /// What holds them.
    pub backing: Arc<dyn Backing>,
    /// From which byte.
    pub at: u64,
}

/// A range of a volume.
pub struct Run {
    /// Bytes.
    pub length: u64,
    /// Where it lies: on one leg as it is, or striped in chunks over several. Without legs it is zeros.
    pub legs: Vec<Leg>,
    /// Bytes of a chunk, if there are several legs.
    pub chunk: u64,
}

impl Run {
    /// How many bytes of each leg are used at most; `None` if that is too large a number.
    fn of_a_leg(&self) -> Option<u64> {
        if self.legs.len() < 2 {
            return Some(self.length);
        }
        let row = self.chunk.checked_mul(self.legs.len() as u64).filter(|row| *row > 0)?;
        self.length.div_ceil(row).checked_mul(self.chunk)
    }
}

/// Why ranges make no volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// A number is too large, or zero where it cannot be.
    #[error("its map has a size that cannot be")]
    Size,
    /// A leg ends before the range that lies on it.
    #[error("it goes beyond the end of what it lies on: to byte {end} of {size}")]
    Beyond {
        /// Where the range ends.
        end: u64,
        /// Where the leg ends.
        size: u64,
    },
}

/// A volume made of ranges of backings. Every range lies within them.
pub struct Mapped {
    size: u64,
    /// The runs, each with where it starts, without gaps.
    runs: Vec<(u64, Run)>,
}

/// A part of a volume that lies in one piece.
struct Part<'a> {
    leg: Option<&'a Leg>,
    /// Where it starts, in the leg's backing.
    below: u64,
    length: u64,
}

impl Mapped {
    /// Ranges one after the other.
    ///
    /// # Errors
    /// A range is empty, or not within its legs.
    pub fn new(runs: impl IntoIterator<Item = Run>) -> Result<Mapped, MapError> {
        let mut mapped = Mapped { size: 0, runs: Vec::new() };
        for run in runs {
            let used = run.of_a_leg().filter(|_| run.length > 0).ok_or(MapError::Size)?;
            for leg in &run.legs {
                let end = leg.at.checked_add(used).ok_or(MapError::Size)?;
                if end > leg.backing.size() {
                    return Err(MapError::Beyond { end, size: leg.backing.size() });
                }
            }
            let start = mapped.size;
            mapped.size = start.checked_add(run.length).ok_or(MapError::Size)?;
            mapped.runs.push((start, run));
        }
        Ok(mapped)
    }

    /// The part from `offset`, as long as it lies in one piece; none beyond the end.
    fn part(&self, offset: u64) -> Option<Part<'_>> {
        let after = self.runs.partition_point(|(start, _)| *start <= offset);
        let (start, run) = self.runs.get(after.checked_sub(1)?)?;
        let within = offset - start;
        let rest = run.length.checked_sub(within).filter(|rest| *rest > 0)?;
        let [first, others @ ..] = &run.legs[..] else { return Some(Part { leg: None, below: 0, length: rest }) };
        if others.is_empty() {
            return Some(Part { leg: Some(first), below: first.at + within, length: rest });
        }
        let (number, into) = (within / run.chunk, within % run.chunk);
        let legs = run.legs.len() as u64;
        let leg = run.legs.get((number % legs) as usize)?;
        Some(Part {
            leg: Some(leg),
            below: leg.at + number / legs * run.chunk + into,
            length: rest.min(run.chunk - into),
        })
    }

    /// Calls `each` for the parts of a range, with where each one starts; fails beyond the end.
    fn each<'a>(
        &'a self,
        offset: u64,
        count: u64,
        mut each: impl FnMut(u64, Part<'a>) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset.checked_add(count).filter(|end| *end <= self.size).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut at = offset;
        while at < end {
            let mut part = self.part(at).ok_or(io::ErrorKind::UnexpectedEof)?;
            part.length = part.length.min(end - at);
            let next = at + part.length;
            each(at, part)?;
            at = next;
        }
        Ok(())
    }
}

impl Backing for Mapped {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        self.each(offset, count, |_, Part { leg, below, length }| match leg {
            Some(leg) => leg.backing.read(below, length, out),
            None => {
                out.fill_zeros(length);
                Ok(())
            }
        })
    }

    fn lends(&self, offset: u64, count: u64) -> bool {
        let lent = self.each(offset, count, |_, Part { leg, below, length }| {
            let lends = leg.is_none_or(|leg| leg.backing.lends(below, length));
            if lends { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
        });
        lent.is_ok()
    }

    fn lend(&self, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<()> {
        self.each(offset, count, |at, Part { leg, below, length }| {
            let mut moved = |file: BorrowedFd<'_>, lent: Lent| {
                let offset = at + lent.offset.saturating_sub(below);
                take(file, Lent { offset, ..lent })
            };
            leg.map_or(Ok(()), |leg| leg.backing.lend(below, length, &mut moved))
        })
    }

    fn changed(&self) -> Option<ChangedFile> {
        self.changed_beneath(&mut Asked::default())
    }

    fn changed_beneath(&self, asked: &mut Asked) -> Option<ChangedFile> {
        self.runs.iter().flat_map(|(_, run)| &run.legs).find_map(|leg| asked.ask(&leg.backing))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::Window;

    /// Counts how often it is asked whether it changed.
    struct Counting(Arc<AtomicU64>);

    impl Backing for Counting {
        fn size(&self) -> u64 {
            4096
        }

        fn read(&self, _: u64, _: u64, _: &mut Cursor<'_, '_>) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn changed(&self) -> Option<ChangedFile> {
            self.0.fetch_add(1, Ordering::Relaxed);
            None
        }
    }

    #[test]
    fn what_many_volumes_share_is_asked_once_whether_it_changed() {
        let asked = Arc::new(AtomicU64::new(0));
        let mut below: Arc<dyn Backing> = Arc::new(Counting(Arc::clone(&asked)));
        for level in 0..8 {
            let leg = |backing: Arc<dyn Backing>| Run { length: 512, legs: vec![Leg { backing, at: 0 }], chunk: 0 };
            // Half of them have their legs behind windows.
            let run = |_| match level % 2 {
                0 => leg(Arc::clone(&below)),
                _ => leg(Arc::new(Window::new(Arc::clone(&below), 0, 512))),
            };
            below = Arc::new(Mapped::new((0..4).map(run)).unwrap());
        }
        assert_eq!(below.changed(), None);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
