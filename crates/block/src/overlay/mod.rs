//! [`Overlay`]: copy-on-write storage for the clusters of a device that were written or zeroed.
//!
//! Data lies in one sparse file at its offset on the device, so nothing is allocated or looked up. Two bits for each 4
//! KiB cluster say whether its content is below, in the file, or zeros. Reads take no lock. A write stores its data
//! first and the cluster's state after it, under its chunk's lock. So a write that fails, for want of space for
//! example, leaves content that was below the overlay unchanged.

mod file;
mod kept;
mod seal;
mod states;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use crate::BLOCK_SIZE;
use crate::scatter::Cursor;
use kept::Kept;
use states::{CHUNK_CLUSTERS, ClusterStates};

pub(crate) use file::ephemeral;
pub use seal::Seal;
pub(crate) use states::State;

/// Bytes in a cluster.
pub(crate) const CLUSTER: u64 = BLOCK_SIZE as u64;
/// The largest overlay: 1 PiB. Keeps every sum of offsets far from overflow.
const MAX_CLUSTERS: u64 = 1 << 38;
/// Number of locks; chunks whose numbers are equal modulo this share one.
const LOCKS: usize = 64;

/// Why an overlay cannot be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// More than 2^38 blocks of 4 KiB.
    #[error("an overlay of {0} blocks is larger than 1 PiB")]
    TooLarge(u64),
    /// The process's limit on the size of a file is too small (exceeding it would end the process).
    #[error(
        "the overlay file {path} may grow to {need} bytes, but this process may not write beyond {limit} (ulimit -f)"
    )]
    FileSizeLimit {
        /// The overlay file, or the directory it is in.
        path: PathBuf,
        /// Bytes the file may grow to.
        need: u64,
        /// `RLIMIT_FSIZE`.
        limit: u64,
    },
    /// The host refused an operation.
    #[error("cannot {action} the overlay file {path}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The overlay file, or the directory it is in.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// It is already open.
    #[error("the overlay {0} is in use, here or in another process")]
    InUse(PathBuf),
    /// The file is not an overlay.
    #[error("{0} is not an overlay: it does not start with the overlay's magic number")]
    NotAnOverlay(PathBuf),
    /// Written by an unknown version of this program.
    #[error("the overlay {path} has format version {found}; this program knows version {known}")]
    Version {
        /// The overlay file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version this program writes and reads.
        known: u32,
    },
    /// It was created for another tree.
    #[error(
        "the overlay {0} belongs to another state of the tree; delete it, name another, or bring the tree back to what it was"
    )]
    Identity(PathBuf),
    /// It was created for a device of another size.
    #[error("the overlay {path} was made for a device of {found} blocks, this one has {wanted}")]
    Capacity {
        /// The overlay file.
        path: PathBuf,
        /// Blocks it was made for.
        found: u64,
        /// Blocks of the device.
        wanted: u64,
    },
    /// Truncated or damaged.
    #[error("the overlay {path} is damaged: {what}")]
    Damaged {
        /// The overlay file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
}

/// The copy-on-write data of a device; see the module's page.
#[derive(Debug)]
pub struct Overlay {
    file: File,
    /// Where device offset 0 is in the file.
    data_start: u64,
    clusters: u64,
    states: ClusterStates,
    locks: Box<[Mutex<()>]>,
    kept: Option<Kept>,
    out_of_space: AtomicBool,
}

impl Drop for Overlay {
    /// Ends the lock of a kept overlay explicitly. A child that another thread has just made also has the file until
    /// its execve(2), and closing the file would leave the lock to that child.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Overlay {
    /// An overlay in a nameless file in `dir` that vanishes with the process. Writes beyond `capacity_blocks` blocks of
    /// 4 KiB fail.
    ///
    /// Nothing of it outlives the process, so a flush does not wait for the host's disk.
    pub fn ephemeral(dir: &Path, capacity_blocks: u64) -> Result<Overlay, OverlayError> {
        file::check_size(dir, 0, capacity_blocks)?;
        let file = file::ephemeral(dir)?;
        file::set_length(&file, dir, capacity_blocks * CLUSTER)?;
        Ok(Overlay::assemble(file, 0, capacity_blocks, ClusterStates::new(capacity_blocks), None))
    }

    /// The overlay kept at `path`, created if it does not exist. Only a device with the same capacity and `identity`
    /// (of the tree and everything else that decides what is below) may use it, one process at a time. A new one stores
    /// `note`, which [`Overlay::note`] returns.
    ///
    /// Writes before a flush that returned are there when it is opened again, whatever happened to the process or, if
    /// the host's disk keeps its promises, to the host.
    pub fn open_or_create(
        path: &Path,
        capacity_blocks: u64,
        identity: [u8; 32],
        note: u32,
    ) -> Result<Overlay, OverlayError> {
        file::check_size(path, kept::data_start(capacity_blocks.min(MAX_CLUSTERS)), capacity_blocks)?;
        let (file, states) = kept::open_or_create(path, capacity_blocks, identity, note)?;
        let data_start = kept::data_start(capacity_blocks);
        Ok(Overlay::assemble(file, data_start, capacity_blocks, states, Some(Kept::default())))
    }

    /// The note of the overlay kept at `path`; `None` if there is no file.
    pub fn note(path: &Path) -> Result<Option<u32>, OverlayError> {
        kept::note(path)
    }

    /// The existing overlay at `path`, of a device with this capacity over a tree with this identity.
    pub fn open(path: &Path, capacity_blocks: u64, identity: [u8; 32]) -> Result<Overlay, OverlayError> {
        let (file, states) = kept::open(path, capacity_blocks, identity)?;
        let data_start = kept::data_start(capacity_blocks);
        Ok(Overlay::assemble(file, data_start, capacity_blocks, states, Some(Kept::default())))
    }

    fn assemble(file: File, data_start: u64, clusters: u64, states: ClusterStates, kept: Option<Kept>) -> Overlay {
        let locks = (0..LOCKS).map(|_| Mutex::new(())).collect();
        Overlay { file, data_start, clusters, states, locks, kept, out_of_space: AtomicBool::new(false) }
    }

    /// The number of 4 KiB blocks that it covers.
    pub fn capacity_blocks(&self) -> u64 {
        self.clusters
    }

    /// Bytes of the device that the overlay covers.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity_blocks().saturating_mul(CLUSTER)
    }

    /// Bytes of the clusters whose content is in the overlay's file.
    pub fn written_bytes(&self) -> u64 {
        self.states.written() * CLUSTER
    }

    /// Whether a write failed because the host had no space.
    pub fn out_of_space(&self) -> bool {
        self.out_of_space.load(Ordering::Relaxed)
    }

    /// The state of the cluster at `offset`, and for how many bytes it holds (at most `limit`, not 0).
    pub(crate) fn run(&self, offset: u64, limit: u64) -> (State, u64) {
        let within = offset % CLUSTER;
        let (state, clusters) = self.states.run(offset / CLUSTER, (within + limit).div_ceil(CLUSTER));
        (state, (clusters * CLUSTER - within).min(limit))
    }

    /// The file, and the offset in it of the device's first byte.
    pub(crate) fn file(&self) -> (BorrowedFd<'_>, u64) {
        (self.file.as_fd(), self.data_start)
    }

    /// Reads `count` bytes at device offset `offset` that are in state [`State::Written`].
    pub(crate) fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let mut done = 0;
        while done < count {
            let got = out.read_from(self.file.as_fd(), self.data_start + offset + done, count - done)?;
            if got == 0 {
                // The file is created with the device's length, so another process truncated it.
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            done += got;
        }
        Ok(())
    }

    /// Writes the next `count` bytes of `data` at `offset`. `below` reads the device without the overlay; it fills the
    /// rest of a partly written cluster.
    pub(crate) fn write(
        &self,
        offset: u64,
        count: u64,
        data: &mut Cursor<'_, '_>,
        below: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for_each_chunk(offset, count, |offset, count| {
            let _lock = self.lock(offset);
            self.write_in_chunk(offset, count, data, below)
        })
    }

    fn write_in_chunk(
        &self,
        offset: u64,
        count: u64,
        data: &mut Cursor<'_, '_>,
        below: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset + count;
        let mut head = [0; BLOCK_SIZE];
        let mut tail = [0; BLOCK_SIZE];
        let head = self.complete(offset - offset % CLUSTER..offset, &mut head, below)?;
        let tail = self.complete(end..end.next_multiple_of(CLUSTER), &mut tail, below)?;
        let start = self.data_start + offset - head.len() as u64;
        let written = data.write_to(self.file.as_fd(), start, head, count, tail);
        self.note_space(written)?;
        self.states.set(offset / CLUSTER..end.div_ceil(CLUSTER), State::Written);
        Ok(())
    }

    /// Reads the device's content in `range`: the part of a cluster that a write does not cover. Returns nothing if the
    /// range is empty or already in the overlay's file.
    fn complete<'b>(
        &self,
        range: Range<u64>,
        buffer: &'b mut [u8; BLOCK_SIZE],
        below: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<&'b [u8]> {
        let buffer = buffer.get_mut(..(range.end - range.start) as usize).unwrap_or_default();
        if buffer.is_empty() {
            return Ok(&[]);
        }
        match self.states.run(range.start / CLUSTER, 1).0 {
            State::Written => return Ok(&[]),
            State::Zero => buffer.fill(0),
            State::Base => below(range.start, buffer)?,
        }
        Ok(buffer)
    }

    /// Zeroes `count` bytes from `offset`; gives the host's space back if `unmap` is set.
    pub(crate) fn zero(
        &self,
        offset: u64,
        count: u64,
        unmap: bool,
        below: &dyn Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for_each_chunk(offset, count, |offset, count| {
            let _lock = self.lock(offset);
            let end = offset + count;
            let first = offset.next_multiple_of(CLUSTER).min(end);
            let last = (end - end % CLUSTER).max(first);
            self.zero_part(offset, first - offset, below)?;
            self.zero_clusters(first / CLUSTER..last / CLUSTER, unmap);
            self.zero_part(last, end - last, below)
        })
    }

    /// Zeroes a part of a cluster, unless the cluster is zero already.
    fn zero_part(&self, offset: u64, count: u64, below: &dyn Fn(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
        if count == 0 || self.states.run(offset / CLUSTER, 1).0 == State::Zero {
            return Ok(());
        }
        let mut zeros = [0; BLOCK_SIZE];
        let zeros = zeros.get_mut(..count as usize).unwrap_or_default();
        self.write_in_chunk(offset, count, &mut Cursor::new(&[zeros.into()]), below)
    }

    fn zero_clusters(&self, clusters: Range<u64>, unmap: bool) {
        let mut at = clusters.start;
        let mut holds_data = false;
        while unmap && !holds_data && at < clusters.end {
            let (state, count) = self.states.run(at, clusters.end - at);
            holds_data = state == State::Written;
            at += count;
        }
        self.states.set(clusters.clone(), State::Zero);
        if holds_data {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let start = self.data_start + clusters.start * CLUSTER;
            // The states say zeros already: if the host cannot make a hole here, it only keeps the space.
            let _ = fallocate(&self.file, mode, start, (clusters.end - clusters.start) * CLUSTER);
        }
    }

    /// Makes everything written so far durable; does nothing for [`Overlay::ephemeral`].
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.kept.as_ref().map_or(Ok(()), |kept| self.note_space(kept.flush(&self.file, &self.states)))
    }

    fn note_space(&self, result: io::Result<()>) -> io::Result<()> {
        result.inspect_err(|error| {
            if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) {
                self.out_of_space.store(true, Ordering::Relaxed);
            }
        })
    }

    fn lock(&self, offset: u64) -> MutexGuard<'_, ()> {
        let chunk = offset / (CHUNK_CLUSTERS * CLUSTER);
        let lock = &self.locks[(chunk % LOCKS as u64) as usize];
        lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Calls `part` for each part of a range that is in one chunk.
fn for_each_chunk(mut offset: u64, mut count: u64, mut part: impl FnMut(u64, u64) -> io::Result<()>) -> io::Result<()> {
    const CHUNK: u64 = CHUNK_CLUSTERS * CLUSTER;
    while count > 0 {
        let now = count.min(CHUNK - offset % CHUNK);
        part(offset, now)?;
        offset += now;
        count -= now;
    }
    Ok(())
}
