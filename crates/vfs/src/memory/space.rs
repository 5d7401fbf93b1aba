//! The memory budget for files.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

/// The limit and the bytes in use.
#[derive(Debug)]
pub struct Space {
    limit: u64,
    used: AtomicU64,
}

impl Space {
    /// So many bytes.
    pub fn new(limit: u64) -> Space {
        Space { limit, used: AtomicU64::new(0) }
    }

    /// All of it.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What is left.
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Reserves bytes; `ENOSPC` if not enough are left.
    pub fn take(&self, bytes: u64) -> Result<(), Errno> {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(drop).map_err(|_| Errno::NOSPC)
    }

    /// Releases bytes.
    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}
