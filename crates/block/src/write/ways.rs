//! Which of two ways to the disk is faster, found out while both are used.

use std::time::Duration;

/// A way to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Through the page cache.
    Cached,
    /// Past it, by `O_DIRECT`.
    Direct,
}

/// Bytes that are written one way to know how fast it is.
pub(super) const TRIAL: u64 = 16 << 20;

/// Bytes that go the way that was chosen first before the other is tried again; twice as many the next time, and so on. A
/// disk that was busy for a moment is soon known to be fast, and the slower way has little of an image.
const FIRST_PERIOD: u64 = 64 << 20;

/// A call past the cache may take so many times as long as one through it. The processor is free meanwhile, for the threads
/// that read, and nothing is left to be written later; a disk that is worth waiting for takes several calls at once, while
/// those through the cache wait for each other.
const PATIENCE: u128 = 4;

/// What writing one way cost lately.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    bytes: u64,
    nanoseconds: u128,
}

impl Cost {
    /// Nanoseconds that one call spends on a mebibyte.
    fn of_mebibyte(self) -> u128 {
        (self.nanoseconds << 20) / u128::from(self.bytes.max(1))
    }
}

/// Says for each write which way it goes.
#[derive(Debug)]
pub(super) struct Ways {
    now: Way,
    /// Bytes that still go that way.
    left: u64,
    /// Whether it is only tried.
    on_trial: bool,
    period: u64,
    cached: Cost,
    direct: Cost,
}

impl Ways {
    /// The first `cached` bytes go through the cache.
    pub(super) fn new(cached: u64) -> Ways {
        let none = Cost::default();
        Ways { now: Way::Cached, left: cached, on_trial: false, period: FIRST_PERIOD, cached: none, direct: none }
    }

    /// The way of the next write, of so many bytes.
    pub(super) fn take(&mut self, bytes: u64) -> Way {
        if self.left == 0 {
            self.turn();
        }
        self.left = self.left.saturating_sub(bytes);
        self.now
    }

    /// Counts a write that was done.
    pub(super) fn count(&mut self, way: Way, bytes: u64, took: Duration) {
        let cost = self.cost(way);
        cost.bytes += bytes;
        cost.nanoseconds += took.as_nanos();
    }

    fn cost(&mut self, way: Way) -> &mut Cost {
        match way {
            Way::Cached => &mut self.cached,
            Way::Direct => &mut self.direct,
        }
    }

    /// Tries the other way, or chooses after a trial.
    fn turn(&mut self) {
        if self.on_trial && self.cost(self.now).bytes == 0 {
            // No write of the trial is done yet.
            return;
        }
        self.on_trial = !self.on_trial;
        if self.on_trial {
            self.now = if self.now == Way::Cached { Way::Direct } else { Way::Cached };
            self.left = TRIAL;
        } else {
            let direct_is_faster = self.direct.of_mebibyte() < PATIENCE * self.cached.of_mebibyte();
            self.now = if direct_is_faster { Way::Direct } else { Way::Cached };
            self.left = self.period;
            self.period = self.period.saturating_mul(2);
        }
        // What it cost before says little of now.
        *self.cost(self.now) = Cost::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: u64 = 1 << 20;

    /// Bytes that go each way, where a mebibyte takes so many milliseconds, depending on how many were written before.
    fn written(total: u64, cost: impl Fn(Way, u64) -> u64) -> (u64, u64) {
        let mut ways = Ways::new(TRIAL);
        let (mut cached, mut direct) = (0, 0);
        for done in 0..total {
            let way = ways.take(MEBIBYTE);
            ways.count(way, MEBIBYTE, Duration::from_millis(cost(way, done)));
            *if way == Way::Cached { &mut cached } else { &mut direct } += 1;
        }
        (cached, direct)
    }

    #[test]
    fn the_faster_way_has_nearly_all() {
        let (cached, direct) = written(3000, |way, _| if way == Way::Cached { 2 } else { 3 });
        assert!(cached < 120 && direct > 2880, "{cached} {direct}");
        let (cached, direct) = written(3000, |way, _| if way == Way::Cached { 1 } else { 30 });
        assert!(direct < 120 && cached > 2880, "{cached} {direct}");
    }

    #[test]
    fn a_disk_that_was_busy_at_first_is_tried_again() {
        let (cached, direct) = written(3000, |way, done| match way {
            Way::Cached => 5,
            Way::Direct if done < 64 => 500,
            Way::Direct => 3,
        });
        assert!(direct > 2700, "{cached} {direct}");
        // And the other way round: a cache that fills up.
        let (cached, direct) = written(3000, |way, done| match way {
            Way::Cached if done < 500 => 1,
            Way::Cached => 50,
            Way::Direct => 8,
        });
        assert!(direct > 1900, "{cached} {direct}");
    }
}
