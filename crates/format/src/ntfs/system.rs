//! Windows's system compression (`compact /exe`, CompactOS): the content of a file is a hole, and a named stream has it in chunks that
//! are compressed each.
//!
//! The stream begins with a table of the chunks' ends, without the last one. A chunk that is stored in its full length is not compressed.

use inarch_volume::VolumeError;

use super::compressed::is_compressed;
use super::damaged;
use super::inode::{Inode, Stream};
use super::mft::Mft;
use super::spec::{kind, u32_at, u64_at};
use super::xpress::decompress;

/// The stream's name.
pub(super) const NAME: &str = "WofCompressedData";

/// Algorithms (`FILE_PROVIDER_COMPRESSION_*`), with the binary logarithm of bytes in a chunk.
const XPRESS: [(u32, u32); 3] = [(0, 12), (2, 13), (3, 14)];

/// The binary logarithm of bytes in a chunk, if the data of the reparse point says that chunks are compressed by XPRESS: a version,
/// the provider of files (2), its version, and the algorithm.
pub(super) fn chunk_bits(data: &[u8]) -> Option<u32> {
    if (u32_at(data, 0), u32_at(data, 4), u32_at(data, 8)) != (Some(1), Some(2), Some(1)) {
        return None;
    }
    let algorithm = u32_at(data, 12)?;
    XPRESS.iter().find(|(known, _)| *known == algorithm).map(|(_, bits)| *bits)
}

/// The stored content of a file.
pub(super) struct Chunks {
    stream: Stream,
    /// Bytes of the file's content.
    size: u64,
    bits: u32,
}

impl Chunks {
    /// Those of a file of `size` bytes.
    pub(super) fn open(mft: &Mft, inode: &Inode, size: u64, bits: u32) -> Result<Chunks, VolumeError> {
        let name: Vec<u8> = NAME.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let stream = inode.stream(mft, kind::DATA, &name)?;
        let stream = stream.ok_or_else(|| damaged("its content should be in a stream that it does not have"))?;
        match is_compressed(&stream)? {
            true => Err(VolumeError::Unsupported("is compressed twice, and is not read".to_owned())),
            false => Ok(Chunks { stream, size, bits }),
        }
    }

    /// Bytes of a chunk.
    pub(super) fn chunk(&self) -> u64 {
        1 << self.bits
    }

    /// The chunk of that number, decompressed.
    pub(super) fn decode(&self, mft: &Mft, inode: &Inode, number: u64) -> Result<Vec<u8>, VolumeError> {
        let wrong = || damaged(format!("chunk {number} of its compressed content makes no sense"));
        let count = self.size.div_ceil(self.chunk());
        let is_wide = self.size > u64::from(u32::MAX);
        let entry = if is_wide { 8 } else { 4 };
        let table = count.saturating_sub(1) * entry;
        // Where the chunk before `index` ends.
        let end_before = |index: u64| -> Result<u64, VolumeError> {
            if index == 0 {
                return Ok(table);
            }
            if index >= count {
                return Ok(self.stream.size());
            }
            let mut bytes = [0; 8];
            let place = bytes.get_mut(..entry as usize).ok_or_else(wrong)?;
            inode.read(mft, &self.stream, (index - 1) * entry, place)?;
            let end = if is_wide { u64_at(&bytes, 0) } else { u32_at(&bytes, 0).map(u64::from) };
            end.and_then(|end| end.checked_add(table)).ok_or_else(wrong)
        };
        let (start, end) = (end_before(number)?, end_before(number + 1)?);
        let length = self.size.saturating_sub(number << self.bits).min(self.chunk());
        let stored = end.checked_sub(start).filter(|stored| *stored <= length).ok_or_else(wrong)?;
        let mut bytes = vec![0; stored as usize];
        inode.read(mft, &self.stream, start, &mut bytes)?;
        if stored == length {
            return Ok(bytes);
        }
        let mut chunk = vec![0; length as usize];
        decompress(&bytes, &mut chunk).map(|()| chunk).ok_or_else(wrong)
    }
}
