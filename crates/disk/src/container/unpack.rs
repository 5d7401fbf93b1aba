//! Decompresses clusters into a buffer of the largest possible size.

use flate2::{Decompress, FlushDecompress, Status};
use zstd::bulk::Decompressor;
use zstd::zstd_safe::find_frame_compressed_size;

/// How clusters are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// RFC 1951, without a header: QCOW2.
    Deflate,
    /// RFC 1950: VMDK.
    Zlib,
    /// RFC 8878, one frame.
    Zstd,
}

/// Decompresses what `packed` begins with; what follows it is not looked at. Gives at most `most` bytes, and none if it does
/// not decompress.
pub(super) fn unpack(method: Method, packed: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; most];
    let length = match method {
        Method::Deflate | Method::Zlib => {
            let mut state = Decompress::new(method == Method::Zlib);
            match state.decompress(packed, &mut out, FlushDecompress::Finish) {
                Ok(Status::StreamEnd) => {}
                // The buffer is full, and perhaps only the mark of the stream's end did not fit.
                Ok(Status::Ok | Status::BufError) if state.total_out() == most as u64 => {}
                _ => return None,
            }
            state.total_out() as usize
        }
        Method::Zstd => {
            let frame = packed.get(..find_frame_compressed_size(packed).ok()?)?;
            Decompressor::new().ok()?.decompress_to_buffer(frame, &mut out).ok()?
        }
    };
    out.truncate(length);
    Some(out)
}
