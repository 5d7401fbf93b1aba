//! Copies a file's content from the lower layer, piece by piece.

use std::os::fd::OwnedFd;

use rustix::fs::copy_file_range;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::{ME, Overlay};
use crate::{Context, HandleId, NodeId, SetAttributes, WriteKind};

/// The size of a piece, for our own copy and for the host kernel's.
const PIECE: usize = 1 << 20;
const LARGE_PIECE: usize = 16 << 20;

/// A node and its layer's handle of it.
pub(super) type Open = (NodeId, HandleId);

/// How a successful copy ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Copied {
    Whole,
    /// Interrupted; so many bytes are copied.
    UpTo(u64),
}

/// What follows an offset.
enum Next {
    /// Data from this offset, of this length.
    Data(u64, u64),
    /// A hole up to the end.
    Hole,
}

impl Overlay {
    /// Copies bytes `at` to `length` of a file to the upper layer. Holes stay holes. Even an interrupted copy makes
    /// progress by a piece.
    pub(super) fn copy_content(
        &self,
        context: &Context<'_>,
        source: Open,
        target: Open,
        (mut at, length): (u64, u64),
    ) -> Result<Copied, Errno> {
        // The kernel copies or shares the content itself, if both layers have host files.
        let mut files = self.lower.host_file(source.0, source.1).zip(self.upper.host_file(target.0, target.1));
        let mut buffer = Vec::new();
        while at < length {
            let Next::Data(data, count) = self.next_data(source, at, length)? else {
                let set = SetAttributes { size: Some(length), ..SetAttributes::default() };
                self.upper.set_attributes(&ME, target.0, Some(target.1), &set)?;
                break;
            };
            let by_host = match &files {
                Some((from, to)) => copy_by_host(from, to, data, count)?,
                None => None,
            };
            let copied = match by_host {
                Some(copied) => copied,
                None => {
                    files = None;
                    self.copy_piece(&mut buffer, source, target, (data, count))?
                }
            };
            at = data + copied;
            if copied == 0 {
                // The file became shorter meanwhile.
                break;
            }
            if at < length && context.is_interrupted() {
                return Ok(Copied::UpTo(at));
            }
        }
        Ok(Copied::Whole)
    }

    fn next_data(&self, source: Open, at: u64, length: u64) -> Result<Next, Errno> {
        let data = match self.lower.seek(&ME, source.0, source.1, at, libc::SEEK_DATA as u32) {
            Ok(data) if data >= length => return Ok(Next::Hole),
            Ok(data) => data.max(at),
            Err(Errno::NXIO) => return Ok(Next::Hole),
            // A file system without hole detection has no holes.
            Err(_) => return Ok(Next::Data(at, length.saturating_sub(at))),
        };
        let hole = self.lower.seek(&ME, source.0, source.1, data, libc::SEEK_HOLE as u32).unwrap_or(length);
        Ok(Next::Data(data, hole.clamp(data + 1, length) - data))
    }

    /// Copies part of `count` bytes from `at`; returns how many.
    fn copy_piece(
        &self,
        buffer: &mut Vec<u8>,
        source: Open,
        target: Open,
        (at, count): (u64, u64),
    ) -> Result<u64, Errno> {
        let count = usize::try_from(count).unwrap_or(PIECE).min(PIECE);
        buffer.resize(count.max(buffer.len()), 0);
        let piece = buffer.get_mut(..count).unwrap_or_default();
        let count = self.lower.read(&ME, source.0, source.1, at, &[VolatileSlice::from(&mut *piece)])?;
        if count == 0 {
            return Ok(0);
        }
        let slices = [VolatileSlice::from(piece.get_mut(..count).unwrap_or_default())];
        if self.upper.write(&ME, target.0, target.1, at, &slices, WriteKind::default())? < count {
            return Err(Errno::NOSPC);
        }
        Ok(count as u64)
    }
}

/// Has the host's kernel copy part of `count` bytes from `at`; `None` if it cannot.
fn copy_by_host(from: &OwnedFd, to: &OwnedFd, at: u64, count: u64) -> Result<Option<u64>, Errno> {
    let (mut read_at, mut write_at) = (at, at);
    let count = usize::try_from(count).unwrap_or(LARGE_PIECE).min(LARGE_PIECE);
    match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), count) {
        // At the end of the file, or on a file system with generated files.
        Ok(0) => Ok(None),
        Ok(copied) => Ok(Some(copied as u64)),
        Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF) => Ok(None),
        Err(errno) => Err(errno),
    }
}
