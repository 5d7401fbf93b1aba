//! Lists a directory.

use inarch_volume::{Loss, Pages, VolumeError};

use super::entry::{DELETED, ENTRY, Entry, LAST, Long, PARTS};
use crate::region::Region;
use crate::wide::Shown;

/// A file's or directory's entry.
pub(super) struct Found {
    pub(super) shown: Shown,
    pub(super) entry: Entry,
    /// The entry's number in the image: its first byte by 32.
    pub(super) number: u64,
    /// The entry after it, from the directory's start.
    pub(super) next: u64,
}

/// Calls `take` for the entries from number `from` of the directory on, until it returns false, and then for what is
/// missing behind the last.
pub(super) fn each(
    pages: &Pages,
    directory: &Region,
    from: u64,
    take: &mut dyn FnMut(Result<Found, Loss>) -> bool,
) -> Result<(), VolumeError> {
    const SIZE: u64 = ENTRY as u64;
    let mut long = Long::new();
    // A long name comes before its entry.
    let start = from.saturating_sub(PARTS as u64).saturating_mul(SIZE);
    let mut ended = false;
    let whole = directory.each::<ENTRY>(pages, start, &mut |offset, at, bytes| {
        match bytes[0] {
            LAST => {
                ended = true;
                return false;
            }
            DELETED => {
                long.forget();
                return true;
            }
            _ if long.take(bytes) => return true,
            _ => {}
        }
        let (entry, number, index) = (Entry::read(bytes), at / SIZE, offset / SIZE);
        let name = long.of(&entry, number);
        if !entry.is_file() || entry.is_dots() || index < from {
            return true;
        }
        let shown = name.unwrap_or_else(|| entry.short(number));
        take(Ok(Found { shown, entry, number, next: index + 1 }))
    })?;
    if let (true, false, Some(flaw)) = (whole, ended, directory.flaw()) {
        take(Err(Loss::damage(format!("{flaw}; names are missing"))));
    }
    Ok(())
}
