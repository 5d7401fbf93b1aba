//! A window into a table being rendered.

use std::ops::Range;

/// Bytes of a table from `start`; what is put elsewhere is left out.
pub(crate) struct Window<'a> {
    start: u64,
    out: &'a mut [u8],
}

impl<'a> Window<'a> {
    pub(crate) fn new(start: u64, out: &'a mut [u8]) -> Window<'a> {
        Window { start, out }
    }

    /// The bytes of the table that are wanted.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.out.len() as u64
    }

    /// Puts what of `bytes`, which start at byte `at` of the table, is wanted.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        let range = self.range();
        let from = range.start.max(at);
        let to = range.end.min(at + bytes.len() as u64);
        if from >= to {
            return;
        }
        let target = self.out.get_mut((from - range.start) as usize..(to - range.start) as usize);
        let source = bytes.get((from - at) as usize..(to - at) as usize);
        if let (Some(target), Some(source)) = (target, source) {
            target.copy_from_slice(source);
        }
    }

    /// Of `count` items of `size` bytes each from byte `at`, those that overlap the window.
    pub(crate) fn items(&self, at: u64, size: usize, count: u64) -> Range<u64> {
        let range = self.range();
        let size = size as u64;
        let first = range.start.saturating_sub(at) / size;
        let end = range.end.saturating_sub(at).div_ceil(size).min(count);
        first..end.max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_is_put() {
        let mut out = [0; 4];
        let mut window = Window::new(10, &mut out);
        window.put(8, &[1, 2, 3]);
        window.put(13, &[4, 5]);
        window.put(2, &[6; 8]);
        window.put(14, &[7; 8]);
        assert_eq!(window.items(4, 4, 100), 1..3);
        assert_eq!(window.items(4, 4, 2), 1..2);
        assert_eq!(window.items(20, 4, 2), 0..0);
        assert_eq!(out, [3, 0, 0, 4]);
    }
}
