//! [`Verifier`]: reads an image back and compares it with its source.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::Sink;

/// Bytes compared at once.
const STEP: usize = 1 << 20;

/// Compares what would be written with what a file holds. The first difference is an error of kind `InvalidData` with
/// its offset.
#[derive(Debug)]
pub struct Verifier<'a>(pub &'a File);

impl Verifier<'_> {
    /// Calls `differs` for each piece of the range, with its offset and the file's bytes there.
    fn pieces(&self, offset: u64, length: u64, mut differs: impl FnMut(u64, &[u8]) -> Option<u64>) -> io::Result<()> {
        let mut buffer = vec![0; STEP.min(usize::try_from(length).unwrap_or(STEP))];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(buffer.len() as u64) as usize;
            let piece = buffer.get_mut(..count).unwrap_or_default();
            self.0.read_exact_at(piece, offset + done)?;
            if let Some(at) = differs(done, piece) {
                let text = format!("byte {} is not what was to be written", offset + done + at);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            done += count as u64;
        }
        Ok(())
    }
}

impl Sink for Verifier<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.pieces(offset, bytes.len() as u64, |done, piece| {
            let wanted = bytes.get(done as usize..).unwrap_or_default();
            if wanted.starts_with(piece) {
                return None;
            }
            Some(piece.iter().zip(wanted).take_while(|(a, b)| a == b).count() as u64)
        })
    }

    /// Reads what is not a hole; a device has no holes.
    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let end = offset + length;
        let mut at = offset;
        while at < end {
            at = match seek(self.0, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => return Ok(()),
                Err(_) => at,
            };
            if at >= end {
                break;
            }
            let hole = seek(self.0, SeekFrom::Hole(at)).unwrap_or(end).clamp(at + 1, end);
            self.pieces(at, hole - at, |_, piece| piece.iter().position(|byte| *byte != 0).map(|at| at as u64))?;
            at = hole;
        }
        Ok(())
    }
}
