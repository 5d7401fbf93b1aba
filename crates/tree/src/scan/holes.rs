//! Which ranges of a sparse file hold data.

use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::DataRange;

/// Ranges are rounded outward to multiples of this: a block of the formats, and a page.
const GRANULE: u64 = 4096;

/// A file's ranges beyond this many become one that reaches to its end, so that no file can make a scan allocate
/// without bound.
const RANGES_MAX: usize = 1 << 16;

/// The ranges of `file`, of `size` bytes, that hold data, by `SEEK_DATA` and `SEEK_HOLE`; `None` if all of it does,
/// or its file system keeps no holes.
pub(super) fn data_ranges(file: BorrowedFd<'_>, size: u64) -> Result<Option<Box<[DataRange]>>, Errno> {
    let mut ranges: Vec<DataRange> = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < size => data,
            // No data from there to the end.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(error) => return Err(error),
        };
        let end = if ranges.len() >= RANGES_MAX { size } else { rustix::fs::seek(file, SeekFrom::Hole(data))? };
        let end = end.min(size);
        if end <= data {
            // The file changes while it is read.
            break;
        }
        let start = data - data % GRANULE;
        match ranges.last_mut() {
            Some(last) if last.offset + last.length >= start => last.length = rounded(end, size) - last.offset,
            _ => ranges.push(DataRange { offset: start, length: rounded(end, size) - start }),
        }
        at = end;
    }
    let whole = matches!(ranges[..], [DataRange { offset: 0, length }] if length == size);
    Ok(if whole { None } else { Some(ranges.into()) })
}

fn rounded(end: u64, size: u64) -> u64 {
    end.checked_next_multiple_of(GRANULE).unwrap_or(size).min(size)
}
