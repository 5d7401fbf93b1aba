//! The system calls of an enclosed program: those of a kernel of User-Mode Linux and of its guest's processes, which are traced
//! processes of this machine.
//!
//! The filter leaves some decisions to other mechanisms: the namespaces decide which processes are signalled and traced, Landlock which
//! files are opened, the door which sockets are connected. Landlock does not protect the attributes of files, and a process of root's owns
//! root's files even without capabilities. So no call that changes attributes is allowed.

use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use crate::calls::{COMPUTING, Calls, OLDER, OPENING, masked, one_of};

/// Processes, their memory, and what happens to them.
const PROCESSES: &[i64] = &[
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_ptrace,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_getppid,
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_getpgid,
    libc::SYS_personality,
    libc::SYS_set_tid_address,
    libc::SYS_prlimit64,
    libc::SYS_seccomp,
    libc::SYS_membarrier,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
];

/// What only x86 has, above all segments and older forms.
#[cfg(target_arch = "x86_64")]
const X86: &[i64] = &[
    libc::SYS_arch_prctl,
    libc::SYS_modify_ldt,
    libc::SYS_set_thread_area,
    libc::SYS_get_thread_area,
    libc::SYS_access,
    libc::SYS_pipe,
    libc::SYS_eventfd,
    libc::SYS_epoll_create,
    libc::SYS_vfork,
    libc::SYS_getpgrp,
    libc::SYS_alarm,
    libc::SYS_pause,
];
#[cfg(not(target_arch = "x86_64"))]
const X86: &[i64] = &[];

/// Time, and waiting.
const WAITING: &[i64] = &[
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete,
    libc::SYS_setitimer,
    libc::SYS_getitimer,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
];

/// Files that are open, and connections.
const FILES: &[i64] = &[
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    // Answered without being done: see ANSWERED.
    libc::SYS_fchmod,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_memfd_create,
    libc::SYS_close_range,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
];

/// Requests of ioctl(2). By `TCGETS`, `TCSETS`, `TCSETSW`, `TCSETSF` and `TIOCGWINSZ` a program finds out that a
/// descriptor is no terminal. `FIONBIO` and `FIOASYNC` set a descriptor's mode.
const IOCTLS: &[u64] = &[0x5401, 0x5402, 0x5403, 0x5404, 0x5413, 0x5421, 0x5452];

/// Calls that do nothing and succeed. A kernel of User-Mode Linux makes its memory's file executable (`create_tmp_file` of its
/// arch/um/os-Linux/mem.c), which needs no such bit, and ends if it cannot.
const ANSWERED: &[i64] = &[libc::SYS_fchmod];

/// Requests of fcntl(2): flags, copies, and the signal by which a descriptor tells that it is ready. Neither locks nor leases, for which programs of this
/// machine would wait.
const FCNTLS: &[u64] = &[
    libc::F_DUPFD as u64,
    libc::F_DUPFD_CLOEXEC as u64,
    libc::F_GETFD as u64,
    libc::F_SETFD as u64,
    libc::F_GETFL as u64,
    libc::F_SETFL as u64,
    libc::F_GETOWN as u64,
    libc::F_SETOWN as u64,
    // `F_SETSIG` of asm-generic/fcntl.h.
    10,
];

/// Requests of prctl(2).
const PRCTLS: &[u64] = &[
    libc::PR_SET_NAME as u64,
    libc::PR_SET_VMA as u64,
    libc::PR_SET_NO_NEW_PRIVS as u64,
    libc::PR_SET_SECCOMP as u64,
    libc::PR_SET_DUMPABLE as u64,
];

/// The calls that are allowed.
pub fn allowed() -> Result<Calls, seccompiler::BackendError> {
    let whatever: [&[i64]; 7] = [COMPUTING, OLDER, OPENING, PROCESSES, X86, WAITING, FILES];
    let mut calls: Calls = whatever.into_iter().flatten().map(|call| (*call, Vec::new())).collect();
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    calls.insert(libc::SYS_clone, vec![masked(0, namespaces as u32 as u64, 0)?]);
    // A datagram needs no connection: with one, any socket of this machine that has a name could be sent to.
    let kind = SeccompCmpOp::MaskedEq(!(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u32 as u64);
    let local_stream = || {
        SeccompRule::new(vec![
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(libc::AF_UNIX as u32))?,
            SeccompCondition::new(1, SeccompCmpArgLen::Dword, kind.clone(), libc::SOCK_STREAM as u64)?,
        ])
    };
    calls.insert(libc::SYS_socket, vec![local_stream()?]);
    calls.insert(libc::SYS_socketpair, vec![local_stream()?]);
    // The kernel's panic sends itself SIGABRT until that ends it, which it never does to the first process of a PID namespace; it ends if it
    // cannot send it.
    let abort = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, libc::SIGABRT as u64)?;
    calls.insert(libc::SYS_kill, vec![SeccompRule::new(vec![abort])?]);
    calls.insert(libc::SYS_fcntl, one_of(1, FCNTLS)?);
    calls.insert(libc::SYS_ioctl, one_of(1, IOCTLS)?);
    // It cannot ask to outlive the thread that started it.
    let dies = SeccompRule::new(vec![
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::PR_SET_PDEATHSIG as u64)?,
        SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::SIGKILL as u64)?,
    ])?;
    calls.insert(libc::SYS_prctl, one_of(0, PRCTLS)?.into_iter().chain([dies]).collect());
    Ok(calls)
}

/// The calls that succeed without being done.
pub fn answered() -> Calls {
    ANSWERED.iter().map(|call| (*call, Vec::new())).collect()
}
