//! The system call filter (seccomp): the thread can make only the system calls that its work needs.
//!
//! A call that is not listed fails with `ENOSYS`, as on a kernel that lacks it. Libraries can handle that. `clone3`, for
//! example, is not listed because a filter cannot see its flags; the C library then calls `clone`.
//!
//! The filter does not kill the process. If a hostile client makes a server try a forbidden call, only that request
//! should fail: a killed server would be lost to all other clients.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::Work;

/// What reading open files and making sense of their bytes takes: threads, memory, clocks. None of these calls makes a
/// descriptor.
pub(crate) const COMPUTING: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Writing an image into an open file, and drawing how far it is.
const WRITING: &[i64] = &[
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_copy_file_range,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_io_destroy,
];

/// The calls that a server needs besides [`COMPUTING`]: those for events and sockets, and those that duplicate open descriptors.
const SERVING: &[i64] = &[
    libc::SYS_copy_file_range,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_memfd_create,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_membarrier,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Older forms of the calls above; newer architectures lack them.
#[cfg(target_arch = "x86_64")]
pub(crate) const OLDER: &[i64] = &[
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_dup2,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const OLDER: &[i64] = &[];

/// Opening files by their names and listing directories.
pub(crate) const OPENING: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
];

/// Finding a file again, and its extended attributes.
const LOOKING: &[i64] = &[
    libc::SYS_name_to_handle_at,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_syncfs,
];

/// Additional calls of a scan: the cheapest ways to read extended attributes, and running at the lowest priority.
const SCANNING: &[i64] = &[SYS_GETXATTRAT, SYS_LISTXATTRAT, libc::SYS_fchdir, libc::SYS_setpriority];

/// Opening files by handle. A caller that can choose the handle can reach any file of the file system.
const HANDLES: &[i64] = &[libc::SYS_open_by_handle_at];

/// io_uring rings, and binding a thread to one processor.
const RINGS: &[i64] =
    &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_sched_setaffinity];

/// Connecting to a server, whose address is asked for by datagrams. [`serving`] says by which sockets.
const CONNECTING: &[i64] = &[libc::SYS_connect, libc::SYS_bind, libc::SYS_sendmmsg, libc::SYS_recvmmsg];

/// Making, removing and renaming names.
const NAMING: &[i64] =
    &[libc::SYS_mkdirat, libc::SYS_linkat, libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2];
#[cfg(target_arch = "x86_64")]
const OLDER_NAMING: &[i64] = &[libc::SYS_mkdir, libc::SYS_link, libc::SYS_unlink, libc::SYS_rmdir, libc::SYS_rename];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_NAMING: &[i64] = &[];

/// Making files of every kind, and changing their attributes and owners.
const CHANGING: &[i64] = &[
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_truncate,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_umask,
];
/// Restricting a thread further by Landlock.
const CONFINING: &[i64] =
    &[libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self];
/// Dropping a capability for a while, so that the kernel applies its checks. It cannot regain a capability that was
/// given up.
const EFFECTIVE: &[i64] = &[libc::SYS_capset];
#[cfg(target_arch = "x86_64")]
const OLDER_CHANGING: &[i64] =
    &[libc::SYS_symlink, libc::SYS_mknod, libc::SYS_chmod, libc::SYS_lchown, libc::SYS_chown];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CHANGING: &[i64] = &[];

/// These numbers are the same on every architecture (Linux's scripts/syscall.tbl); libc has no names for them yet.
const SYS_FCHMODAT2: i64 = 452;
const SYS_GETXATTRAT: i64 = 464;
const SYS_LISTXATTRAT: i64 = 465;

/// Requests of ioctl(2) that the servers make: `FIONBIO` and `FIOCLEX` of asm-generic/ioctls.h, and of linux/fuse.h
/// `FUSE_DEV_IOC_CLONE`, `FUSE_DEV_IOC_BACKING_OPEN` and `FUSE_DEV_IOC_BACKING_CLOSE`.
const IOCTLS: &[u64] = &[0x5421, 0x5451, 0x8004_e500, 0x4010_e501, 0x4004_e502];

/// Requests of ioctl(2) that writing an image needs: `TCGETS` and `TIOCGWINSZ` of asm-generic/ioctls.h, `FICLONERANGE` and
/// `BLKSSZGET` of linux/fs.h.
const WRITING_IOCTLS: &[u64] = &[0x5401, 0x5413, 0x4020_940d, 0x1268];

/// Requests of prctl(2): a thread's name, naming memory (`PR_SET_VMA`, used by allocators), and keeping capabilities
/// when a thread changes its user.
const PRCTLS: &[u64] = &[
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_SET_VMA as u64,
    libc::PR_GET_SECUREBITS as u64,
    libc::PR_SET_SECUREBITS as u64,
];

/// What a server may do in addition to its [`Work`].
#[derive(Clone, Copy, Debug)]
pub struct Besides {
    /// Send signals through pidfds.
    pub signals: bool,
    /// Make rings of io_uring.
    pub rings: bool,
    /// Open files by their file handles.
    pub handles: bool,
    /// Open files by their names. `Parse` without grants, and `Image`, do not.
    pub opens: bool,
}

/// Restricts the calling thread to the system calls that its work needs.
pub fn filter(work: Work, besides: Besides) -> Result<(), String> {
    // A command parses several times, and always by the same filter.
    static PARSE: OnceLock<Result<BpfProgram, String>> = OnceLock::new();
    if work == Work::Parse && !besides.opens {
        return apply(PARSE.get_or_init(|| program(work, besides)).as_ref()?);
    }
    apply(&program(work, besides)?)
}

fn program(work: Work, besides: Besides) -> Result<BpfProgram, String> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| "not for this processor".to_owned())?;
    let allowed = allowed(work, besides).map_err(|error| error.to_string())?;
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter = SeccompFilter::new(allowed, refuse, SeccompAction::Allow, architecture);
    filter.and_then(BpfProgram::try_from).map_err(|error| error.to_string())
}

/// This also gives up the right to gain privileges by starting a program.
fn apply(program: &BpfProgram) -> Result<(), String> {
    seccompiler::apply_filter(program).map_err(|_| "not in this kernel".to_owned())
}

/// Allowed calls. Each has alternative rules for its arguments; a call without rules is allowed with any arguments.
pub(crate) type Calls = BTreeMap<i64, Vec<SeccompRule>>;

fn allowed(work: Work, besides: Besides) -> Result<Calls, seccompiler::BackendError> {
    let whatever: &[&[i64]] = match work {
        Work::Parse if besides.opens => &[COMPUTING, OPENING],
        Work::Parse => &[COMPUTING],
        Work::Image => &[COMPUTING, WRITING],
        Work::Disk => &[COMPUTING, SERVING, OLDER, OPENING],
        Work::Fetch => &[COMPUTING, SERVING, OLDER, OPENING, CONNECTING],
        Work::Plan => {
            &[COMPUTING, SERVING, OLDER, OPENING, LOOKING, SCANNING, NAMING, OLDER_NAMING, EFFECTIVE, CONFINING]
        }
        Work::ReadOnlyShare | Work::ReadOnlyMount => &[COMPUTING, SERVING, OLDER, OPENING, LOOKING],
        Work::Share | Work::CoveredShare => {
            &[COMPUTING, SERVING, OLDER, OPENING, LOOKING, NAMING, OLDER_NAMING, CHANGING, OLDER_CHANGING]
        }
        Work::Mount => {
            &[COMPUTING, SERVING, OLDER, OPENING, LOOKING, NAMING, OLDER_NAMING, CHANGING, OLDER_CHANGING, EFFECTIVE]
        }
    };
    let mut calls: Calls = whatever.iter().copied().flatten().map(|call| (*call, Vec::new())).collect();
    // Memory is never both writable and executable.
    calls.insert(libc::SYS_mmap, vec![lacks(2, libc::PROT_EXEC as u64)?]);
    calls.insert(libc::SYS_mprotect, vec![lacks(2, libc::PROT_EXEC as u64)?]);
    // Threads, but neither processes nor namespaces.
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    let thread = libc::CLONE_THREAD as u64;
    calls.insert(libc::SYS_clone, vec![masked(0, thread | namespaces as u32 as u64, thread)?]);
    // A signal handler raises signals again, in this process alone.
    let own = u64::from(std::process::id());
    calls.insert(libc::SYS_tgkill, vec![equal(0, SeccompCmpArgLen::Dword, own)?]);
    // Limits may be read, not set.
    calls.insert(libc::SYS_prlimit64, vec![equal(2, SeccompCmpArgLen::Qword, 0)?]);
    if work.only_computes() {
        computing(work, &mut calls)?;
    } else {
        serving(work, besides, &mut calls)?;
    }
    Ok(calls)
}

/// What depends on arguments, for work with files that are open.
fn computing(work: Work, calls: &mut Calls) -> Result<(), seccompiler::BackendError> {
    // Of an open file. A filter cannot see whether the path beside the descriptor is empty.
    let empty = libc::AT_EMPTY_PATH as u64;
    calls.insert(libc::SYS_statx, vec![masked(2, empty, empty)?]);
    calls.insert(libc::SYS_newfstatat, vec![masked(3, empty, empty)?]);
    // A signal handler wakes a thread by a connected socket. Without an address that is no more than write(2).
    calls.insert(libc::SYS_sendto, vec![equal(4, SeccompCmpArgLen::Qword, 0)?]);
    // Flags are read; nothing is duplicated, locked or leased.
    calls.insert(libc::SYS_fcntl, one_of(1, &[libc::F_GETFD as u64, libc::F_GETFL as u64])?);
    calls.insert(
        libc::SYS_prctl,
        one_of(0, &[libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA].map(|request| request as u64))?,
    );
    if work == Work::Image {
        calls.insert(libc::SYS_ioctl, one_of(1, WRITING_IOCTLS)?);
    }
    Ok(())
}

/// What depends on arguments, for servers and those who make their disks.
fn serving(work: Work, besides: Besides, calls: &mut Calls) -> Result<(), seccompiler::BackendError> {
    // Only for a umask of the thread's own.
    calls.insert(libc::SYS_unshare, one_of(0, &[libc::CLONE_FS as u64])?);
    calls.insert(libc::SYS_prctl, one_of(0, PRCTLS)?);
    calls.insert(libc::SYS_ioctl, one_of(1, IOCTLS)?);
    // A signal handler wakes a thread through it.
    calls.insert(libc::SYS_socketpair, one_of(0, &[libc::AF_UNIX as u64])?);
    if work == Work::Fetch {
        // The C library asks a resolver of this machine by a Unix socket, and the kernel for its addresses by netlink.
        let families = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK].map(|family| family as u64);
        calls.insert(libc::SYS_socket, one_of(0, &families)?);
    }
    if besides.signals {
        calls.insert(libc::SYS_pidfd_send_signal, Vec::new());
    }
    if besides.rings {
        calls.extend(RINGS.iter().map(|call| (*call, Vec::new())));
    }
    if work == Work::Plan {
        // Its parser's thread installs a stricter filter: one without flags, which has no listener in another process.
        let filters = u64::from(libc::SECCOMP_SET_MODE_FILTER);
        let plain = SeccompRule::new(vec![
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, filters)?,
            SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?,
        ])?;
        calls.insert(libc::SYS_seccomp, vec![plain]);
        let more = [PRCTLS, &[libc::PR_SET_NO_NEW_PRIVS as u64]].concat();
        calls.insert(libc::SYS_prctl, one_of(0, &more)?);
    }
    if besides.handles && !matches!(work, Work::Disk | Work::Plan | Work::Fetch) {
        calls.extend(HANDLES.iter().map(|call| (*call, Vec::new())));
    }
    Ok(())
}

pub(crate) fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.iter().map(|value| equal(argument, SeccompCmpArgLen::Dword, *value)).collect()
}

pub(crate) fn equal(
    argument: u8,
    length: SeccompCmpArgLen,
    value: u64,
) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, length, SeccompCmpOp::Eq, value)?])
}

/// None of `bits` is set.
fn lacks(argument: u8, bits: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    masked(argument, bits, 0)
}

/// Of the bits in `mask`, exactly those of `value` are set.
pub(crate) fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    let operator = SeccompCmpOp::MaskedEq(mask);
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?])
}
