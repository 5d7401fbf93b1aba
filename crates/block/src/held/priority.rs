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
