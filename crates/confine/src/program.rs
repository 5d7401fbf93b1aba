//! Starts a program that is enclosed from its first instruction on: a kernel of User-Mode Linux, in which a guest runs.
//!
//! Such a program makes processes, traces them, and runs code that it was given, so a filter of system calls says little about
//! what it can do. These hold as well:
//!
//! 1. A PID namespace of its own. It sees, signals and traces no process but its own, and none of those outlives it, even if it is
//!    killed: the kernel ends them. Without that, a guest's program would go on as a program of this machine.
//! 2. A user namespace in which its user is not mapped, so it has no capabilities. It shares neither the network nor the System V IPC of this machine.
//! 3. Landlock, as for servers, with what was granted.
//! 4. The [`Door`], through which alone it connects to sockets.
//!
//! The kernel ends it when the thread that started it ends.
#![allow(unsafe_code, reason = "clone(2) with namespaces, and what a process does before execve(2)")]

mod calls;
#[cfg(test)]
mod tests;

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::door::{Described, Door};
use crate::{Access, Grant, files};

/// A program to be started.
#[derive(Debug)]
pub struct Program<'a> {
    /// Its file.
    pub path: &'a Path,
    /// Its arguments, after its name.
    pub arguments: &'a [OsString],
    /// All of its environment.
    pub environment: &'a [(&'a str, OsString)],
    /// The descriptors that it gets, by their numbers; besides 0 and 1, which are /dev/null, and 2.
    pub inherited: &'a [BorrowedFd<'a>],
}

/// A program that was started.
#[derive(Debug)]
pub struct Enclosed {
    /// Its process, a child of this one.
    pub pid: Pid,
    /// The same.
    pub pidfd: OwnedFd,
    /// What it writes to its standard error.
    pub errors: OwnedFd,
    /// Where it asks for connections.
    pub door: Door,
    /// How its files are restricted, in words: an old kernel does not restrict all that is done with them.
    pub files: String,
}

/// Namespaces that every enclosed program has.
const NAMESPACES: libc::c_int = libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// What an enclosed program can reach.
#[derive(Debug, Default)]
pub struct Enclosure {
    grants: Vec<Grant>,
}

impl Enclosure {
    /// Grants `access` to what is at `path` now, and to everything beneath it.
    ///
    /// # Errors
    /// Nothing is at `path`, or it is out of reach.
    pub fn grant(mut self, path: &Path, access: Access) -> io::Result<Enclosure> {
        self.grants.push(Grant::of(path, access)?);
        Ok(self)
    }

    /// Starts `program`, with the files that are granted. The calling thread is confined to those as well, for good: it should do
    /// nothing afterwards but wait for the program.
    ///
    /// # Errors
    /// The program cannot be run, or this machine lacks one of what encloses it.
    pub fn start(&self, program: &Program<'_>) -> io::Result<Enclosed> {
        let words = Words::of(program)?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let (errors, errors_theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let (go_theirs, go) = pipe_with(PipeFlags::CLOEXEC)?;
        let (failure, failure_theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let filters = filters().map_err(io::Error::other)?;
        let files = files::restrict(&self.grants, files::Besides { signals: false, programs: false });
        let files = files.map_err(|reason| told(&reason, &io::ErrorKind::Unsupported.into()))?;
        let door = Door::open().map_err(|error| told("a listener for system calls", &error))?;
        let inherited: Vec<RawFd> = program.inherited.iter().map(AsRawFd::as_raw_fd).collect();
        let child = Child {
            words: &words,
            null: null.as_raw_fd(),
            errors: errors_theirs.as_raw_fd(),
            go: [go_theirs.as_raw_fd(), go.as_raw_fd()],
            failure: failure_theirs.as_raw_fd(),
            inherited: &inherited,
            filters: &filters,
        };
        let pid = child.clone_in_namespaces().map_err(|error| told("a PID namespace", &error))?;
        drop((errors_theirs, go_theirs, failure_theirs));
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        File::from(go).write_all(&[1])?;
        let mut errno = [0; size_of::<i32>()];
        match File::from(failure).read_exact(&mut errno) {
            Ok(()) => {
                // The process has ended. This call reaps it.
                let _ = waitpid(Some(pid), WaitOptions::empty());
                Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
            }
            // The pipe was closed by execve(2).
            Err(_) => Ok(Enclosed { pid, pidfd, errors, door, files }),
        }
    }
}

fn told(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("it cannot be enclosed without {what}: {error}"))
}

/// Both filters. The kernel asks both about each call, and executes no call that one of them refuses or answers.
fn filters() -> Result<[BpfProgram; 2], String> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| "not for this processor".to_owned())?;
    let allowed = calls::allowed().map_err(|error| error.to_string())?;
    let program = |calls, others, these| {
        let filter = SeccompFilter::new(calls, others, these, architecture);
        filter.and_then(BpfProgram::try_from).map_err(|error| error.to_string())
    };
    // An error that is none: the call returns 0.
    let answers = program(calls::answered(), SeccompAction::Allow, SeccompAction::Errno(0))?;
    Ok([answers, program(allowed, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)?])
}

/// What execve(2) takes. The pointers are those of the strings, and a null pointer at the end.
struct Words {
    path: CString,
    _strings: Vec<CString>,
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
}

impl Words {
    fn of(program: &Program<'_>) -> io::Result<Words> {
        let string = |text: &OsStr| Ok::<_, io::Error>(CString::new(text.as_bytes())?);
        let path = string(program.path.as_os_str())?;
        let arguments = [Ok(path.clone())].into_iter().chain(program.arguments.iter().map(|word| string(word)));
        let arguments = arguments.collect::<io::Result<Vec<_>>>()?;
        let variable = |(name, value): &(&str, OsString)| {
            let mut text = OsString::from(name);
            text.push("=");
            text.push(value);
            string(&text)
        };
        let environment = program.environment.iter().map(variable).collect::<io::Result<Vec<_>>>()?;
        let pointers =
            |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        let (to_arguments, to_environment) = (pointers(&arguments), pointers(&environment));
        let strings = arguments.into_iter().chain(environment).collect();
        Ok(Words { path, _strings: strings, arguments: to_arguments, environment: to_environment })
    }
}

/// The new process until it is the program. It shares nothing with this one, but other threads may have held locks when it was
/// made: it makes system calls only.
struct Child<'a> {
    words: &'a Words,
    null: RawFd,
    errors: RawFd,
    /// The end to read from, and its parent's.
    go: [RawFd; 2],
    failure: RawFd,
    inherited: &'a [RawFd],
    filters: &'a [BpfProgram; 2],
}

impl Child<'_> {
    /// Makes the process; it is the first one of its PID namespace.
    fn clone_in_namespaces(&self) -> io::Result<Pid> {
        match self.clone(libc::CLONE_NEWUSER | NAMESPACES) {
            // Without user namespaces root can do it.
            Err(error) => self.clone(NAMESPACES).map_err(|_| error),
            made => made,
        }
    }

    fn clone(&self, namespaces: libc::c_int) -> io::Result<Pid> {
        const NOTHING: libc::c_long = 0;
        let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
        // SAFETY: without CLONE_VM the new process has memory of its own, as after fork(2), and goes on with this stack; it makes
        // system calls only, and never returns.
        let made = unsafe { libc::syscall(libc::SYS_clone, flags, NOTHING, NOTHING, NOTHING, NOTHING) };
        match made {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let errno = self.become_program();
                // SAFETY: system calls with plain numbers and a buffer that outlives them.
                unsafe {
                    libc::write(self.failure, (&raw const errno).cast(), size_of::<i32>());
                    libc::_exit(127)
                }
            }
            pid => i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        }
    }

    /// Returns why it could not.
    fn become_program(&self) -> i32 {
        // SAFETY: only system calls, whose pointers are to memory that was made before the process.
        unsafe {
            let errno = || *libc::__errno_location();
            // If the parent has ended by now, this signal never comes; but then the parent did not tell us to go on
            // either.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            let [go, of_parent] = self.go;
            // While this process has the parent's end open, it would not notice that the parent is gone.
            libc::close(of_parent);
            let mut byte = 0u8;
            if libc::read(go, (&raw mut byte).cast(), 1) != 1 {
                return libc::EPIPE;
            }
            libc::setpgid(0, 0);
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            // Its memory is the guest's.
            let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
            for (from, to) in [(self.null, 0), (self.null, 1), (self.errors, 2)] {
                if libc::dup2(from, to) < 0 {
                    return errno();
                }
            }
            // Before Linux 5.11 descriptors without FD_CLOEXEC stay open: this program sets that on all of its own.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            for &descriptor in self.inherited {
                libc::fcntl(descriptor, libc::F_SETFD, 0);
            }
            if drop_capabilities() != 0 {
                return errno();
            }
            for filter in self.filters {
                let program = Described::of(filter);
                if libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) != 0 {
                    return errno();
                }
            }
            libc::execve(self.words.path.as_ptr(), self.words.arguments.as_ptr(), self.words.environment.as_ptr());
            errno()
        }
    }
}

/// Gives up all capabilities of this process. It cannot get them back by a program, as it has given that up, too.
///
/// # Safety
/// None of the caller's concern: a system call with memory of its own.
unsafe fn drop_capabilities() -> libc::c_long {
    /// `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h.
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    // Effective, permitted and inheritable ones, in two words each.
    let none = [0u32; 6];
    // SAFETY: the kernel reads both.
    unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }
}
