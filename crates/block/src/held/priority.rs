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
