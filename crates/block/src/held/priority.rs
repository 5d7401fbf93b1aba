//! Sets the priority of a background thread.

/// Gives the calling thread the lowest priority for processors and disks, for good: an unprivileged thread cannot raise
/// it again.
///
/// The scheduling class also gives it the idle I/O class, if the disk's scheduler has one (`task_nice_ioclass` of the
/// kernel's include/linux/ioprio.h). A failure is ignored: it only costs other threads some time.
pub fn take_least_priority() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // The C library musl refuses the function, so the system call is made by its number. 0 is the calling thread.
    // SAFETY: the kernel reads the structure, which is the type that this call takes and outlives it.
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
