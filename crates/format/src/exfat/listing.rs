//! Lists a directory.

use inarch_volume::{Loss, Pages, VolumeError};

use super::entry::{ENTRY, FILE, FileEntry, IN_USE, LAST, NAME, SECONDARY, STREAM, StreamEntry, add_to_sum};
use crate::region::Region;
use crate::wide::Shown;

const SIZE: u64 = ENTRY as u64;

/// A file or directory.
pub(super) struct Found {
    pub(super) shown: Shown,
    pub(super) file: FileEntry,
    /// The number of its first entry in the image: its first byte by 32.
    pub(super) number: u64,
    /// The entry after its last, from the directory's start.
    pub(super) next: u64,
}

/// A set of entries that is being read.
struct Set {
    file: FileEntry,
    number: u64,
    /// Entries still to come.
    missing: u8,
    sum: u16,
    stream: Option<StreamEntry>,
    units: Vec<u16>,
}

impl Set {
    fn new(bytes: &[u8; ENTRY], at: u64) -> Set {
        let file = FileEntry::read(bytes);
        Set {
            file,
            number: at / SIZE,
            missing: file.secondaries,
            sum: add_to_sum(0, bytes, true),
            stream: None,
            units: Vec::new(),
        }
    }

    fn add(&mut self, bytes: &[u8; ENTRY]) {
        self.sum = add_to_sum(self.sum, bytes, false);
        self.missing = self.missing.saturating_sub(1);
        match bytes[0] {
            STREAM if self.stream.is_none() => self.stream = Some(StreamEntry::read(bytes)),
            NAME => self.units.extend(bytes[2..].as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair))),
            // Entries of vendors, which others may ignore.
            _ => {}
        }
    }

    fn found(&self, next: u64) -> Result<Found, Loss> {
        let lost = |reason: &str| {
            let at = self.number.saturating_mul(SIZE);
            Loss::damage(format!("has an entry at byte {at} that is left out: {reason}"))
        };
        if self.sum != self.file.checksum.get() {
            return Err(lost("its checksum is wrong"));
        }
        let stream = self.stream.ok_or_else(|| lost("it has no content"))?;
        let units = self.units.get(..usize::from(stream.name_length));
        let units = units.ok_or_else(|| lost("its name is longer than its entries"))?;
        let shown = Shown::of_utf16(units.iter().copied(), self.number);
        Ok(Found { shown, file: self.file, number: self.number, next })
    }
}

/// Calls `take` for what is listed from entry `from` of the directory on, until it returns false, and for what is missing.
pub(super) fn each(
    pages: &Pages,
    directory: &Region,
    from: u64,
    take: &mut dyn FnMut(Result<Found, Loss>) -> bool,
) -> Result<(), VolumeError> {
    let incomplete = |set: &Set| {
        let at = set.number.saturating_mul(SIZE);
        Loss::damage(format!("has an entry at byte {at} that is left out: {} more should follow it", set.missing))
    };
    let mut open: Option<Set> = None;
    let mut ended = false;
    let whole = directory.each::<ENTRY>(pages, from.saturating_mul(SIZE), &mut |offset, at, bytes| {
        let kind = bytes[0];
        let mut goes_on = true;
        match open.take() {
            Some(mut set) if kind & (IN_USE | SECONDARY) == IN_USE | SECONDARY => {
                set.add(bytes);
                if set.missing == 0 {
                    return take(set.found(offset / SIZE + 1));
                }
                open = Some(set);
                return true;
            }
            Some(set) => goes_on = take(Err(incomplete(&set))),
            None => {}
        }
        match kind {
            LAST => ended = true,
            FILE if bytes[1] == 0 => goes_on &= take(Set::new(bytes, at).found(offset / SIZE + 1)),
            FILE => open = Some(Set::new(bytes, at)),
            _ => {}
        }
        goes_on && !ended
    })?;
    if !whole || ended {
        return Ok(());
    }
    if let Some(set) = open
        && !take(Err(incomplete(&set)))
    {
        return Ok(());
    }
    if let Some(flaw) = directory.flaw() {
        take(Err(Loss::damage(format!("{flaw}; names are missing"))));
    }
    Ok(())
}
