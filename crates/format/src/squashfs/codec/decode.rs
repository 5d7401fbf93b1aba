//! Decompresses blocks into a buffer of the largest possible size.

use flate2::{Decompress, FlushDecompress, Status};
use liblzma::stream::{Action, Status as XzStatus, Stream};
use zstd::bulk::Decompressor;

use crate::Algorithm;

/// Memory that an xz decoder may take: the dictionary is no larger than a block.
const XZ_MEMORY: u64 = 16 << 20;

/// A block is not what its compressor made, or larger than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a block does not decompress")]
pub(crate) struct Corrupt;

/// A decompressor with its memory, for one block after another.
pub(crate) enum Decoder {
    Gzip(Box<Decompress>),
    Lz4,
    Zstd(Box<Decompressor<'static>>),
    Xz,
}

impl Decoder {
    /// Fails where there is no memory.
    pub(crate) fn new(algorithm: Algorithm) -> std::io::Result<Decoder> {
        Ok(match algorithm {
            Algorithm::Gzip => Decoder::Gzip(Box::new(Decompress::new(true))),
            Algorithm::Lz4 => Decoder::Lz4,
            Algorithm::Zstd => Decoder::Zstd(Box::new(Decompressor::new()?)),
            Algorithm::Xz => Decoder::Xz,
        })
    }

    /// Decompresses a whole block; returns its size, which never exceeds `out`.
    pub(crate) fn decode(&mut self, block: &[u8], out: &mut [u8]) -> Result<usize, Corrupt> {
        match self {
            Decoder::Gzip(state) => {
                state.reset(true);
                match state.decompress(block, out, FlushDecompress::Finish) {
                    Ok(Status::StreamEnd) => Ok(state.total_out() as usize),
                    _ => Err(Corrupt),
                }
            }
            Decoder::Lz4 => lz4_flex::block::decompress_into(block, out).map_err(|_| Corrupt),
            Decoder::Zstd(state) => state.decompress_to_buffer(block, out).map_err(|_| Corrupt),
            Decoder::Xz => {
                let mut stream = Stream::new_stream_decoder(XZ_MEMORY, 0).map_err(|_| Corrupt)?;
                match stream.process(block, out, Action::Finish) {
                    Ok(XzStatus::StreamEnd) => Ok(stream.total_out() as usize),
                    _ => Err(Corrupt),
                }
            }
        }
    }
}
