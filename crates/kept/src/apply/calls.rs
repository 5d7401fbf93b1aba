//! Counts the calls to the host. Tests let each of them fail in turn, or be the last one before a crash.

#[cfg(test)]
use std::sync::atomic::Ordering;

use rustix::io::Errno;

/// What some file systems cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ability {
    /// Exchange two names in one step.
    Exchange,
    /// Make a file without a name.
    Unnamed,
    /// Give a file another name.
    Link,
    /// Rename and promise that nothing is replaced.
    NoReplace,
    /// Tell upper from lower case.
    #[cfg(test)]
    Case,
}

/// Asked before each call.
#[derive(Clone, Default)]
pub(crate) struct Calls {
    #[cfg(test)]
    pub faults: Option<std::sync::Arc<Faults>>,
}

/// The most that a test keeps open so that inode numbers are not used again. Larger trees do without.
#[cfg(test)]
pub(crate) const HELD_MAX: usize = 200;

/// A change that another program makes in a tree.
#[cfg(test)]
pub(crate) type Act = fn(&std::path::Path);

/// What is to go wrong.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Calls so far.
    pub count: std::sync::atomic::AtomicU64,
    /// The calls that fail, and with what.
    pub fails: Option<(std::ops::Range<u64>, Errno)>,
    /// The call from which on nothing happens any more.
    pub dies: Option<u64>,
    /// The tree.
    pub root: std::path::PathBuf,
    /// Inode numbers of files whose content is on the disk.
    pub synced: std::sync::Mutex<std::collections::HashSet<u64>>,
    /// A sync failed: a later one says nothing of what was written before.
    pub sync_failed: std::sync::atomic::AtomicBool,
    /// What the file system cannot do.
    pub lacks: Vec<Ability>,
    /// Whether several threads make copies: then the calls come in another order each time.
    pub is_parallel: bool,
    /// A change that another program makes just before a call.
    pub acts: Option<(u64, Act)>,
    /// A change that another program makes just before each call from one on.
    pub acts_from: Option<(u64, Act)>,
    /// Whether the directory `across`, and what is in it, is another file system.
    pub is_across: bool,
    /// The inode number of a file there, and the number that it gets instead: one of this file system's.
    pub alike: Option<(u64, u64)>,
    /// Removed files, which stay open so that no inode number is used again: which file gets one would differ each
    /// time.
    pub held: std::sync::Mutex<Vec<rustix::fd::OwnedFd>>,
}

#[cfg(test)]
impl Faults {
    /// Whether the process would be dead.
    pub fn is_dead(&self) -> bool {
        self.dies.is_some_and(|last| self.count.load(Ordering::Relaxed) > last)
    }
}

impl Calls {
    /// Notes that a file is durable.
    pub fn synced(&self, ino: u64) {
        let _ = ino;
        #[cfg(test)]
        self.all_synced([ino]);
    }

    /// Notes that every file in the file system of a directory is durable.
    pub fn file_system_synced(&self, directory: rustix::fd::BorrowedFd<'_>) {
        let _ = directory;
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            let is_across = |path: &std::path::Path| faults.is_across && super::world::is_across(path);
            let synced = is_across(&super::world::path_of(directory));
            let files = super::world::files(&faults.root).into_iter().filter(|file| is_across(&file.path) == synced);
            self.all_synced(files.map(|file| file.ino));
        }
    }

    #[cfg(test)]
    fn all_synced(&self, inos: impl IntoIterator<Item = u64>) {
        if let Some(faults) = self.faults.as_ref().filter(|faults| !faults.sync_failed.load(Ordering::Relaxed)) {
            faults.synced.lock().unwrap().extend(inos);
        }
    }

    /// Notes that a sync failed.
    pub fn sync_failed(&self) {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            faults.sync_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether to treat the file system as one that lacks an ability.
    pub fn lacks(&self, ability: Ability) -> bool {
        let _ = ability;
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            return faults.lacks.contains(&ability);
        }
        false
    }

    /// The path under which a directory finds `path`.
    pub fn found_as<'p>(&self, directory: rustix::fd::BorrowedFd<'_>, path: &'p [u8]) -> std::borrow::Cow<'p, [u8]> {
        let _ = directory;
        #[cfg(test)]
        if self.lacks(Ability::Case) {
            return super::world::found_as(directory, path).into();
        }
        path.into()
    }

    /// Whether calls must come in the same order each time.
    pub fn is_in_turn(&self) -> bool {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            return !faults.is_parallel;
        }
        false
    }

    /// What a name in a directory is, as tests have it.
    pub fn seen(&self, directory: rustix::fd::BorrowedFd<'_>, stat: rustix::fs::Stat) -> rustix::fs::Stat {
        let _ = directory;
        #[cfg(test)]
        if let Some(faults) = self.faults.as_ref().filter(|_| self.is_across(directory)) {
            let ino = faults.alike.filter(|(from, _)| *from == stat.st_ino).map_or(stat.st_ino, |(_, to)| to);
            let mut other = stat;
            (other.st_dev, other.st_ino) = (stat.st_dev + 1, ino);
            return other;
        }
        stat
    }

    /// Whether to treat two directories as being in different file systems.
    pub fn are_apart(&self, one: rustix::fd::BorrowedFd<'_>, other: rustix::fd::BorrowedFd<'_>) -> bool {
        let _ = (one, other);
        #[cfg(test)]
        return self.is_across(one) != self.is_across(other);
        #[cfg(not(test))]
        false
    }

    #[cfg(test)]
    fn is_across(&self, directory: rustix::fd::BorrowedFd<'_>) -> bool {
        let is_across = self.faults.as_ref().is_some_and(|faults| faults.is_across);
        is_across && super::world::is_across(&super::world::path_of(directory))
    }

    /// Notes that a name is about to be removed.
    pub fn goes(&self, directory: &rustix::fd::OwnedFd, name: &[u8]) {
        let _ = (directory, name);
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            use rustix::fs::{Mode, OFlags, openat};
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut held = faults.held.lock().unwrap();
            if held.len() < HELD_MAX {
                held.extend(openat(directory, name, flags, Mode::empty()));
            }
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
        let count = faults.count.fetch_add(1, Ordering::Relaxed);
        if faults.dies.is_some_and(|last| count >= last) {
            return Err(Errno::CANCELED);
        }
        if let Some((_, act)) = faults.acts.filter(|(at, _)| *at == count) {
            act(&faults.root);
        }
        if let Some((_, act)) = faults.acts_from.filter(|(from, _)| *from <= count) {
            act(&faults.root);
        }
        match &faults.fails {
            Some((at, errno)) if at.contains(&count) => Err(*errno),
            _ => Ok(()),
        }
    }
}
