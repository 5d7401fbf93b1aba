//! Transaction logs, replayed in memory ("Format of transaction log files", "Dirty state of a hive").
//!
//! Windows writes a change into a log first, and into the hive minutes later. The hive's header has two sequence numbers: Windows changes the
//! first before it writes to the hive, and the second afterwards. If they differ, the logs have what is missing: entries with sequence numbers
//! (since Windows 8.1), or a bitmap of changed sectors.

use std::sync::Arc;

use inarch_block::{Backing, read_backing};

use crate::HiveError;
use crate::base::{Base, LENGTH, SECTOR, parse, u32_at, u64_at};
use crate::cells::Replayed;
use crate::marvin;

/// The bytes of an entry before its list of pages.
const FIXED: usize = 40;
/// The kind of a log with entries.
const ENTRIES: u32 = 6;

/// An entry of a log, checked.
struct Entry {
    sequence: u32,
    /// Bytes of the bins from now on.
    length: u32,
    bytes: Vec<u8>,
    pages: usize,
}

/// The header as it is after a replay, and what the logs changed.
pub fn replayed(
    base: Base,
    hive: &Arc<dyn Backing>,
    logs: &[Arc<dyn Backing>],
    notes: &mut Vec<String>,
) -> Result<(Base, Replayed), HiveError> {
    let mut pages = Replayed::new();
    if !base.is_dirty() {
        return Ok((base, pages));
    }
    let mut sound = Vec::new();
    for log in logs.iter().filter(|log| log.size() >= SECTOR as u64) {
        let head = read(&**log, 0, SECTOR)?;
        let found = parse(&head).ok().filter(|head| head.is_sound && head.sequences.0 == head.sequences.1);
        sound.extend(found.map(|head| (head, log)));
    }
    let mut base = base;
    let mut count = 0;
    if sound.iter().any(|(head, _)| head.kind == ENTRIES) {
        sound.retain(|(head, _)| head.kind == ENTRIES);
        // Their headers have the number of their first entry.
        sound.sort_by_key(|(head, _)| head.sequences.1);
        if let Some((head, _)) = sound.first().filter(|_| !base.is_sound) {
            base = *head;
        }
        let mut expected = base.sequences.1;
        for (_, log) in &sound {
            count += replay_entries(&***log, &mut base, &mut expected, &mut pages)?;
        }
    } else {
        let written = if base.is_sound { Some(base.written) } else { first_bin_written(&**hive)? };
        let fits = |(head, _): &&(Base, _)| matches!(head.kind, 1 | 2) && Some(head.written) == written;
        if let Some((head, log)) = sound.iter().find(fits)
            && replay_bitmap(&***log, head.length, &mut pages)?
        {
            (base, count) = (*head, 1);
        }
    }
    let said = match count {
        0 => {
            "it was not written back completely, and no log was found that has the rest; the latest changes are missing"
                .to_owned()
        }
        1 => "1 change that was not written back yet was read from its log".to_owned(),
        count => format!("{count} changes that were not written back yet were read from its logs"),
    };
    notes.push(said);
    Ok((base, pages))
}

fn read(log: &dyn Backing, at: u64, length: usize) -> Result<Vec<u8>, HiveError> {
    let mut bytes = vec![0; length];
    read_backing(log, at, &mut bytes).map_err(|error| HiveError::Io { offset: at, error })?;
    Ok(bytes)
}

fn first_bin_written(hive: &dyn Backing) -> Result<Option<u64>, HiveError> {
    let at = LENGTH as u64;
    if hive.size() < at + 32 {
        return Ok(None);
    }
    Ok(u64_at(&read(hive, at, 32)?, 20))
}

/// Applies a log's entries that come next. Returns how many.
fn replay_entries(
    log: &dyn Backing,
    base: &mut Base,
    expected: &mut u32,
    pages: &mut Replayed,
) -> Result<usize, HiveError> {
    let (mut at, mut count) = (SECTOR as u64, 0);
    while let Some(entry) = entry(log, at)? {
        at += entry.bytes.len() as u64;
        // An entry with a lower number has been applied already. After a gap in the numbers, entries are left over from earlier writes, or
        // some are missing.
        if entry.sequence < *expected {
            continue;
        }
        if entry.sequence > *expected || apply(&entry, pages).is_none() {
            break;
        }
        *expected = entry.sequence.wrapping_add(1);
        base.length = entry.length;
        count += 1;
    }
    Ok(count)
}

/// The entry at `at`; `None` if no sound one is there.
fn entry(log: &dyn Backing, at: u64) -> Result<Option<Entry>, HiveError> {
    let fits = |length: usize| at.checked_add(length as u64).is_some_and(|end| end <= log.size());
    if !fits(SECTOR) {
        return Ok(None);
    }
    let head = read(log, at, FIXED)?;
    let size = u32_at(&head, 4).unwrap_or(0) as usize;
    if !head.starts_with(b"HvLE") || !size.is_multiple_of(SECTOR) || size < SECTOR || !fits(size) {
        return Ok(None);
    }
    let bytes = read(log, at, size)?;
    let checked = || {
        let length = u32_at(&bytes, 16).filter(|length| length.is_multiple_of(LENGTH as u32))?;
        let is_sound = marvin::checksum(bytes.get(FIXED..)?) == u64_at(&bytes, 24)?
            && marvin::checksum(bytes.get(..32)?) == u64_at(&bytes, 32)?;
        is_sound.then_some((u32_at(&bytes, 12)?, length, u32_at(&bytes, 20)? as usize))
    };
    let Some((sequence, length, pages)) = checked() else { return Ok(None) };
    Ok(Some(Entry { sequence, length, bytes, pages }))
}

/// Takes an entry's pages, all or none.
fn apply(entry: &Entry, pages: &mut Replayed) -> Option<()> {
    let places = entry.bytes.get(FIXED..FIXED.checked_add(entry.pages.checked_mul(8)?)?)?;
    let mut rest = entry.bytes.get(FIXED + places.len()..)?;
    let mut new = Vec::new();
    for place in places.as_chunks::<8>().0 {
        let (at, size) = (u32_at(place, 0)?, u32_at(place, 4)? as usize);
        let (page, later) = rest.split_at_checked(size)?;
        let first = at / SECTOR as u32;
        let is_whole = at.is_multiple_of(SECTOR as u32) && size.is_multiple_of(SECTOR);
        if !is_whole || u64::from(at) + size as u64 > u64::from(entry.length) {
            return None;
        }
        new.extend((first..).zip(page.as_chunks::<SECTOR>().0));
        rest = later;
    }
    pages.extend(new.into_iter().map(|(sector, bytes)| (sector, Box::new(*bytes))));
    Some(())
}

/// Applies a log with a bitmap: a bit for each sector of the bins, then the sectors whose bits are set. False if the log is cut off.
fn replay_bitmap(log: &dyn Backing, length: u32, pages: &mut Replayed) -> Result<bool, HiveError> {
    let bits = length as usize / SECTOR;
    let head = SECTOR + (4 + bits.div_ceil(8)).next_multiple_of(SECTOR);
    if (head as u64) > log.size() {
        return Ok(false);
    }
    let bitmap = read(log, SECTOR as u64, head - SECTOR)?;
    if !bitmap.starts_with(b"DIRT") {
        return Ok(false);
    }
    let is_set = |bit: &usize| bitmap.get(4 + bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 != 0);
    let mut at = head as u64;
    let mut new = Replayed::new();
    for bit in (0..bits).filter(is_set) {
        if at + SECTOR as u64 > log.size() {
            return Ok(false);
        }
        let mut sector = Box::new([0; SECTOR]);
        read_backing(log, at, &mut *sector).map_err(|error| HiveError::Io { offset: at, error })?;
        new.insert(u32::try_from(bit).unwrap_or(u32::MAX), sector);
        at += SECTOR as u64;
    }
    pages.extend(new);
    Ok(true)
}
