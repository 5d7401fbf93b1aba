//! Unpacks the vmlinux in a bzImage.
//!
//! The kernel's build (scripts/Makefile.lib, `size_append`) appends the unpacked size as a little-endian u32 to the
//! compressed data; gzip's own trailer ends with the same number. So the size is known before unpacking, and a payload
//! of another size is refused.

use std::io::{self, Read};

use super::fields::le32;

/// The largest vmlinux that a guest boots, in bytes: a limit for [`unpack`].
pub const MAX_UNPACKED: usize = 512 << 20;
/// Memory the xz decoder may use, in bytes; the kernel's build uses a dictionary of 32 MiB.
const XZ_MEMORY: u64 = 160 << 20;
/// log2 of the largest zstd window: `zstd -22 --ultra`, as the kernel's build calls it, needs 27.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Unpacked size of a block of the LZ4 legacy format (every block but the last has it).
const LZ4_BLOCK: usize = 8 << 20;
const LZ4_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
const SIZE_FIELD: usize = 4;

/// Why a payload cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// A known compression that is rare; the guest unpacks itself.
    #[error("the kernel is compressed with {0}, which is not unpacked here")]
    Unsupported(&'static str),
    /// Unknown compression.
    #[error("the kernel's payload is in no known compression (it begins with {0:02x?})")]
    Unknown(Vec<u8>),
    /// The size at the payload's end is larger than any kernel's.
    #[error("the kernel's payload claims to unpack to {declared} bytes, more than {limit}")]
    TooLarge {
        /// Size at the payload's end.
        declared: usize,
        /// The caller's limit.
        limit: usize,
    },
    /// The payload unpacked to more or fewer bytes than it declares.
    #[error("the kernel's payload says it unpacks to {declared} bytes, but gives {}{got}", if *.got > *.declared { "at least " } else { "" })]
    Size {
        /// Size at the payload's end.
        declared: usize,
        /// Bytes that came out.
        got: usize,
    },
    /// The compressed data is damaged.
    #[error("the kernel's {compression} payload is damaged: {source}")]
    Damaged {
        /// Name of the compression.
        compression: &'static str,
        /// The decoder's error.
        source: io::Error,
    },
}

/// Unpacks `payload`, the compressed data followed by its size, to at most `limit` bytes.
///
/// # Errors
/// The compression is unknown, or the data is damaged or of another size.
pub fn unpack(payload: &[u8], limit: usize) -> Result<Vec<u8>, PayloadError> {
    let compression = Compression::of(payload)?;
    let unknown = || PayloadError::unknown(payload);
    let end = payload.len().checked_sub(SIZE_FIELD).ok_or_else(unknown)?;
    let declared = le32(payload, end).and_then(|size| usize::try_from(size).ok()).ok_or_else(unknown)?;
    if declared > limit {
        return Err(PayloadError::TooLarge { declared, limit });
    }
    let data = payload.get(..end).unwrap_or_default();
    let unpacked = match compression {
        // For gzip the size is the format's own trailer.
        Compression::Gzip => read(flate2::read::GzDecoder::new(payload), declared),
        Compression::Xz => liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, 0)
            .map_err(io::Error::from)
            .and_then(|stream| read(liblzma::read::XzDecoder::new_stream(data, stream), declared)),
        Compression::Zstd => zstd::stream::read::Decoder::with_buffer(data).and_then(|mut decoder| {
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            read(decoder.single_frame(), declared)
        }),
        Compression::Lz4 => unpack_lz4(data, declared),
    };
    let unpacked = unpacked.map_err(|source| PayloadError::Damaged { compression: compression.name(), source })?;
    if unpacked.len() != declared {
        return Err(PayloadError::Size { declared, got: unpacked.len() });
    }
    Ok(unpacked)
}

impl PayloadError {
    fn unknown(payload: &[u8]) -> PayloadError {
        PayloadError::Unknown(payload.iter().take(8).copied().collect())
    }
}

#[derive(Clone, Copy)]
enum Compression {
    Gzip,
    Xz,
    Zstd,
    Lz4,
}

impl Compression {
    const ALL: [Compression; 4] = [Compression::Gzip, Compression::Xz, Compression::Zstd, Compression::Lz4];

    fn of(payload: &[u8]) -> Result<Compression, PayloadError> {
        const RARE: [(&[u8], &str); 4] =
            [(b"BZh", "bzip2"), (&[0x5d, 0, 0], "lzma"), (&[0x89, b'L', b'Z', b'O'], "lzo"), (b"\x7fELF", "nothing")];
        if let Some((_, name)) = RARE.iter().find(|(magic, _)| payload.starts_with(magic)) {
            return Err(PayloadError::Unsupported(name));
        }
        let compression = Compression::ALL.into_iter().find(|compression| payload.starts_with(compression.magic()));
        compression.ok_or_else(|| PayloadError::unknown(payload))
    }

    fn magic(self) -> &'static [u8] {
        match self {
            Compression::Gzip => &[0x1f, 0x8b],
            Compression::Xz => &[0xfd, b'7', b'z', b'X', b'Z', 0],
            Compression::Zstd => &[0x28, 0xb5, 0x2f, 0xfd],
            Compression::Lz4 => &LZ4_MAGIC,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Xz => "xz",
            Compression::Zstd => "zstd",
            Compression::Lz4 => "lz4",
        }
    }
}

/// Reads at most one byte more than `declared`, so that a compression bomb is detected early.
fn read(decoder: impl Read, declared: usize) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    unpacked.try_reserve_exact(declared.saturating_add(1)).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let limit = u64::try_from(declared).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(limit).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

/// The LZ4 legacy format: a magic, then blocks that each follow their compressed size (lib/decompress_unlz4.c).
fn unpack_lz4(data: &[u8], declared: usize) -> io::Result<Vec<u8>> {
    let damaged = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let mut unpacked = vec![0; declared];
    let mut filled = 0;
    let mut rest = data.get(LZ4_MAGIC.len()..).unwrap_or_default();
    while !rest.is_empty() {
        let size = le32(rest, 0).and_then(|size| usize::try_from(size).ok()).ok_or_else(|| damaged("cut short"))?;
        let block = size.checked_add(SIZE_FIELD).and_then(|end| rest.get(SIZE_FIELD..end));
        let block = block.ok_or_else(|| damaged("a block reaches beyond the end"))?;
        let room = unpacked.get_mut(filled..).unwrap_or_default();
        let room_size = room.len().min(LZ4_BLOCK);
        let room = room.get_mut(..room_size).unwrap_or_default();
        filled += lz4_flex::block::decompress_into(block, room).map_err(io::Error::other)?;
        rest = rest.get(SIZE_FIELD + size..).unwrap_or_default();
    }
    unpacked.truncate(filled);
    Ok(unpacked)
}
