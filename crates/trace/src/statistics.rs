//! What a trace cost, and what the command asked its kernel for.

use std::fs;
use std::time::Duration;

use inarch_fuse::RequestCounts;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Numbers of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// The requests of the kernel for the command's files, by kind: what the kernel did not answer by itself.
    pub requests: Vec<(&'static str, u64)>,
    /// What the command and its descendants read and wrote, where the kernel counts it (`CONFIG_TASK_IO_ACCOUNTING`).
    pub calls: Option<Calls>,
    /// From the command's start to its end.
    pub elapsed: Duration,
    /// The processor time of this process meanwhile, with all its threads.
    pub processor_time: Duration,
}

/// System calls of the read(2) and write(2) families, of files, pipes and terminals, as `strace -c` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// Calls that read.
    pub reads: u64,
    /// Bytes that they got.
    pub bytes_read: u64,
    /// Calls that write.
    pub writes: u64,
    /// Bytes that they gave.
    pub bytes_written: u64,
}

impl Statistics {
    /// The number of requests of one kind.
    pub fn requests(&self, kind: &str) -> u64 {
        self.requests.iter().filter(|(name, _)| *name == kind).map(|(_, count)| count).sum()
    }

    /// The number of all requests.
    pub fn all_requests(&self) -> u64 {
        self.requests.iter().map(|(_, count)| count).sum()
    }
}

/// The requests by kind; the most frequent first.
pub(super) fn requests(counts: &RequestCounts) -> Vec<(&'static str, u64)> {
    let mut requests: Vec<(&str, u64)> = counts.by_kind().collect();
    requests.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    requests
}

/// The calls of a process that has ended but that nobody has waited for yet, and of those descendants that were waited for.
pub(super) fn calls(process: u32) -> Option<Calls> {
    let text = fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(Calls {
        reads: value("syscr:")?,
        bytes_read: value("rchar:")?,
        writes: value("syscw:")?,
        bytes_written: value("wchar:")?,
    })
}

/// The processor time of this process so far.
pub(super) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn the_calls_of_descendants_count() {
        let script = "cat /proc/self/comm > /dev/null; head -c 100000 /dev/zero > /dev/null";
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        waitid(WaitId::Pid(Pid::from_child(&child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let calls = calls(child.id());
        child.wait().unwrap();
        // Some kernels do not count.
        if let Some(Calls { reads, bytes_read, writes, bytes_written }) = calls {
            assert!(reads > 2 && bytes_read > 100_000 && writes >= 2 && bytes_written > 100_000, "{calls:?}");
        }
    }

    #[test]
    fn requests_are_sorted_and_added_up() {
        let requests = vec![("lookup", 5), ("read", 2), ("other", 1), ("other", 1)];
        let statistics = Statistics { requests, ..Statistics::default() };
        assert_eq!((statistics.requests("other"), statistics.requests("write")), (2, 0));
        assert_eq!(statistics.all_requests(), 9);
    }
}
