//! [`Decrypted`]: a range of a backing, decrypted when it is read.

use std::io;
use std::sync::Arc;

use inarch_block::{Asked, Backing, ChangedFile, Cursor, read_backing};
use zeroize::Zeroizing;

use super::cipher::SectorCipher;

/// The most bytes that are decrypted at once.
const PIECE: u64 = 128 << 10;

/// Encrypted sectors as a backing of their plain bytes.
pub struct Decrypted {
    below: Arc<dyn Backing>,
    /// Where the first sector is.
    start: u64,
    /// Bytes, whole sectors.
    length: u64,
    cipher: SectorCipher,
    /// Bytes of a sector.
    sector: u64,
    /// The number of the first sector, in sectors of 512 bytes.
    first: u64,
}

impl Decrypted {
    /// `length` bytes of `below` from `start`: as many whole sectors as that has. `None` if it goes beyond the end.
    pub fn new(
        below: Arc<dyn Backing>,
        (start, length): (u64, u64),
        cipher: SectorCipher,
        (sector, first): (u64, u64),
    ) -> Option<Decrypted> {
        start.checked_add(length).filter(|end| *end <= below.size())?;
        let length = length - length.checked_rem(sector)?;
        Some(Decrypted { below, start, length, cipher, sector, first })
    }
}

impl Backing for Decrypted {
    fn size(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).filter(|end| *end <= self.length).ok_or(io::ErrorKind::UnexpectedEof)?;
        // What a file of the guest holds may be as secret as the key.
        let mut buffer = Zeroizing::new(vec![0; count.saturating_add(2 * self.sector).min(PIECE) as usize]);
        let mut at = offset;
        while at < end {
            let from = at - at % self.sector;
            let to = end.next_multiple_of(self.sector).min(self.length).min(from + PIECE);
            let piece = buffer.get_mut(..(to - from) as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
            read_backing(&*self.below, self.start + from, piece)?;
            self.cipher.decrypt(piece, self.sector as usize, self.first.wrapping_add(from / 512));
            let wanted = (at - from) as usize..(end.min(to) - from) as usize;
            out.copy_from(piece.get(wanted).unwrap_or_default());
            at = to;
        }
        Ok(())
    }

    fn changed(&self) -> Option<ChangedFile> {
        self.below.changed()
    }

    fn changed_beneath(&self, asked: &mut Asked) -> Option<ChangedFile> {
        asked.ask(&self.below)
    }
}
