//! Compresses single blocks.

use std::io;

use flate2::{Compress, Compression as Level, FlushCompress, Status};
use liblzma::stream::{Action, Check, Filters, LzmaOptions, Status as XzStatus, Stream};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes, Unaligned};
use zstd::bulk::Compressor;

use crate::squashfs::spec::METADATA_SIZE;
use crate::squashfs::spec::superblock::compressor;
use crate::{Algorithm, Compression};

/// What `mksquashfs` uses where no level is given.
const ZSTD_LEVEL: i32 = 15;
const GZIP_LEVEL: i32 = 9;
const XZ_LEVEL: i32 = 6;
/// `mksquashfs` has its largest window for gzip: 2^15 bytes.
const GZIP_WINDOW: u16 = 15;
/// `LZ4_LEGACY`: the only version of the format in squashfs.
const LZ4_VERSION: u32 = 1;

/// How blocks are compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    algorithm: Algorithm,
    level: i32,
    block_size: u32,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct GzipOptions {
    level: U32,
    window: U16,
    strategies: U16,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Lz4Options {
    version: U32,
    flags: U32,
}

impl Settings {
    /// Checks the level; says what is allowed.
    pub(crate) fn new(compression: Compression, block_size: u32) -> Result<Settings, String> {
        let (name, usual, range) = match compression.algorithm {
            Algorithm::Gzip => ("gzip", GZIP_LEVEL, 1..=9),
            Algorithm::Zstd => ("zstd", ZSTD_LEVEL, 1..=22),
            Algorithm::Xz => ("xz", XZ_LEVEL, 0..=9),
            Algorithm::Lz4 if compression.level.is_some() => {
                return Err("lz4 has no levels here; leave the level out, or take zstd".to_owned());
            }
            Algorithm::Lz4 => ("lz4", 0, 0..=0),
        };
        let level = compression.level.unwrap_or(usual);
        if !range.contains(&level) {
            return Err(format!("level {level} of {name} is not one from {} to {}", range.start(), range.end()));
        }
        Ok(Settings { algorithm: compression.algorithm, level, block_size })
    }

    /// The compressor's number in the superblock.
    pub(crate) fn number(&self) -> u16 {
        match self.algorithm {
            Algorithm::Gzip => compressor::GZIP,
            Algorithm::Xz => compressor::XZ,
            Algorithm::Lz4 => compressor::LZ4,
            Algorithm::Zstd => compressor::ZSTD,
        }
    }

    /// The options that stand behind the superblock, if any differ from what `mksquashfs` leaves out.
    pub(crate) fn options(&self) -> Option<Vec<u8>> {
        match self.algorithm {
            Algorithm::Gzip if self.level != GZIP_LEVEL => {
                let level = (self.level as u32).into();
                let options = GzipOptions { level, window: GZIP_WINDOW.into(), strategies: 0.into() };
                Some(options.as_bytes().to_vec())
            }
            Algorithm::Zstd if self.level != ZSTD_LEVEL => Some(self.level.to_le_bytes().to_vec()),
            Algorithm::Lz4 => Some(Lz4Options { version: LZ4_VERSION.into(), flags: 0.into() }.as_bytes().to_vec()),
            // The dictionary of xz is what the kernel expects by itself: as large as a block.
            _ => None,
        }
    }
}

/// A compressor with its memory. Its output depends only on the block.
pub(crate) struct Encoder {
    state: State,
    out: Vec<u8>,
}

enum State {
    Gzip(Box<Compress>, u32),
    Lz4,
    Zstd(Box<Compressor<'static>>),
    Xz(Box<Filters>),
}

impl Encoder {
    /// Fails where there is no memory.
    pub(crate) fn new(settings: &Settings) -> io::Result<Encoder> {
        let state = match settings.algorithm {
            Algorithm::Gzip => {
                let level = settings.level as u32;
                State::Gzip(Box::new(Compress::new(Level::new(level), true)), level)
            }
            Algorithm::Lz4 => State::Lz4,
            Algorithm::Zstd => State::Zstd(Box::new(Compressor::new(settings.level)?)),
            Algorithm::Xz => {
                let mut options = LzmaOptions::new_preset(settings.level as u32)?;
                options.dict_size(settings.block_size.max(METADATA_SIZE as u32));
                let mut filters = Filters::new();
                filters.lzma2(&options);
                State::Xz(Box::new(filters))
            }
        };
        Ok(Encoder { state, out: Vec::new() })
    }

    /// Compresses a block; `None` where that takes no fewer bytes than the block has.
    pub(crate) fn encode(&mut self, block: &[u8]) -> io::Result<Option<&[u8]>> {
        let room = match self.state {
            State::Lz4 => lz4_flex::block::get_maximum_output_size(block.len()),
            _ => block.len(),
        };
        if self.out.len() < room {
            self.out.resize(room, 0);
        }
        let out = self.out.get_mut(..room).unwrap_or_default();
        let length = match &mut self.state {
            State::Gzip(state, level) => {
                state.reset();
                let status = state.compress(block, out, FlushCompress::Finish)?;
                let complete = status == Status::StreamEnd;
                if !complete {
                    // A stream that did not end leaves something behind, even when it is reset.
                    **state = Compress::new(Level::new(*level), true);
                }
                complete.then_some(state.total_out() as usize)
            }
            State::Lz4 => lz4_flex::block::compress_into(block, out).ok(),
            // The only error of a context that could be made is a block that does not fit.
            State::Zstd(state) => state.compress_to_buffer(block, out).ok(),
            State::Xz(filters) => {
                let mut stream = Stream::new_stream_encoder(filters, Check::Crc32)?;
                let status = stream.process(block, out, Action::Finish)?;
                (status == XzStatus::StreamEnd).then_some(stream.total_out() as usize)
            }
        };
        Ok(length.filter(|length| *length < block.len()).and_then(|length| self.out.get(..length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::squashfs::codec::Decoder;

    #[test]
    fn blocks_come_back() {
        let text: Vec<u8> = (0..100_000u32).flat_map(|i| (i / 7).to_le_bytes()).take(131_072).collect();
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let noise: Vec<u8> = (0..5000).map(|_| random()).collect();
        for algorithm in [Algorithm::Gzip, Algorithm::Lz4, Algorithm::Zstd, Algorithm::Xz] {
            let settings = Settings::new(Compression { algorithm, level: None }, 131_072).unwrap();
            let mut encoder = Encoder::new(&settings).unwrap();
            let mut decoder = Decoder::new(algorithm).unwrap();
            for block in [&text[..], &text[..8192], &text[..100]] {
                let encoded = encoder.encode(block).unwrap().unwrap().to_vec();
                let mut out = vec![0; 131_072];
                assert_eq!(decoder.decode(&encoded, &mut out), Ok(block.len()), "{algorithm:?}");
                assert!(&out[..block.len()] == block, "{algorithm:?}");
                assert!(decoder.decode(&encoded, &mut out[..block.len() - 1]).is_err(), "{algorithm:?}");
                assert_eq!(encoder.encode(block).unwrap(), Some(&encoded[..]), "{algorithm:?}");
            }
            let before = encoder.encode(&text).unwrap().unwrap().to_vec();
            assert_eq!(encoder.encode(&noise).unwrap(), None, "{algorithm:?}");
            assert_eq!(encoder.encode(&text).unwrap(), Some(&before[..]), "{algorithm:?}");
        }
    }

    #[test]
    fn levels_are_checked() {
        let new = |algorithm, level| Settings::new(Compression { algorithm, level: Some(level) }, 4096);
        assert!(new(Algorithm::Zstd, 22).is_ok() && new(Algorithm::Zstd, 23).is_err());
        assert!(new(Algorithm::Gzip, 1).is_ok() && new(Algorithm::Gzip, 0).is_err());
        assert!(new(Algorithm::Xz, 0).is_ok() && new(Algorithm::Xz, 10).is_err());
        assert!(new(Algorithm::Lz4, 1).is_err());
    }
}
