//! Keys, and lists of them ("Key node", "Index leaf" and those after it).

use crate::base::{u16_at, u32_at, u64_at};
use crate::cells::Cells;
use crate::{HiveError, Name};

/// No cell.
const NONE: u32 = u32::MAX;
/// The bytes of a key before its name.
const FIXED: usize = 76;
/// The most bytes of a key: names have at most 255 characters.
const MOST: u32 = FIXED as u32 + 510;
/// The bytes of the smallest key, with the size of its cell: no hive has more keys than fit into it.
const SMALLEST: u32 = 80;
/// The bytes of the smallest list, with the size of its cell.
const SMALLEST_LIST: u64 = 8;
/// The name has a byte for each character.
const COMPRESSED: u16 = 0x20;

/// A key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name. That of a root is arbitrary.
    pub name: Name,
    /// When it was last changed: 100 ns since 1601-01-01 (`FILETIME`).
    pub written: u64,
    subkeys: Option<u32>,
    pub(crate) values: Option<(u32, u32)>,
}

impl Key {
    /// The least bytes of the hive that it takes.
    pub(crate) fn room(&self) -> u64 {
        u64::from(SMALLEST) + self.name.units().len() as u64
    }
}

/// Reads the key at `at`.
pub fn read(cells: &Cells, at: u32) -> Result<Key, HiveError> {
    let bytes = cells.start(at, MOST)?;
    let parsed = || {
        let some = |offset| u32_at(&bytes, offset).filter(|at| *at != NONE);
        let name = bytes.get(FIXED..FIXED + usize::from(u16_at(&bytes, 72)?))?;
        let count = |offset| u32_at(&bytes, offset).filter(|count| *count > 0);
        Some(Key {
            name: Name::stored(name, u16_at(&bytes, 2)? & COMPRESSED != 0),
            written: u64_at(&bytes, 4)?,
            subkeys: count(20).and(some(28)),
            values: count(36).and_then(|count| Some((count, some(40)?))),
        })
    };
    match bytes.starts_with(b"nk") {
        true => parsed().ok_or_else(|| HiveError::cell(at, "a key's cell is too short")),
        false => Err(HiveError::cell(at, "a list names a key where none is")),
    }
}

/// Keys that are listed.
#[derive(Default)]
pub struct List {
    /// Where they are.
    pub keys: Vec<u32>,
    /// The least bytes of the hive that the leaves of the list take, without the keys.
    pub room: u64,
}

/// Where the keys below `key` are.
pub fn list(cells: &Cells, key: &Key) -> Result<List, HiveError> {
    let mut found = List::default();
    let Some(at) = key.subkeys else { return Ok(found) };
    let (kind, items) = index(cells, at)?;
    if kind != *b"ri" {
        take(cells, at, kind, &items, &mut found)?;
        return Ok(found);
    }
    // An index root has leaves only.
    for leaf in numbers(&items, 4) {
        let (kind, items) = index(cells, leaf)?;
        take(cells, leaf, kind, &items, &mut found)?;
    }
    Ok(found)
}

/// A list: its kind, and the bytes of its items.
fn index(cells: &Cells, at: u32) -> Result<([u8; 2], Vec<u8>), HiveError> {
    let short = || HiveError::cell(at, "a list of keys is longer than its cell");
    // A list may be much shorter than its cell.
    let head = cells.start(at, 4)?;
    let (kind, count) = head.first_chunk().copied().zip(u16_at(&head, 2)).ok_or_else(short)?;
    let width = if matches!(&kind, b"lf" | b"lh") { 8 } else { 4 };
    let end = 4 + u32::from(count) * width;
    let bytes = cells.start(at, end)?;
    let items = bytes.get(4..end as usize).ok_or_else(short)?;
    Ok((kind, items.to_vec()))
}

fn take(cells: &Cells, at: u32, kind: [u8; 2], items: &[u8], found: &mut List) -> Result<(), HiveError> {
    match &kind {
        b"lf" | b"lh" => found.keys.extend(numbers(items, 8)),
        b"li" => found.keys.extend(numbers(items, 4)),
        _ => return Err(HiveError::cell(at, "a list of keys is of no known kind")),
    }
    found.room += SMALLEST_LIST;
    match found.keys.len() as u64 * u64::from(SMALLEST) + found.room > u64::from(cells.length()) {
        true => Err(HiveError::Circle("keys")),
        false => Ok(()),
    }
}

/// The first number of each item.
pub fn numbers(items: &[u8], width: usize) -> impl Iterator<Item = u32> + '_ {
    items.chunks_exact(width).filter_map(|item| u32_at(item, 0))
}
