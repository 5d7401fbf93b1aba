//! [`Window`]: a part of a backing.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use inarch_block::{Asked, Backing, Borrower, ChangedFile, Cursor, Lent};

/// A range of a backing as a backing of its own.
pub struct Window {
    below: Arc<dyn Backing>,
    start: u64,
    length: u64,
}

impl Window {
    /// The `length` bytes of `below` from byte `start`, or as many of them as there are.
    pub fn new(below: Arc<dyn Backing>, start: u64, length: u64) -> Window {
        let rest = below.size().saturating_sub(start);
        Window { below, start, length: length.min(rest) }
    }

    /// Where a range of the window is below; fails beyond its end.
    fn place(&self, offset: u64, count: u64) -> io::Result<u64> {
        let is_within = offset.checked_add(count).is_some_and(|end| end <= self.length);
        let place = self.start.checked_add(offset).filter(|_| is_within);
        place.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Backing for Window {
    fn size(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        self.below.read(self.place(offset, count)?, count, out)
    }

    fn lends(&self, offset: u64, count: u64) -> bool {
        self.place(offset, count).is_ok_and(|place| self.below.lends(place, count))
    }

    fn lend(&self, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<()> {
        let place = self.place(offset, count)?;
        let mut moved = |file: BorrowedFd<'_>, lent: Lent| {
            let offset = lent.offset.saturating_sub(self.start);
            take(file, Lent { offset, ..lent })
        };
        self.below.lend(place, count, &mut moved)
    }

    fn changed(&self) -> Option<ChangedFile> {
        self.below.changed()
    }

    fn changed_beneath(&self, asked: &mut Asked) -> Option<ChangedFile> {
        asked.ask(&self.below)
    }
}
