//! Names in UTF-16, and names that cannot be names on Linux.

use inarch_volume::{Loss, is_name};

/// A name as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// UTF-8, or an image's bytes as they are.
    pub(crate) name: Vec<u8>,
    /// Whether it is another than in the image.
    pub(crate) is_replaced: bool,
}

impl Shown {
    /// Of UTF-16. What is no character, `/` and NUL become U+FFFD; such a name ends with `~` and `unique` in hexadecimal
    /// digits, so that two of them in a directory stay apart.
    pub(crate) fn of_utf16(units: impl IntoIterator<Item = u16>, unique: u64) -> Shown {
        let characters = char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER));
        let mut wrong = false;
        let name: String = characters
            .map(|character| {
                let is_wrong = matches!(character, '/' | '\0' | char::REPLACEMENT_CHARACTER);
                wrong |= is_wrong;
                if is_wrong { char::REPLACEMENT_CHARACTER } else { character }
            })
            .collect();
        Shown::checked(name.into_bytes(), wrong, unique)
    }

    /// Of bytes, which stay as they are, except for `/` and NUL.
    pub(crate) fn of_bytes(bytes: &[u8], unique: u64) -> Shown {
        if !bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Shown::checked(bytes.to_vec(), false, unique);
        }
        let parts: Vec<_> = bytes.split(|byte| matches!(byte, b'/' | 0)).collect();
        Shown::checked(parts.join("\u{FFFD}".as_bytes()), true, unique)
    }

    fn checked(mut name: Vec<u8>, wrong: bool, unique: u64) -> Shown {
        let is_replaced = wrong || !is_name(&name);
        if is_replaced {
            name.extend_from_slice(format!("~{unique:X}").as_bytes());
        }
        Shown { name, is_replaced }
    }

    /// A note for the directory, if it is another name than in the image.
    pub(crate) fn note(&self) -> Option<Loss> {
        let name = String::from_utf8_lossy(&self.name);
        self.is_replaced.then(|| Loss::sound(format!("has a name that is none on Linux; it is shown as {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(units: &[u16]) -> (String, bool) {
        let shown = Shown::of_utf16(units.iter().copied(), 0x1F);
        (String::from_utf8(shown.name).unwrap(), shown.is_replaced)
    }

    #[test]
    fn names_become_utf8_and_stay_apart() {
        assert_eq!(shown(&[0x41, 0xE9, 0xD83D, 0xDE00]), ("A\u{E9}\u{1F600}".to_owned(), false));
        assert_eq!(shown(&[0x41, 0xD83D]), ("A\u{FFFD}~1F".to_owned(), true));
        assert_eq!(shown(&[0x41, u16::from(b'/'), 0x42]), ("A\u{FFFD}B~1F".to_owned(), true));
        assert_eq!(shown(&[0x2E, 0x2E]), ("..~1F".to_owned(), true));
        assert_eq!(shown(&[]), ("~1F".to_owned(), true));
        assert_eq!(Shown::of_bytes(b"a/b", 2).name, "a\u{FFFD}b~2".as_bytes());
        assert_eq!(Shown::of_bytes(b"\xFF", 2), Shown { name: b"\xFF".to_vec(), is_replaced: false });
    }
}
