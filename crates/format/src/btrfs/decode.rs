//! Decompresses extents.

use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::DParameter;

use super::lzo;

/// The binary logarithm of a Zstandard window at most (`ZSTD_BTRFS_MAX_WINDOWLOG`).
const ZSTD_WINDOW_MAX: u32 = 17;

/// How an extent is compressed (`BTRFS_COMPRESS_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Zlib,
    Lzo,
    Zstd,
}

impl Method {
    pub(super) fn from_number(number: u8) -> Option<Method> {
        Some(match number {
            1 => Method::Zlib,
            2 => Method::Lzo,
            3 => Method::Zstd,
            _ => return None,
        })
    }

    /// Decompresses into `out` as much as there is room for, and returns how much it is. An extent at a file's end has
    /// fewer bytes than its sectors; the rest become zeros.
    pub(super) fn decompress(self, input: &[u8], out: &mut [u8], sector: usize) -> Option<usize> {
        let filled = match self {
            Method::Zlib => zlib(input, out),
            Method::Lzo => lzo::decompress(input, out, sector),
            Method::Zstd => zstandard(input, out),
        }?;
        // Decoders may write more than they say.
        out.get_mut(filled..)?.fill(0);
        Some(filled)
    }
}

fn zlib(input: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut stream = Decompress::new(true);
    loop {
        let (taken, given) = (stream.total_in() as usize, stream.total_out() as usize);
        if given == out.len() {
            return Some(given);
        }
        let status = stream.decompress(input.get(taken..)?, out.get_mut(given..)?, FlushDecompress::None).ok()?;
        let (took, gave) = (stream.total_in() as usize - taken, stream.total_out() as usize - given);
        match status {
            Status::StreamEnd => return Some(given + gave),
            _ if took == 0 && gave == 0 => return None,
            _ => {}
        }
    }
}

fn zstandard(input: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut decoder = Decoder::new().ok()?;
    decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_MAX)).ok()?;
    let room = out.len();
    let mut input = InBuffer::around(input);
    let mut output = OutBuffer::around(out);
    while output.pos() < room {
        let before = (input.pos(), output.pos());
        // Zero: the frame has ended. What follows fills up the sector.
        if decoder.run(&mut input, &mut output).ok()? == 0 {
            break;
        }
        if (input.pos(), output.pos()) == before {
            return None;
        }
    }
    Some(output.pos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_end_is_ignored_and_what_is_cut_off_is_refused() {
        let content: Vec<u8> = (0..50_000u32).map(|i| (i / 7 * i) as u8).collect();
        let mut zlib = flate2::Compress::new(flate2::Compression::default(), true);
        let mut deflated = Vec::with_capacity(100_000);
        zlib.compress_vec(&content, &mut deflated, flate2::FlushCompress::Finish).unwrap();
        let zstd = zstd::bulk::compress(&content, 3).unwrap();
        for (method, packed) in [(Method::Zlib, deflated), (Method::Zstd, zstd)] {
            let padded = [&packed[..], &[0; 100]].concat();
            let mut out = vec![0; 60_000];
            assert_eq!(method.decompress(&padded, &mut out, 4096), Some(50_000));
            assert!(out[..50_000] == content && out[50_000..].iter().all(|byte| *byte == 0));
            // A bomb gives no more than there is room for.
            assert_eq!(method.decompress(&packed, &mut out[..100], 4096), Some(100));
            assert_eq!(method.decompress(&packed[..packed.len() / 2], &mut out, 4096), None);
            assert_eq!(method.decompress(&[0; 100], &mut out, 4096), None);
        }
    }
}
