//! [`Window`]: reads headers by small forward reads that skip most of the archive.

use inarch_block::read_backing;

use super::index::Archive;
use crate::ReadError;
use crate::tar::spec::BLOCK;

/// Bytes read at once: enough for a member's extended headers and a small file, so that the next header is included.
const WINDOW: usize = 8 << 10;

/// A few bytes of an archive.
pub(super) struct Window<'a> {
    archive: Archive<'a>,
    buffer: Vec<u8>,
    start: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(archive: Archive<'a>) -> Window<'a> {
        Window { archive, buffer: Vec::new(), start: 0 }
    }

    /// Bytes of the whole archive.
    pub(super) fn size(&self) -> u64 {
        self.archive.length
    }

    /// The block at byte `at`; `None` if the archive ends before the block does.
    pub(super) fn block(&mut self, at: u64) -> Result<Option<&[u8; BLOCK]>, ReadError> {
        if self.find(at, BLOCK).is_none() {
            let left = self.size().saturating_sub(at);
            if left < BLOCK as u64 {
                return Ok(None);
            }
            self.buffer.resize(left.min(WINDOW as u64) as usize, 0);
            self.start = at;
            let from = self.archive.start + at;
            read_backing(self.archive.backing, from, &mut self.buffer).map_err(|error| {
                self.buffer.clear();
                ReadError::Io { offset: from, error }
            })?;
        }
        Ok(self.find(at, BLOCK).and_then(|range| self.buffer.get(range)?.first_chunk()))
    }

    /// `count` bytes from byte `at`; `None` if the archive ends before.
    pub(super) fn read(&mut self, at: u64, count: usize) -> Result<Option<Vec<u8>>, ReadError> {
        if at.checked_add(count as u64).is_none_or(|end| end > self.size()) {
            return Ok(None);
        }
        if let Some(bytes) = self.find(at, count).and_then(|range| self.buffer.get(range)) {
            return Ok(Some(bytes.to_owned()));
        }
        let mut bytes = vec![0; count];
        let from = self.archive.start + at;
        read_backing(self.archive.backing, from, &mut bytes).map_err(|error| ReadError::Io { offset: from, error })?;
        Ok(Some(bytes))
    }

    /// The position in the buffer of `count` bytes from byte `at`.
    fn find(&self, at: u64, count: usize) -> Option<std::ops::Range<usize>> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(count)?;
        (to <= self.buffer.len()).then_some(from..to)
    }
}
