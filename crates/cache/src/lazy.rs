//! [`LazyPack`]: a pack of a remote. This machine has the parts that were read so far.
//!
//! Its file is sparse: each chunk lies where it lies in the remote's pack. No index says which chunks are here. When a process first wants
//! a chunk, it reads the file and compares the digest: a hole, a truncated chunk or a damaged one does not match, and is fetched. So no
//! order of writes matters, and two processes that fetch the same chunk write the same bytes.
//!
//! A guest reads only bytes whose digest is in the generation. Each chunk from the remote is checked before it is written or returned. A
//! wrong chunk is fetched once more; if it is still wrong, the read fails. The kernel may fail to write a chunk back to the disk;
//! [`Writeback`] detects that.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use inarch_block::{Backing, Cursor, Writeback};
use inarch_remote::RemoteError;
use inarch_tree::Tree;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::ahead::Ahead;
use super::chunks::{self, CHUNK};
use super::far::Far;
use super::pack_chunks::{Chunk, Chunks};

/// The most bytes of one request.
const MOST: u64 = 8 << 20;

/// A pack of a remote.
pub(crate) struct LazyPack {
    name: String,
    file: File,
    chunks: Vec<Chunk>,
    tree: Arc<Tree>,
    /// A bit for each chunk: whether this process has found the file's bytes to be right. They stay right until the
    /// disk loses something.
    known: Vec<AtomicU64>,
    writeback: Writeback,
    /// Chunks that a thread is fetching just now.
    busy: Mutex<HashSet<usize>>,
    freed: Condvar,
    ahead: Mutex<Ahead>,
    /// Where to fetch bytes; `None` if that is not possible.
    far: Option<Arc<Far>>,
    /// Whether the file could not be written.
    is_full: AtomicBool,
}

/// Where the bytes of a chunk are.
enum Place {
    File,
    /// The file could not be written, or is not to be trusted.
    Memory(Vec<u8>),
}

/// Chunks that no other thread takes meanwhile.
struct Claim<'a> {
    pack: &'a LazyPack,
    chunks: Range<usize>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut busy = self.pack.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.retain(|chunk| !self.chunks.contains(chunk));
        self.pack.freed.notify_all();
    }
}

impl LazyPack {
    /// `file` is open for reading and writing.
    pub fn new(name: &str, file: File, chunks: Chunks, tree: Arc<Tree>, far: Option<Arc<Far>>) -> LazyPack {
        let known = (0..chunks.0.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        LazyPack {
            name: name.to_owned(),
            file,
            chunks: chunks.0,
            tree,
            known,
            writeback: Writeback::default(),
            busy: Mutex::default(),
            freed: Condvar::new(),
            ahead: Mutex::default(),
            far,
            is_full: AtomicBool::new(false),
        }
    }

    fn is_known(&self, chunk: usize) -> bool {
        !self.writeback.is_lost()
            && self.known.get(chunk / 64).is_some_and(|bits| bits.load(Ordering::Acquire) & 1 << (chunk % 64) != 0)
    }

    fn set_known(&self, chunk: usize) {
        if let Some(bits) = self.known.get(chunk / 64) {
            bits.fetch_or(1 << (chunk % 64), Ordering::Release);
        }
    }

    /// Whether the disk has lost what was written to the file.
    fn has_lost(&self) -> bool {
        if let Some(error) = self.writeback.check(&self.file) {
            self.tell_full(&error);
        }
        self.writeback.is_lost()
    }

    /// Tells, once, that what is fetched is not kept.
    fn tell_full(&self, error: &io::Error) {
        if !self.is_full.swap(true, Ordering::Relaxed) {
            self.far.iter().for_each(|far| far.tell(&format!("what is fetched cannot be kept: {error}")));
        }
    }

    /// Whether bytes have the digest of a chunk.
    fn is_right(&self, chunk: &Chunk, bytes: &[u8]) -> bool {
        let size = self.tree.inode(chunk.inode).size();
        let digest = if size <= CHUNK { *blake3::hash(bytes).as_bytes() } else { chunks::of_part(chunk.offset, bytes) };
        bytes.len() == chunk.length as usize && digest == chunk.digest
    }

    /// Claims chunk `first` once no other thread has it, and the missing chunks that directly follow it, before `end`.
    fn claim(&self, first: usize, end: usize) -> Claim<'_> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while busy.contains(&first) {
            busy = self.freed.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        let is_free = |chunk: &usize| !busy.contains(chunk) && !self.is_known(*chunk) && self.is_hole(*chunk);
        let last = (first + 1..end).take_while(is_free).last().unwrap_or(first);
        busy.extend(first..=last);
        Claim { pack: self, chunks: first..last + 1 }
    }

    /// Whether nothing of a chunk is in the file. What is there may be wrong; only a read tells.
    fn is_hole(&self, chunk: usize) -> bool {
        let Some(chunk) = self.chunks.get(chunk) else { return false };
        match rustix::fs::seek(&self.file, SeekFrom::Data(chunk.at)) {
            Ok(data) => data >= chunk.end(),
            Err(error) => error == Errno::NXIO,
        }
    }

    /// Makes sure that a chunk is here. `wanted` is the end of the chunks that the read needs.
    fn ensure(&self, first: usize, wanted: usize) -> io::Result<Place> {
        if self.is_known(first) {
            return Ok(Place::File);
        }
        let failed = || io::Error::from_raw_os_error(libc::EIO);
        let chunk = *self.chunks.get(first).ok_or_else(failed)?;
        let mut buffer = vec![0; chunk.length as usize];
        let claim = self.claim(first, first + 1);
        // Another thread may have had it meanwhile.
        if self.is_known(first) {
            return Ok(Place::File);
        }
        if self.file.read_exact_at(&mut buffer, chunk.at).is_ok() && self.is_right(&chunk, &buffer) {
            return Ok(self.stored(first, &buffer));
        }
        drop(claim);
        let far = self.far.as_ref().ok_or_else(failed)?;
        let end = self.far_enough(first, wanted);
        let claim = self.claim(first, end);
        if self.is_known(first) {
            return Ok(Place::File);
        }
        let all = self.chunks.get(claim.chunks.clone()).unwrap_or_default();
        let range = chunk.at..all.last().map_or(chunk.end(), Chunk::end);
        let mut place = self.take(claim.chunks.clone(), range.start, far.bytes(&self.name, range));
        let is_damaged = |wrong: &Wrong| match wrong {
            Wrong::Bytes => true,
            Wrong::Remote(error) => matches!(error, RemoteError::Length(_)),
        };
        if place.as_ref().err().is_some_and(is_damaged) {
            // What a cache in between has damaged may be right the second time.
            place = self.take(first..first + 1, chunk.at, far.bytes(&self.name, chunk.at..chunk.end()));
        }
        place.map_err(|wrong| {
            let path = self.tree.path(chunk.inode);
            far.tell_wrong(&String::from_utf8_lossy(&path), chunk.offset, chunk.length, &wrong.to_string());
            failed()
        })
    }

    /// Where a chunk is that was compared with its digest, and is in the file.
    fn stored(&self, chunk: usize, bytes: &[u8]) -> Place {
        // What is in the page cache now may not be on the disk.
        if self.writeback.is_lost() {
            return Place::Memory(bytes.to_vec());
        }
        self.set_known(chunk);
        Place::File
    }

    /// The first chunk after one request, which has what is wanted and a prefetch, in [`MOST`] bytes.
    fn far_enough(&self, first: usize, wanted: usize) -> usize {
        let Some(chunk) = self.chunks.get(first) else { return first };
        let last = wanted.checked_sub(1).and_then(|last| self.chunks.get(last)).map_or(chunk.end(), Chunk::end);
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).miss(chunk.at, last);
        let end = last.saturating_add(ahead).min(chunk.at.saturating_add(MOST));
        self.chunks.partition_point(|chunk| chunk.end() <= end)
    }

    /// Checks bytes that begin at `start`, and stores the chunks that they are. The first one must be right.
    fn take(&self, range: Range<usize>, start: u64, bytes: Result<Vec<u8>, RemoteError>) -> Result<Place, Wrong> {
        let bytes = bytes.map_err(Wrong::Remote)?;
        let mut first = None;
        for at in range {
            let Some(chunk) = self.chunks.get(at) else { break };
            let from = (chunk.at - start) as usize;
            let piece = bytes.get(from..from + chunk.length as usize).unwrap_or_default();
            if !self.is_right(chunk, piece) {
                if first.is_none() {
                    return Err(Wrong::Bytes);
                }
                continue;
            }
            let place = match self.file.write_all_at(piece, chunk.at) {
                Ok(()) => self.stored(at, piece),
                Err(error) => {
                    self.tell_full(&error);
                    Place::Memory(piece.to_vec())
                }
            };
            first.get_or_insert(place);
        }
        first.ok_or(Wrong::Bytes)
    }
}

impl LazyPack {
    fn read_file(&self, range: Range<u64>, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            match out.read_from(self.file.as_fd(), at, range.end - at)? {
                0 => return Err(io::Error::from_raw_os_error(libc::EIO)),
                got => at += got,
            }
        }
        Ok(())
    }
}

/// Why a chunk could not be fetched.
#[derive(Debug, thiserror::Error)]
enum Wrong {
    #[error("{0}")]
    Remote(RemoteError),
    #[error("the remote's bytes are not those of its generation")]
    Bytes,
}

impl Backing for LazyPack {
    fn size(&self) -> u64 {
        self.chunks.last().map_or(0, Chunk::end)
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let failed = || io::Error::from_raw_os_error(libc::EIO);
        let end = offset.checked_add(count).ok_or_else(failed)?;
        let mut at = offset;
        let mut number = self.chunks.partition_point(|chunk| chunk.end() <= offset);
        let wanted = self.chunks.partition_point(|chunk| chunk.at < end);
        while at < end {
            // Between files there is nothing to read.
            let chunk = *self.chunks.get(number).filter(|chunk| chunk.at <= at).ok_or_else(failed)?;
            let stop = chunk.end().min(end);
            match self.ensure(number, wanted)? {
                Place::Memory(bytes) => {
                    let piece = bytes.get((at - chunk.at) as usize..(stop - chunk.at) as usize);
                    out.copy_from(piece.ok_or_else(failed)?);
                }
                Place::File => {
                    let mut into = out.clone();
                    self.read_file(at..stop, &mut into)?;
                    // Then it comes from memory.
                    if self.has_lost() {
                        continue;
                    }
                    *out = into;
                }
            }
            at = stop;
            number += 1;
        }
        Ok(())
    }
}

/// Whether the file of a pack has something at all of a range. It is not known to be right.
pub(crate) fn has(file: &File, range: Range<u64>) -> bool {
    let hole = rustix::fs::seek(file, SeekFrom::Hole(range.start));
    hole.is_ok_and(|hole| hole >= range.end)
}
