//! An entry of a directory: a file, or a part of a long name.

use inarch_tree::Timestamp;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::codepage::character;
use super::time::unpacked;
use crate::wide::Shown;

/// Bytes of an entry.
pub(super) const ENTRY: usize = 32;
/// The first byte of an entry that ends the directory.
pub(super) const LAST: u8 = 0;
/// The first byte of one that was deleted.
pub(super) const DELETED: u8 = 0xE5;
/// The most parts of a long name.
pub(super) const PARTS: usize = 20;
/// UTF-16 units of a part.
const UNITS: usize = 13;
/// The most units of a long name.
const MAX_UNITS: usize = 255;

const READ_ONLY: u8 = 0x01;
const VOLUME: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
const LONG: u8 = 0x0F;
/// In a part of a long name: the last part, which comes first.
const LAST_PART: u8 = 0x40;
/// For Windows NT: the name before the dot is in small letters, and the extension.
const SMALL_BASE: u8 = 0x08;
const SMALL_EXTENSION: u8 = 0x10;

/// A file's entry ("FAT Directory Structure" of the specification; `msdos_dir_entry` of Linux's msdos_fs.h).
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Entry {
    name: [u8; 11],
    attributes: u8,
    small: u8,
    created_hundredths: u8,
    created_time: U16,
    created_date: U16,
    read_date: U16,
    first_high: U16,
    written_time: U16,
    written_date: U16,
    first_low: U16,
    size: U32,
}

impl Entry {
    pub(super) fn read(bytes: &[u8; ENTRY]) -> Entry {
        zerocopy::transmute!(*bytes)
    }

    /// Whether it is neither deleted, nor a label, nor a part of a long name.
    pub(super) fn is_file(&self) -> bool {
        !matches!(self.name[0], LAST | DELETED) && self.attributes & VOLUME == 0
    }

    pub(super) fn is_directory(&self) -> bool {
        self.attributes & DIRECTORY != 0
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.attributes & READ_ONLY != 0
    }

    /// Whether it is a directory's entry for itself or its parent.
    pub(super) fn is_dots(&self) -> bool {
        self.is_dot() || self.is_parent()
    }

    fn is_dot(&self) -> bool {
        self.name == *b".          "
    }

    pub(super) fn is_parent(&self) -> bool {
        self.name == *b"..         "
    }

    /// The first cluster; only FAT32 has more than 16 bits.
    pub(super) fn first(&self, is_32: bool) -> u32 {
        let high = if is_32 { u32::from(self.first_high.get()) << 16 } else { 0 };
        high | u32::from(self.first_low.get())
    }

    pub(super) fn size(&self) -> u64 {
        self.size.get().into()
    }

    pub(super) fn written(&self) -> Timestamp {
        unpacked(self.written_date.get(), self.written_time.get(), 0, 0)
    }

    pub(super) fn read_on(&self) -> Option<Timestamp> {
        let date = self.read_date.get();
        (date != 0).then(|| unpacked(date, 0, 0, 0))
    }

    pub(super) fn created(&self) -> Option<Timestamp> {
        let (date, time) = (self.created_date.get(), self.created_time.get());
        (date != 0).then(|| unpacked(date, time, self.created_hundredths, 0))
    }

    /// The checksum that the parts of its long name have.
    fn sum(&self) -> u8 {
        self.name.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte))
    }

    /// The short name.
    pub(super) fn short(&self, unique: u64) -> Shown {
        let (base, extension) = self.name.split_at(8);
        let part = |bytes: &[u8], small: u8| -> String {
            let length = bytes.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
            let small = self.small & small != 0;
            bytes.iter().take(length).map(|byte| character(*byte, small)).collect()
        };
        let mut first = [0; 8];
        first.copy_from_slice(base);
        // The first byte of deleted entries is a letter, too.
        if first[0] == 0x05 {
            first[0] = DELETED;
        }
        let (mut name, extension) = (part(&first, SMALL_BASE), part(extension, SMALL_EXTENSION));
        if !extension.is_empty() {
            name.push('.');
            name.push_str(&extension);
        }
        Shown::of_utf16(name.encode_utf16(), unique)
    }
}

/// A long name that is being put together from its parts. The last part comes first.
pub(super) struct Long {
    units: [u16; PARTS * UNITS],
    /// How many parts are still to come; none if there is no name.
    missing: Option<usize>,
    /// How many parts there are.
    parts: usize,
    sum: u8,
}

impl Long {
    pub(super) fn new() -> Long {
        Long { units: [0; PARTS * UNITS], missing: None, parts: 0, sum: 0 }
    }

    /// Takes an entry; whether it is a part of a long name. What does not continue a name ends it.
    pub(super) fn take(&mut self, bytes: &[u8; ENTRY]) -> bool {
        let order = bytes[0];
        if bytes[11] & 0x3F != LONG {
            return false;
        }
        let (number, sum) = (usize::from(order & 0x3F), bytes[13]);
        let is_expected = match order & LAST_PART != 0 {
            true => {
                (self.parts, self.sum) = (number, sum);
                (1..=PARTS).contains(&number)
            }
            false => self.missing == Some(number) && number > 0 && self.sum == sum,
        };
        self.missing = None;
        if order == DELETED || !is_expected {
            return true;
        }
        let places = bytes[1..11].as_chunks().0.iter();
        let places = places.chain(bytes[14..26].as_chunks().0).chain(bytes[28..32].as_chunks().0);
        let units = places.map(|pair: &[u8; 2]| u16::from_le_bytes(*pair));
        for (unit, value) in self.units.iter_mut().skip((number - 1) * UNITS).zip(units) {
            *unit = value;
        }
        self.missing = Some(number - 1);
        true
    }

    /// The long name of an entry, if what came before it is one.
    pub(super) fn of(&mut self, entry: &Entry, unique: u64) -> Option<Shown> {
        let is_whole = self.missing.take() == Some(0) && self.sum == entry.sum();
        let units = self.units.get(..self.parts * UNITS).filter(|_| is_whole)?;
        let length = units.iter().position(|unit| *unit == 0).unwrap_or(units.len());
        let units = units.get(..length).filter(|units| (1..=MAX_UNITS).contains(&units.len()))?;
        Some(Shown::of_utf16(units.iter().copied(), unique))
    }

    /// Forgets what there is of a name.
    pub(super) fn forget(&mut self) {
        self.missing = None;
    }
}
