//! The priority of a background thread.

/// Leaves processors and disks to every other thread of the machine, as far as the calling thread is concerned, for good:
/// without privileges there is no way back.
///
/// Its input and output get the idle class with it, where the disk's scheduler has one (`task_nice_ioclass` of the kernel's
/// include/linux/ioprio.h). A refusal costs others some time, and is no failure.
pub fn take_least_priority() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // By its number: the C library musl refuses the function. 0 is the calling thread.
    // SAFETY: the kernel reads the structure, which is the one that this call takes and outlives it.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_IDLE, &raw const parameters) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy of the calling thread: field 41 of `/proc/thread-self/stat` (proc_pid_stat(5)).
    fn policy() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The name, the second field, may have anything in it.
        let behind = stat.rsplit_once(')').unwrap().1;
        behind.split_whitespace().nth(41 - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn the_thread_alone_gets_the_least_priority() {
        let before = policy();
        let there = std::thread::spawn(|| {
            take_least_priority();
            policy()
        });
        assert_eq!(there.join().unwrap(), libc::SCHED_IDLE);
        assert_eq!(policy(), before);
    }
}
