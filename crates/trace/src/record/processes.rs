//! Maps threads to processes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Threads that are remembered.
const SLOTS: usize = 256;

/// How long an answer is cached. Thread numbers are assigned in turn, and there are at least 32,768
/// (/proc/sys/kernel/pid_max), so none is reused within a second.
const KEPT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Known {
    thread: u32,
    process: u32,
    since: Instant,
}

/// Processes of this machine's threads.
#[derive(Debug)]
pub struct Processes(Box<[Mutex<Option<Known>>]>);

impl Default for Processes {
    fn default() -> Processes {
        Processes((0..SLOTS).map(|_| Mutex::default()).collect())
    }
}

impl Processes {
    /// The process of a thread, which is waiting for its answer unless it was killed; the thread itself if unknown. 0
    /// is the kernel.
    pub fn of(&self, thread: u32) -> u32 {
        if thread == 0 {
            return 0;
        }
        let slot = &self.0[thread as usize % SLOTS];
        let known = *slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Known { process, .. }) =
            known.filter(|known| known.thread == thread && known.since.elapsed() < KEPT)
        {
            return process;
        }
        let Some(process) = process_of(thread) else { return thread };
        // No lock is held while reading the file above.
        let known = Known { thread, process, since: Instant::now() };
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        process
    }
}

fn process_of(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    process.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_of_their_process() {
        let processes = Processes::default();
        for _ in 0..2 {
            let thread = std::thread::scope(|scope| {
                let asked = scope.spawn(|| {
                    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                    [processes.of(thread), processes.of(thread)]
                });
                asked.join().unwrap()
            });
            assert_eq!(thread, [std::process::id(); 2]);
        }
        assert_eq!([0, u32::MAX].map(|thread| processes.of(thread)), [0, u32::MAX]);
    }

    #[test]
    fn numbers_are_not_remembered_for_long() {
        let processes = Processes::default();
        let (thread, process) = (std::process::id(), 7);
        let known = |since| Some(Known { thread, process, since });
        let slot = &processes.0[thread as usize % SLOTS];
        *slot.lock().unwrap() = known(Instant::now() + Duration::from_secs(60));
        assert_eq!(processes.of(thread), process);
        *slot.lock().unwrap() = known(Instant::now().checked_sub(KEPT).unwrap());
        assert_eq!(processes.of(thread), thread);
    }
}
