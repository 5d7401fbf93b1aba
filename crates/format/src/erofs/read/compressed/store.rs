//! Reading compressed files.

use std::sync::Arc;

use super::cache::Cache;
use super::index::Index;
use super::{Compressed, Form, Piece, Place};
use crate::erofs::read::damaged;
use crate::erofs::read::image::Image;
use inarch_tree::Extent;
use inarch_volume::VolumeError;

/// The inode that holds ends of files, or small files as a whole.
#[derive(Clone, Debug)]
pub(crate) enum Packed {
    /// Where its bytes lie.
    Plain(Vec<Extent>),
    /// It is compressed itself.
    Compressed(Compressed),
}

/// Stands for the packed inode in place of a file's number.
const PACKED: u64 = u64::MAX;
/// Bytes that are read at once of what is not compressed.
const STEP: u64 = 1 << 16;

/// Receives the bytes that are read.
pub(crate) type Put<'a> = dyn FnMut(&[u8]) + 'a;

/// An image's compressed files.
pub(crate) struct Store {
    image: Image,
    packed: Option<Packed>,
    cache: Cache,
}

impl Store {
    pub(crate) fn new(image: Image, packed: Option<Packed>) -> Store {
        Store { image, packed, cache: Cache::default() }
    }

    /// Passes `count` bytes of a file from `offset` to `put`, with zeros past its end. `number` identifies the file.
    pub(crate) fn read(
        &self,
        number: u64,
        file: &Compressed,
        mut offset: u64,
        mut count: u64,
        put: &mut Put<'_>,
    ) -> Result<(), VolumeError> {
        while count > 0 && offset < file.size {
            let piece = Index::new(&self.image, file).piece(offset)?;
            // The piece contains the byte, unless the index is inconsistent.
            let within = offset.checked_sub(piece.start).filter(|within| *within < piece.length);
            let within = within.ok_or_else(|| damaged(format!("its index has no piece for byte {offset}")))?;
            let now = (piece.length - within).min(count);
            match piece.place {
                Place::Packed(_) if number == PACKED => {
                    return Err(damaged("the packed inode says that its content is in the packed inode"));
                }
                Place::Packed(at) => {
                    let at = at.checked_add(within).ok_or_else(|| damaged("its fragment lies beyond 2^64 bytes"))?;
                    self.put_packed(at, now, put)?;
                }
                Place::Image { at, length, form } => {
                    let content = self.content(number, &piece, at, length, form, file)?;
                    put(content.get(within as usize..(within + now) as usize).unwrap_or_default());
                }
            }
            offset += now;
            count -= now;
        }
        put_zeros(count, put);
        Ok(())
    }

    /// Fills `out` with the packed inode's content from `offset`.
    pub(crate) fn read_packed(&self, offset: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let count = out.len() as u64;
        let mut rest = out;
        self.put_packed(offset, count, &mut |bytes| {
            let taken = std::mem::take(&mut rest);
            let (now, later) = taken.split_at_mut(bytes.len().min(taken.len()));
            now.copy_from_slice(bytes.get(..now.len()).unwrap_or_default());
            rest = later;
        })
    }

    fn put_packed(&self, mut offset: u64, count: u64, put: &mut Put<'_>) -> Result<(), VolumeError> {
        let parts = match &self.packed {
            None => return Err(damaged("it has a fragment, but the image has no packed inode")),
            Some(Packed::Compressed(file)) => return self.read(PACKED, file, offset, count, put),
            Some(Packed::Plain(parts)) => parts,
        };
        let end = offset.checked_add(count).ok_or_else(|| damaged("its fragment lies beyond 2^64 bytes"))?;
        let first = parts.partition_point(|part| part.offset + part.length <= offset);
        for part in parts.get(first..).unwrap_or_default().iter().take_while(|part| part.offset < end) {
            put_zeros(part.offset.saturating_sub(offset), put);
            offset = offset.max(part.offset);
            let stop = (part.offset + part.length).min(end);
            while offset < stop {
                let mut bytes = vec![0; STEP.min(stop - offset) as usize];
                self.image.read(part.at + (offset - part.offset), &mut bytes)?;
                put(&bytes);
                offset += bytes.len() as u64;
            }
        }
        put_zeros(end - offset, put);
        Ok(())
    }

    /// A piece's content.
    fn content(
        &self,
        number: u64,
        piece: &Piece,
        at: u64,
        length: u64,
        form: Form,
        file: &Compressed,
    ) -> Result<Arc<[u8]>, VolumeError> {
        let key = (number, piece.start);
        if let Some(content) = self.cache.get(key) {
            return Ok(content);
        }
        let mut stored = vec![0; length as usize];
        self.image.read(at, &mut stored)?;
        let content = match form {
            Form::Plain => {
                stored.truncate(piece.length as usize);
                stored
            }
            Form::Rotated => {
                let rotation = piece.start % (1 << file.block_bits) % length;
                stored.rotate_left(rotation as usize);
                stored.truncate(piece.length as usize);
                stored
            }
            Form::Compressed(algorithm) => {
                let mut content = vec![0; piece.length as usize];
                algorithm.decompress(&stored, &mut content)?;
                content
            }
        };
        let content: Arc<[u8]> = content.into();
        self.cache.put(key, &content);
        Ok(content)
    }
}

fn put_zeros(mut count: u64, put: &mut Put<'_>) {
    static ZEROS: [u8; 4096] = [0; 4096];
    while count > 0 {
        let now = count.min(ZEROS.len() as u64);
        put(ZEROS.get(..now as usize).unwrap_or_default());
        count -= now;
    }
}
