//! Records of the MFT, and the attributes in them.

use inarch_volume::VolumeError;

use super::damaged;
use super::spec::{NUMBER, STRIDE, array, attribute_flag, kind, part, u16_at, u32_at, u64_at};

/// Undoes the fixups of a record or index block: the last two bytes of each 512 were replaced by a number that tells
/// whether all of it was written. Says what is wrong if it was not.
pub(super) fn undo_fixups(bytes: &mut [u8]) -> Result<(), &'static str> {
    const OUT_OF_RANGE: &str = "its fixups are out of range";
    let (Some(start), Some(count)) = (u16_at(bytes, 4), u16_at(bytes, 6)) else { return Err(OUT_OF_RANGE) };
    let strides = bytes.len() / STRIDE;
    if usize::from(count) != strides + 1 || !bytes.len().is_multiple_of(STRIDE) {
        return Err(OUT_OF_RANGE);
    }
    let start = usize::from(start);
    // The list must not lie in what it replaces.
    if start + 2 * usize::from(count) > STRIDE - 2 && strides > 0 {
        return Err(OUT_OF_RANGE);
    }
    let mark: [u8; 2] = array(bytes, start).ok_or(OUT_OF_RANGE)?;
    for stride in 0..strides {
        let saved: [u8; 2] = array(bytes, start + 2 + 2 * stride).ok_or(OUT_OF_RANGE)?;
        let end = (stride + 1) * STRIDE;
        let place = bytes.get_mut(end - 2..end).ok_or(OUT_OF_RANGE)?;
        if place != mark {
            return Err("it was written only in part: the marks at the ends of its sectors differ");
        }
        place.copy_from_slice(&saved);
    }
    Ok(())
}

/// A record that is in use, without fixups.
pub(super) struct Record {
    pub(super) number: u64,
    bytes: Vec<u8>,
    /// Where the first attribute starts.
    first: usize,
}

impl Record {
    /// Checks the bytes of record `number`.
    pub(super) fn new(number: u64, mut bytes: Vec<u8>) -> Result<Record, VolumeError> {
        let wrong = |reason: &str| damaged(format!("MFT record {number}: {reason}"));
        match array(&bytes, 0) {
            Some([b'F', b'I', b'L', b'E']) => {}
            Some([b'B', b'A', b'A', b'D']) => return Err(wrong("Windows marked it as damaged")),
            _ => return Err(wrong("it does not begin with \"FILE\"")),
        }
        undo_fixups(&mut bytes).map_err(wrong)?;
        let used = u32_at(&bytes, 24).and_then(|used| usize::try_from(used).ok());
        let used =
            used.filter(|used| *used <= bytes.len()).ok_or_else(|| wrong("it has more bytes than it can have"))?;
        bytes.truncate(used);
        let first = u16_at(&bytes, 20).map(usize::from).filter(|first| *first >= 42 && first.is_multiple_of(8));
        let first = first.filter(|first| *first < used).ok_or_else(|| wrong("its attributes are out of range"))?;
        let record = Record { number, bytes, first };
        match record.flags() & 1 {
            0 => Err(wrong("it is not in use")),
            _ => Ok(record),
        }
    }

    fn flags(&self) -> u16 {
        u16_at(&self.bytes, 22).unwrap_or(0)
    }

    /// Counts how often the record was used for another file.
    pub(super) fn sequence(&self) -> u16 {
        u16_at(&self.bytes, 16).unwrap_or(0)
    }

    pub(super) fn is_directory(&self) -> bool {
        self.flags() & 2 != 0
    }

    /// The reference of the record that this one extends; 0 if it extends none.
    pub(super) fn base(&self) -> u64 {
        u64_at(&self.bytes, 32).unwrap_or(0)
    }

    /// The reference that names have of this record.
    pub(super) fn reference(&self) -> u64 {
        u64::from(self.sequence()) << 48 | (self.number & NUMBER)
    }

    /// The attributes in order; the last item is an error if there is more that cannot be read.
    pub(super) fn attributes(&self) -> Attributes<'_> {
        Attributes { record: self, at: Some(self.first) }
    }
}

/// Iterates over the attributes of a record.
pub(super) struct Attributes<'a> {
    record: &'a Record,
    at: Option<usize>,
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, VolumeError>;

    fn next(&mut self) -> Option<Result<Attribute<'a>, VolumeError>> {
        let at = self.at.take()?;
        let bytes = &self.record.bytes;
        if u32_at(bytes, at) == Some(kind::END) {
            return None;
        }
        let length = u32_at(bytes, at + 4).and_then(|length| usize::try_from(length).ok());
        let own = length.filter(|length| *length >= 24 && length.is_multiple_of(8));
        let own = own.and_then(|length| part(bytes, at, length));
        let Some((own, attribute)) = own.and_then(|own| Some((own, Attribute::parse(own)?))) else {
            let number = self.record.number;
            return Some(Err(damaged(format!("MFT record {number}: the attribute at its byte {at} makes no sense"))));
        };
        self.at = Some(at + own.len());
        Some(Ok(attribute))
    }
}

/// An attribute, or a part of a large one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute<'a> {
    pub(super) kind: u32,
    /// UTF-16.
    pub(super) name: &'a [u8],
    pub(super) flags: u16,
    /// Tells the attributes of one record apart.
    pub(super) instance: u16,
    pub(super) form: Form<'a>,
}

/// Where an attribute's value is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form<'a> {
    /// In the record.
    Resident(&'a [u8]),
    /// In clusters.
    Mapped(Mapping<'a>),
}

/// A part of an attribute's list of clusters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping<'a> {
    /// The clusters of the value that it maps: from the first to before the end.
    pub(super) first: u64,
    pub(super) end: u64,
    /// The binary logarithm of clusters in a unit of compression.
    pub(super) unit_bits: u8,
    /// Bytes: allocated, holes included, or without them; of the value; and written. Only meaningful if `first` is 0.
    pub(super) allocated: u64,
    pub(super) stored: u64,
    pub(super) size: u64,
    pub(super) initialized: u64,
    /// The list itself.
    pub(super) pairs: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Parses an attribute of at least 24 bytes.
    fn parse(bytes: &'a [u8]) -> Option<Attribute<'a>> {
        let [is_mapped, name_length] = array(bytes, 8)?;
        let name = part(bytes, usize::from(u16_at(bytes, 10)?), 2 * usize::from(name_length));
        let form = if is_mapped == 0 {
            let length = usize::try_from(u32_at(bytes, 16)?).ok()?;
            Form::Resident(part(bytes, usize::from(u16_at(bytes, 20)?), length)?)
        } else {
            let first = u64_at(bytes, 16)?;
            // The last cluster; -1 if there is none.
            let end = u64_at(bytes, 24)?.wrapping_add(1);
            let [unit_bits] = array(bytes, 34)?;
            let [allocated, size, initialized] = [40, 48, 56].map(|at| u64_at(bytes, at));
            let pairs_at = usize::from(u16_at(bytes, 32)?);
            let pairs = bytes.get(pairs_at..)?;
            if end < first || i64::try_from(end).is_err() {
                return None;
            }
            let [allocated, size, initialized] = [allocated?, size?, initialized?];
            let has_holes = u16_at(bytes, 12)? & (attribute_flag::COMPRESSION | attribute_flag::SPARSE) != 0;
            let stored = if has_holes && pairs_at >= 72 { u64_at(bytes, 64)? } else { allocated };
            Form::Mapped(Mapping { first, end, unit_bits, allocated, stored, size, initialized, pairs })
        };
        Some(Attribute {
            kind: u32_at(bytes, 0)?,
            name: if name_length == 0 { &[] } else { name? },
            flags: u16_at(bytes, 12)?,
            instance: u16_at(bytes, 14)?,
            form,
        })
    }

    /// The value, if it is in the record.
    pub(super) fn resident(&self) -> Option<&'a [u8]> {
        match self.form {
            Form::Resident(value) => Some(value),
            Form::Mapped(_) => None,
        }
    }
}
