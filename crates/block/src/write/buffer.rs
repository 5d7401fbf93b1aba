//! [`Buffer`]: memory that is aligned for direct writes to a disk.

use std::ops::Range;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::BLOCK_SIZE;

/// The alignment of memory, offset and length that `O_DIRECT` needs on every device in use.
pub(super) const ALIGNMENT: usize = BLOCK_SIZE;

#[derive(Clone, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

/// Bytes whose address is as aligned as their offset in the image.
pub(super) struct Buffer(Vec<Page>);

impl Buffer {
    /// A buffer for up to `length` bytes.
    pub(super) fn new(length: usize) -> Buffer {
        Buffer(vec![Page::new_zeroed(); length.div_ceil(ALIGNMENT) + 1])
    }

    /// The buffer's part for `length` bytes of the image from byte `at`; shorter only if that exceeds the buffer's
    /// size.
    pub(super) fn at(&mut self, at: u64, length: usize) -> &mut [u8] {
        let start = (at % ALIGNMENT as u64) as usize;
        let bytes = self.0.as_mut_bytes();
        let end = (start + length).min(bytes.len());
        bytes.get_mut(start..end).unwrap_or_default()
    }

    /// The bytes of this range; shorter only if the buffer ends before.
    pub(super) fn range(&self, range: Range<usize>) -> &[u8] {
        let bytes = self.0.as_bytes();
        bytes.get(range.start..range.end.min(bytes.len())).unwrap_or_default()
    }
}
