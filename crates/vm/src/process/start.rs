//! Starts a machine's program in the thread that waits for it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use inarch_confine::{Door, Program};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, waitpid};

use crate::command::{Enclosed, MachineCommand};

/// A process that was started.
pub(super) struct Started {
    pub process: Keep,
    pub pidfd: OwnedFd,
    pub errors: OwnedFd,
    /// Where it asks for connections, and what it gets.
    pub door: Option<(Door, Vec<OwnedFd>)>,
}

/// A process that this thread waits for.
pub(super) enum Keep {
    Child(Child),
    Enclosed(Pid),
}

impl Keep {
    pub fn number(&self) -> Pid {
        match self {
            Keep::Child(child) => Pid::from_child(child),
            Keep::Enclosed(pid) => *pid,
        }
    }

    /// Waits for its end.
    pub fn wait(self) -> ExitStatus {
        // Waiting for one's own child fails only if another thread reaped it; then its status is unknown.
        let unknown = || ExitStatus::from_raw(0);
        match self {
            Keep::Child(mut child) => child.wait().unwrap_or_else(|_| unknown()),
            Keep::Enclosed(pid) => loop {
                match waitpid(Some(pid), WaitOptions::empty()) {
                    Err(Errno::INTR) => {}
                    Ok(Some((_, status))) => break ExitStatus::from_raw(status.as_raw()),
                    _ => break unknown(),
                }
            },
        }
    }
}

/// Starts the process in the thread that will wait for it. Closes our copies of its descriptors.
pub(super) fn start(command: MachineCommand) -> io::Result<Started> {
    let MachineCommand { program, arguments, descriptors, enclosed } = command;
    tracing::debug!(?program, ?arguments, is_enclosed = enclosed.is_some(), "the machine is started");
    match enclosed {
        Some(enclosed) => start_enclosed(&program, &arguments, &descriptors, enclosed),
        None => start_child(&program, &arguments, &descriptors),
    }
}

fn start_enclosed(
    path: &Path,
    arguments: &[OsString],
    descriptors: &[OwnedFd],
    enclosed: Enclosed,
) -> io::Result<Started> {
    let Enclosed { enclosure, sockets, environment } = enclosed;
    let inherited: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let program = Program { path, arguments, environment: &environment, inherited: &inherited };
    let inarch_confine::Enclosed { pid, pidfd, errors, door, .. } = enclosure.start(&program)?;
    Ok(Started { process: Keep::Enclosed(pid), pidfd, errors, door: Some((door, sockets)) })
}

fn start_child(program: &Path, arguments: &[OsString], descriptors: &[OwnedFd]) -> io::Result<Started> {
    let inherited: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let parent = rustix::process::getpid();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec `prepare` only makes system calls. It neither allocates nor takes a lock, which a
    // thread that does not exist in the child could hold.
    unsafe {
        command.pre_exec(move || prepare(parent, &inherited));
    }
    let mut child = command.spawn()?;
    let pidfd = Pid::from_raw(child.id().cast_signed())
        .ok_or(io::ErrorKind::InvalidData.into())
        .and_then(|pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?));
    match (pidfd, child.stderr.take()) {
        (Ok(pidfd), Some(errors)) => {
            Ok(Started { process: Keep::Child(child), pidfd, errors: errors.into(), door: None })
        }
        (pidfd, _) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(pidfd.err().unwrap_or_else(|| io::Error::other("its standard error was not captured")))
        }
    }
}

/// Runs in the child before exec: sets the parent-death signal, and closes all descriptors but `inherited` and 0 to 2.
fn prepare(parent: Pid, inherited: &[RawFd]) -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the request took effect; then the signal would never come.
    if rustix::process::getppid() != Some(parent) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    // SAFETY: the call takes plain numbers and changes only descriptor flags of this process. Before Linux 5.11 it
    // fails, and descriptors inherited without FD_CLOEXEC stay open: untidy, not wrong.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    for &descriptor in inherited {
        // SAFETY: the descriptor is open: the parent keeps it open until after the fork.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
    }
    Ok(())
}
