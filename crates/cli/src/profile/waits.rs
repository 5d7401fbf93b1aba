//! What threads wait for: those of this process that sleep in a system call, and the file that the call is about.
//!
//! `/proc/self/task/ID/syscall` has the call's number and arguments (proc(5)), and `/proc/self/fd` what a descriptor is. A thread that
//! waits for requests has nothing to do, and is not counted.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use inarch_jobs::shown;

use super::flame::Frame;

/// Files that are told apart, at most.
const MOST_FILES: usize = 1000;

/// System calls in which a thread waits for its next request, or has nothing to do.
const IDLE: &[i64] = &[
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_io_uring_enter,
    // For a lock, or for what another thread is to do; nothing tells which.
    libc::SYS_futex,
    libc::SYS_rt_sigtimedwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_pause,
];

/// System calls with names, and whether the first argument is the descriptor that they wait for.
const NAMED: &[(i64, &str, bool)] = &[
    (libc::SYS_read, "read", true),
    (libc::SYS_write, "write", true),
    (libc::SYS_readv, "readv", true),
    (libc::SYS_writev, "writev", true),
    (libc::SYS_pread64, "pread64", true),
    (libc::SYS_pwrite64, "pwrite64", true),
    (libc::SYS_preadv, "preadv", true),
    (libc::SYS_pwritev, "pwritev", true),
    (libc::SYS_preadv2, "preadv2", true),
    (libc::SYS_pwritev2, "pwritev2", true),
    (libc::SYS_copy_file_range, "copy_file_range", true),
    (libc::SYS_sendfile, "sendfile", true),
    (libc::SYS_fsync, "fsync", true),
    (libc::SYS_fdatasync, "fdatasync", true),
    (libc::SYS_syncfs, "syncfs", true),
    (libc::SYS_sync_file_range, "sync_file_range", true),
    (libc::SYS_ftruncate, "ftruncate", true),
    (libc::SYS_fallocate, "fallocate", true),
    (libc::SYS_fstat, "fstat", true),
    (libc::SYS_flock, "flock", true),
    (libc::SYS_fcntl, "fcntl", true),
    (libc::SYS_getdents64, "getdents64", true),
    (libc::SYS_statx, "statx", true),
    (libc::SYS_newfstatat, "newfstatat", true),
    (libc::SYS_openat, "openat", true),
    (libc::SYS_openat2, "openat2", true),
    (libc::SYS_readlinkat, "readlinkat", true),
    (libc::SYS_unlinkat, "unlinkat", true),
    (libc::SYS_renameat2, "renameat2", true),
    (libc::SYS_mkdirat, "mkdirat", true),
    (libc::SYS_linkat, "linkat", true),
    (libc::SYS_fgetxattr, "fgetxattr", true),
    (libc::SYS_getxattr, "getxattr", false),
    (libc::SYS_listxattr, "listxattr", false),
    (libc::SYS_sendto, "sendto", false),
    (libc::SYS_sendmsg, "sendmsg", false),
    (libc::SYS_connect, "connect", false),
    (libc::SYS_munmap, "munmap", false),
];

/// What was waited for so far.
#[derive(Debug, Default)]
pub struct Waits {
    /// Seconds by thread, system call and file.
    seconds: HashMap<(String, String, Option<String>), f64>,
    looked: Option<Instant>,
}

impl Waits {
    /// Looks at each thread once. What waits now is taken to have waited since the last look.
    pub fn look(&mut self) {
        let now = Instant::now();
        let passed = self.looked.replace(now).map_or(0.0, |last| now.duration_since(last).as_secs_f64());
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
        for thread in threads.flatten().filter(|thread| thread.file_name().to_str() != Some(own.as_str())) {
            let Some((call, file)) = waiting(&thread.path()) else { continue };
            let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            let file = file.map(|file| if self.seconds.len() < MOST_FILES { file } else { "other files".to_owned() });
            *self.seconds.entry((name.trim_end().to_owned(), call, file)).or_default() += passed;
        }
    }

    /// The threads, their system calls, and the files.
    pub fn into_frames(self) -> Frame {
        let mut all = Frame::default();
        for ((thread, call, file), seconds) in &self.seconds {
            all.add([thread.as_str(), call].into_iter().chain(file.as_deref()), *seconds);
        }
        all
    }
}

/// The system call in which a thread waits for something else than requests, and what its descriptor is.
fn waiting(thread: &Path) -> Option<(String, Option<String>)> {
    // "running" for one that is not in a system call.
    let text = fs::read_to_string(thread.join("syscall")).ok()?;
    let mut words = text.split(' ');
    let number: i64 = words.next()?.trim().parse().ok()?;
    if IDLE.contains(&number) || number < 0 || !is_asleep(thread) {
        return None;
    }
    let Some((_, name, has_file)) = NAMED.iter().find(|(named, ..)| *named == number) else {
        return Some((format!("system call {number}"), None));
    };
    let descriptor = words.next().filter(|_| *has_file);
    let descriptor = descriptor.and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let file = descriptor.and_then(|number| fs::read_link(format!("/proc/self/fd/{number}")).ok());
    // Pipes, sockets, eventfds and the device of FUSE give requests.
    let is_file = file.as_ref().is_none_or(|file| file.is_absolute() && !file.starts_with("/dev"));
    is_file.then(|| ((*name).to_owned(), file.map(|file| shown(&file))))
}

/// Whether a thread sleeps, or waits for a disk.
fn is_asleep(thread: &Path) -> bool {
    let text = fs::read_to_string(thread.join("stat")).unwrap_or_default();
    // The name before it may have blanks and parentheses.
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['S', 'D']))
}
