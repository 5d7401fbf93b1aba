//! [`Mapped`]: a disk whose parts a [`Map`] finds in other files.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use inarch_block::{Asked, Backing, Borrower, ChangedFile, Cursor, Lent};

use super::tables::damaged;

/// What a range of a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes of the image's data file, from there.
    At(u64),
    /// Zeros.
    Zeros,
    /// The same range of the disk below; zeros if there is none.
    Below,
    /// Bytes of a compressed cluster.
    Packed {
        /// What [`Map::unpack`] takes.
        cluster: u64,
        /// Where in the decompressed cluster they begin.
        within: u64,
    },
}

impl Piece {
    /// The piece at `offset`, and its length with the pieces of the following units (of `unit` bytes) that continue it: at
    /// most `count` bytes.
    pub(crate) fn run(
        offset: u64,
        count: u64,
        unit: u64,
        piece_at: &dyn Fn(u64) -> io::Result<Piece>,
    ) -> io::Result<(Piece, u64)> {
        let first = piece_at(offset)?;
        let mut length = unit - offset % unit;
        while length < count {
            let follows = match (first, piece_at(offset + length)) {
                (Piece::At(at), Ok(Piece::At(next))) => at.checked_add(length) == Some(next),
                (Piece::Packed { .. }, _) | (_, Err(_)) => false,
                (_, Ok(next)) => first == next,
            };
            if !follows {
                break;
            }
            length += unit;
        }
        Ok((first, length.min(count)))
    }
}

/// Tells where the parts of a disk are.
pub(crate) trait Map: Send + Sync {
    /// The unit of allocation in bytes: a power of two.
    fn unit(&self) -> u64;

    /// What is at `offset`, and how many bytes of it follow each other: at least 1, at most `count`, which is not 0.
    /// `offset + count` does not exceed the disk's size.
    fn piece(&self, offset: u64, count: u64) -> io::Result<(Piece, u64)>;

    /// Decompresses a cluster that [`Map::piece`] named.
    fn unpack(&self, cluster: u64) -> io::Result<Arc<[u8]>> {
        Err(damaged(format!("a compressed cluster at {cluster}, where none can be")))
    }
}

/// A disk whose parts a map finds.
pub(crate) struct Mapped<M> {
    /// The map.
    pub(crate) map: M,
    /// Bytes of the disk.
    pub(crate) size: u64,
    /// The file that [`Piece::At`] is about.
    pub(crate) data: Arc<dyn Backing>,
    /// The disk below.
    pub(crate) below: Option<Arc<dyn Backing>>,
}

impl<M: Map> Mapped<M> {
    /// As [`Map::piece`], but [`Piece::At`] lies within the data file and [`Piece::Below`] within the disk below.
    fn piece(&self, offset: u64, count: u64) -> io::Result<(Piece, u64)> {
        let (piece, length) = self.map.piece(offset, count)?;
        let length = length.clamp(1, count);
        Ok(match piece {
            Piece::At(at) => {
                let held = self.data.size().saturating_sub(at);
                if held == 0 {
                    return self.past_the_end(offset, length, at);
                }
                (piece, length.min(held))
            }
            Piece::Below => match self.below.as_ref().map_or(0, |below| below.size()).saturating_sub(offset) {
                0 => (Piece::Zeros, length),
                held => (piece, length.min(held)),
            },
            other => (other, length),
        })
    }

    /// A file may end within its last cluster, whose rest is zeros. What begins beyond the end is lost.
    fn past_the_end(&self, offset: u64, length: u64, at: u64) -> io::Result<(Piece, u64)> {
        let within = offset % self.map.unit();
        let begins_before = at.checked_sub(within).is_some_and(|start| start < self.data.size());
        if !begins_before {
            return Err(damaged(format!(
                "byte {offset} of the disk would be byte {at} of the file, beyond its end; the image is cut off or damaged"
            )));
        }
        Ok((Piece::Zeros, length.min(self.map.unit() - within)))
    }

    /// Calls `visit` for each piece of a range, with where it starts and its length.
    fn pieces(
        &self,
        offset: u64,
        count: u64,
        visit: &mut dyn FnMut(Piece, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset.checked_add(count).filter(|end| *end <= self.size).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut at = offset;
        while at < end {
            let (piece, length) = self.piece(at, end - at)?;
            visit(piece, at, length)?;
            at += length;
        }
        Ok(())
    }
}

impl<M: Map> Backing for Mapped<M> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        self.pieces(offset, count, &mut |piece, start, length| match (piece, &self.below) {
            (Piece::At(at), _) => self.data.read(at, length, out),
            (Piece::Below, Some(below)) => below.read(start, length, out),
            (Piece::Packed { cluster, within }, _) => {
                let unpacked = self.map.unpack(cluster)?;
                let end = within.saturating_add(length);
                let bytes = unpacked.get(within as usize..end as usize);
                out.copy_from(bytes.ok_or_else(|| {
                    damaged(format!("the cluster at byte {start} of the disk unpacks to too few bytes"))
                })?);
                Ok(())
            }
            (Piece::Zeros | Piece::Below, _) => {
                out.fill_zeros(length);
                Ok(())
            }
        })
    }

    fn lends(&self, offset: u64, count: u64) -> bool {
        let lends = self.pieces(offset, count, &mut |piece, start, length| {
            let lends = match (piece, &self.below) {
                (Piece::At(at), _) => self.data.lends(at, length),
                (Piece::Below, Some(below)) => below.lends(start, length),
                (Piece::Packed { .. }, _) => false,
                (Piece::Zeros | Piece::Below, _) => true,
            };
            if lends { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)) }
        });
        lends.is_ok()
    }

    fn lend(&self, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<()> {
        self.pieces(offset, count, &mut |piece, start, length| match (piece, &self.below) {
            (Piece::At(at), _) => self.data.lend(at, length, &mut |file: BorrowedFd<'_>, lent: Lent| {
                take(file, Lent { offset: start + lent.offset.saturating_sub(at), ..lent })
            }),
            (Piece::Below, Some(below)) => below.lend(start, length, take),
            (Piece::Packed { .. }, _) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            (Piece::Zeros | Piece::Below, _) => Ok(()),
        })
    }

    fn changed(&self) -> Option<ChangedFile> {
        self.changed_beneath(&mut Asked::default())
    }

    fn changed_beneath(&self, asked: &mut Asked) -> Option<ChangedFile> {
        asked.ask(&self.data).or_else(|| asked.ask(self.below.as_ref()?))
    }
}
