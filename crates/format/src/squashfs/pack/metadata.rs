//! Tables that are compressed block by block as they grow.

use std::io;

use crate::squashfs::codec::Encoder;
use crate::squashfs::layout::places::Starts;
use crate::squashfs::spec::{METADATA_SIZE, METADATA_STORED};

/// A table in the making, in memory.
pub(super) struct MetadataWriter {
    /// Bytes of the metadata block that is not full yet.
    block: Vec<u8>,
    /// The blocks before it, as they are on disk.
    bytes: Vec<u8>,
    /// Uncompressed bytes so far.
    position: u64,
}

/// The places of a table's metadata blocks before there is any.
pub(super) fn no_blocks() -> Starts {
    Starts::Packed(vec![0])
}

impl MetadataWriter {
    pub(super) fn new() -> MetadataWriter {
        MetadataWriter { block: Vec::with_capacity(METADATA_SIZE), bytes: Vec::new(), position: 0 }
    }

    /// Uncompressed bytes so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Adds bytes; `starts` learns where the next metadata block is, as soon as the one before is full.
    pub(super) fn push(&mut self, mut bytes: &[u8], encoder: &mut Encoder, starts: &mut Starts) -> io::Result<()> {
        self.position += bytes.len() as u64;
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(METADATA_SIZE - self.block.len()));
            self.block.extend_from_slice(head);
            bytes = rest;
            if self.block.len() == METADATA_SIZE {
                self.end_block(encoder)?;
                if let Starts::Packed(list) = starts {
                    list.push(self.bytes.len() as u64);
                }
            }
        }
        Ok(())
    }

    fn end_block(&mut self, encoder: &mut Encoder) -> io::Result<()> {
        let encoded = encoder.encode(&self.block)?;
        let bytes = encoded.unwrap_or(&self.block);
        let stored = if encoded.is_some() { 0 } else { METADATA_STORED };
        self.bytes.extend_from_slice(&(bytes.len() as u16 | stored).to_le_bytes());
        self.bytes.extend_from_slice(bytes);
        self.block.clear();
        Ok(())
    }

    /// The whole table as it is on disk.
    pub(super) fn finish(mut self, encoder: &mut Encoder) -> io::Result<Vec<u8>> {
        if !self.block.is_empty() {
            self.end_block(encoder)?;
        }
        Ok(self.bytes)
    }
}
