//! [`Joined`]: extents one after another.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use inarch_block::{Backing, Borrower, ChangedFile, Cursor, Lent};

use super::refused;
use crate::container::ContainerError;

/// A disk of extents.
#[derive(Default)]
pub(super) struct Joined {
    parts: Vec<Part>,
    /// Bytes.
    pub(super) size: u64,
}

/// An extent; zeros if it has no disk.
pub(super) struct Part {
    /// Where it starts in the whole, in bytes.
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) disk: Option<Arc<dyn Backing>>,
}

impl Joined {
    /// Adds one at the end.
    pub(super) fn add(&mut self, part: Part) -> Result<(), ContainerError> {
        let size = self.size.checked_add(part.length).ok_or_else(|| refused("the sum of its extents is too large"))?;
        self.size = size;
        self.parts.push(part);
        Ok(())
    }

    /// Calls `visit` for the extents of a range, with where it starts in the extent and its length.
    fn parts(
        &self,
        offset: u64,
        count: u64,
        visit: &mut dyn FnMut(&Part, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset.checked_add(count).filter(|end| *end <= self.size).ok_or(io::ErrorKind::UnexpectedEof)?;
        let first = self.parts.partition_point(|part| part.start + part.length <= offset);
        for part in self.parts.iter().skip(first).take_while(|part| part.start < end) {
            let (from, to) = (offset.max(part.start), end.min(part.start + part.length));
            if from < to {
                visit(part, from - part.start, to - from)?;
            }
        }
        Ok(())
    }
}

impl Backing for Joined {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        self.parts(offset, count, &mut |part, at, length| match &part.disk {
            Some(disk) => disk.read(at, length, out),
            None => {
                out.fill_zeros(length);
                Ok(())
            }
        })
    }

    fn lends(&self, offset: u64, count: u64) -> bool {
        let lends = self.parts(offset, count, &mut |part, at, length| {
            let lends = part.disk.as_ref().is_none_or(|disk| disk.lends(at, length));
            if lends { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)) }
        });
        lends.is_ok()
    }

    fn lend(&self, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<()> {
        self.parts(offset, count, &mut |part, at, length| {
            let Some(disk) = &part.disk else { return Ok(()) };
            disk.lend(at, length, &mut |file: BorrowedFd<'_>, lent: Lent| {
                take(file, Lent { offset: part.start + lent.offset, ..lent })
            })
        })
    }

    fn changed(&self) -> Option<ChangedFile> {
        self.parts.iter().find_map(|part| part.disk.as_ref()?.changed())
    }
}
