//! [`OpenFiles`]: a bounded LRU cache of open files.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use inarch_tree::InodeId;
use smallvec::SmallVec;

/// Files in one set. Few, so that a search is a few comparisons and threads rarely share a lock.
const WAYS: usize = 4;

type Set = SmallVec<[(InodeId, Arc<OwnedFd>); WAYS]>;

/// Open files by inode: set-associative, with the most recently used file at the end of its set.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    sets: Box<[Mutex<Set>]>,
    ways: usize,
}

impl OpenFiles {
    /// A cache of at most `max` files; 0 caches nothing.
    pub(crate) fn new(max: usize) -> OpenFiles {
        OpenFiles { sets: (0..(max / WAYS).max(1)).map(|_| Mutex::default()).collect(), ways: max.min(WAYS) }
    }

    pub(crate) fn get(&self, inode: InodeId) -> Option<Arc<OwnedFd>> {
        let mut set = self.set(inode)?;
        let at = set.iter().position(|(id, _)| *id == inode)?;
        if let Some(rest) = set.get_mut(at..) {
            rest.rotate_left(1);
        }
        set.last().map(|(_, file)| Arc::clone(file))
    }

    /// Adds `file`, in place of the least recently used one of its set.
    pub(crate) fn put(&self, inode: InodeId, file: Arc<OwnedFd>) {
        let Some(mut set) = self.set(inode) else { return };
        let known = set.iter().position(|(id, _)| *id == inode);
        let leaving = known.or((set.len() >= self.ways).then_some(0)).filter(|at| *at < set.len());
        let left = leaving.map(|at| set.remove(at));
        if self.ways > 0 {
            set.push((inode, file));
        }
        drop(set);
        // Closed here, outside of the lock.
        drop(left);
    }

    /// Closes every file that no thread is reading.
    pub(crate) fn clear(&self) {
        for set in &self.sets {
            lock(set).clear();
        }
    }

    fn set(&self, inode: InodeId) -> Option<MutexGuard<'_, Set>> {
        self.sets.get(inode.index() % self.sets.len()).map(lock)
    }
}

fn lock(set: &Mutex<Set>) -> MutexGuard<'_, Set> {
    set.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
