//! Collects the tails of files into fragment blocks.

use std::collections::VecDeque;
use std::io;

use super::output::Output;
use super::pipeline::Pipeline;
use crate::squashfs::spec::superblock::FragmentEntry;

/// Bytes of fragments at most that are compressed ahead of the one that is written.
const AHEAD: usize = 32 << 20;

/// Fragments in progress. Each is written at the end of a file once enough later ones are full that its compression
/// has surely ended: that point depends on the content alone, not on the threads.
pub(super) struct Fragments {
    block_size: usize,
    open: Vec<u8>,
    /// The number of `open`.
    number: u32,
    filled: VecDeque<u32>,
    ahead: usize,
    pub(super) entries: Vec<FragmentEntry>,
}

impl Fragments {
    pub(super) fn new(block_size: u32) -> Fragments {
        let block_size = block_size as usize;
        Fragments {
            block_size,
            open: Vec::with_capacity(block_size),
            number: 0,
            filled: VecDeque::new(),
            ahead: (AHEAD / block_size).min(256),
            entries: Vec::new(),
        }
    }

    /// Adds a file's end, of less than a block; gives the fragment's number and the end's place in it.
    pub(super) fn add(&mut self, tail: &[u8], pipeline: &Pipeline<'_>) -> (u32, u32) {
        if self.open.len() + tail.len() > self.block_size {
            self.fill(pipeline);
        }
        let place = (self.number, self.open.len() as u32);
        self.open.extend_from_slice(tail);
        place
    }

    fn fill(&mut self, pipeline: &Pipeline<'_>) {
        let full = std::mem::replace(&mut self.open, Vec::with_capacity(self.block_size));
        pipeline.submit(self.number, full);
        self.filled.push_back(self.number);
        self.number += 1;
    }

    /// Writes the fragments that are due between two files.
    pub(super) fn write_due(&mut self, pipeline: &Pipeline<'_>, output: &mut Output<'_>) -> io::Result<()> {
        while self.filled.len() > self.ahead {
            self.write_oldest(pipeline, output)?;
        }
        Ok(())
    }

    /// Writes all that are left.
    pub(super) fn finish(&mut self, pipeline: &Pipeline<'_>, output: &mut Output<'_>) -> io::Result<()> {
        if !self.open.is_empty() {
            self.fill(pipeline);
        }
        while !self.filled.is_empty() {
            self.write_oldest(pipeline, output)?;
        }
        Ok(())
    }

    fn write_oldest(&mut self, pipeline: &Pipeline<'_>, output: &mut Output<'_>) -> io::Result<()> {
        let Some(number) = self.filled.pop_front() else { return Ok(()) };
        let packed = pipeline.fragment(number)?;
        let start = output.position();
        output.write(&packed.bytes)?;
        self.entries.push(FragmentEntry { start: start.into(), size: packed.size.into(), unused: 0.into() });
        Ok(())
    }
}
