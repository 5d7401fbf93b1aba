//! Writes EROFS images with LZ4-compressed files.
//!
//! A file is cut into pieces of 64 KiB. Each piece takes as many blocks as its compressed form, or stays uncompressed
//! if that saves no block. A file's size alone determines the length of its index, so all metadata except the
//! addresses in indexes is planned before any content is read.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use inarch_block::{BLOCK_SIZE, BlockMap, Content, FileExtent, read_content};
use inarch_tree::{InodeId, Tree};

use super::layout::pieces::Pieces;
use super::layout::refuse;
use super::plan::Laid;
use super::spec::NULL_BLOCK;
use super::spec::compress::PIECE_BLOCKS;
use crate::{FormatError, ImageOptions, Pack, Progress, Sink};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Pieces that are compressed before their blocks are written.
const BATCH: usize = 256;
/// Blocks of plain content that are copied at once.
const COPY_BLOCKS: u32 = 256;

/// An image to be compressed.
pub(crate) struct Compressed {
    tree: Arc<Tree>,
    options: ImageOptions,
}

impl Compressed {
    /// Checks that `tree` can be planned.
    pub(crate) fn new(tree: &Arc<Tree>, options: &ImageOptions) -> Result<Compressed, FormatError> {
        Laid::new(tree, options)?;
        Ok(Compressed { tree: tree.clone(), options: options.clone() })
    }
}

impl Pack for Compressed {
    fn pack(&self, content: &dyn Content, sink: &dyn Sink, progress: &dyn Progress) -> io::Result<u64> {
        let mut laid = Laid::new(&self.tree, &self.options).map_err(io::Error::other)?;
        let threads = match self.options.threads {
            0 => std::thread::available_parallelism().map_or(1, |threads| threads.get()),
            threads => threads,
        };
        let writer = Writer { tree: &self.tree, content, sink, progress, threads };
        writer.copy_plain(&laid.files)?;
        let (pieces, end) = writer.compress(&laid.compressed_files(&self.tree), laid.layout.regions.data.end)?;
        laid.layout.regions.packed = laid.layout.regions.data.end..end;
        laid.layout.pieces = pieces;
        let map = laid.into_map(&self.tree, &self.options).map_err(io::Error::other)?;
        writer.write_metadata(&map)?;
        Ok(map.blocks() * BLOCK)
    }
}

/// A piece of a file.
#[derive(Clone, Copy, Debug)]
struct Piece {
    inode: InodeId,
    /// Where in the file it starts, and how long it is, in bytes.
    offset: u64,
    length: u64,
    is_last: bool,
}

struct Writer<'a> {
    tree: &'a Tree,
    content: &'a dyn Content,
    sink: &'a dyn Sink,
    progress: &'a dyn Progress,
    threads: usize,
}

impl Writer<'_> {
    /// Calls `work` with each of `0..count`, from all threads; stops at the first error.
    fn in_parallel(&self, count: usize, work: &(dyn Fn(usize) -> io::Result<()> + Sync)) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        // Of several errors, report the one with the lowest index, so that the same input gives the same error.
        let failed: Mutex<Option<(usize, io::Error)>> = Mutex::new(None);
        let run = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return;
                }
                let cancelled = self.progress.cancelled().then(|| Err(io::ErrorKind::Interrupted.into()));
                if let Err(error) = cancelled.unwrap_or_else(|| work(index)) {
                    next.store(count, Ordering::Relaxed);
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|(first, _)| index < *first) {
                        *failed = Some((index, error));
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.min(count) {
                scope.spawn(run);
            }
            run();
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Copies what is not compressed.
    fn copy_plain(&self, extents: &[FileExtent]) -> io::Result<()> {
        self.in_parallel(extents.len(), &|index| {
            let Some(extent) = extents.get(index) else { return Ok(()) };
            for first in (0..extent.blocks).step_by(COPY_BLOCKS as usize) {
                let blocks = COPY_BLOCKS.min(extent.blocks - first);
                let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
                let offset = (u64::from(extent.first) + u64::from(first)) * BLOCK;
                read_content(self.content, extent.inode, offset, &mut bytes)?;
                self.sink.write_at((extent.start + u64::from(first)) * BLOCK, &bytes)?;
                let size = self.tree.inode(extent.inode).size();
                self.progress.advance((bytes.len() as u64).min(size.saturating_sub(offset)), 0);
            }
            let is_last = extents.get(index + 1).is_none_or(|next| next.inode != extent.inode);
            self.progress.advance(0, is_last.into());
            Ok(())
        })
    }

    /// Compresses files to the blocks from `start`; returns where their pieces are, and the end.
    fn compress(&self, files: &[InodeId], start: u64) -> io::Result<(Pieces, u64)> {
        let mut pieces = Pieces::default();
        let mut at = start;
        let mut all = files.iter().flat_map(|id| pieces_of(self.tree, *id));
        let mut count = 0;
        loop {
            let batch: Vec<Piece> = all.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                break;
            }
            let packed: Vec<Mutex<Vec<u8>>> = batch.iter().map(|_| Mutex::default()).collect();
            self.in_parallel(batch.len(), &|index| {
                let Some((piece, slot)) = batch.get(index).zip(packed.get(index)) else { return Ok(()) };
                let mut bytes = vec![0; piece.length.next_multiple_of(BLOCK) as usize];
                read_content(self.content, piece.inode, piece.offset, &mut bytes)?;
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = pack(bytes, piece.length as usize);
                self.progress.advance(piece.length, piece.is_last.into());
                Ok(())
            })?;
            let mut ready = Vec::with_capacity(batch.len());
            for (piece, slot) in batch.iter().zip(packed) {
                if piece.offset == 0 {
                    pieces.files.push((piece.inode, count));
                }
                count += 1;
                let bytes = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
                pieces.starts.push(block_number(at)?);
                let blocks = bytes.len() as u64 / BLOCK;
                ready.push((at, bytes));
                at += blocks;
            }
            self.in_parallel(ready.len(), &|index| match ready.get(index) {
                Some((at, bytes)) => self.sink.write_at(at * BLOCK, bytes),
                None => Ok(()),
            })?;
        }
        pieces.starts.push(block_number(at)?);
        Ok((pieces, at))
    }

    fn write_metadata(&self, map: &BlockMap) -> io::Result<()> {
        let blocks: Vec<u64> = map.metadata().iter().flat_map(Clone::clone).collect();
        self.in_parallel(blocks.len().div_ceil(BATCH), &|index| {
            let part = blocks.chunks(BATCH).nth(index).unwrap_or_default();
            let Some(first) = part.first() else { return Ok(()) };
            let mut bytes = Vec::with_capacity(part.len() * BLOCK_SIZE);
            let mut block = [0; BLOCK_SIZE];
            for number in part {
                map.render(*number, &mut block);
                for inlay in map.inlays(*number) {
                    inlay.read(self.content, &mut block)?;
                    self.progress.advance(inlay.length as u64, (inlay.offset == 0).into());
                }
                bytes.extend_from_slice(&block);
            }
            // The metadata is one run.
            self.sink.write_at(first * BLOCK, &bytes)
        })
    }
}

fn pieces_of(tree: &Tree, inode: InodeId) -> impl Iterator<Item = Piece> {
    let size = tree.inode(inode).size();
    let step = PIECE_BLOCKS * BLOCK;
    (0..size.div_ceil(step)).map(move |index| {
        let offset = index * step;
        let length = step.min(size - offset);
        Piece { inode, offset, length, is_last: offset + length == size }
    })
}

/// A block's number; an image has less than 2^32.
fn block_number(block: u64) -> io::Result<u32> {
    let number = u32::try_from(block).ok().filter(|block| *block < NULL_BLOCK);
    number.ok_or_else(|| io::Error::other(refuse("what the image holds exceeds 16 TiB")))
}

/// Compresses a piece of `length` bytes into whole blocks, aligned to their end; or returns `bytes`, whole blocks,
/// unchanged if that saves no block.
fn pack(bytes: Vec<u8>, length: usize) -> Vec<u8> {
    let compressed = lz4_flex::block::compress(bytes.get(..length).unwrap_or_default());
    let size = compressed.len().next_multiple_of(BLOCK_SIZE);
    if size >= bytes.len() {
        return bytes;
    }
    let mut packed = vec![0; size - compressed.len()];
    packed.extend_from_slice(&compressed);
    packed
}
