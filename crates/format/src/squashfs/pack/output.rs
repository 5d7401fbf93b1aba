//! Writes the image's bytes to the sink.

use std::io;

use inarch_block::BLOCK_SIZE;

use crate::Sink;

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 20;

/// Writes one byte after another, and can go back.
pub(super) struct Output<'a> {
    sink: &'a dyn Sink,
    /// Where `buffer` goes.
    start: u64,
    buffer: Vec<u8>,
}

impl<'a> Output<'a> {
    /// Begins at a byte of the image.
    pub(super) fn new(sink: &'a dyn Sink, start: u64) -> Output<'a> {
        Output { sink, start, buffer: Vec::with_capacity(2 * BUFFER) }
    }

    /// Where the next byte goes.
    pub(super) fn position(&self) -> u64 {
        self.start + self.buffer.len() as u64
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER {
            // The next write begins where a page does.
            let beyond = self.position() % BLOCK_SIZE as u64;
            self.write_front(self.buffer.len() - beyond as usize)?;
        }
        Ok(())
    }

    /// Writes the first `length` bytes of the buffer.
    fn write_front(&mut self, length: usize) -> io::Result<()> {
        self.sink.write_at(self.start, self.buffer.get(..length).unwrap_or_default())?;
        self.start += length as u64;
        self.buffer.drain(..length);
        Ok(())
    }

    /// Returns to an earlier position; later bytes will be overwritten.
    pub(super) fn rewind(&mut self, position: u64) {
        match position.checked_sub(self.start) {
            Some(length) => self.buffer.truncate(length as usize),
            None => {
                self.buffer.clear();
                self.start = position;
            }
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.write_front(self.buffer.len()) }
    }
}
