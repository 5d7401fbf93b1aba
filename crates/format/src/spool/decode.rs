//! Detects a compression by its magic number, and decodes it.

use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use crate::ReadError;

/// Memory that the decoder of an xz file may take: as much as `xz -9` needs, and some more.
const XZ_MEMORY: u64 = 256 << 20;

/// The largest window of a zstd frame, as a power of 2: that of `zstd --ultra --long=27`, as the `zstd` program allows.
const ZSTD_WINDOW: u32 = 27;

/// How bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not at all, as far as one can tell.
    Plain,
    Gzip,
    Zstd,
    Xz,
    /// In a way that is known and not read, by that name.
    Other(&'static str),
}

impl Kind {
    /// The compression that starts with these bytes.
    pub(crate) fn of(magic: &[u8]) -> Kind {
        match magic {
            [0x1f, 0x8b, ..] => Kind::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Kind::Zstd,
            // A skippable frame, as some parallel compressors put in front.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Kind::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Kind::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Kind::Other("bzip2"),
            [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => Kind::Other("lz4"),
            [0x1f, 0x9d, ..] => Kind::Other("compress"),
            [b'L', b'Z', b'I', b'P', ..] => Kind::Other("lzip"),
            [0x89, b'L', b'Z', b'O', 0, ..] => Kind::Other("lzop"),
            _ => Kind::Plain,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Plain => "plain",
            Kind::Gzip => "gzip",
            Kind::Zstd => "zstd",
            Kind::Xz => "xz",
            Kind::Other(name) => name,
        }
    }

    /// Decodes `source`, all members or frames in order.
    pub(super) fn decoder<'r>(self, source: impl Read + 'r) -> Result<Box<dyn Read + 'r>, ReadError> {
        let failed = |error: io::Error| ReadError::Io { offset: 0, error };
        let source = BufReader::with_capacity(128 << 10, source);
        Ok(match self {
            Kind::Plain => Box::new(source),
            Kind::Gzip => Box::new(MultiGzDecoder::new(source)),
            Kind::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(source).map_err(failed)?;
                decoder.window_log_max(ZSTD_WINDOW).map_err(failed)?;
                Box::new(decoder)
            }
            Kind::Xz => {
                let stream = Stream::new_stream_decoder(XZ_MEMORY, CONCATENATED);
                Box::new(XzDecoder::new_stream(source, stream.map_err(|error| failed(error.into()))?))
            }
            Kind::Other(name) => {
                let reason = format!("it is compressed by {name}, which is not read here; decompress it first");
                return Err(ReadError::Format { format: "tar", reason });
            }
        })
    }
}

/// Input that can peek at its first bytes, counts what was read, and keeps its own errors apart from a decoder's.
pub(super) struct Source<R> {
    input: R,
    ahead: Vec<u8>,
    count: u64,
    error: Option<io::Error>,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Source<R> {
        Source { input, ahead: Vec::new(), count: 0, error: None }
    }

    /// The first bytes, at most as many as fit `out`; fewer at the input's end. To be called before any read.
    pub(super) fn peek<'o>(&mut self, out: &'o mut [u8]) -> io::Result<&'o [u8]> {
        self.input.by_ref().take(out.len() as u64).read_to_end(&mut self.ahead)?;
        let length = self.ahead.len().min(out.len());
        let out = out.get_mut(..length).unwrap_or_default();
        out.copy_from_slice(self.ahead.get(..length).unwrap_or_default());
        Ok(out)
    }

    /// What a decoder's error means: the input's own, or that it makes no sense.
    pub(super) fn explain(&mut self, kind: Kind, error: io::Error) -> ReadError {
        match self.error.take() {
            Some(error) => ReadError::Io { offset: self.count, error },
            None => {
                let reason =
                    format!("its {} data is damaged or cut off near byte {}: {error}", kind.name(), self.count);
                ReadError::Format { format: "tar", reason }
            }
        }
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if !self.ahead.is_empty() {
            let got = self.ahead.as_slice().read(out)?;
            self.ahead.drain(..got);
            self.count += got as u64;
            return Ok(got);
        }
        match self.input.read(out) {
            Ok(got) => {
                self.count += got as u64;
                Ok(got)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let kind = error.kind();
                self.error = Some(error);
                Err(kind.into())
            }
        }
    }
}
