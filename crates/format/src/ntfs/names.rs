//! Names: UTF-16 in the image, UTF-8 elsewhere. A half of a surrogate pair alone, which Windows allows, becomes three bytes in
//! the same way (WTF-8), so that no two names have the same bytes.

use std::cmp::Ordering;

/// The units of a name in the image.
pub(super) fn units(name: &[u8]) -> impl Iterator<Item = u16> + Clone + '_ {
    name.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair))
}

/// The bytes of a name in UTF-16.
pub(super) fn to_bytes(units: impl Iterator<Item = u16>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for unit in char::decode_utf16(units) {
        match unit {
            Ok(character) => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(alone) => {
                let unit = alone.unpaired_surrogate();
                let low = |shift: u16| 0x80 | (unit >> shift & 0x3F) as u8;
                bytes.extend_from_slice(&[0xE0 | (unit >> 12) as u8, low(6), low(0)]);
            }
        }
    }
    bytes
}

/// The units of a name in bytes; `None` if no name has these bytes.
pub(super) fn from_bytes(mut bytes: &[u8]) -> Option<Vec<u16>> {
    let mut units = Vec::with_capacity(bytes.len());
    loop {
        let (text, rest) = match std::str::from_utf8(bytes) {
            Ok(text) => (text, &[][..]),
            Err(error) => {
                let (text, rest) = bytes.split_at_checked(error.valid_up_to())?;
                (std::str::from_utf8(text).ok()?, rest)
            }
        };
        units.extend(text.encode_utf16());
        match rest {
            [] => return Some(units),
            [0xED, high @ 0xA0..=0xBF, low @ 0x80..=0xBF, more @ ..] => {
                units.push(0xD000 | u16::from(high & 0x3F) << 6 | u16::from(low & 0x3F));
                bytes = more;
            }
            _ => return None,
        }
    }
}

/// A volume's table of capital letters, by which directories are sorted.
pub(super) struct Upcase(Vec<u16>);

impl Upcase {
    /// From the content of `$UpCase`.
    pub(super) fn new(bytes: &[u8]) -> Upcase {
        Upcase(units(bytes).collect())
    }

    fn of(&self, unit: u16) -> u16 {
        self.0.get(usize::from(unit)).copied().unwrap_or(unit)
    }

    /// Compares two names as a directory is sorted, whatever their case.
    pub(super) fn compare(&self, a: impl Iterator<Item = u16>, b: impl Iterator<Item = u16>) -> Ordering {
        a.map(|unit| self.of(unit)).cmp(b.map(|unit| self.of(unit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_comes_back() {
        for name in [
            &[0x61u16, 0xE4, 0x20AC, 0xD83D, 0xDE00][..],
            &[0xD800],
            &[0xDC00, 0xD800],
            &[0x61, 0xDFFF, 0x62, 0xD83D, 0xDE00, 0xD83D],
        ] {
            let bytes = to_bytes(name.iter().copied());
            assert_eq!(from_bytes(&bytes).unwrap(), name);
        }
        assert_eq!(to_bytes([0x61, 0xE4].into_iter()), "aä".as_bytes());
        assert_eq!(from_bytes(b"a\xFF"), None);
        assert_eq!(from_bytes(b"\xED\xA0"), None);
    }
}
