//! Values and their data ("Key value", "Big data").

use std::fmt;

use crate::base::{u16_at, u32_at};
use crate::cells::Cells;
use crate::key::numbers;
use crate::name::units;
use crate::{HiveError, Key, Name};

/// The bytes of a value before its name.
const FIXED: usize = 20;
/// The most bytes of a value: names have at most 16383 characters.
const MOST: u32 = FIXED as u32 + 32766;
/// The bytes of the smallest value, with the size of its cell and its place in a list.
const SMALLEST: u64 = 28;
/// The most bytes of a part of big data.
const PART: u32 = 16344;
/// The data, up to four bytes, is where its offset would be.
const INLINE: u32 = 1 << 31;

/// A value, without its data.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its name; empty for the key's default value.
    pub name: Name,
    /// Its type: `REG_SZ` is 1. Any number may be there.
    pub kind: u32,
    /// Bytes of its data.
    pub size: u32,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Here([u8; 4]),
    Cell(u32),
}

impl Value {
    /// The least bytes of the hive that it takes, without its data.
    pub(crate) fn room(&self) -> u64 {
        SMALLEST + self.name.units().len() as u64
    }

    /// Bytes of cells that its data takes.
    pub(crate) fn stored(&self) -> u64 {
        match self.place {
            Place::Here(_) => 0,
            Place::Cell(_) => u64::from(self.size),
        }
    }
}

/// The name of a type (winnt.h); `None` for a number that Windows has no name for.
pub fn type_name(kind: u32) -> Option<&'static str> {
    const NAMES: [&str; 12] = [
        "REG_NONE",
        "REG_SZ",
        "REG_EXPAND_SZ",
        "REG_BINARY",
        "REG_DWORD",
        "REG_DWORD_BIG_ENDIAN",
        "REG_LINK",
        "REG_MULTI_SZ",
        "REG_RESOURCE_LIST",
        "REG_FULL_RESOURCE_DESCRIPTOR",
        "REG_RESOURCE_REQUIREMENTS_LIST",
        "REG_QWORD",
    ];
    NAMES.get(usize::try_from(kind).ok()?).copied()
}

/// The values of a key.
pub fn list(cells: &Cells, key: &Key) -> Result<Vec<Value>, HiveError> {
    let Some((count, at)) = key.values else { return Ok(Vec::new()) };
    let length = count.checked_mul(4).filter(|length| *length <= cells.size(at).unwrap_or(0));
    let length = length.ok_or_else(|| HiveError::cell(at, "a list of values is longer than its cell"))?;
    let (mut values, mut room) = (Vec::new(), 0);
    for at in numbers(&cells.start(at, length)?, 4) {
        let value = read(cells, at)?;
        room += value.room();
        if room > u64::from(cells.length()) {
            return Err(HiveError::Circle("values"));
        }
        values.push(value);
    }
    Ok(values)
}

fn read(cells: &Cells, at: u32) -> Result<Value, HiveError> {
    let bytes = cells.start(at, MOST)?;
    let parsed = || {
        let name = bytes.get(FIXED..FIXED + usize::from(u16_at(&bytes, 2)?))?;
        let (size, place) = (u32_at(&bytes, 4)?, u32_at(&bytes, 8)?);
        let is_here = size & INLINE != 0;
        Some(Value {
            name: Name::stored(name, u16_at(&bytes, 16)? & 1 != 0),
            kind: u32_at(&bytes, 12)?,
            size: if is_here { (size & !INLINE).min(4) } else { size },
            place: if is_here || size == 0 { Place::Here(place.to_le_bytes()) } else { Place::Cell(place) },
        })
    };
    match bytes.starts_with(b"vk") {
        true => parsed().ok_or_else(|| HiveError::cell(at, "a value's cell is too short")),
        false => Err(HiveError::cell(at, "a list names a value where none is")),
    }
}

/// The data of a value.
pub fn data(cells: &Cells, value: &Value) -> Result<Vec<u8>, HiveError> {
    let at = match value.place {
        Place::Here(bytes) => return Ok(bytes.into_iter().take(value.size as usize).collect()),
        Place::Cell(at) => at,
    };
    let held = cells.size(at)?;
    if held >= value.size {
        return cells.start(at, value.size);
    }
    let too_short = || HiveError::cell(at, "a value's data is longer than its cell");
    // Data that is longer than its cell is in parts, which a list names.
    if value.size <= PART || value.size > cells.length() {
        return Err(too_short());
    }
    let head = cells.start(at, 8)?;
    if !head.starts_with(b"db") {
        return Err(too_short());
    }
    let (count, list) = u16_at(&head, 2).zip(u32_at(&head, 4)).ok_or_else(too_short)?;
    let mut data = Vec::new();
    for part in numbers(&cells.start(list, u32::from(count) * 4)?, 4) {
        let left = value.size - u32::try_from(data.len()).unwrap_or(value.size);
        if left == 0 {
            break;
        }
        data.extend(cells.start(part, left.min(PART))?);
    }
    match data.len() == value.size as usize {
        true => Ok(data),
        false => Err(HiveError::cell(at, "parts of a value's data are missing")),
    }
}

/// Data as a person reads it, by its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// `REG_SZ`, `REG_EXPAND_SZ`, `REG_LINK`.
    Text(String),
    /// `REG_MULTI_SZ`.
    Texts(Vec<String>),
    /// `REG_DWORD`, in both orders, and `REG_QWORD`.
    Number(u64),
    /// Anything else, and data that does not fit its type.
    Bytes(Vec<u8>),
}

impl Shown {
    /// What the data of a value of type `kind` means.
    pub fn new(kind: u32, data: Vec<u8>) -> Shown {
        let text = |units: &[u16]| String::from_utf16_lossy(units);
        let all = || units(&data).collect::<Vec<_>>();
        match (kind, data.len()) {
            // What follows a NUL is not part of the text.
            (1 | 2, _) => Shown::Text(text(all().split(|unit| *unit == 0).next().unwrap_or_default())),
            (6, _) => Shown::Text(text(&all())),
            (7, _) => {
                let (all, mut texts) = (all(), Vec::new());
                texts.extend(all.split(|unit| *unit == 0).map(text));
                // Each text is ended by a NUL, and all of them by another.
                while texts.last().is_some_and(String::is_empty) {
                    texts.pop();
                }
                Shown::Texts(texts)
            }
            (4, 4) => Shown::Number(u64::from(u32_at(&data, 0).unwrap_or(0))),
            (5, 4) => Shown::Number(u64::from(u32_at(&data, 0).unwrap_or(0).swap_bytes())),
            (11, 8) => Shown::Number(crate::base::u64_at(&data, 0).unwrap_or(0)),
            _ => Shown::Bytes(data),
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Text(text) => f.write_str(text),
            Shown::Texts(texts) => f.write_str(&texts.join("\n")),
            Shown::Number(number) => write!(f, "{number}"),
            Shown::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}
