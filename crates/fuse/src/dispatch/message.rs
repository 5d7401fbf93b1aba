//! Reads and writes messages in place: in memory slices that the client may change at any time.

use rustix::io::Errno;
use smallvec::SmallVec;
use vm_memory::{Bytes, VolatileSlice};
use zerocopy::{Immutable, IntoBytes};

use crate::wire::structs::OutHeader;

/// The memory slices of one message, in order.
pub type Pieces<'a> = SmallVec<[VolatileSlice<'a>; 16]>;

/// The total number of bytes in `pieces`.
pub fn total(pieces: &[VolatileSlice<'_>]) -> usize {
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.len()))
}

/// Copies the first bytes of `pieces` to `out`, up to its length.
pub fn copy_start(pieces: &[VolatileSlice<'_>], mut out: &mut [u8]) {
    for piece in pieces {
        let count = piece.copy_to(out);
        out = out.get_mut(count..).unwrap_or_default();
    }
}

/// Up to `length` bytes of `pieces`, after the first `skip`.
pub fn window<'a>(pieces: &[VolatileSlice<'a>], mut skip: usize, mut length: usize) -> Pieces<'a> {
    let mut found = Pieces::new();
    for piece in pieces {
        if length == 0 {
            break;
        }
        let passed = skip.min(piece.len());
        skip -= passed;
        let count = length.min(piece.len() - passed);
        if let Ok(part) = piece.subslice(passed, count)
            && count > 0
        {
            found.push(part);
            length -= count;
        }
    }
    found
}

/// The memory for an answer: room for the header, then the body.
#[derive(Clone, Copy)]
pub struct Reply<'m> {
    pieces: &'m [VolatileSlice<'m>],
    room: usize,
}

impl<'m> Reply<'m> {
    /// An answer in `pieces`; `None` if they do not even hold a header.
    pub fn new(pieces: &'m [VolatileSlice<'m>]) -> Option<Reply<'m>> {
        let room = total(pieces).checked_sub(size_of::<OutHeader>())?;
        Some(Reply { pieces, room })
    }

    /// Bytes available after the header.
    pub fn room(&self) -> usize {
        self.room
    }

    /// The memory after the header, up to `length` bytes.
    pub fn data(&self, length: usize) -> Pieces<'m> {
        window(self.pieces, size_of::<OutHeader>(), length)
    }

    /// Puts `bytes` after the header and returns their number.
    ///
    /// # Errors
    /// `EIO` if they do not fit.
    pub fn put_bytes(&self, bytes: &[u8]) -> Result<usize, Errno> {
        if bytes.len() > self.room {
            return Err(Errno::IO);
        }
        write(&self.data(bytes.len()), bytes)?;
        Ok(bytes.len())
    }

    /// Puts a structure of the protocol after the header and returns its size.
    pub fn put(&self, structure: &(impl IntoBytes + Immutable)) -> Result<usize, Errno> {
        self.put_bytes(structure.as_bytes())
    }

    /// Writes the header and returns the size of the whole answer.
    pub fn finish(&self, header: OutHeader) -> usize {
        let start = window(self.pieces, 0, size_of::<OutHeader>());
        match write(&start, header.as_bytes()) {
            Ok(()) => header.len as usize,
            Err(_) => 0,
        }
    }
}

fn write(pieces: &[VolatileSlice<'_>], mut bytes: &[u8]) -> Result<(), Errno> {
    for piece in pieces {
        let (now, later) = bytes.split_at_checked(piece.len()).unwrap_or((bytes, &[]));
        piece.write_slice(now, 0).map_err(|_| Errno::IO)?;
        bytes = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_cut_at_both_ends() {
        let mut memory: Vec<u8> = (0..30).collect();
        let (first, rest) = memory.split_at_mut(7);
        let (second, third) = rest.split_at_mut(3);
        let pieces = [VolatileSlice::from(first), VolatileSlice::from(second), VolatileSlice::from(third)];
        for skip in 0..32 {
            for length in 0..32 {
                let mut out = vec![0xff; 40];
                let window = window(&pieces, skip, length);
                copy_start(&window, &mut out);
                let expected: Vec<u8> = (0..30).skip(skip).take(length).collect();
                assert_eq!(total(&window), expected.len());
                assert_eq!(out[..expected.len()], expected);
            }
        }
    }

    #[test]
    fn an_answer_is_whole_or_not_there() {
        let mut memory = [0; 24];
        let (first, second) = memory.split_at_mut(5);
        let pieces = [VolatileSlice::from(first), VolatileSlice::from(second)];
        let reply = Reply::new(&pieces).unwrap();
        assert_eq!(reply.put_bytes(&[7; 9]), Err(Errno::IO));
        assert_eq!(reply.put_bytes(&[7; 8]), Ok(8));
        assert_eq!(reply.finish(OutHeader { len: 24, error: -1, unique: 3 }), 24);
        assert!(Reply::new(&pieces[..1]).is_none());
        assert_eq!(memory[..4], 24u32.to_ne_bytes());
        assert_eq!(memory[16..], [7; 8]);
    }
}
