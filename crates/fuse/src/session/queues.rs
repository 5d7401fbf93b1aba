//! Serves requests through io_uring: one queue for each CPU. The kernel uses the queue of the CPU that the client
//! runs on.
//!
//! The threads of a queue are pinned to its CPU, so that neither a request nor its answer wakes another CPU. Each
//! thread has its own [`Ring`]. The kernel picks the thread that started to wait last, so the others work only while
//! that one is busy.
//!
//! Once io_uring is negotiated, the kernel holds requests back until every queue has a ring. So all rings are made
//! before `INIT` is answered.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread::{self, Scope, ScopedJoinHandle};

use inarch_vfs::FileSystem;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::channel::Channel;
use super::ring::{Arrival, Ring};
use crate::dispatch::{Dispatcher, Scratch};

/// The kernel's switch: `Y` or `N`; absent if the kernel has no support.
pub(crate) const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The CPUs that the machine can ever have; the kernel has a queue for each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Whether the running kernel supports FUSE over io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingSupport {
    /// It is on.
    On,
    /// It is supported but switched off; the switch is `/sys/module/fuse/parameters/enable_uring`.
    Off,
    /// It is not supported: it needs Linux 6.14 with `CONFIG_FUSE_IO_URING`.
    Missing,
}

impl RingSupport {
    /// The command that turns the switch on until the next boot.
    pub const SWITCH_ON: &str = "echo Y > /sys/module/fuse/parameters/enable_uring";

    /// Asks the running kernel.
    pub fn detect() -> RingSupport {
        match fs::read(SWITCH) {
            Ok(text) if matches!(text.first(), Some(b'Y' | b'1')) => RingSupport::On,
            Ok(_) => RingSupport::Off,
            Err(_) => RingSupport::Missing,
        }
    }
}

/// How many queues there are, and how many threads serve each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queues {
    count: u16,
    threads_each: usize,
}

/// Tells the prepared threads whether to start. Dropping it tells them not to.
pub(super) struct Start<'s>(pub &'s OnceLock<bool>);

impl Drop for Start<'_> {
    fn drop(&mut self) {
        // Fails if they were told before.
        let _ = self.0.set(false);
    }
}

impl Queues {
    /// The queues of the running kernel, if it has any.
    pub fn detect() -> Option<Queues> {
        /// The total number of threads on a machine with few CPUs: each waiting request occupies one.
        const THREADS: usize = 8;
        if RingSupport::detect() != RingSupport::On {
            return None;
        }
        let count = count(&fs::read_to_string(POSSIBLE).ok()?)?;
        Some(Queues { count, threads_each: THREADS.div_ceil(count.into()).clamp(2, 4) })
    }

    /// The total number of threads.
    pub fn threads(&self) -> usize {
        usize::from(self.count) * self.threads_each
    }

    /// Starts the threads, numbered from `first`, each with a ring. They wait for `start`.
    ///
    /// # Errors
    /// A thread or a ring cannot be made.
    pub fn prepare<'scope, F: FileSystem + ?Sized>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        channel: &'scope Channel,
        dispatcher: &'scope Dispatcher<F>,
        first: usize,
        start: &'scope OnceLock<bool>,
    ) -> io::Result<Vec<ScopedJoinHandle<'scope, io::Result<()>>>> {
        let (report, reports) = mpsc::channel();
        let mut threads = Vec::new();
        for (number, place) in (first..).zip(0..self.threads()) {
            let queue = u16::try_from(place / self.threads_each).map_err(io::Error::other)?;
            let report = report.clone();
            let serve = move || {
                stay_on(queue.into());
                let mut ring = match Ring::new(channel.as_fd(), queue) {
                    Ok(ring) => ring,
                    Err(error) => {
                        let _ = report.send(Err(error));
                        return Ok(());
                    }
                };
                // Nobody listens if another thread has already failed.
                let _ = report.send(Ok(()));
                drop(report);
                if *start.wait() { serve(&mut ring, dispatcher, number) } else { Ok(()) }
            };
            threads.push(thread::Builder::new().name(format!("fuse-{queue}")).spawn_scoped(scope, serve)?);
        }
        drop(report);
        reports.iter().collect::<io::Result<()>>()?;
        Ok(threads)
    }
}

/// Serves the requests of one ring until the connection ends.
fn serve<F: FileSystem + ?Sized>(ring: &mut Ring<'_>, dispatcher: &Dispatcher<F>, number: usize) -> io::Result<()> {
    let mut scratch = Scratch::default();
    ring.register()?;
    while ring.wait()? == Arrival::Request {
        let length = match ring.request() {
            Some((message, answer)) => dispatcher.execute(number, &message, &answer, &mut scratch),
            None => 0,
        };
        ring.answer(length)?;
    }
    Ok(())
}

/// Pins the calling thread to one CPU, if it is allowed to run there.
fn stay_on(processor: usize) {
    let allowed = sched_getaffinity(None).is_ok_and(|set| processor < CpuSet::MAX_CPU && set.is_set(processor));
    if allowed {
        let mut set = CpuSet::new();
        set.set(processor);
        // Unpinned it is only slower.
        let _ = sched_setaffinity(None, &set);
    }
}

/// The number of CPUs in a list like `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim_end().split(',').try_fold(0u16, |sum, part| sum.checked_add(range(part)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-1\n"), Some(2));
        assert_eq!(count("0-3,8,10-11\n"), Some(7));
        for wrong in ["", "x", "3-1", "0-65535", "0-"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
    }
}
