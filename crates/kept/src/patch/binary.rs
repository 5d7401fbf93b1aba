//! Encodes binary content for a git patch: deflated, in git's base-85 alphabet.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};

/// git's letters (`base85.c`).
const LETTERS: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// Bytes of a line, before they are letters.
const LINE: usize = 52;

/// The git object name of these bytes.
pub(super) fn object_name(bytes: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of no file at all.
pub(super) fn no_object() -> String {
    "0".repeat(40)
}

/// What makes a file of these bytes, whatever it was.
pub(super) fn write_literal(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "literal {}", bytes.len())?;
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    for line in encoder.finish()?.chunks(LINE) {
        writeln!(out, "{}", encoded(line))?;
    }
    writeln!(out)
}

/// Encodes a line: a letter for the number of bytes, then five letters for each four bytes.
fn encoded(bytes: &[u8]) -> String {
    let length = bytes.len() as u8;
    let length = if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 };
    let mut line = String::from(char::from(length));
    for four in bytes.chunks(4) {
        let byte = |at: usize| u32::from(four.get(at).copied().unwrap_or(0));
        let word = byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3);
        line.extend((0..5).rev().map(|place| char::from(LETTERS[(word / 85_u32.pow(place) % 85) as usize])));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_gits_names() {
        // git hash-object
        assert_eq!(object_name(b""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(object_name(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
    }

    #[test]
    fn lines_are_gits() {
        assert_eq!(encoded(&[0; 4]), "D00000");
        assert_eq!(encoded(&[0xff; 4]), "D|NsC0");
        assert_eq!(encoded(&[0xff; 52]), format!("z{}", "|NsC0".repeat(13)));
        assert_eq!(encoded(&[1]), "A0RR91".to_owned());
    }
}
