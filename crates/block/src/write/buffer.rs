//! Memory that a disk can write from.

use std::ops::Range;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::BLOCK_SIZE;

/// What `O_DIRECT` asks of memory, offset and length, on every device that is in use.
pub(super) const ALIGNMENT: usize = BLOCK_SIZE;

#[derive(Clone, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

/// Bytes whose place in memory is as aligned as their place in the image.
pub(super) struct Buffer(Vec<Page>);

impl Buffer {
    /// A buffer for up to `length` bytes.
    pub(super) fn new(length: usize) -> Buffer {
        Buffer(vec![Page::new_zeroed(); length.div_ceil(ALIGNMENT) + 1])
    }

    /// Its part for `length` bytes of the image from byte `at`; shorter only if that is more than it was made for.
    pub(super) fn at(&mut self, at: u64, length: usize) -> &mut [u8] {
        let start = (at % ALIGNMENT as u64) as usize;
        let bytes = self.0.as_mut_bytes();
        let end = (start + length).min(bytes.len());
        bytes.get_mut(start..end).unwrap_or_default()
    }

    /// The bytes at this range of it; shorter only if it ends before that.
    pub(super) fn range(&self, range: Range<usize>) -> &[u8] {
        let bytes = self.0.as_bytes();
        bytes.get(range.start..range.end.min(bytes.len())).unwrap_or_default()
    }
}
