//! Names: UTF-16, as Windows has them.

use std::fmt;

/// The name of a key or value. Windows lets it have any 16-bit numbers, so that it may be no valid text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name(Vec<u16>);

impl Name {
    /// A stored name: a byte for each character (ISO 8859-1) if it is `compressed`, otherwise UTF-16LE.
    pub(crate) fn stored(bytes: &[u8], compressed: bool) -> Name {
        Name(match compressed {
            true => bytes.iter().map(|byte| u16::from(*byte)).collect(),
            false => units(bytes).collect(),
        })
    }

    /// Its UTF-16.
    pub fn units(&self) -> &[u16] {
        &self.0
    }

    /// Whether it has no characters, as the name of a key's default value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is `name` but for case.
    pub fn is(&self, name: &str) -> bool {
        self.0.iter().copied().map(upper).eq(name.encode_utf16().map(upper))
    }
}

/// Windows compares names after making each 16-bit number upper case by itself.
fn upper(unit: u16) -> u16 {
    let Some(letter) = char::from_u32(u32::from(unit)) else { return unit };
    let mut upper = letter.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) => u16::try_from(u32::from(one)).unwrap_or(unit),
        _ => unit,
    }
}

/// The 16-bit numbers of bytes; an odd last byte is left out.
pub fn units(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.as_chunks().0.iter().copied().map(u16::from_le_bytes)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf16_lossy(&self.0))
    }
}
