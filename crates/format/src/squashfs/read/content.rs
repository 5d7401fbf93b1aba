//! The content of an image's files, decompressed when it is read.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_block::{Borrower, ChangeReason, ChangedFile, ChangedFiles, Content, Cursor, Lent};
use inarch_tree::{InodeId, Tree};
use rustix::io::Errno;

use super::cache::Cache;
use super::files::{Files, Stretch};
use super::image::{Image, wrong};
use crate::ReadError;

/// Bytes of decompressed blocks that are kept.
const CACHED_BYTES: usize = 32 << 20;
/// Blocks of a file that are looked up at once.
const BATCH: usize = 256;
/// Damaged files that are named; the rest are counted.
const MAX_NAMED: usize = 1000;

/// The files of one image.
pub(super) struct Packed {
    image: Arc<Image>,
    tree: Arc<Tree>,
    files: Files,
    cache: Cache<Vec<u8>>,
    /// Buffers for blocks that are read whole, and not kept.
    spare: Mutex<Vec<Vec<u8>>>,
    damaged: Mutex<Damaged>,
}

/// Files that could not be read.
#[derive(Default)]
struct Damaged {
    seen: HashSet<InodeId>,
    named: Vec<ChangedFile>,
}

impl Packed {
    pub(super) fn new(image: Arc<Image>, tree: Arc<Tree>, files: Files) -> Packed {
        let blocks = CACHED_BYTES / image.block_size() as usize;
        Packed { image, tree, files, cache: Cache::new(blocks), spare: Mutex::default(), damaged: Mutex::default() }
    }

    /// Calls `take` for each block of a range of a file: the block's place, where the range starts in the block, the
    /// bytes of the block in the range, and all bytes of the block. The range ends within the file.
    fn each_stretch(
        &self,
        inode: InodeId,
        offset: u64,
        end: u64,
        take: &mut dyn FnMut(Stretch, u64, u64, u64) -> Result<bool, ReadError>,
    ) -> Result<(), ReadError> {
        let size = self.size(inode);
        let block_size = u64::from(self.image.block_size());
        let mut at = offset;
        while at < end {
            let first = at / block_size;
            let wanted = (end.div_ceil(block_size) - first).min(BATCH as u64) as usize;
            let stretches = self.files.stretches(inode, size, first, wanted)?;
            if stretches.is_empty() {
                return Err(wrong("a file has no block where it should have"));
            }
            for (stretch, bytes) in stretches {
                let within = at % block_size;
                let count = bytes.saturating_sub(within).min(end - at);
                if count == 0 || !take(stretch, within, count, bytes)? {
                    return Ok(());
                }
                at += count;
            }
        }
        Ok(())
    }

    fn size(&self, inode: InodeId) -> u64 {
        if inode.0 < self.tree.inode_count() { self.tree.inode(inode).size() } else { 0 }
    }

    fn read_stretches(&self, inode: InodeId, offset: u64, end: u64, out: &mut Cursor<'_, '_>) -> Result<(), ReadError> {
        self.each_stretch(inode, offset, end, &mut |stretch, within, count, bytes| {
            match stretch {
                Stretch::Hole => out.fill_zeros(count),
                Stretch::Stored { at } => {
                    let from = at.saturating_add(within);
                    let read = self.image.backing.read(from, count, out);
                    read.map_err(|error| ReadError::Io { offset: from, error })?;
                }
                Stretch::Compressed { at, length, within: start, shared } => {
                    let from = start + within as usize;
                    let range = from..from + count as usize;
                    let keep = shared || count < bytes;
                    self.with_block(at, length, start + bytes as usize, keep, &mut |block| {
                        out.copy_from(block.get(range.clone()).unwrap_or_default());
                    })?;
                }
            }
            Ok(true)
        })
    }

    /// Gives `take` the block at a byte of the image, which has `bytes` bytes or more when it is decompressed.
    fn with_block(
        &self,
        at: u64,
        length: usize,
        bytes: usize,
        keep: bool,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), ReadError> {
        let short = || wrong(format!("the block at byte {at} decompresses to fewer bytes than {bytes}"));
        if let Some(block) = self.cache.get(at) {
            take(block.get(..bytes).ok_or_else(short)?);
            return Ok(());
        }
        let mut buffer = match keep {
            true => Vec::new(),
            false => self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default(),
        };
        buffer.resize(self.image.block_size() as usize, 0);
        let decoded = self.image.decode(at, length, &mut buffer)?;
        let decoded = decoded.map_err(|corrupt| wrong(format!("{corrupt}: the one at byte {at}")))?;
        take(buffer.get(..decoded.min(buffer.len())).and_then(|block| block.get(..bytes)).ok_or_else(short)?);
        if keep {
            buffer.truncate(decoded);
            buffer.shrink_to_fit();
            self.cache.put(at, Arc::new(buffer));
        } else {
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
        Ok(())
    }

    /// Remembers that a file is damaged, unless the image changed as a whole.
    fn fail(&self, inode: InodeId) -> io::Error {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        let known = inode.0 < self.tree.inode_count();
        if self.image.backing.changed().is_none()
            && known
            && damaged.seen.insert(inode)
            && damaged.named.len() < MAX_NAMED
        {
            let path = PathBuf::from(OsString::from_vec(self.tree.path(inode)));
            damaged.named.push(ChangedFile { path, reason: ChangeReason::Unreadable(Errno::IO) });
        }
        Errno::IO.into()
    }

    /// The parts of a range that lie in the image as they are, neighbours joined; `None` if any is compressed.
    fn lendable(&self, inode: InodeId, offset: u64, end: u64) -> Result<Option<Vec<Lent>>, ReadError> {
        let mut parts: Vec<Lent> = Vec::new();
        let mut stored = true;
        let mut position = offset;
        self.each_stretch(inode, offset, end, &mut |stretch, within, count, _| {
            match stretch {
                Stretch::Hole => {}
                Stretch::Compressed { .. } => stored = false,
                Stretch::Stored { at } => match parts.last_mut() {
                    Some(last) if last.offset + last.length == position && last.at + last.length == at + within => {
                        last.length += count;
                    }
                    _ => parts.push(Lent { offset: position, at: at + within, length: count }),
                },
            }
            position += count;
            Ok(stored)
        })?;
        Ok(stored.then_some(parts))
    }
}

impl Content for Packed {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.saturating_add(count).min(self.size(inode));
        let content = end.saturating_sub(offset);
        let mut start = out.clone();
        if content > 0 && self.read_stretches(inode, offset, end, out).is_err() {
            start.fill_zeros(count);
            return Err(self.fail(inode));
        }
        out.fill_zeros(count - content);
        Ok(())
    }

    fn lend(&self, inode: InodeId, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<bool> {
        let (backing, end) = (&self.image.backing, offset.saturating_add(count).min(self.size(inode)));
        let Some(parts) = self.lendable(inode, offset, end).map_err(|_| self.fail(inode))? else { return Ok(false) };
        if !parts.iter().all(|part| backing.lends(part.at, part.length)) {
            return Ok(false);
        }
        for part in parts {
            let of_file = |lent: Lent| Lent { offset: part.offset + (lent.offset - part.at), ..lent };
            backing.lend(part.at, part.length, &mut |file, lent| take(file, of_file(lent)))?;
        }
        Ok(true)
    }

    fn changed(&self) -> ChangedFiles {
        let damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        let image = self.image.backing.changed();
        let count = damaged.seen.len() as u64 + u64::from(image.is_some());
        ChangedFiles { named: image.into_iter().chain(damaged.named.iter().cloned()).collect(), count }
    }
}
