//! Moves the data of a sparse file to a place in another one. Holes stay holes, and file systems that can share blocks do so.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, copy_file_range, seek};
use rustix::io::Errno;

/// Bytes that are copied at once.
const BUFFER: usize = 1 << 20;

/// A range of a file that has data, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub start: u64,
    pub length: u64,
}

/// The range with data at or after `from`, before `end`. A file system without holes says that all is data.
pub(super) fn next_extent(file: &File, from: u64, end: u64) -> io::Result<Option<Extent>> {
    if from >= end {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if start >= end {
        return Ok(None);
    }
    let stop = seek(file, SeekFrom::Hole(start))?.min(end);
    Ok(Some(Extent { start, length: stop.saturating_sub(start) }))
}

/// Calls `each` for every range with data from `start` until `end`.
pub(super) fn each_extent(
    file: &File,
    (start, end): (u64, u64),
    mut each: impl FnMut(Extent) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = start;
    while let Some(extent) = next_extent(file, at, end)? {
        each(extent)?;
        at = extent.start.saturating_add(extent.length);
    }
    Ok(())
}

/// Copies an extent of `from` to `place` in `to`.
pub(super) fn copy_extent(from: &File, extent: Extent, to: &File, place: u64) -> io::Result<()> {
    let (mut source, mut target) = (extent.start, place);
    let mut left = extent.length;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(from, Some(&mut source), to, Some(&mut target), length) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(done) => left = left.saturating_sub(done as u64),
            Err(Errno::INTR) => {}
            // Two file systems, or one that cannot.
            Err(Errno::XDEV | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
                let mut rest = At { file: from, at: source }.take(left);
                return match copy(&mut rest, to, target)? {
                    done if done == left => Ok(()),
                    _ => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes all of `from` to `place` in `to`; returns how much that was.
pub(super) fn copy(from: &mut impl Read, to: &File, place: u64) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER];
    let mut done = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(done),
            Ok(length) => {
                to.write_all_at(buffer.get(..length).unwrap_or_default(), place.saturating_add(done))?;
                done = done.saturating_add(length as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A file that is read from a place on.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(buffer, self.at)?;
        self.at = self.at.saturating_add(length as u64);
        Ok(length)
    }
}
