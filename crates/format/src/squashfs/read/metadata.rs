//! Reads tables of metadata blocks.

use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use super::image::{Image, wrong};
use crate::cache::Cache;
use crate::squashfs::spec::{METADATA_HEADER, METADATA_SIZE, METADATA_STORED, Reference};
use inarch_volume::VolumeError;

/// Metadata blocks kept: half a mebibyte of a table.
const CACHED: usize = 64;

/// A metadata block, decompressed.
struct Block {
    bytes: Vec<u8>,
    /// Where the next one starts, in bytes from the image's start.
    next: u64,
}

/// The metadata blocks between two bytes of the image.
pub(super) struct Table {
    image: Arc<Image>,
    name: &'static str,
    start: u64,
    end: u64,
    cache: Cache<Block>,
}

impl Table {
    /// `name` is for messages.
    pub(super) fn new(image: &Arc<Image>, name: &'static str, start: u64, end: u64) -> Table {
        Table { image: Arc::clone(image), name, start, end, cache: Cache::new(CACHED) }
    }

    /// Something is wrong with this table.
    pub(super) fn wrong(&self, what: &str, offset: u64) -> VolumeError {
        wrong(format!("{what} at byte {offset} ({} table)", self.name))
    }

    fn block(&self, offset: u64) -> Result<Arc<Block>, VolumeError> {
        if let Some(block) = self.cache.get(offset) {
            return Ok(block);
        }
        let block = Arc::new(self.read_block(offset)?);
        self.cache.put(offset, Arc::clone(&block));
        Ok(block)
    }

    fn read_block(&self, offset: u64) -> Result<Block, VolumeError> {
        let start = offset.saturating_add(METADATA_HEADER as u64);
        if offset < self.start || start > self.end {
            return Err(self.wrong("a reference leads out of its table to a metadata block", offset));
        }
        let mut header = [0; METADATA_HEADER];
        self.image.read(offset, &mut header)?;
        let header = u16::from_le_bytes(header);
        let length = usize::from(header & !METADATA_STORED);
        let next = start + length as u64;
        if length == 0 || length > METADATA_SIZE || next > self.end {
            return Err(self.wrong(&format!("impossible length {length} of the metadata block"), offset));
        }
        let mut bytes = vec![0; METADATA_SIZE];
        if header & METADATA_STORED != 0 {
            bytes.truncate(length);
            self.image.read(start, &mut bytes)?;
        } else {
            let decoded = self.image.decode(start, length, &mut bytes)?;
            let decoded = decoded.map_err(|corrupt| self.wrong(&corrupt.to_string(), offset))?;
            bytes.truncate(decoded);
        }
        if bytes.is_empty() {
            return Err(self.wrong("an empty metadata block", offset));
        }
        Ok(Block { bytes, next })
    }

    /// A reader at a reference.
    pub(super) fn reader(&self, at: Reference) -> Result<Reader<'_>, VolumeError> {
        let offset = self.start.saturating_add(at.block());
        let block = self.block(offset)?;
        if usize::from(at.offset()) > block.bytes.len() {
            return Err(self.wrong("a reference leads beyond the end of the metadata block", offset));
        }
        Ok(Reader { table: self, offset, block, at: at.offset().into() })
    }

    /// A reader at the start of a metadata block that lies at `offset` of the image.
    pub(super) fn reader_at(&self, offset: u64, within: usize) -> Result<Reader<'_>, VolumeError> {
        let block = self.block(offset)?;
        if within > block.bytes.len() {
            return Err(self.wrong("a table ends before it should in the metadata block", offset));
        }
        Ok(Reader { table: self, offset, block, at: within })
    }
}

/// A position in a table, from which bytes are read across metadata blocks.
pub(super) struct Reader<'a> {
    table: &'a Table,
    /// Where the block starts, in bytes from the image's start.
    offset: u64,
    block: Arc<Block>,
    at: usize,
}

impl Reader<'_> {
    /// Goes to the next metadata block where this one has been read.
    fn advance(&mut self) -> Result<(), VolumeError> {
        if self.at == self.block.bytes.len() {
            self.offset = self.block.next;
            self.block = self.table.block(self.offset)?;
            self.at = 0;
        }
        Ok(())
    }

    /// Fills `out` with the next bytes.
    pub(super) fn read(&mut self, mut out: &mut [u8]) -> Result<(), VolumeError> {
        while !out.is_empty() {
            self.advance()?;
            let ahead = self.block.bytes.get(self.at..).unwrap_or_default();
            let count = ahead.len().min(out.len());
            let (head, tail) = out.split_at_mut(count);
            head.copy_from_slice(ahead.get(..count).unwrap_or_default());
            self.at += count;
            out = tail;
        }
        Ok(())
    }

    /// The next bytes as a structure.
    pub(super) fn read_struct<T: FromBytes + IntoBytes>(&mut self) -> Result<T, VolumeError> {
        let mut value = T::new_zeroed();
        self.read(value.as_mut_bytes())?;
        Ok(value)
    }

    /// Where it is.
    pub(super) fn reference(&self) -> Reference {
        Reference::new(self.offset - self.table.start, self.at as u16)
    }

    /// An error at this place.
    pub(super) fn wrong(&self, what: &str) -> VolumeError {
        wrong(format!("{what} in the metadata block at byte {} ({} table)", self.offset, self.table.name))
    }
}
