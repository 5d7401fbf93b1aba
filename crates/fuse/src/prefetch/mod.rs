//! Having the kernel know a directory's names before a program asks for each of them.
//!
//! A program that looks at many files by their names (git does) costs a request for each, and the protocol has no way to tell the
//! kernel of names that it has not asked for. But a listing tells it of dozens at once, with their attributes. So a child of the
//! server lists directories in the mount:
//!
//! 1. A program has looked for the name of a second file in a directory and found it ([`Prefetch::found`]). The child is told to list that
//!    directory, and the answer waits, for a moment at most: otherwise the program would ask for the next name meanwhile.
//! 2. The child ([`lister`]) lists it as any program would. The server answers that as it answers everybody, and the kernel
//!    keeps what it is told. A name whose answer waits is listed without its attributes: the kernel keeps the listing from
//!    going on until it has that answer. So are directories: while somebody makes or removes a file in one, the kernel would take
//!    older attributes for new (it does not count that as a change of attributes, `fuse_dir_changed` of Linux's fs/fuse/dir.c). That
//!    the listed directory itself is looked for once more, as the kernel does after it was opened by a file handle, is as short as
//!    any search for it.
//! 3. The child says how far it got, and the answer that waited is given. What the program looks for next is known.
//!
//! A program that looks for a name to make or remove it holds the directory's lock meanwhile, and the child waits for that. Nobody
//! can tell before; so an answer does not wait for a child that does not come to ask, and after two that have waited in vain the
//! next ones do not wait at all.
//!
//! Of a large directory only a part is listed at a time, and the next one after as many more names were asked for in vain.
//! So what nobody asks for costs at most as much as what somebody did.
//!
//! A program that lists one directory after the other (find does) has the child list the next ones meanwhile, on another processor:
//! [`walk`]. Nobody waits for that, and what somebody does wait for is behind a few of them at most. It is for mounts whose
//! directories the kernel keeps when they are opened again.

mod lister;
mod node_handle;
mod order;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inarch_vfs::NodeId;
use zerocopy::IntoBytes;

use crate::wire::listing::{Occasion, Subdirectory};
pub use lister::list_directories;
use order::{END, LISTED, Order, READY, Report, WALKED};
use walk::{Ahead, Walks};

/// After so many names that were found in a directory it is listed.
const FIRST: u32 = 2;

/// After so many more names, which the listing should have told the kernel of, the next part is listed, or all once more.
const AGAIN: u32 = 32;

/// An answer waits no longer: a listing that takes longer than this is waited for by the disk, or by somebody who changes the
/// directory.
const PATIENCE: Duration = Duration::from_millis(20);

/// Within twice this the child asks for what it has begun to list, unless it is kept from it. On a busy machine it waits for a
/// processor.
const ARRIVAL: Duration = Duration::from_millis(5);

/// Most listings that are left out after those that were waited for in vain.
const MOST_PASSED: u32 = 255;

/// Directories that are being listed at a time.
const MOST_LISTED: u64 = 64;

/// Of those that nobody waits for, so many for each of the child's threads: more are kept back, so that others come before them.
const WALKED_EACH: usize = 4;

/// Directories that are kept back at most; more are left to their programs.
const MOST_KEPT_BACK: usize = 48;

/// Threads of the child that are known.
const MOST_THREADS: usize = 64;

/// Directories in which names were found lately.
const REMEMBERED: usize = 4096;

/// The way to the child that lists directories, which has the other ends of the pipes.
#[derive(Debug)]
pub struct Lister {
    /// Its standard input.
    pub orders: File,
    /// Its standard output.
    pub reports: File,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Prefetch {
    orders: Mutex<Option<File>>,
    state: Mutex<State>,
    walks: Mutex<Walks>,
    /// The kernel keeps what it knows of directories when they are opened again.
    keeps_directories: AtomicBool,
    /// Threads that take requests from one queue, and so must not all wait.
    groups: Vec<usize>,
    /// So long an answer waits.
    patience: Duration,
    /// So long it waits for a child that has begun, and asks for nothing.
    arrival: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// The child's threads that list, each a directory at a time; none until it can do its work.
    threads: Vec<u32>,
    directories: HashMap<NodeId, Directory>,
    /// Those, the oldest first.
    order: VecDeque<NodeId>,
    /// Orders so far, and how many of them were reported.
    ordered: u64,
    reported: u64,
    /// Of these, those that nobody waits for; and what is kept back.
    walked: usize,
    kept_back: VecDeque<Order>,
    /// The last listing was waited for in vain. One may be: on a busy machine the child waits for a processor.
    was_in_vain: bool,
    /// Those up to this one were waited for at the same time.
    in_vain: u64,
    /// How many listings are left out after another one that was, and how many of them are left.
    passes: u32,
    left: u32,
    /// How many threads of each group wait.
    waiting: Vec<usize>,
}

#[derive(Debug)]
struct Directory {
    /// Names found since it was listed last.
    found: u32,
    /// Of which so many are enough for the next time.
    enough: u32,
    offset: u64,
    /// Being listed; who waits for that is told by the end of the channel.
    listing: Option<Listing>,
}

#[derive(Debug)]
struct Listing {
    name: Box<[u8]>,
    /// The child has asked for its entries.
    has_arrived: bool,
    /// Dropped when it is done.
    _done: Sender<()>,
}

/// How the wait for a listing ends.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// It was to be listed by then.
    InVain,
    /// There were others before it.
    Undecided,
}

impl Default for Directory {
    fn default() -> Directory {
        Directory { found: 0, enough: FIRST, offset: 0, listing: None }
    }
}

impl Prefetch {
    /// Nothing is listed before [`Prefetch::attend`] hears from the child. `groups` are the numbers of threads, in their order,
    /// that take requests from one queue each.
    pub fn new(orders: File, groups: Vec<usize>) -> Prefetch {
        // Who finds the pipe full goes without. If it cannot be had so, the child's part of the promise holds: it reads.
        let _ = rustix::io::ioctl_fionbio(&orders, true);
        let state = State { waiting: vec![0; groups.len()], ..State::default() };
        Prefetch {
            orders: Mutex::new(Some(orders)),
            state: Mutex::new(state),
            walks: Mutex::default(),
            keeps_directories: AtomicBool::new(false),
            groups,
            patience: PATIENCE,
            arrival: ARRIVAL,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The `name` of a file in a directory was found, by this thread, which may wait here before it says so.
    pub fn found(&self, thread: usize, directory: NodeId, name: &[u8]) {
        let Some(group) = self.group(thread) else { return };
        let Some((number, done)) = self.begin(group, directory, name) else { return };
        let outcome = self.wait(directory, number, &done);
        let mut state = self.state();
        state.judge(number, &outcome);
        if let Some(waiting) = state.waiting.get_mut(group) {
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// Waits until a listing ends, unless it does not even begin.
    fn wait(&self, directory: NodeId, number: u64, done: &Receiver<()>) -> Outcome {
        let begun = Instant::now();
        let mut was_due = false;
        // That it ends is all there is to hear.
        while let Err(RecvTimeoutError::Timeout) =
            done.recv_timeout(self.arrival.min(self.patience.saturating_sub(begun.elapsed())))
        {
            let state = self.state();
            let listing = state.directories.get(&directory).and_then(|directory| directory.listing.as_ref());
            let is_kept = was_due && listing.is_some_and(|listing| !listing.has_arrived);
            // Those before it are under way or reported, but for the last ones that nobody waits for.
            was_due = number < state.reported.saturating_add(state.threads.len() as u64);
            if is_kept || begun.elapsed() >= self.patience {
                return if was_due { Outcome::InVain } else { Outcome::Undecided };
            }
        }
        Outcome::Done
    }

    /// Has a directory listed, if it is time to; gives the order's number, and what ends with the listing.
    fn begin(&self, group: usize, node: NodeId, name: &[u8]) -> Option<(u64, Receiver<()>)> {
        let mut state = self.state();
        let state = &mut *state;
        if state.threads.is_empty() {
            return None;
        }
        if !state.directories.contains_key(&node) {
            state.forget_the_oldest();
            state.order.push_back(node);
        }
        let directory = state.directories.entry(node).or_default();
        directory.found = directory.found.saturating_add(1);
        let waiting = state.waiting.get_mut(group)?;
        let most = self.groups.get(group)?.saturating_sub(2);
        let is_due = directory.found >= directory.enough && directory.listing.is_none();
        if !is_due || *waiting >= most || state.ordered - state.reported >= MOST_LISTED {
            return None;
        }
        if state.left > 0 {
            state.left -= 1;
            (directory.found, directory.enough) = (0, AGAIN);
            return None;
        }
        self.send(&Order::of(node.0, directory.offset)).ok()?;
        let (done, end) = channel();
        directory.listing = Some(Listing { name: name.into(), has_arrived: false, _done: done });
        let number = state.ordered;
        state.ordered += 1;
        *waiting += 1;
        Some((number, end))
    }

    fn send(&self, order: &Order) -> io::Result<()> {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        // The pipe takes an order whole or not at all, and has room for all that are under way at a time.
        orders.as_ref().map_or(Err(io::ErrorKind::BrokenPipe.into()), |mut orders| orders.write_all(order.as_bytes()))
    }

    /// Which group a thread is in.
    fn group(&self, thread: usize) -> Option<usize> {
        let mut end = 0;
        self.groups.iter().position(|threads| {
            end += threads;
            thread < end
        })
    }

    /// A directory's entries are asked for, by a thread with this number (gettid(2)), from an offset on.
    pub fn asked(&self, directory: NodeId, thread: u32, offset: u64) -> Occasion {
        let mut state = self.state();
        if let Some(listing) = state.directories.get_mut(&directory).and_then(|found| found.listing.as_mut()) {
            listing.has_arrived = true;
            return Occasion::Search(listing.name.clone());
        }
        if state.threads.contains(&thread) {
            return Occasion::Walk;
        }
        drop(state);
        let is_followed = self.keeps_directories.load(Ordering::Relaxed);
        if is_followed && offset == 0 {
            let ahead = self.walks().listed(directory);
            ahead.into_iter().for_each(|ahead| self.order_walk(ahead));
        }
        Occasion::Program { is_followed }
    }

    /// The kernel keeps what it knows of directories from now on.
    pub fn directories_are_kept(&self) {
        self.keeps_directories.store(true, Ordering::Relaxed);
    }

    /// A program is told of these subdirectories of a directory that it lists from `offset` on.
    pub fn told(&self, directory: NodeId, offset: u64, subdirectories: Vec<Subdirectory>) {
        self.walks().told(directory, offset == 0, subdirectories);
    }

    fn walks(&self) -> MutexGuard<'_, Walks> {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has subdirectories listed; where there is too much to do already, their program does so itself.
    fn order_walk(&self, Ahead { directory, names }: Ahead) {
        let mut state = self.state();
        if state.threads.is_empty() {
            return;
        }
        let room = MOST_KEPT_BACK.saturating_sub(state.kept_back.len());
        state.kept_back.extend(names.iter().filter_map(|name| Order::beneath(directory.0, name)).take(room));
        self.feed(&mut state);
    }

    /// Gives the child some of what was kept back, if it is about to have nothing to do.
    fn feed(&self, state: &mut State) {
        while state.walked < WALKED_EACH * state.threads.len()
            && let Some(order) = state.kept_back.pop_front()
        {
            if self.send(&order).is_err() {
                return;
            }
            state.ordered += 1;
            state.walked += 1;
        }
    }

    /// Hears what the child says, until it ends.
    pub fn attend(&self, mut reports: File) {
        let mut report = Report { kind: 0, number: 0, offset: 0 };
        while reports.read_exact(report.as_mut_bytes()).is_ok() {
            self.take(report);
        }
        let mut state = self.state();
        state.threads.clear();
        state.kept_back.clear();
        state.directories.clear();
    }

    /// The child has listed a directory, or says that it is ready to.
    fn take(&self, report: Report) {
        let mut state = self.state();
        if report.kind == READY {
            if state.threads.len() < MOST_THREADS {
                // Numbers of threads have 22 bits.
                state.threads.extend(u32::try_from(report.number));
            }
            return;
        }
        if report.kind != LISTED && report.kind != WALKED {
            return;
        }
        // It reports what it was told, once.
        state.reported = state.ordered.min(state.reported + 1);
        if report.kind == WALKED {
            state.walked = state.walked.saturating_sub(1);
            self.feed(&mut state);
            return;
        }
        if let Some(directory) = state.directories.get_mut(&NodeId(report.number)) {
            let offset = if report.offset == END { 0 } else { report.offset };
            *directory = Directory { found: 0, enough: AGAIN, offset, listing: None };
        }
    }

    /// There is nothing more to list.
    pub fn end(&self) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl State {
    /// Whether it pays to wait for listings, after the wait for the one with this number.
    fn judge(&mut self, number: u64, outcome: &Outcome) {
        match outcome {
            Outcome::Done => (self.was_in_vain, self.passes) = (false, self.passes / 2),
            Outcome::InVain if number >= self.in_vain => {
                self.in_vain = self.ordered;
                if std::mem::replace(&mut self.was_in_vain, true) {
                    self.passes = (2 * self.passes + 1).min(MOST_PASSED);
                    self.left = self.passes;
                }
            }
            Outcome::InVain | Outcome::Undecided => {}
        }
    }

    fn forget_the_oldest(&mut self) {
        while self.order.len() >= REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.directories.remove(&oldest);
        }
    }
}
