//! What a client no longer knows the attributes of, because it has read or written it itself.
//!
//! Linux's client takes no time of last access for true after it has read a file, nor times and space after it has
//! written (`fuse_invalidate_atime` and `fuse_write_update_attr` of its fs/fuse), and asks for the attributes of each the
//! next time that somebody wants them. Reading a directory with attributes tells it those of dozens of files at once: a client
//! that opens a directory is had to read it anew where that saves requests ([`Accessed`]). But then it must ask to open and close
//! each directory, also where it has read nothing, so that this ends when it has cost more than it saves ([`Credit`]).
//!
//! Of subdirectories nothing is told again: while a file is made or removed in one, the client would take an answer that was on its
//! way for new, and keep it (it does not count that as a change of attributes, `fuse_dir_changed` of fs/fuse/dir.c). It asks for each.

use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};

/// The node itself was read or written since its attributes were told.
const ITSELF: u16 = 1 << 15;

/// The client has read the directory to its end.
const LISTED: u16 = 1 << 14;

/// How many nodes in the directory were.
const COUNT: u16 = LISTED - 1;

/// Bytes of a directory that Linux reads at once, of an entry without attributes and of those: the former about.
const REQUEST: usize = 4096;
const ENTRY: usize = 40;
const ATTRIBUTES: usize = 128;

/// Two bytes of a node. What it says is a guess that costs a request if it is wrong, so that no order is kept between threads.
#[derive(Debug, Default)]
pub struct Accessed(AtomicU16);

impl Accessed {
    fn get(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    /// The node was read or written; true if it had not been.
    pub fn set(&self) -> bool {
        self.get() & ITSELF == 0 && self.0.fetch_or(ITSELF, Ordering::Relaxed) & ITSELF == 0
    }

    /// The node's attributes are told; true if it had been read or written.
    pub fn clear(&self) -> bool {
        self.is_set() && self.0.fetch_and(!ITSELF, Ordering::Relaxed) & ITSELF != 0
    }

    /// Whether the node was read or written.
    pub fn is_set(&self) -> bool {
        self.get() & ITSELF != 0
    }

    /// A node in the directory was read or written.
    pub fn add(&self) {
        self.change(|value| if value & COUNT < COUNT { value + 1 } else { value });
    }

    /// Of a node in the directory that was the attributes are told, or it is gone.
    pub fn subtract(&self) {
        self.change(|value| if value & COUNT > 0 { value - 1 } else { value });
    }

    /// The client has read the directory to its end; true if it had not.
    pub fn set_listed(&self) -> bool {
        self.get() & LISTED == 0 && self.0.fetch_or(LISTED, Ordering::Relaxed) & LISTED == 0
    }

    /// How many requests it takes a client that opens the directory, in which so many names are known, to read it anew, if it
    /// shall: if those are fewer than asking for the attributes takes. What it has read in part it goes on with: Linux never
    /// keeps a list of which it has lost a part before the end.
    pub fn take_listing(&self, names: u32) -> Option<u32> {
        let value = self.get();
        let count = usize::from(value & COUNT);
        let bytes = (names as usize).saturating_mul(ENTRY).saturating_add(count * ATTRIBUTES);
        // The last request finds that nothing follows.
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

/// Requests with which a client opens and closes a directory.
const OPENING: i64 = 2;

/// How many requests the opening of directories may cost before one was read to its end, and how many nodes must have been told
/// again before it may end for having done its work.
const START: i64 = 1024;

/// How many it may for each one that was: that it was opened then, and twice more, by who looks only at names, before somebody
/// reads the files there. A client that never does loses no more by it.
const LISTING: i64 = 3 * OPENING;

/// After how many openings one after another by which nothing is told again that work is taken for done; and after as many as have
/// cost this part of what was saved.
const IDLE: i64 = 256;
const PART: i64 = 16;

/// The requests that opening directories has saved and may yet save, less those that it took.
///
/// It ends for a client when it has cost more than it saves; or earlier, when it has saved much and for a while nothing more, with
/// next to nothing left to be told. Linux asks for attributes after it has read a file from the server, not from its own memory: who
/// goes through the same files for the third time has nothing to be told, and two requests a directory to lose.
#[derive(Debug)]
pub struct Credit {
    requests: AtomicI64,
    /// Nodes that were read or written since their attributes were told.
    outstanding: AtomicI64,
    /// Nodes that were told again when a directory was read anew.
    saved: AtomicI64,
    /// Openings since one by which a directory is read anew.
    idle: AtomicI64,
}

impl Default for Credit {
    fn default() -> Credit {
        let zero = || AtomicI64::new(0);
        Credit { requests: AtomicI64::new(START), outstanding: zero(), saved: zero(), idle: zero() }
    }
}

impl Credit {
    /// A client has read or written a node, and will have to ask for its attributes, or be told them.
    pub fn accessed(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// It has asked for them, was told them, or has no use for them any more.
    pub fn told(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
    }

    /// It is told them as a directory is read anew, so that it will not ask.
    pub fn saved(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.saved.fetch_add(1, Ordering::Relaxed);
    }

    /// A directory was read to its end.
    pub fn listed(&self) {
        self.requests.fetch_add(LISTING, Ordering::Relaxed);
    }

    /// A directory is opened, and if it is read again, by so many requests; false if directories are no longer to be.
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

    /// Whether so many openings in vain mean that what there was to tell again has been told.
    fn is_done(&self, idle: i64) -> bool {
        let saved = self.saved.load(Ordering::Relaxed);
        idle >= IDLE
            && saved >= START
            && idle * OPENING >= saved / PART
            && idle >= self.outstanding.load(Ordering::Relaxed)
    }

    /// Another client.
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
        // For ever, for this client: it does not ask again.
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
        // As long as something may yet be told, it is opened in vain as often as that.
        assert_eq!(read_and_told(START + 300, START), 300);
        // The more was saved, the longer it goes on.
        assert_eq!(read_and_told(20_000, 20_000), 20_000 / PART / OPENING);
        // Little was told: the rest may be yet.
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
