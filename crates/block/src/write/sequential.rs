//! Writes an image in order, for pipes.

use std::io::Write;

use super::batch::{Batch, Batches, GATHER};
use super::parallel::fill;
use super::{ImageSource, Placed, Progress, WriteError, Written};

/// Writes the parts of an image of `length` bytes to `output`, from the first byte to the last, including zeros.
pub fn stream_parts(
    parts: impl Iterator<Item = Placed>,
    length: u64,
    source: ImageSource<'_>,
    output: &mut dyn Write,
    progress: &dyn Progress,
) -> Result<Written, WriteError> {
    let mut buffer = vec![0; GATHER as usize];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        output.write_all(bytes).map_err(|error| WriteError::Output { offset: at, error })?;
        at += bytes.len() as u64;
        Ok(())
    };
    // No run is long, because every byte goes through memory.
    for batch in Batches::new(parts, length, u64::MAX) {
        if progress.cancelled() {
            return Err(WriteError::Cancelled);
        }
        match batch {
            Batch::Gathered { at, length, parts, files } => {
                let buffer = buffer.get_mut(..length).unwrap_or_default();
                let filled = fill(&parts, at, &source, buffer)?;
                put(buffer)?;
                progress.advance(filled.bytes, files + filled.files);
            }
            Batch::Gap { length, .. } => {
                buffer.fill(0);
                let mut left = length;
                while left > 0 {
                    let count = left.min(GATHER);
                    put(buffer.get(..count as usize).unwrap_or_default())?;
                    left -= count;
                }
            }
            Batch::Long { .. } => {}
        }
    }
    output.flush().map_err(|error| WriteError::Output { offset: at, error })?;
    Ok(Written { copied: at, shared: 0 })
}
