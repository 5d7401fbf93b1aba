//! Looking ahead of a client that walks through the tree.
//!
//! A client that lists directories with the attributes of what is in them goes on to their subdirectories, one after the other,
//! and where the host has to read those from its disk, or make its inodes of them, the client waits for each. So a thread looks at
//! the next few of them meanwhile: it lists them and asks for the attributes of what is in them, and does nothing with the
//! answers. The host's kernel then has them at hand, and answers for them are as right as they ever were, for nothing is kept here.
//!
//! 1. Who lists a directory says so ([`Ahead::listed`]), and which directories it finds subdirectories in ([`Ahead::offer`]).
//! 2. The thread goes through the subdirectories of the one that was offered last, then of the one before. It is only so many
//!    directories ahead ([`Bounds`]), looks at none again that it or the client has just been at, and at hardly any where looking
//!    costs too little to be worth it.
//! 3. From a directory to what is in it leads one name, which is no symbolic link and no mount point. Access times stay.
//!
//! The thread is started by the first who offers something, and is confined as that one is.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::attributes::stat;
use super::directories::{BUFFER, RawEntry};
use super::hold;
use super::reach::Name;
use super::system_calls::read_entries;

/// How far ahead, and of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Directories that are looked at before the client lists another one.
    pub directories: u32,
    /// Entries of one directory.
    pub entries: u32,
    /// Directories whose subdirectories are gone through, one within the other.
    pub walks: usize,
    /// The attributes of what was at hand take less than so many times what asking for the same ones again takes. On one machine it was
    /// 2.5 to 3.1 times (0.9 microseconds), and 4.5 times and more where inodes had to be made of cached blocks.
    pub at_hand: u32,
    /// For so long no directory is looked at again.
    pub again: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { directories: 8, entries: 1024, walks: 16, at_hand: 4, again: Duration::from_secs(10) }
    }
}

/// Of the directories that were listed or looked at so many are remembered.
const REMEMBERED: usize = 256;

/// Where everything is at hand, one of so many directories is looked at, to see whether that has changed.
const MOST_PASSED: u32 = 64;

/// How often the last attributes are asked for again, of which the quickest counts.
const ASKED_AGAIN: u32 = 3;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Ahead {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    bounds: Bounds,
    stat_flags: AtFlags,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The one that was offered last is at the end.
    walks: Vec<Walk>,
    offered: u64,
    /// Nothing is gone through any more that was offered up to this one: it was a client's who is gone.
    cleared: u64,
    /// Directories that may be looked at before the client lists another one.
    credit: u32,
    recent: VecDeque<(u64, Instant)>,
    ended: bool,
    #[cfg(test)]
    is_busy: bool,
    /// Inode numbers of the directories that were looked at, and how many entries of each.
    #[cfg(test)]
    looked_at: Vec<(u64, u32)>,
}

/// A directory whose subdirectories are gone through.
#[derive(Debug)]
struct Walk {
    /// The later it was offered, the higher.
    number: u64,
    directory: Arc<OwnedFd>,
    /// A place in it of our own, from the first step on.
    part: Option<Part>,
}

/// A directory that is read.
#[derive(Debug)]
struct Part {
    descriptor: Arc<OwnedFd>,
    buffer: Vec<u8>,
    from: usize,
}

impl Ahead {
    /// Nothing is done yet. Attributes are to be asked for with these flags.
    pub fn new(bounds: Bounds, stat_flags: AtFlags) -> Ahead {
        let shared = Shared { bounds, stat_flags, state: Mutex::default(), changed: Condvar::new() };
        Ahead { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// A client begins to list the directory with this inode number, and wants to know what is in it.
    pub fn listed(&self, inode: u64) {
        let mut state = hold(&self.shared.state);
        state.is_new(inode, self.shared.bounds.again);
        state.credit = state.credit.saturating_add(1).min(self.shared.bounds.directories);
        if !state.walks.is_empty() {
            self.shared.changed.notify_all();
        }
    }

    /// The client has found a subdirectory in this directory: it may go on there.
    pub fn offer(&self, directory: &Arc<OwnedFd>) {
        if !self.is_started() {
            return;
        }
        let mut state = hold(&self.shared.state);
        let oldest = (state.walks.len() >= self.shared.bounds.walks).then(|| state.walks.remove(0));
        state.offered += 1;
        let number = state.offered;
        state.walks.push(Walk { number, directory: directory.clone(), part: None });
        state.credit = self.shared.bounds.directories;
        self.shared.changed.notify_all();
        drop(state);
        drop(oldest);
    }

    /// The client is gone.
    pub fn clear(&self) {
        let mut state = hold(&self.shared.state);
        let walks = std::mem::take(&mut state.walks);
        state.cleared = state.offered;
        state.recent.clear();
        drop(state);
        drop(walks);
    }

    /// What was looked at, when there is nothing left to do: inode numbers of directories, and how many entries of each.
    #[cfg(test)]
    pub fn looked_at(&self) -> Vec<(u64, u32)> {
        let mut state = hold(&self.shared.state);
        while state.is_busy || state.credit > 0 && !state.walks.is_empty() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.looked_at.clone()
    }

    /// How many directories have been looked at, without waiting.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        hold(&self.shared.state).looked_at.len()
    }

    /// How many directories are gone through.
    #[cfg(test)]
    pub fn walks(&self) -> usize {
        hold(&self.shared.state).walks.len()
    }

    /// Can be upgraded while the thread is there.
    #[cfg(test)]
    pub fn trace(&self) -> std::sync::Weak<impl Sized + use<>> {
        Arc::downgrade(&self.shared)
    }

    /// Starts the thread, if it is not there yet; without one nothing is looked at.
    fn is_started(&self) -> bool {
        let mut thread = hold(&self.thread);
        if thread.is_none() {
            let shared = self.shared.clone();
            *thread = thread::Builder::new().name("ahead".into()).spawn(move || shared.run()).ok();
        }
        thread.is_some()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        hold(&self.shared.state).ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = hold(&self.thread).take() {
            // It has no result.
            let _ = thread.join();
        }
    }
}

impl State {
    /// Whether a directory was neither listed nor looked at lately; it is now.
    fn is_new(&mut self, inode: u64, again: Duration) -> bool {
        let now = Instant::now();
        while self.recent.front().is_some_and(|(_, at)| now.duration_since(*at) >= again) {
            self.recent.pop_front();
        }
        if self.recent.iter().any(|(recent, _)| *recent == inode) {
            return false;
        }
        if self.recent.len() >= REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back((inode, now));
        true
    }
}

impl Shared {
    /// The life of the thread.
    fn run(&self) {
        // How many directories are passed by, and how many of them are left.
        let (mut passes, mut left) = (0u32, 0u32);
        while let Some(mut walk) = self.next_walk() {
            let Some((inode, name)) = self.next_subdirectory(&mut walk) else { continue };
            let Some(directory) = self.resume(walk, inode) else { continue };
            if left > 0 {
                left -= 1;
                continue;
            }
            if self.look_at(directory.as_fd(), &name) {
                passes = 0;
            } else {
                passes = (2 * passes + 1).min(MOST_PASSED);
            }
            left = passes;
        }
    }

    /// Waits until there is something to do; `None` when there will be nothing any more.
    fn next_walk(&self) -> Option<Walk> {
        let mut state = hold(&self.state);
        loop {
            if state.ended {
                return None;
            }
            if state.credit > 0
                && let Some(walk) = state.walks.pop()
            {
                #[cfg(test)]
                {
                    state.is_busy = true;
                }
                return Some(walk);
            }
            #[cfg(test)]
            {
                state.is_busy = false;
                self.changed.notify_all();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next subdirectory of a walk: its inode number and name. `None` at the end, or if the directory cannot be read.
    fn next_subdirectory(&self, walk: &mut Walk) -> Option<(u64, Name)> {
        if walk.part.is_none() {
            walk.part = Part::open(walk.directory.as_fd(), b".").ok();
        }
        let part = walk.part.as_mut()?;
        loop {
            let entry = part.next().ok()??;
            if entry.mode() == libc::S_IFDIR && !entry.is_dots() {
                return Some((entry.inode, entry.name.into()));
            }
            if part.is_used_up() && hold(&self.state).ended {
                return None;
            }
        }
    }

    /// Goes on with a walk later; gives its directory if the subdirectory with this inode number is to be looked at now.
    fn resume(&self, walk: Walk, inode: u64) -> Option<Arc<OwnedFd>> {
        let directory = walk.directory.clone();
        let mut state = hold(&self.state);
        if walk.number <= state.cleared {
            return None;
        }
        let place = state.walks.partition_point(|other| other.number < walk.number);
        state.walks.insert(place, walk);
        let oldest = (state.walks.len() > self.bounds.walks).then(|| state.walks.remove(0));
        let is_new = state.is_new(inode, self.bounds.again);
        if is_new {
            state.credit = state.credit.saturating_sub(1);
        }
        drop(state);
        drop(oldest);
        is_new.then_some(directory)
    }

    /// Has the host's kernel know what is in a directory; false if it did already.
    fn look_at(&self, parent: BorrowedFd<'_>, name: &[u8]) -> bool {
        // It may be gone, another's, or something else by now: whoever comes there is told.
        let Ok(mut part) = Part::open(parent, name) else { return true };
        let (directory, mut seen) = (part.descriptor.clone(), 0);
        let ask = |name: &[u8]| {
            let started = Instant::now();
            // Nothing is done with the answer.
            let _ = stat(directory.as_fd(), name, self.stat_flags);
            started.elapsed()
        };
        let (mut asked, mut took, mut last) = (0, Duration::ZERO, Vec::new());
        while seen < self.bounds.entries {
            let Ok(Some(entry)) = part.next() else { break };
            if !entry.is_dots() {
                took += ask(entry.name);
                asked += 1;
                last.clear();
                last.extend_from_slice(entry.name);
            }
            seen += 1;
        }
        let again = (0..ASKED_AGAIN).map(|_| ask(&last)).min().unwrap_or_default();
        #[cfg(test)]
        hold(&self.state)
            .looked_at
            .push((stat(directory.as_fd(), b"", self.stat_flags).map_or(0, |stat| stat.stx_ino), seen));
        took >= again * self.bounds.at_hand * asked
    }
}

impl Part {
    /// Opens a directory by its name in another one. Mount points, and what mounts itself when it is looked for, stay closed; so
    /// does a directory whose time of access would change.
    fn open(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Part, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let descriptor = openat2(parent, name, flags, Mode::empty(), resolve)?;
        Ok(Part { descriptor: Arc::new(descriptor), buffer: Vec::new(), from: 0 })
    }

    /// The next entry; `None` behind the last.
    fn next(&mut self) -> Result<Option<RawEntry<'_>>, Errno> {
        if self.is_used_up() {
            self.from = 0;
            read_entries(self.descriptor.as_fd(), &mut self.buffer, BUFFER)?;
            if self.buffer.is_empty() {
                return Ok(None);
            }
        }
        let entry = RawEntry::parse(self.buffer.get(self.from..).unwrap_or_default()).ok_or(Errno::IO)?;
        self.from += entry.length;
        Ok(Some(entry))
    }

    fn is_used_up(&self) -> bool {
        self.from >= self.buffer.len()
    }
}
