//! A directory's record (ECMA-119, 9.1).

use inarch_tree::Timestamp;
use inarch_volume::{Pages, VolumeError};

use super::{SECTOR, damaged};
use crate::calendar::Date;

/// Bytes of a record before its name.
const HEADER: usize = 33;

const DIRECTORY: u8 = 0x02;
const ASSOCIATED: u8 = 0x04;
const CONTINUED: u8 = 0x80;

/// A record.
pub(super) struct Record {
    /// Its first byte in the image.
    pub(super) at: u64,
    bytes: [u8; 256],
    length: usize,
    name: usize,
}

impl Record {
    /// The record at a byte of the image; none if no record begins there before the sector's end.
    pub(super) fn read(pages: &Pages, at: u64) -> Result<Option<Record>, VolumeError> {
        let room = (SECTOR - at % SECTOR).min(pages.size().saturating_sub(at));
        if room == 0 {
            return Err(damaged(format!("has a record at byte {at}, beyond the image's end")));
        }
        let length = usize::from(pages.array::<1>(at)?[0]);
        if length == 0 {
            return Ok(None);
        }
        let mut record = Record { at, bytes: [0; 256], length, name: 0 };
        let bytes = record.bytes.get_mut(..length).filter(|_| length > HEADER && length as u64 <= room);
        let wrong = || damaged(format!("has a record at byte {at} that makes no sense"));
        pages.read(at, bytes.ok_or_else(wrong)?)?;
        record.name = usize::from(record.bytes[32]);
        match record.name > 0 && HEADER + record.name <= length {
            true => Ok(Some(record)),
            false => Err(wrong()),
        }
    }

    /// The record after it, in this sector or at the next one's start.
    pub(super) fn after(&self, pages: &Pages) -> Result<Option<Record>, VolumeError> {
        let end = self.at + self.length as u64;
        let next_sector = end.next_multiple_of(SECTOR);
        if end < next_sector
            && let Some(record) = Record::read(pages, end)?
        {
            return Ok(Some(record));
        }
        Record::read(pages, next_sector)
    }

    /// Bytes of the record.
    pub(super) fn length(&self) -> u64 {
        self.length as u64
    }

    pub(super) fn name(&self) -> &[u8] {
        self.bytes.get(HEADER..HEADER + self.name).unwrap_or_default()
    }

    /// What comes after the name, at an even byte: the system use area.
    pub(super) fn system_use(&self) -> &[u8] {
        self.bytes.get((HEADER + self.name).next_multiple_of(2)..self.length).unwrap_or_default()
    }

    fn number(&self, at: usize) -> u32 {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// Where its content begins, for blocks of that size, behind an extended attribute record.
    pub(super) fn content(&self, block: u64) -> u64 {
        (u64::from(self.number(2)) + u64::from(self.bytes[1])) * block
    }

    /// Bytes of its content.
    pub(super) fn size(&self) -> u64 {
        self.number(10).into()
    }

    pub(super) fn is_directory(&self) -> bool {
        self.bytes[25] & DIRECTORY != 0
    }

    /// A directory's record for itself.
    pub(super) fn is_self(&self) -> bool {
        self.is_directory() && self.name() == [0]
    }

    /// A directory's record for its parent.
    pub(super) fn is_parent(&self) -> bool {
        self.is_directory() && self.name() == [1]
    }

    /// Whether it is what Apple's systems store beside a file.
    pub(super) fn is_associated(&self) -> bool {
        self.bytes[25] & ASSOCIATED != 0
    }

    /// Whether the file goes on with the next record.
    pub(super) fn is_continued(&self) -> bool {
        self.bytes[25] & CONTINUED != 0
    }

    /// Whether its content is cut into pieces with others between them.
    pub(super) fn is_interleaved(&self) -> bool {
        self.bytes[26] != 0 || self.bytes[27] != 0
    }

    pub(super) fn time(&self) -> Timestamp {
        self.bytes.get(18..25).and_then(|bytes| bytes.first_chunk()).and_then(short_time).unwrap_or(EPOCH)
    }
}

/// The time where none is known.
const EPOCH: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

/// A time in seven bytes (9.1.5); none if it is not set.
pub(super) fn short_time(bytes: &[u8; 7]) -> Option<Timestamp> {
    let [year, month, day, hour, minute, second, offset] = *bytes;
    let date = Date { year: 1900 + u16::from(year), month, day, hour, minute, second };
    (month != 0).then(|| date.ahead(i64::from(offset.cast_signed()) * 15, 0))
}

/// A time in 16 digits and an offset (8.4.26.1); none if it is not set.
pub(super) fn long_time(bytes: &[u8; 17]) -> Option<Timestamp> {
    let digits = |from: usize, count: usize| {
        let digits = bytes.get(from..from + count)?;
        digits.iter().try_fold(0u16, |value, digit| match digit {
            b'0'..=b'9' => value.checked_mul(10)?.checked_add(u16::from(digit - b'0')),
            _ => None,
        })
    };
    let two = |from| digits(from, 2).map(|value| value as u8);
    let [year, hundredths] = [digits(0, 4)?, digits(14, 2)?];
    let [month, day, hour, minute, second] = [two(4)?, two(6)?, two(8)?, two(10)?, two(12)?];
    let date = Date { year, month, day, hour, minute, second };
    let offset = i64::from(bytes[16].cast_signed()) * 15;
    (month != 0).then(|| date.ahead(offset, u32::from(hundredths) * 10_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_an_offset() {
        let at = |seconds, nanoseconds| Some(Timestamp { seconds, nanoseconds });
        assert_eq!(short_time(&[124, 7, 4, 12, 34, 56, 22]), at(1_720_076_696, 0));
        assert_eq!(short_time(&[124, 7, 4, 12, 34, 56, 0xFC]), at(1_720_100_096, 0));
        assert_eq!(short_time(&[0; 7]), None);
        assert_eq!(long_time(b"2024070412345650\x16"), at(1_720_076_696, 500_000_000));
        assert_eq!(long_time(b"0000000000000000\0"), None);
        assert_eq!(long_time(b"20240704123456xx\0"), None);
    }
}
