//! Decompresses pieces.

use flate2::{Decompress, FlushDecompress, Status};
use liblzma::stream::{Action, Filters, Stream};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::DParameter;

use super::lz4;
use crate::erofs::read::damaged;
use inarch_volume::VolumeError;

/// How a piece is compressed (`Z_EROFS_COMPRESSION_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// An LZ4 block.
    Lz4,
    /// LZMA as liblzma's "MicroLZMA": the first byte, always zero in LZMA, holds the inverted properties.
    Lzma,
    /// DEFLATE without a header.
    Deflate,
    /// A frame of Zstandard.
    Zstd,
}

/// The binary logarithm of a Zstandard window at most (`Z_EROFS_ZSTD_MAX_DICT_SIZE`).
const ZSTD_WINDOW_MAX: u32 = 20;

impl Algorithm {
    /// The algorithm of a number in an index's header.
    pub(super) fn from_number(number: u8) -> Result<Algorithm, VolumeError> {
        Ok(match number {
            0 => Algorithm::Lz4,
            1 => Algorithm::Lzma,
            2 => Algorithm::Deflate,
            3 => Algorithm::Zstd,
            _ => return Err(damaged(format!("it is compressed by the unknown algorithm {number}"))),
        })
    }

    /// Fills `out` with the decompressed `input`, and ignores any rest. Leading zeros are padding: no algorithm's
    /// data starts with one.
    pub(super) fn decompress(self, input: &[u8], out: &mut [u8]) -> Result<(), VolumeError> {
        let padding = input.iter().take_while(|byte| **byte == 0).count();
        let input = input.get(padding..).unwrap_or_default();
        let done = match self {
            Algorithm::Lz4 => lz4::decompress(input, out),
            Algorithm::Lzma => lzma(input, out),
            Algorithm::Deflate => deflate(input, out),
            Algorithm::Zstd => zstandard(input, out),
        };
        let length = out.len();
        done.ok_or_else(|| damaged(format!("{self:?} does not give {length} bytes from {} of it", input.len())))
    }
}

fn lzma(input: &[u8], out: &mut [u8]) -> Option<()> {
    let (properties, rest) = input.split_first()?;
    // The window need not be larger than the output.
    let [a, b, c, d] = u32::try_from(out.len()).ok()?.max(4096).to_le_bytes();
    let mut filters = Filters::new();
    filters.lzma1_properties(&[!properties, a, b, c, d]).ok()?;
    let mut stream = Stream::new_raw_decoder(&filters).ok()?;
    stream.process(&[0], out, Action::Run).ok()?;
    let mut input = rest;
    while (stream.total_out() as usize) < out.len() {
        let (taken, given) = (stream.total_in(), stream.total_out());
        stream.process(input, out.get_mut(given as usize..)?, Action::Run).ok()?;
        let took = (stream.total_in() - taken) as usize;
        if took == 0 && stream.total_out() == given {
            return None;
        }
        input = input.get(took..)?;
    }
    Some(())
}

fn deflate(input: &[u8], out: &mut [u8]) -> Option<()> {
    let mut stream = Decompress::new(false);
    while (stream.total_out() as usize) < out.len() {
        let (taken, given) = (stream.total_in(), stream.total_out());
        let rest = (input.get(taken as usize..)?, out.get_mut(given as usize..)?);
        let status = stream.decompress(rest.0, rest.1, FlushDecompress::None).ok()?;
        let stuck = stream.total_out() == given && (stream.total_in() == taken || status == Status::StreamEnd);
        if stuck {
            return None;
        }
    }
    Some(())
}

fn zstandard(input: &[u8], out: &mut [u8]) -> Option<()> {
    let mut decoder = Decoder::new().ok()?;
    decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_MAX)).ok()?;
    let length = out.len();
    let mut input = InBuffer::around(input);
    let mut output = OutBuffer::around(out);
    while output.pos() < length {
        let before = (input.pos(), output.pos());
        decoder.run(&mut input, &mut output).ok()?;
        if (input.pos(), output.pos()) == before {
            return None;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deflate_and_zstandard_give_prefixes_and_refuse_more_than_there_is() {
        let content: Vec<u8> = (0..50_000u32).map(|i| (i / 7 * i) as u8).collect();
        let mut deflate = flate2::Compress::new(flate2::Compression::default(), false);
        let mut deflated = Vec::with_capacity(100_000);
        deflate.compress_vec(&content, &mut deflated, flate2::FlushCompress::Finish).unwrap();
        let zstd = zstd::bulk::compress(&content, 3).unwrap();
        for (algorithm, packed) in [(Algorithm::Deflate, deflated), (Algorithm::Zstd, zstd)] {
            let padded = [&[0; 10][..], &packed].concat();
            for length in [1, 100, 49_999, 50_000] {
                let mut out = vec![0; length];
                algorithm.decompress(&padded, &mut out).unwrap();
                assert!(out == content[..length], "{algorithm:?} {length}");
            }
            assert!(algorithm.decompress(&padded, &mut [0; 50_001]).is_err());
            assert!(algorithm.decompress(&padded[..padded.len() / 2], &mut [0; 50_000]).is_err());
            assert!(algorithm.decompress(&[0; 100], &mut [0; 10]).is_err());
        }
        assert!(Algorithm::Lzma.decompress(&[0; 100], &mut [0; 10]).is_err());
        assert!(Algorithm::Lzma.decompress(&[0xA2; 100], &mut [0; 100_000]).is_err());
    }
}
