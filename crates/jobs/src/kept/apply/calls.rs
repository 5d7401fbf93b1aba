//! Calls to the host, one by one: tests let each of them fail in turn, or be the last before a crash.

use rustix::io::Errno;

/// What is asked before each call.
#[derive(Clone, Default)]
pub(super) struct Calls {
    #[cfg(test)]
    pub faults: Option<std::sync::Arc<Faults>>,
}

/// What is to go wrong.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Calls so far.
    pub count: std::sync::atomic::AtomicU64,
    /// The call that fails, and with what.
    pub fails: Option<(u64, Errno)>,
    /// The call from which on nothing happens any more.
    pub dies: Option<u64>,
    /// The tree.
    pub root: std::path::PathBuf,
    /// Inode numbers of files whose content is on the disk.
    pub synced: std::sync::Mutex<std::collections::HashSet<u64>>,
}

#[cfg(test)]
impl Faults {
    /// Whether the process would be dead.
    pub fn is_dead(&self) -> bool {
        self.dies.is_some_and(|last| self.count.load(std::sync::atomic::Ordering::Relaxed) > last)
    }
}

impl Calls {
    /// Tells that a file, or with `None` every file, is on the disk.
    pub fn synced(&self, ino: Option<u64>) {
        let _ = ino;
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            let all = || super::world::files(&faults.root).into_iter().map(|file| file.ino).collect::<Vec<_>>();
            faults.synced.lock().unwrap().extend(ino.map_or_else(all, |ino| vec![ino]));
        }
    }

    /// Whether the next call may be made.
    #[cfg(not(test))]
    #[inline]
    pub fn next(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether the next call may be made.
    #[cfg(test)]
    pub fn next(&self) -> Result<(), Errno> {
        let Some(faults) = &self.faults else { return Ok(()) };
        let count = faults.count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if faults.dies.is_some_and(|last| count >= last) {
            return Err(Errno::CANCELED);
        }
        match faults.fails {
            Some((at, errno)) if at == count => Err(errno),
            _ => Ok(()),
        }
    }
}
