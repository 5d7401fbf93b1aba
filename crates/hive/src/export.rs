//! Registry files ("Windows Registry Editor Version 5.00"), as regedit writes them.

use std::fmt::Write;

use crate::Value;
use crate::name::units;
use crate::walk::Visited;

/// The first lines of a registry file. Windows writes the file in UTF-16LE after a byte order mark.
pub const HEAD: &str = "Windows Registry Editor Version 5.00\r\n\r\n";
/// A line of bytes is continued on the next one when it has this many characters.
const WIDTH: usize = 77;

/// The lines of a key in UTF-16. `above` is the full path of where the walk began.
///
/// A name with a line break is left out: what follows the break would become lines of the file, which could mean anything. So is one with
/// half a character (an unpaired surrogate), which no text has. `lost` is told what is left out.
pub fn export_key(above: &str, visited: &Visited, lost: &mut dyn FnMut(String)) -> Vec<u16> {
    let mut text: Vec<u16> = Vec::new();
    let path = visited.path.iter().fold(above.to_owned(), |path, name| path + "\\" + name);
    if path.contains(['\0', '\r', '\n', char::REPLACEMENT_CHARACTER]) {
        lost(format!("the key {path:?}"));
        return text;
    }
    text.extend(format!("[{path}]\r\n").encode_utf16());
    for (value, data) in &visited.values {
        match value.name.units().iter().any(breaks) || !is_text(value.name.units()) {
            true => lost(format!("the value {:?} of {path:?}", value.name.to_string())),
            false => one(&mut text, value, data),
        }
    }
    text.extend("\r\n".encode_utf16());
    text
}

fn one(text: &mut Vec<u16>, Value { name, kind, .. }: &Value, data: &[u8]) {
    let line = text.len();
    match name.is_empty() {
        true => text.push(u16::from(b'@')),
        false => quote(text, name.units()),
    }
    text.push(u16::from(b'='));
    let as_number = || data.try_into().ok().map(u32::from_le_bytes);
    match (kind, as_number(), plain(data)) {
        (1, _, Some(string)) => quote(text, &string),
        (4, Some(number), _) => text.extend(format!("dword:{number:08x}").encode_utf16()),
        (3, ..) => bytes(text, line, "hex:", data),
        (kind, ..) => bytes(text, line, &format!("hex({kind:x}):"), data),
    }
    text.extend("\r\n".encode_utf16());
}

/// The text of a string that can be written between quotes and be read again: one NUL at its end, one line, and whole characters.
fn plain(data: &[u8]) -> Option<Vec<u16>> {
    let string: Vec<u16> = units(data).collect();
    let (last, string) = string.split_last()?;
    let is_plain = data.len().is_multiple_of(2) && *last == 0 && !string.iter().any(breaks) && is_text(string);
    is_plain.then(|| string.to_vec())
}

/// Whether it consists of whole characters.
fn is_text(units: &[u16]) -> bool {
    char::decode_utf16(units.iter().copied()).all(|character| character.is_ok())
}

/// Whether it ends a line or a text.
fn breaks(unit: &u16) -> bool {
    matches!(unit, 0 | 10 | 13)
}

fn quote(text: &mut Vec<u16>, units: &[u16]) {
    let (quote, backslash) = (u16::from(b'"'), u16::from(b'\\'));
    text.push(quote);
    for unit in units {
        if *unit == quote || *unit == backslash {
            text.push(backslash);
        }
        text.push(*unit);
    }
    text.push(quote);
}

fn bytes(text: &mut Vec<u16>, line: usize, kind: &str, data: &[u8]) {
    text.extend(kind.encode_utf16());
    let mut column = text.len() - line;
    let mut piece = String::new();
    for (at, byte) in data.iter().enumerate() {
        piece.clear();
        // Writing to a string does not fail.
        let _ = write!(piece, "{byte:02x}");
        if at + 1 < data.len() {
            piece.push(',');
        }
        column += piece.len();
        if column >= WIDTH && at + 1 < data.len() {
            piece.push_str("\\\r\n  ");
            column = 2;
        }
        text.extend(piece.encode_utf16());
    }
}
