//! [`Region`]: where the bytes of a file or directory lie in an image.

use std::ops::Range;

use inarch_block::{Backing, Cursor};
use inarch_tree::Extent;
use inarch_volume::{Body, Facts, Loss, Node, Pages, VolumeError};

/// The node of `name` in a directory whose entries `each` gives, with their names. Damaged if it was not found and part of the directory cannot
/// be read.
pub(crate) fn find(
    name: &[u8],
    each: impl FnOnce(&mut dyn FnMut(Result<(&[u8], Node), Loss>) -> bool) -> Result<(), VolumeError>,
) -> Result<Option<Node>, VolumeError> {
    let (mut node, mut lost) = (None, None);
    each(&mut |found| match found {
        Ok((found, its)) => {
            node = (found == name).then_some(its);
            node.is_none()
        }
        Err(loss) => {
            lost = Some(loss.reason);
            true
        }
    })?;
    match (node, lost) {
        (None, Some(reason)) => Err(VolumeError::Damaged(reason)),
        (node, _) => Ok(node),
    }
}

/// What a pass tells of a file with these extents. If they are damaged, the file's start may still be read.
pub(crate) fn body(extents: Result<Vec<Extent>, VolumeError>, facts: &mut Facts) -> Result<Body, VolumeError> {
    match extents {
        Ok(extents) => {
            facts.extents = extents;
            Ok(Body::Extents)
        }
        Err(VolumeError::Damaged(reason)) => {
            facts.losses.push(Loss::damage(reason));
            Ok(Body::Packed)
        }
        Err(error) => Err(error),
    }
}

/// Pieces of an image that make up a file's content, from its first byte on and without gaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Region {
    extents: Vec<Extent>,
    bytes: u64,
    /// Why it ends before it should.
    flaw: Option<String>,
}

impl Region {
    /// One piece.
    pub(crate) fn one(at: u64, length: u64) -> Region {
        let mut region = Region::default();
        region.push(at, length);
        region
    }

    /// Appends a piece; one that follows the last in the image is joined to it.
    pub(crate) fn push(&mut self, at: u64, length: u64) {
        match self.extents.last_mut() {
            _ if length == 0 => {}
            Some(last) if last.at.saturating_add(last.length) == at => last.length = last.length.saturating_add(length),
            _ => self.extents.push(Extent { offset: self.bytes, length, at, backing: 0 }),
        }
        self.bytes = self.bytes.saturating_add(length);
    }

    /// Cuts off what is behind byte `bytes`.
    pub(crate) fn truncate(&mut self, bytes: u64) {
        self.extents = self.parts(0..bytes).collect();
        self.bytes = self.bytes.min(bytes);
    }

    /// Says why it ends where it ends.
    pub(crate) fn end_early(&mut self, flaw: String) {
        self.flaw = Some(flaw);
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many pieces.
    pub(crate) fn pieces(&self) -> usize {
        self.extents.len()
    }

    /// Why it ends before it should.
    pub(crate) fn flaw(&self) -> Option<&str> {
        self.flaw.as_deref()
    }

    /// The pieces of the bytes in `range`.
    pub(crate) fn parts(&self, range: Range<u64>) -> impl Iterator<Item = Extent> + '_ {
        let first = self.extents.partition_point(|extent| extent.offset.saturating_add(extent.length) <= range.start);
        let rest = self.extents.get(first..).unwrap_or_default();
        let parts = rest.iter().take_while(move |extent| extent.offset < range.end);
        parts.filter_map(move |extent| {
            let start = extent.offset.max(range.start);
            let end = extent.offset.saturating_add(extent.length).min(range.end);
            let at = extent.at.checked_add(start - extent.offset)?;
            (start < end).then(|| Extent { offset: start, length: end - start, at, backing: extent.backing })
        })
    }

    /// Fails if the bytes up to `end` are not all there.
    fn check(&self, end: u64) -> Result<(), VolumeError> {
        match &self.flaw {
            Some(flaw) if end > self.bytes => Err(VolumeError::Damaged(flaw.clone())),
            None if end > self.bytes => {
                Err(VolumeError::Damaged(format!("has no place for its bytes from byte {} on", self.bytes)))
            }
            _ => Ok(()),
        }
    }

    /// Where the bytes of `range` lie. `end` is where the file's data ends; behind it are zeros.
    pub(crate) fn extents(&self, range: Range<u64>, end: u64) -> Result<Vec<Extent>, VolumeError> {
        let range = range.start..range.end.min(end);
        if range.start < range.end {
            self.check(range.end)?;
        }
        Ok(self.parts(range).collect())
    }

    /// Fills the next `count` bytes of `out` from byte `offset` of the content. Its first `end` bytes are data, the rest are
    /// zeros.
    pub(crate) fn read(
        &self,
        backing: &dyn Backing,
        end: u64,
        offset: u64,
        count: u64,
        out: &mut Cursor<'_, '_>,
    ) -> Result<(), VolumeError> {
        let mut left = count;
        for part in self.extents(offset..offset.saturating_add(count), end)? {
            let read = backing.read(part.at, part.length, out);
            read.map_err(|error| VolumeError::Io { offset: part.at, error })?;
            left = left.saturating_sub(part.length);
        }
        out.fill_zeros(left);
        Ok(())
    }

    /// Reads small pieces of `size` bytes from byte `from` on, a multiple of `size`, until `take` returns false. `take` has
    /// each piece's offset in the region and its place in the image. Pieces do not cross the region's extents.
    pub(crate) fn each<const SIZE: usize>(
        &self,
        pages: &Pages,
        from: u64,
        take: &mut dyn FnMut(u64, u64, &[u8; SIZE]) -> bool,
    ) -> Result<bool, VolumeError> {
        let size = SIZE as u64;
        for part in self.parts(from..self.bytes) {
            let mut within = 0;
            while part.length - within >= size {
                let at = part.at + within;
                if !take(part.offset + within, at, &pages.array::<SIZE>(at)?) {
                    return Ok(false);
                }
                within += size;
            }
        }
        Ok(true)
    }
}
