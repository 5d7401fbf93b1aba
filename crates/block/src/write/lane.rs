//! [`Lane`]: writes one thread's buffers to a sink, past the page cache and through it at once.
//!
//! Past the page cache (`O_DIRECT`) the disk does the work, and its speed is the limit. Through the cache the processor
//! does the work, and the disk follows later. So both are used: a full buffer goes past the cache as long as few such
//! writes are in progress, while the thread fills the next buffer. When the disk is busy, a buffer goes through the
//! cache. On any machine the slower of the two gets less.
//!
//! The call for a write past the cache must not wait for it: it would hold the file's lock, which the writes through
//! the cache need (`ext4_dio_write_iter` and `ext4_buffered_write_iter` of the kernel's fs/ext4/file.c).

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use super::aio::{Write, Writes};
use super::batch::GATHER;
use super::buffer::{ALIGNMENT, Buffer};
use super::sink::PastCache;
use super::{Sink, WriteError};

/// Concurrent writes of one thread past the cache: the one that the disk works on, and the next.
const DEPTH: usize = 2;

/// Shorter writes go through the cache, which does not wait for the disk.
const DIRECT_FROM: usize = 256 << 10;

/// Fills buffers and writes them to the sink, for one thread.
pub(super) struct Lane<'a> {
    sink: &'a dyn Sink,
    past_cache: Option<(&'a PastCache, Writes)>,
    buffer: Buffer,
    spare: Vec<Buffer>,
}

impl<'a> Lane<'a> {
    pub(super) fn new(sink: &'a dyn Sink) -> Lane<'a> {
        // If the kernel refuses, everything goes through the cache.
        let past_cache = sink.past_cache().and_then(|file| Some((file, Writes::new(DEPTH).ok()?)));
        Lane { sink, past_cache, buffer: Buffer::new(GATHER as usize), spare: Vec::new() }
    }

    /// The memory for the next bytes of the image, from byte `at`; at most [`GATHER`].
    pub(super) fn buffer(&mut self, at: u64, length: usize) -> &mut [u8] {
        self.buffer.at(at, length)
    }

    /// Writes the first `length` bytes of the buffer for `at`, now or soon.
    pub(super) fn write(&mut self, at: u64, length: usize) -> Result<(), WriteError> {
        let start = (at.next_multiple_of(ALIGNMENT as u64) - at) as usize;
        let whole = length.saturating_sub(start) / ALIGNMENT * ALIGNMENT;
        let pages = start..start + whole;
        if whole < DIRECT_FROM || !self.may_go_past_cache()? {
            return self.put(at, length, 0..length);
        }
        self.put(at, length, 0..pages.start)?;
        self.put(at, length, pages.end..length)?;
        let skipped = (at % ALIGNMENT as u64) as usize;
        let next = self.spare.pop().unwrap_or_else(|| Buffer::new(GATHER as usize));
        let write = Write {
            offset: at + pages.start as u64,
            buffer: std::mem::replace(&mut self.buffer, next),
            range: skipped + pages.start..skipped + pages.end,
        };
        let Some((file, writes)) = &mut self.past_cache else { return Ok(()) };
        match writes.begin(file.as_fd(), write) {
            Ok(()) => Ok(()),
            Err((write, _)) => self.instead(write),
        }
    }

    /// Waits for all writes.
    pub(super) fn finish(mut self) -> Result<(), WriteError> {
        while let Some(done) = self.done(true)? {
            self.ended(done)?;
        }
        Ok(())
    }

    /// Whether the disk has room for another write past the cache; waits for it if the cache has taken its share.
    fn may_go_past_cache(&mut self) -> Result<bool, WriteError> {
        while let Some(done) = self.done(false)? {
            self.ended(done)?;
        }
        while self.past_cache.as_ref().is_some_and(|(file, writes)| !writes.has_room() && file.cache_is_full()) {
            let Some(done) = self.done(true)? else { break };
            self.ended(done)?;
        }
        Ok(self.past_cache.as_ref().is_some_and(|(file, writes)| writes.has_room() && !file.refused()))
    }

    fn done(&mut self, wait: bool) -> Result<Option<(Write, io::Result<usize>)>, WriteError> {
        match &mut self.past_cache {
            Some((_, writes)) => writes.done(wait).map_err(|error| WriteError::Output { offset: 0, error }),
            None => Ok(None),
        }
    }

    /// Handles a write that has finished, completely or in part.
    fn ended(&mut self, (write, result): (Write, io::Result<usize>)) -> Result<(), WriteError> {
        match result {
            Ok(written) if written == write.range.len() => {
                self.spare.push(write.buffer);
                Ok(())
            }
            // Includes an alignment that the file system or its disk refuses. Through the cache it works, or fails with
            // a reason.
            _ => self.instead(write),
        }
    }

    /// Writes through the cache after a failure past it, and stops writing past it.
    fn instead(&mut self, write: Write) -> Result<(), WriteError> {
        if let Some((file, _)) = &self.past_cache {
            file.refuse();
        }
        let result = self.sink.write_at(write.offset, write.buffer.range(write.range.clone()));
        self.spare.push(write.buffer);
        result.map_err(|error| WriteError::Output { offset: write.offset, error })
    }

    /// Writes a range of the `length` bytes at `at` through the cache.
    fn put(&mut self, at: u64, length: usize, range: Range<usize>) -> Result<(), WriteError> {
        let offset = at + range.start as u64;
        let bytes = self.buffer.at(at, length).get(range).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        self.sink.write_at(offset, bytes).map_err(|error| WriteError::Output { offset, error })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    use super::*;

    /// A file, opened normally and for writing past the page cache.
    struct Both(File, PastCache);

    impl Sink for Both {
        fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.0.write_all_at(bytes, offset)
        }

        fn file(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn past_cache(&self) -> Option<&PastCache> {
            Some(&self.1)
        }
    }

    /// Writes pieces that begin and end anywhere.
    fn written(past_cache: impl FnOnce(&std::path::Path) -> PastCache) -> bool {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        let sink = Both(file.reopen().unwrap(), past_cache(file.path()));
        let expected: Vec<u8> = (0..9_000_000_u32).map(|i| (i / 3) as u8).collect();
        let mut lane = Lane::new(&sink);
        let (mut at, mut turn) = (0, 0);
        while at < expected.len() {
            let length = [GATHER as usize, 700_001, 4096, 1, 300_000][turn % 5].min(expected.len() - at);
            lane.buffer(at as u64, length).copy_from_slice(&expected[at..at + length]);
            lane.write(at as u64, length).unwrap();
            at += length;
            turn += 1;
        }
        lane.finish().unwrap();
        assert!(fs::read(file.path()).unwrap() == expected);
        sink.1.refused()
    }

    fn direct(path: &std::path::Path) -> File {
        OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
    }

    #[test]
    fn what_goes_past_the_cache_and_through_it_arrives() {
        assert!(!written(|path| PastCache::new(direct(path), u64::MAX)));
        // Everything that can must go past the cache.
        assert!(!written(|path| PastCache::new(direct(path), 0)));
    }

    #[test]
    fn what_cannot_go_past_the_cache_goes_through_it() {
        // Fails at the start: the file is not open for writing.
        assert!(written(|path| PastCache::new(File::open(path).unwrap(), 0)));
        // Fails in progress.
        assert!(written(|_| PastCache::new(OpenOptions::new().write(true).open("/dev/full").unwrap(), 0)));
    }

    #[test]
    fn what_can_go_neither_way_is_an_error_that_says_where() {
        let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
        let sink = Both(full(), PastCache::new(full(), 0));
        let mut lane = Lane::new(&sink);
        let results: Vec<_> = (0..8)
            .map(|i| i << 20)
            .map(|at| {
                lane.buffer(at, 1 << 20).fill(1);
                lane.write(at, 1 << 20)
            })
            .collect();
        let failed = results.into_iter().chain([lane.finish()]).find_map(Result::err);
        let Some(WriteError::Output { offset, error }) = failed else { panic!("{failed:?}") };
        assert!(offset < 8 << 20 && error.raw_os_error() == Some(libc::ENOSPC), "{offset} {error}");
    }
}
