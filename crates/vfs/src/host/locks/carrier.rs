//! An open file that carries a holder's locks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::{hold, system_calls};
use super::to_raw;
use crate::{Lock, LockKind};

/// The most ranges with a shared lock that a holder may have in a file that it does not write.
const MOST_RANGES: usize = 1024;

/// The open file that carries the locks of one owner or one open file.
#[derive(Debug)]
pub(super) struct Carrier(Mutex<Open>);

#[derive(Debug)]
struct Open {
    file: OwnedFd,
    is_writable: bool,
    /// The shared ranges, while it is open for reading only: a file opened for writing has to take them over.
    shared: Ranges,
}

impl Drop for Open {
    /// Ends its locks explicitly. Closing the file is not enough: a child that another thread has just made also has it
    /// open until its execve(2), and the locks would stay as long.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
        let none = Lock { kind: LockKind::None, start: 0, end: u64::MAX, pid: 0, whole_file: false };
        let _ = to_raw(&none).and_then(|mut raw| system_calls::lock(self.file.as_fd(), libc::F_OFD_SETLK, &mut raw));
    }
}

impl Carrier {
    /// A carrier without locks, and whether it is open for writing.
    pub fn new(file: OwnedFd, is_writable: bool) -> Carrier {
        Carrier(Mutex::new(Open { file, is_writable, shared: Ranges::default() }))
    }

    /// Whether it can carry exclusive range locks.
    pub fn is_writable(&self) -> bool {
        hold(&self.0).is_writable
    }

    /// Switches to the file of `other`, which has no locks. First it takes the shared locks there, which conflict only with
    /// programs that wait already; then the locks of the old file end.
    pub fn reopen(&self, other: Carrier) -> Result<(), Errno> {
        let mut open = hold(&self.0);
        let Ok(other) = other.0.into_inner() else { return Ok(()) };
        if open.is_writable {
            return Ok(());
        }
        for (start, end) in &open.shared.0 {
            let shared = Lock { kind: LockKind::Shared, start: *start, end: *end, pid: 0, whole_file: false };
            system_calls::lock(other.file.as_fd(), libc::F_OFD_SETLK, &mut to_raw(&shared)?)?;
        }
        *open = other;
        Ok(())
    }

    /// Takes or releases a range lock, which `raw` describes too; `EAGAIN` on a conflict.
    pub fn lock(&self, lock: &Lock, raw: &libc::flock) -> Result<(), Errno> {
        let mut open = hold(&self.0);
        let mut shared = None;
        if !open.is_writable {
            let mut after = open.shared.clone();
            after.set(lock.start, lock.end, lock.kind == LockKind::Shared);
            if after.0.len() > MOST_RANGES {
                return Err(Errno::NOLCK);
            }
            shared = Some(after);
        }
        system_calls::lock(open.file.as_fd(), libc::F_OFD_SETLK, &mut raw.clone())?;
        open.shared = shared.unwrap_or_default();
        Ok(())
    }

    /// flock(2): takes or releases the lock of the whole file.
    pub fn lock_whole(&self, kind: LockKind) -> Result<(), Errno> {
        let operation = match kind {
            LockKind::Shared => FlockOperation::NonBlockingLockShared,
            LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
            LockKind::None => FlockOperation::NonBlockingUnlock,
        };
        flock(&hold(&self.0).file, operation)
    }

    /// Replaces `raw` with a conflicting lock of another holder.
    pub fn test(&self, raw: &mut libc::flock) -> Result<(), Errno> {
        system_calls::lock(hold(&self.0).file.as_fd(), libc::F_OFD_GETLK, raw)
    }
}

/// Sorted, disjoint ranges by their first and last bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds or removes the bytes from `start` to `end`.
    fn set(&mut self, mut start: u64, mut end: u64, into: bool) {
        let mut after = Vec::with_capacity(self.0.len() + 1);
        for (first, last) in std::mem::take(&mut self.0) {
            let touches = if into {
                first <= end.saturating_add(1) && start <= last.saturating_add(1)
            } else {
                first <= end && start <= last
            };
            if !touches {
                after.push((first, last));
            } else if into {
                (start, end) = (start.min(first), end.max(last));
            } else {
                after.extend((first < start).then(|| (first, start - 1)));
                after.extend((last > end).then(|| (end + 1, last)));
            }
        }
        if into {
            after.push((start, end));
            after.sort_unstable();
        }
        self.0 = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_if_each_byte_were_noted() {
        let mut bytes = [false; 12];
        let mut ranges = Ranges::default();
        let mut number = 1u64;
        for _ in 0..2000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (start, length, into) = ((number >> 33) % 12, (number >> 43) % 5, number >> 60 & 1 == 1);
            let end = (start + length).min(11);
            ranges.set(start, end, into);
            bytes[start as usize..=end as usize].fill(into);
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for at in (0..12).filter(|at| bytes[*at as usize]) {
                match expected.last_mut() {
                    Some((_, last)) if *last + 1 == at => *last = at,
                    _ => expected.push((at, at)),
                }
            }
            assert_eq!(ranges.0, expected);
        }
        ranges.set(0, u64::MAX, true);
        assert_eq!(ranges.0, [(0, u64::MAX)]);
        ranges.set(u64::MAX, u64::MAX, false);
        assert_eq!(ranges.0, [(0, u64::MAX - 1)]);
    }
}
