//! [`Cursor`]: a position in a scatter list, and vectored reads and writes there.
//!
//! The list may be in guest memory, which the guest writes at any time. So nothing here makes a Rust reference to its
//! bytes: data moves between it and files by `preadv` and `pwritev` alone.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use smallvec::SmallVec;
use vm_memory::VolatileSlice;

use crate::BLOCK_SIZE;

/// The most buffers one `preadv` takes: `UIO_MAXIOV` of the kernel's include/uapi/linux/uio.h.
const MAX_IOVECS: usize = 1024;

static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

type Iovecs = SmallVec<[libc::iovec; 16]>;

/// The rest of a scatter list, from the front: where a read puts its bytes.
#[derive(Clone)]
pub struct Cursor<'a, 'm> {
    slices: &'a [VolatileSlice<'m>],
    /// Bytes of the first slice that are already passed.
    within: usize,
    remaining: u64,
}

impl<'a, 'm> Cursor<'a, 'm> {
    /// A cursor at the front of `slices`.
    pub fn new(slices: &'a [VolatileSlice<'m>]) -> Cursor<'a, 'm> {
        let remaining = slices.iter().fold(0u64, |sum, slice| sum.saturating_add(slice.len() as u64));
        Cursor { slices, within: 0, remaining }
    }

    /// Bytes up to the end of the list.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Advances by `count` bytes, or to the end.
    pub(crate) fn advance(&mut self, count: u64) {
        let mut count = count.min(self.remaining);
        self.remaining -= count;
        while let Some((first, rest)) = self.slices.split_first() {
            let left = (first.len() - self.within) as u64;
            if count < left {
                self.within += count as usize;
                return;
            }
            count -= left;
            self.slices = rest;
            self.within = 0;
        }
    }

    /// The rest of the first slice, at most `limit` bytes; skips empty slices.
    fn piece(&mut self, limit: u64) -> Option<VolatileSlice<'m>> {
        self.advance(0);
        let first = self.slices.first()?;
        let count = limit.min((first.len() - self.within) as u64) as usize;
        first.subslice(self.within, count).ok()
    }

    /// Fills the next `count` bytes with zeros and advances.
    pub fn fill_zeros(&mut self, mut count: u64) {
        while count > 0
            && let Some(piece) = self.piece(count.min(BLOCK_SIZE as u64))
        {
            piece.copy_from(&ZEROS);
            self.advance(piece.len() as u64);
            count -= piece.len() as u64;
        }
    }

    /// Copies `bytes` to the next bytes of the list and advances.
    pub fn copy_from(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty()
            && let Some(piece) = self.piece(bytes.len() as u64)
        {
            piece.copy_from(bytes);
            self.advance(piece.len() as u64);
            bytes = bytes.get(piece.len()..).unwrap_or_default();
        }
    }

    /// The next `count` bytes as buffers for one system call; fewer if the list is shorter or has too many slices.
    fn iovecs(&self, count: u64) -> Iovecs {
        let mut ahead = self.clone();
        let mut left = count;
        let mut iovecs = Iovecs::new();
        while left > 0
            && iovecs.len() < MAX_IOVECS
            && let Some(piece) = ahead.piece(left)
        {
            let start = piece.ptr_guard_mut().as_ptr();
            iovecs.push(libc::iovec { iov_base: start.cast(), iov_len: piece.len() });
            ahead.advance(piece.len() as u64);
            left -= piece.len() as u64;
        }
        iovecs
    }

    /// Reads up to `count` bytes of `file` from `offset` into the list and advances. Returns the number of bytes; 0 is
    /// the end of the file.
    pub fn read_from(&mut self, file: BorrowedFd<'_>, offset: u64, count: u64) -> io::Result<u64> {
        let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let iovecs = self.iovecs(count);
        loop {
            // SAFETY: each buffer is a part of a `VolatileSlice` that outlives the call, so it is mapped and writable;
            // its bytes are only accessed as volatile memory, so the kernel may write them.
            let got = unsafe { libc::preadv(file.as_raw_fd(), iovecs.as_ptr(), iovecs.len() as i32, offset) };
            if got >= 0 {
                self.advance(got as u64);
                return Ok(got as u64);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl Cursor<'_, '_> {
    /// Writes `head`, the next `count` bytes of the list and `tail` to `file` from `offset`, and advances by `count`
    /// bytes. After an error a part may be written, and the position is undefined.
    pub(crate) fn write_to(
        &mut self,
        file: BorrowedFd<'_>,
        offset: u64,
        head: &[u8],
        count: u64,
        tail: &[u8],
    ) -> io::Result<()> {
        let mut left = Gather { head, count, tail };
        let mut offset = offset;
        while left.length() > 0 {
            let at = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            let iovecs = left.iovecs(self);
            // SAFETY: each buffer is `head`, `tail` or a part of a `VolatileSlice`, all of which outlive the call,
            // so it is mapped and readable; the kernel only reads it.
            let put = unsafe { libc::pwritev(file.as_raw_fd(), iovecs.as_ptr(), iovecs.len() as i32, at) };
            if put > 0 {
                offset += put as u64;
                left.advance(put as u64, self);
                continue;
            }
            let error = if put == 0 { io::ErrorKind::WriteZero.into() } else { io::Error::last_os_error() };
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// The rest of one write.
struct Gather<'b> {
    head: &'b [u8],
    /// Bytes of the list.
    count: u64,
    tail: &'b [u8],
}

impl Gather<'_> {
    fn length(&self) -> u64 {
        self.head.len() as u64 + self.count + self.tail.len() as u64
    }

    /// The front of it as buffers for one system call.
    fn iovecs(&self, list: &Cursor<'_, '_>) -> Iovecs {
        let bytes = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut iovecs = list.iovecs(self.count);
        let whole = iovecs.iter().map(|iovec| iovec.iov_len as u64).sum::<u64>() == self.count;
        if whole && !self.tail.is_empty() && iovecs.len() < MAX_IOVECS {
            iovecs.push(bytes(self.tail));
        }
        if !self.head.is_empty() {
            iovecs.truncate(MAX_IOVECS - 1);
            iovecs.insert(0, bytes(self.head));
        }
        iovecs
    }

    fn advance(&mut self, count: u64, list: &mut Cursor<'_, '_>) {
        let head = count.min(self.head.len() as u64);
        self.head = self.head.get(head as usize..).unwrap_or_default();
        let data = (count - head).min(self.count);
        self.count -= data;
        list.advance(data);
        self.tail = self.tail.get((count - head - data) as usize..).unwrap_or_default();
    }
}
