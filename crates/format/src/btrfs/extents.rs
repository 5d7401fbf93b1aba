//! Where the content of files is.

use std::ops::Range;

use inarch_volume::VolumeError;
use zerocopy::FromBytes;

use super::blocks::Blocks;
use super::decode::Method;
use super::search::{Position, Root};
use super::spec::inode::{ExtentBody, ExtentHead, extent};
use super::spec::tree::Key;
use super::spec::{MAX_COMPRESSED, kind};
use super::{damaged, unsupported};

/// An extent of a file.
pub(super) struct FileExtent {
    /// Bytes of the file.
    pub(super) range: Range<u64>,
    place: Place,
}

/// Where it is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Zeros: a hole, or allocated but not written.
    Zeros,
    /// Logical bytes from this address on.
    Logical(u64),
    /// Bytes of the image from this one on, in a leaf.
    Image(u64),
    Packed(Packed),
}

/// Bytes of a compressed extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    pub(super) source: Source,
    /// Compressed bytes, at most [`MAX_COMPRESSED`].
    pub(super) stored: u64,
    /// Decompressed bytes, at most as many.
    pub(super) unpacked: u64,
    pub(super) method: Method,
    /// Where in the decompressed bytes the piece starts.
    pub(super) within: u64,
}

/// Where compressed bytes are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// At a logical address.
    Logical(u64),
    /// In a leaf, at this byte of the image.
    Image(u64),
}

/// A part of a file that is not zeros.
pub(super) struct Piece {
    /// Where in the file it starts.
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) place: PiecePlace,
}

pub(super) enum PiecePlace {
    /// It is in the image as it is, from this byte on.
    Stored(u64),
    Packed(Packed),
}

/// Receives pieces, and says whether it wants more.
pub(super) type Take<'a> = dyn FnMut(Piece) -> Result<bool, VolumeError> + 'a;

impl FileExtent {
    /// Reads the item of an extent, whose data lies at byte `at` of the image.
    pub(super) fn parse(offset: u64, item: &[u8], at: u64) -> Result<FileExtent, VolumeError> {
        let wrong = |what: &str| damaged(format!("has an extent at its byte {offset} that {what}"));
        let (head, rest) = ExtentHead::read_from_prefix(item).map_err(|_| wrong("is cut off"))?;
        if head.encryption != 0 || head.encoding.get() != 0 {
            return Err(unsupported("has encrypted content, which is not supported"));
        }
        let unpacked = head.unpacked.get();
        let method = match head.compression {
            0 => None,
            number => {
                let unknown = || unsupported(format!("is compressed by the unknown method {number}"));
                Some(Method::from_number(number).ok_or_else(unknown)?)
            }
        };
        let packed = |source, method, stored: u64, within| match stored.max(unpacked) <= MAX_COMPRESSED {
            true => Ok(Place::Packed(Packed { source, stored, unpacked, method, within })),
            false => Err(wrong("is compressed and longer than 128 KiB")),
        };
        let (length, place) = match (head.kind, method) {
            (extent::INLINE, _) if offset != 0 => return Err(wrong("is in a leaf, where only a file's start may be")),
            (extent::INLINE, method) => {
                let stored = rest.len() as u64;
                let at = at + size_of::<ExtentHead>() as u64;
                match method {
                    Some(method) => (unpacked, packed(Source::Image(at), method, stored, 0)?),
                    None if unpacked <= stored => (unpacked, Place::Image(at)),
                    None => return Err(wrong("is longer than its item")),
                }
            }
            (extent::REGULAR | extent::PREALLOCATED, method) => {
                let (body, _) = ExtentBody::read_from_prefix(rest).map_err(|_| wrong("is cut off"))?;
                let (address, within) = (body.address.get(), body.offset.get());
                let place = match method {
                    _ if address == 0 || head.kind == extent::PREALLOCATED => Place::Zeros,
                    Some(method) => packed(Source::Logical(address), method, body.stored.get(), within)?,
                    None => {
                        let start = address.checked_add(within);
                        let fits = within.checked_add(body.length.get()).is_some_and(|end| end <= body.stored.get());
                        Place::Logical(start.filter(|_| fits).ok_or_else(|| wrong("is longer than what it refers to"))?)
                    }
                };
                (body.length.get(), place)
            }
            (kind, _) => return Err(wrong(&format!("is of the unknown kind {kind}"))),
        };
        let end = offset.checked_add(length).ok_or_else(|| wrong("ends beyond 2^64 bytes"))?;
        Ok(FileExtent { range: offset..end, place })
    }

    /// Gives `take` the pieces of it that are `wanted`. Returns whether more are.
    pub(super) fn pieces(
        &self,
        blocks: &Blocks,
        wanted: &Range<u64>,
        take: &mut Take<'_>,
    ) -> Result<bool, VolumeError> {
        let range = self.range.start.max(wanted.start)..self.range.end.min(wanted.end);
        if range.start >= range.end {
            return Ok(true);
        }
        let skipped = range.start - self.range.start;
        let length = range.end - range.start;
        let beyond = || damaged("has content behind the end of the image");
        match self.place {
            Place::Zeros => Ok(true),
            Place::Image(at) => take(Piece { offset: range.start, length, place: PiecePlace::Stored(at + skipped) }),
            Place::Packed(packed) => {
                let within = packed.within.checked_add(skipped).ok_or_else(beyond)?;
                let place = PiecePlace::Packed(Packed { within, ..packed });
                take(Piece { offset: range.start, length, place })
            }
            Place::Logical(address) => {
                let mut done = 0;
                while done < length {
                    let address = address.checked_add(skipped + done).ok_or_else(beyond)?;
                    let run = blocks.chunks.run(address)?;
                    let (at, now) = (run.place()?, run.length.min(length - done));
                    if at.checked_add(now).is_none_or(|end| end > blocks.image.size()) {
                        return Err(beyond());
                    }
                    if !take(Piece { offset: range.start + done, length: now, place: PiecePlace::Stored(at) })? {
                        return Ok(false);
                    }
                    done += now;
                }
                Ok(true)
            }
        }
    }
}

impl Blocks {
    /// Gives `take` the pieces of a file's bytes `wanted`, ascending and without overlap. What lies between is zeros.
    pub(super) fn each_piece(
        &self,
        root: &Root,
        inode: u64,
        wanted: Range<u64>,
        take: &mut Take<'_>,
    ) -> Result<(), VolumeError> {
        if wanted.start >= wanted.end {
            return Ok(());
        }
        let key = Key::new(inode, kind::EXTENT_DATA, wanted.start);
        let mut position = Position::before(self, root, key)?;
        let is_extent =
            |key: Option<Key>| key.is_some_and(|key| (key.objectid, key.kind) == (inode, kind::EXTENT_DATA));
        if !is_extent(position.key()) {
            position.advance()?;
        }
        let mut end = 0;
        while is_extent(position.key())
            && let (Some((key, item)), Some(at)) = (position.item(), position.at())
            && key.offset < wanted.end
        {
            let extent = FileExtent::parse(key.offset, item, at)?;
            extent.follows(&mut end)?;
            if !extent.pieces(self, &wanted, take)? {
                break;
            }
            position.advance()?;
        }
        Ok(())
    }
}

impl FileExtent {
    /// Checks that it does not begin before `end`, where the last one ended, and sets that to its own end.
    pub(super) fn follows(&self, end: &mut u64) -> Result<(), VolumeError> {
        if self.range.start < *end {
            return Err(damaged(format!("has extents that overlap, at its byte {}", self.range.start)));
        }
        *end = self.range.end;
        Ok(())
    }
}
