//! Writes a device to a sparse raw image file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::{BLOCK_SIZE, Device};

/// Bytes read and written at once; a multiple of the block size.
const STEP: u64 = 1 << 20;

/// Writes the content of `device` to `file`, which is empty, as a sparse raw image: blocks of zeros are left out.
///
/// Errors are those of [`Device::read_at`] and of writing to `file`.
pub fn write_image(device: &Device, file: &File) -> io::Result<()> {
    file.set_len(device.capacity())?;
    let mut buffer = vec![0; STEP as usize];
    let mut offset = 0;
    while offset < device.capacity() {
        let zeros = device.zeros_at(offset);
        if zeros > 0 {
            offset += zeros;
            continue;
        }
        let length = STEP.min(device.capacity() - offset);
        let step = buffer.get_mut(..length as usize).unwrap_or_default();
        device.read_at(offset, &[(&mut *step).into()])?;
        write_sparse(file, offset, step)?;
        offset += length;
    }
    Ok(())
}

/// Writes the blocks of `data` that are not all zeros, neighbours in one call.
fn write_sparse(file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
    let blocks: Vec<&[u8]> = data.chunks(BLOCK_SIZE).collect();
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let mut at = 0;
    for run in blocks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let end = at + run.iter().map(|block| block.len()).sum::<usize>();
        if let Some(bytes) = data.get(at..end).filter(|_| !run.iter().all(|block| is_zero(block))) {
            file.write_all_at(bytes, offset + at as u64)?;
        }
        at = end;
    }
    Ok(())
}
