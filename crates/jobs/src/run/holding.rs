//! Holds files of a run's trees, in a thread, while the command runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use inarch_block::{Allowance, Device, Hold, take_least_priority};
use inarch_tree::select::Filter;
use inarch_vhost::Pending;

/// When it begins, after the guest's HELLO: the boot and a short command need the whole machine.
const DELAY: Duration = Duration::from_secs(1);

/// How long it runs at the lowest priority. The time is limited, because beside a guest that uses every processor such
/// a thread makes next to no progress.
const PATIENCE: Duration = Duration::from_secs(5);

/// The nice value of the thread after that: little is left to do, and the guest still gets more of every processor.
const LOW_PRIORITY: i32 = 10;

/// The limit for all held files of a run.
const MOST: Allowance = Allowance { bytes: 512 << 20, files: 1 << 17 };

/// Which files of a tree are held.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// Those beneath this directory: its path from the tree's root, empty for all.
    pub below: Vec<u8>,
    /// Those that this filter includes.
    pub filter: Filter,
}

/// A disk, and which files of its tree are held.
#[derive(Clone)]
pub(super) struct Part {
    pub device: Arc<Pending<Device>>,
    pub held: Held,
}

/// Holds files until it is dropped. A drop does not wait for the thread, which stops at its next step.
pub(super) struct Holding {
    ended: Arc<AtomicBool>,
    thread: Thread,
}

impl Holding {
    /// Begins to hold the files of `parts`, in a spool in `directory`; `None` if there are none. A file that cannot be
    /// held reads as an error if it changes.
    pub fn begin(parts: Vec<Part>, directory: &Path) -> Option<Holding> {
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
        // A thread of its own, because an unprivileged thread cannot raise its priority again.
        let patient = self.clone();
        let first = thread::spawn(move || {
            take_least_priority();
            let mut left = MOST;
            let deadline = Instant::now() + PATIENCE;
            patient.hold(&mut left, &|| patient.has_ended() || Instant::now() >= deadline);
            left
        });
        if let (Ok(mut left), false) = (first.join(), self.has_ended()) {
            // If it is refused, the work only ends a little sooner.
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
            // The disk's maker reports why it cannot be made. Without room for a copy the file is not held.
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
            format!("at most {},{:03} files and {} MiB in all", MOST.files / 1000, MOST.files % 1000, MOST.bytes >> 20);
        assert!(page.contains(&said), "{said}");
    }
}
