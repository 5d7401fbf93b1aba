//! Tracks whose attributes a client must ask for again, and when a fresh listing is cheaper than asking.
//!
//! After Linux's client reads a file, it treats the cached atime as invalid; after a write, also the other times and
//! the blocks (`fuse_invalidate_atime` and `fuse_write_update_attr` of fs/fuse). The next stat(2) of each such file
//! costs a `GETATTR`. One READDIRPLUS refreshes the attributes of dozens of files. So when a client reopens a
//! directory and that saves requests, we invalidate its cached listing ([`Accessed`]), and it lists the directory
//! again.
//!
//! The price is that the client must send an open and a close for every directory, even where it has read nothing.
//! [`Credit`] turns this off when it has cost more than it saved.
//!
//! Attributes of subdirectories are never refreshed this way. If a file is created or removed in a subdirectory while
//! the answer is on its way, the client would cache the old attributes as new, because it does not count that as a
//! change of attributes (`fuse_dir_changed` of fs/fuse/dir.c). It asks for each of them.

use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};

/// The node was read or written since the client got its attributes.
const ITSELF: u16 = 1 << 15;

/// The client has listed the directory to its end.
const LISTED: u16 = 1 << 14;

/// The number of such nodes in the directory.
const COUNT: u16 = LISTED - 1;

/// The size of a `READDIR` buffer in Linux, and the rough sizes of an entry and of its attributes.
const REQUEST: usize = 4096;
const ENTRY: usize = 40;
const ATTRIBUTES: usize = 128;

/// Two bytes for each node. They are a hint: a wrong one costs a request, so relaxed ordering is enough.
#[derive(Debug, Default)]
pub struct Accessed(AtomicU16);

impl Accessed {
    fn get(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    /// Records a read or write of the node; returns true if it is the first since the client got its attributes.
    pub fn set(&self) -> bool {
        self.get() & ITSELF == 0 && self.0.fetch_or(ITSELF, Ordering::Relaxed) & ITSELF == 0
    }

    /// Records that the client gets the node's attributes; returns true if it had read or written the node.
    pub fn clear(&self) -> bool {
        self.is_set() && self.0.fetch_and(!ITSELF, Ordering::Relaxed) & ITSELF != 0
    }

    /// Whether the node was read or written.
    pub fn is_set(&self) -> bool {
        self.get() & ITSELF != 0
    }

    /// Counts a node in the directory that was read or written.
    pub fn add(&self) {
        self.change(|value| if value & COUNT < COUNT { value + 1 } else { value });
    }

    /// Uncounts one: the client got its attributes, or it is gone.
    pub fn subtract(&self) {
        self.change(|value| if value & COUNT > 0 { value - 1 } else { value });
    }

    /// Records that the client listed the directory to its end; returns true if it had not before.
    pub fn set_listed(&self) -> bool {
        self.get() & LISTED == 0 && self.0.fetch_or(LISTED, Ordering::Relaxed) & LISTED == 0
    }

    /// Decides whether a client that opens the directory, and knows `names` entries of it, should list it again.
    /// Returns how many requests that takes, if it takes fewer than asking for the attributes. A partly read listing
    /// is not invalidated: Linux does not keep a listing that lost a part before its end.
    pub fn take_listing(&self, names: u32) -> Option<u32> {
        let value = self.get();
        let count = usize::from(value & COUNT);
        let bytes = (names as usize).saturating_mul(ENTRY).saturating_add(count * ATTRIBUTES);
        // The last request finds no more entries.
        let requests = bytes / REQUEST + 2;
        if value & LISTED == 0 || count <= requests {
            return None;
        }
        self.0.fetch_and(ITSELF, Ordering::Relaxed);
        u32::try_from(requests).ok()
    }

    fn change(&self, change: impl Fn(u16) -> u16) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |value| Some(change(value)));
    }
}

/// Requests to open and close a directory.
const OPENING: i64 = 2;

/// How many requests opening directories may cost before the first listing is complete. Also how many nodes must have
/// been refreshed before the work can count as done.
const START: i64 = 1024;

/// The credit for each complete listing: the open itself, and two more by programs that look only at names before
/// something reads the files. A client that never reads them loses no more than this.
const LISTING: i64 = 3 * OPENING;

/// The work counts as done after this many opens in a row without a refresh, if these opens also cost this fraction
/// of what was saved.
const IDLE: i64 = 256;
const PART: i64 = 16;

/// The requests that opening directories has saved or may still save, minus those it cost.
///
/// It ends for a client when it has cost more than it saved. It ends earlier if it saved a lot, has saved nothing for
/// a while, and little is left to refresh. Linux invalidates attributes after reading a file from the server, not
/// from its page cache: a client on its third pass through the same files gains nothing, and would pay two requests
/// for each directory.
#[derive(Debug)]
pub struct Credit {
    requests: AtomicI64,
    /// Nodes read or written since the client got their attributes.
    outstanding: AtomicI64,
    /// Nodes refreshed by listing a directory again.
    saved: AtomicI64,
    /// Opens since the last one that invalidated a listing.
    idle: AtomicI64,
}

impl Default for Credit {
    fn default() -> Credit {
        let zero = || AtomicI64::new(0);
        Credit { requests: AtomicI64::new(START), outstanding: zero(), saved: zero(), idle: zero() }
    }
}

impl Credit {
    /// Records a first read or write of a node: its attributes will have to be fetched or refreshed.
    pub fn accessed(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the client fetched the attributes, got them otherwise, or forgot the node.
    pub fn told(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a listing refreshed the attributes, which saves a request.
    pub fn saved(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.saved.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a complete listing.
    pub fn listed(&self) {
        self.requests.fetch_add(LISTING, Ordering::Relaxed);
    }

    /// Records an open of a directory, and `again` requests if it is listed again. Returns false if clients should
    /// stop opening directories.
    pub fn spend(&self, again: Option<u32>) -> bool {
        if again.is_some() {
            self.idle.store(0, Ordering::Relaxed);
        } else if self.is_done(self.idle.fetch_add(1, Ordering::Relaxed)) {
            return false;
        }
        let cost = OPENING + again.map_or(0, i64::from);
        self.requests
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| (credit >= 0).then_some(credit - cost))
            .is_ok()
    }

    /// Whether `idle` opens in a row without a refresh mean that the work is done.
    fn is_done(&self, idle: i64) -> bool {
        let saved = self.saved.load(Ordering::Relaxed);
        idle >= IDLE
            && saved >= START
            && idle * OPENING >= saved / PART
            && idle >= self.outstanding.load(Ordering::Relaxed)
    }

    /// Starts over for another client.
    pub fn renew(&self) {
        self.requests.store(START, Ordering::Relaxed);
        for count in [&self.outstanding, &self.saved, &self.idle] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openings(credit: &Credit) -> i64 {
        std::iter::repeat_with(|| credit.spend(None)).take_while(|may| *may).count() as i64
    }

    #[test]
    fn opening_directories_ends_when_it_costs_more_than_it_saves() {
        let credit = Credit::default();
        assert_eq!(openings(&credit), START / OPENING + 1);
        // It stays off for this client.
        credit.accessed();
        assert!(!credit.spend(None));
        credit.renew();
        (0..100).for_each(|_| credit.accessed());
        (0..50).for_each(|_| credit.told());
        credit.listed();
        assert_eq!(openings(&credit), START / OPENING + 29);
    }

    #[test]
    fn opening_directories_ends_when_all_that_was_read_is_told() {
        let read_and_told = |read: i64, told: i64| {
            let credit = Credit::default();
            (0..read).for_each(|_| credit.accessed());
            (0..told).for_each(|_| {
                credit.told();
                credit.saved();
            });
            assert!(credit.spend(Some(9)));
            openings(&credit)
        };
        assert_eq!(read_and_told(START, START), IDLE);
        // While something may still be refreshed, that many opens without a refresh are allowed.
        assert_eq!(read_and_told(START + 300, START), 300);
        // The more it saved, the longer it continues.
        assert_eq!(read_and_told(20_000, 20_000), 20_000 / PART / OPENING);
        // Little was refreshed, so the rest may still be.
        assert!(read_and_told(START, START - 1) > START / OPENING);
    }

    #[test]
    fn a_directory_is_read_anew_where_that_saves_requests() {
        let directory = |count, is_listed: bool| {
            let directory = Accessed::default();
            (0..count).for_each(|_| directory.add());
            if is_listed {
                directory.set_listed();
            }
            directory
        };
        for (count, names, again) in [(0, 10, false), (2, 2, false), (3, 3, true), (3, 300, false), (300, 300, true)] {
            assert_eq!(directory(count, true).take_listing(names).is_some(), again, "{count} of {names}");
            assert_eq!(directory(count, false).take_listing(names), None);
        }
        let directory = directory(9, true);
        directory.set();
        assert_eq!(directory.take_listing(9), Some(2));
        // Until it has happened again.
        directory.set_listed();
        assert!(directory.take_listing(9).is_none() && directory.is_set());
    }

    #[test]
    fn counts_stay_within_their_bits() {
        let directory = Accessed::default();
        directory.subtract();
        (0..40_000).for_each(|_| directory.add());
        assert!(!directory.is_set());
        directory.set_listed();
        assert!(directory.take_listing(50_000).is_some());
        assert_eq!(directory.get(), 0);
        assert!(directory.set() && !directory.set());
        assert!(directory.clear() && !directory.clear());
    }
}
