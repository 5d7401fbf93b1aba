//! The compressors, for single blocks.

mod decode;
mod encode;

pub(crate) use decode::{Corrupt, Decoder};
pub(crate) use encode::{Encoder, Settings};

use super::spec::superblock::compressor;
use crate::Algorithm;

/// The algorithm with this number, or the name of one that is not supported.
pub(crate) fn algorithm(number: u16) -> Result<Algorithm, String> {
    match number {
        compressor::GZIP => Ok(Algorithm::Gzip),
        compressor::XZ => Ok(Algorithm::Xz),
        compressor::LZ4 => Ok(Algorithm::Lz4),
        compressor::ZSTD => Ok(Algorithm::Zstd),
        compressor::LZO => Err("lzo".to_owned()),
        compressor::LZMA => Err("lzma (not xz)".to_owned()),
        other => Err(format!("an unknown compressor, number {other}")),
    }
}
