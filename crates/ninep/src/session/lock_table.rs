//! [`LockTable`]: the locks that a server's clients own, by which they exclude each other.
//!
//! If the file system also takes locks on the host's files, each lock is taken there too, so that it excludes the
//! host's programs and other servers. If it does not, because the files are copies or private, the locks here are the
//! only ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inarch_vfs::{Lock, LockKind, LockOwner, NodeId};
use rustix::io::Errno;

/// The most ranges that one client's processes may have locked.
const MOST_RANGES: usize = 8192;

/// How many ranges a client's processes have locked.
#[derive(Debug, Default)]
pub struct RangeCount(AtomicUsize);

/// A locked range.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnedRange {
    owner: LockOwner,
    /// Shared or exclusive.
    lock: Lock,
}

impl OwnedRange {
    fn conflicts_with(&self, owner: LockOwner, lock: &Lock) -> bool {
        let overlaps = self.lock.start <= lock.end && lock.start <= self.lock.end;
        let excludes = self.lock.kind == LockKind::Exclusive || lock.kind == LockKind::Exclusive;
        self.owner != owner && lock.kind != LockKind::None && overlaps && excludes
    }
}

type FileLocks = Arc<Mutex<Vec<OwnedRange>>>;

/// The locks of a server's clients. A lock's owner keeps a reference to the node, so the node's number is not reused.
#[derive(Debug, Default)]
pub struct LockTable(Mutex<HashMap<NodeId, FileLocks>>);

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LockTable {
    /// Takes or releases a lock, if `elsewhere` does so too. `EAGAIN` if it conflicts with another one, `ENOLCK` if the
    /// client of `count` has too many. After a failure the owner's locks are unchanged.
    pub fn set(
        &self,
        node: NodeId,
        owner: LockOwner,
        lock: &Lock,
        count: &RangeCount,
        elsewhere: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.with(node, |ranges| {
            if ranges.iter().any(|range| range.conflicts_with(owner, lock)) {
                return Err(Errno::AGAIN);
            }
            let after = changed(ranges, owner, lock);
            let (before, more) = (ranges.len(), after.len().saturating_sub(ranges.len()));
            if count.0.fetch_add(more, Ordering::AcqRel) + more > MOST_RANGES && more > 0 {
                count.0.fetch_sub(more, Ordering::AcqRel);
                return Err(Errno::NOLCK);
            }
            elsewhere().inspect_err(|_| {
                count.0.fetch_sub(more, Ordering::AcqRel);
            })?;
            count.0.fetch_sub(before.saturating_sub(after.len()), Ordering::AcqRel);
            *ranges = after;
            Ok(())
        })
    }

    /// A lock that conflicts with `lock`.
    pub fn test(&self, node: NodeId, owner: LockOwner, lock: &Lock) -> Option<Lock> {
        self.with(node, |ranges| ranges.iter().find(|range| range.conflicts_with(owner, lock)).map(|range| range.lock))
    }

    /// Releases all of an owner's locks on a node.
    pub fn end(&self, node: NodeId, owner: LockOwner, count: &RangeCount) {
        self.with(node, |ranges| {
            let before = ranges.len();
            ranges.retain(|range| range.owner != owner);
            count.0.fetch_sub(before - ranges.len(), Ordering::AcqRel);
        });
    }

    /// Works on the locks of one node, without blocking threads that work on other nodes.
    fn with<T>(&self, node: NodeId, work: impl FnOnce(&mut Vec<OwnedRange>) -> T) -> T {
        let file = Arc::clone(hold(&self.0).entry(node).or_default());
        let done = work(&mut hold(&file));
        let mut files = hold(&self.0);
        // Two references: ours and the table's. No other thread can get one meanwhile.
        if Arc::strong_count(&file) == 2 && hold(&file).is_empty() {
            files.remove(&node);
        }
        done
    }
}

/// The locks of a file after `owner` takes `lock`: its own ranges are cut where the new one covers them, and equal
/// ranges that touch are merged.
fn changed(ranges: &[OwnedRange], owner: LockOwner, lock: &Lock) -> Vec<OwnedRange> {
    let mut after = Vec::with_capacity(ranges.len() + 2);
    let mut new = *lock;
    for one in ranges {
        let Lock { start, end, kind, .. } = one.lock;
        let touches = start <= new.end.saturating_add(1) && new.start <= end.saturating_add(1);
        let overlaps = start <= new.end && new.start <= end;
        if one.owner == owner && kind == new.kind && touches {
            (new.start, new.end) = (new.start.min(start), new.end.max(end));
        } else if one.owner == owner && overlaps {
            let part = |start, end| OwnedRange { owner, lock: Lock { start, end, ..one.lock } };
            after.extend((start < lock.start).then(|| part(start, lock.start - 1)));
            after.extend((end > lock.end).then(|| part(lock.end + 1, end)));
        } else {
            after.push(one.clone());
        }
    }
    if lock.kind != LockKind::None {
        after.push(OwnedRange { owner, lock: new });
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(7);

    fn lock(kind: LockKind, start: u64, end: u64) -> Lock {
        Lock { kind, start, end, pid: 1, whole_file: false }
    }

    #[test]
    fn locks_are_as_if_each_byte_had_its_own() {
        const KINDS: [LockKind; 3] = [LockKind::None, LockKind::Shared, LockKind::Exclusive];
        let (table, count) = (LockTable::default(), RangeCount::default());
        // What each of two owners has locked, byte by byte.
        let mut bytes = [[LockKind::None; 12]; 2];
        let mut number = 1u64;
        for _ in 0..5000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (owner, kind) = ((number >> 62 & 1) as usize, KINDS[(number >> 50) as usize % 3]);
            let start = (number >> 33) % 12;
            let end = (start + (number >> 43) % 5).min(11);
            let range = start as usize..=end as usize;
            let against = bytes[1 - owner][range.clone()].iter().any(|other| {
                *other != LockKind::None
                    && kind != LockKind::None
                    && (*other == LockKind::Exclusive || kind == LockKind::Exclusive)
            });
            let set = table.set(NODE, LockOwner(owner as u64), &lock(kind, start, end), &count, || Ok(()));
            assert_eq!(set, if against { Err(Errno::AGAIN) } else { Ok(()) });
            if !against {
                bytes[owner][range].fill(kind);
            }
            let runs: usize =
                bytes.iter().flat_map(|own| own.chunk_by(|a, b| a == b)).filter(|run| run[0] != LockKind::None).count();
            assert_eq!(count.0.load(Ordering::Relaxed), runs);
            for (at, other) in bytes[1 - owner].iter().enumerate() {
                let found = table.test(NODE, LockOwner(owner as u64), &lock(LockKind::Exclusive, at as u64, at as u64));
                assert_eq!(found.map_or(LockKind::None, |found| found.kind), *other);
            }
        }
        for owner in 0..2 {
            table.end(NODE, LockOwner(owner), &count);
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        assert!(hold(&table.0).is_empty());
    }

    #[test]
    fn what_fails_elsewhere_changes_nothing() {
        let (table, count) = (LockTable::default(), RangeCount::default());
        table.set(NODE, LockOwner(1), &lock(LockKind::Shared, 0, 9), &count, || Ok(())).unwrap();
        let exclusive = lock(LockKind::Exclusive, 3, 4);
        assert_eq!(table.set(NODE, LockOwner(1), &exclusive, &count, || Err(Errno::AGAIN)), Err(Errno::AGAIN));
        table.set(NODE, LockOwner(2), &lock(LockKind::Shared, 0, 9), &count, || Ok(())).unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn one_clients_locks_are_bounded() {
        let (table, count) = (LockTable::default(), RangeCount::default());
        let set = |at| table.set(NODE, LockOwner(1), &lock(LockKind::Shared, at, at), &count, || Ok(()));
        for at in 0..MOST_RANGES as u64 {
            set(2 * at).unwrap();
        }
        assert_eq!(set(1 << 40), Err(Errno::NOLCK));
        // Another client's locks are counted separately, and releasing some makes room.
        table.set(NODE, LockOwner(2), &lock(LockKind::Shared, 0, 0), &RangeCount::default(), || Ok(())).unwrap();
        table.set(NODE, LockOwner(1), &lock(LockKind::None, 0, 0), &count, || Ok(())).unwrap();
        set(1 << 40).unwrap();
    }
}
