//! The thread that holds files of a run's trees while the command runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use inarch_block::{Allowance, Device, Hold, take_least_priority};
use inarch_tree::select::Filter;
use inarch_vhost::Pending;

use super::attempt::LiveDisk;

/// How long after the guest's first word it begins: the boot and a command that is soon over need all that the machine has.
const DELAY: Duration = Duration::from_secs(1);

/// How long it takes no more than the time that others leave of processors and disks. Not for ever: beside a guest that is
/// busy on every processor that is next to nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// The nice value of the thread after that: what is left to do is little, and the guest has more of every processor.
const LOW_PRIORITY: i32 = 10;

/// The most that a run holds.
const MOST: Allowance = Allowance { bytes: 512 << 20, files: 1 << 17 };

/// Which files of a tree are held.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// Those beneath this directory: its path from the tree's root, empty for all.
    pub below: Vec<u8>,
    /// Those that this filter takes.
    pub filter: Filter,
}

/// A disk, and which files of its tree are held.
#[derive(Clone)]
pub(super) struct Part {
    pub device: Arc<Pending<Device>>,
    pub held: Held,
}

/// Files are being held until this is dropped. Nobody waits for the thread then: it leaves off at the next piece of its work.
pub(super) struct Holding {
    ended: Arc<AtomicBool>,
    thread: Thread,
}

impl Holding {
    /// Begins to hold what is to be held of `disks`, in a spool in `directory`; `None` if that is nothing. What cannot be held
    /// is read from the host alone, and an error if it changes.
    pub fn begin(disks: &[LiveDisk], directory: &Path) -> Option<Holding> {
        let parts: Vec<Part> = disks.iter().filter_map(LiveDisk::held_part).collect();
        if parts.is_empty() {
            return None;
        }
        let ended = Arc::new(AtomicBool::new(false));
        let work = Work { parts, directory: directory.to_owned(), ended: Arc::clone(&ended) };
        let thread = thread::Builder::new().name("holding".to_owned()).spawn(move || work.run()).ok()?;
        Some(Holding { ended, thread: thread.thread().clone() })
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

#[derive(Clone)]
struct Work {
    parts: Vec<Part>,
    directory: PathBuf,
    ended: Arc<AtomicBool>,
}

impl Work {
    fn run(self) {
        let start = Instant::now() + DELAY;
        while !self.has_ended() && Instant::now() < start {
            thread::park_timeout(start.saturating_duration_since(Instant::now()));
        }
        // A thread of its own: without privileges there is no way back from the least priority.
        let patient = self.clone();
        let first = thread::spawn(move || {
            take_least_priority();
            let mut left = MOST;
            let deadline = Instant::now() + PATIENCE;
            patient.hold(&mut left, &|| patient.has_ended() || Instant::now() >= deadline);
            left
        });
        if let (Ok(mut left), false) = (first.join(), self.has_ended()) {
            // If it is refused the work is done a little sooner.
            let _ = rustix::process::setpriority_process(None, LOW_PRIORITY);
            self.hold(&mut left, &|| self.has_ended());
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn hold(&self, left: &mut Allowance, stop: &dyn Fn() -> bool) {
        for Part { device, held: Held { below, filter } } in &self.parts {
            if stop() {
                return;
            }
            // Why a disk cannot be made is said by who makes it; without room for a copy there is none.
            if let Ok(device) = device.wait() {
                let _ = device.hold(&Hold { below, filter, directory: &self.directory, stop }, left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_holds_as_much_as_its_page_says() {
        let page = include_str!("../../../../docs/run.md");
        let said =
            format!("up to {},{:03} files and {} MiB in all", MOST.files / 1000, MOST.files % 1000, MOST.bytes >> 20);
        assert!(page.contains(&said), "{said}");
    }
}
