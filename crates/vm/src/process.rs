//! Runs a machine's program, QEMU or User-Mode Linux: starts it so that it never outlives its starter, watches it, and explains why
//! it ended too early.
//!
//! A dedicated thread starts the process and waits for it. The kernel sends the parent-death signal when the thread
//! that forked ends. This thread ends with the program, or when the whole process ends, `kill -9` included.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use inarch_confine::Door;
use rustix::param::clock_ticks_per_second;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal};

use crate::command::MachineCommand;
use start::{Started, start};

/// How much of the end of an output is stored, in bytes.
const TAIL: usize = 64 << 10;
/// How many lines of an output an error shows.
const TAIL_LINES: usize = 20;
/// How long to wait for the rest of an output after the process has ended: until nothing has the output's other end
/// open any more. On a busy machine the thread that reads it may run late.
const DRAIN: Duration = Duration::from_secs(10);

/// The program could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {program}: {source}")]
pub struct SpawnError {
    /// The binary.
    pub program: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// What was observed of a failing guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symptom {
    /// The agent's socket was closed.
    Closed,
    /// Nothing arrived for this long.
    Silence(Duration),
}

/// Why a guest failed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GuestFailure {
    /// QEMU failed.
    #[error("QEMU failed ({status}): {message}")]
    Qemu {
        /// How it ended.
        status: String,
        /// The last line it wrote to its standard error.
        message: String,
        /// The last lines before that.
        tail: Vec<String>,
    },
    /// User-Mode Linux failed.
    #[error("User-Mode Linux failed ({status}): {message}")]
    Uml {
        /// How it ended.
        status: String,
        /// The last line it wrote to its standard error.
        message: String,
        /// The last lines before that.
        tail: Vec<String>,
    },
    /// The guest's kernel panicked.
    #[error("the guest's kernel stopped: {message}")]
    Panic {
        /// The kernel's line.
        message: String,
        /// The console's last lines.
        tail: Vec<String>,
    },
    /// The guest powered off unexpectedly.
    #[error("the guest powered off before its work was done{}", last_line(.tail))]
    PoweredOff {
        /// The console's last lines.
        tail: Vec<String>,
    },
    /// The guest did not speak in time.
    #[error("the guest did not answer within {} s{}", .waited.as_secs(), last_line(.tail))]
    Silent {
        /// How long we waited.
        waited: Duration,
        /// The console's last lines.
        tail: Vec<String>,
    },
}

fn last_line(tail: &[String]) -> String {
    // How the kernel powers off tells nothing.
    match tail.iter().rfind(|line| !line.contains("reboot: ")) {
        Some(line) => format!("; its last line was: {line}"),
        None => "; its console stayed empty".to_owned(),
    }
}

impl GuestFailure {
    /// The signal by which QEMU crashed, by a failed assertion or a wrong access: not one that another process sends to end it.
    pub fn crash(&self) -> Option<i32> {
        let GuestFailure::Qemu { status, .. } = self else { return None };
        let signal = status.strip_prefix(KILLED)?.parse().ok()?;
        [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE].contains(&signal).then_some(signal)
    }

    /// The last lines printed, for more detail than the message.
    pub fn tail(&self) -> &[String] {
        match self {
            GuestFailure::Qemu { tail, .. }
            | GuestFailure::Uml { tail, .. }
            | GuestFailure::Panic { tail, .. }
            | GuestFailure::PoweredOff { tail }
            | GuestFailure::Silent { tail, .. } => tail,
        }
    }
}

/// A pipe for a machine's console: our end, for reading, and the machine's.
///
/// # Errors
/// No pipe could be created.
pub fn console_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    /// Its capacity in bytes: the most that an unprivileged user may ask for.
    const ROOM: usize = 1 << 20;
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    // A user with many pipes gets a smaller one.
    let _ = fcntl_setpipe_size(&theirs, ROOM);
    Ok((ours, theirs))
}

/// A running machine; dropping it kills it.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    number: Pid,
    /// Whether it is a kernel of User-Mode Linux.
    is_enclosed: bool,
    exit: Arc<Exit>,
    errors: Capture,
    console: Capture,
}

#[derive(Debug, Default)]
struct Exit {
    status: Mutex<Option<ExitStatus>>,
    changed: Condvar,
}

impl Process {
    /// Starts `command` without standard input and output, and with no descriptors but its own. It gets its own process
    /// group, so a ^C in the terminal reaches this process only. `console` is our end of the machine's console; its
    /// output is also copied to `log`.
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn spawn(command: MachineCommand, console: OwnedFd, log: Option<File>) -> Result<Process, SpawnError> {
        let (program, is_enclosed) = (command.program.clone(), command.enclosed.is_some());
        let failed = |source| SpawnError { program, source };
        let exit = Arc::new(Exit::default());
        let (report, started) = mpsc::sync_channel(1);
        let keeper = {
            let exit = Arc::clone(&exit);
            move || match start(command) {
                Ok(Started { process, pidfd, errors, door }) => {
                    // The receiver is gone only if the calling thread is; wait for the process anyway.
                    let _ = report.send(Ok((pidfd, process.number(), errors, door)));
                    exit.set(process.wait());
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("guest-keeper".to_owned()).spawn(keeper) {
            return Err(failed(error));
        }
        let received = started.recv().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it died")));
        let capture = |(pidfd, number, errors, door)| {
            let captures = || {
                if let Some((door, sockets)) = door {
                    let serve = move || Door::serve(door, sockets);
                    thread::Builder::new().name("guest-door".to_owned()).spawn(serve)?;
                }
                let errors = Capture::start("guest-errors", errors, None)?;
                Ok((errors, Capture::start("guest-console", console, log)?))
            };
            match captures() {
                Ok((errors, console)) => Ok(Process { pidfd, number, is_enclosed, exit, errors, console }),
                Err(error) => {
                    // It runs already. The thread that started it waits for its end.
                    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
                    Err(error)
                }
            }
        };
        received.and_then(capture).map_err(failed)
    }

    /// A descriptor that polls readable once the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The time of this machine's processors that the process took until now, with its children that have ended (proc_pid_stat(5): utime,
    /// stime, cutime and cstime). `None` once it has ended.
    pub fn cpu(&self) -> Option<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.number.as_raw_nonzero())).ok()?;
        // If it still runs, its number was its own. The name, in parentheses, may contain anything.
        let fields = text.rsplit_once(')').filter(|_| self.exit.lock().is_none())?.1.split_ascii_whitespace();
        let ticks = fields.skip(11).take(4).map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
        Duration::try_from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64).ok()
    }

    /// Waits at most `limit` for the process to end.
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let status = self.exit.lock();
        let waited = self.exit.changed.wait_timeout_while(status, limit, |status| status.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Kills the process, if it still runs, and waits until it is gone.
    pub fn kill(&self) {
        // Fails only if the process has ended already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let mut status = self.exit.lock();
        while status.is_none() {
            status = self.exit.changed.wait(status).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes the process write what it still caches of the machine's images, and end; kills it if that takes longer
    /// than `limit`. Returns whether it ended by itself.
    pub fn terminate(&self, limit: Duration) -> bool {
        // Fails only if the process has ended already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::TERM);
        let by_itself = self.wait(limit).is_some();
        self.kill();
        by_itself
    }

    /// Explains why the guest failed after `symptom`. Ends the process.
    pub fn explain(&self, symptom: Symptom) -> GuestFailure {
        let by_itself = match symptom {
            // The program closes its sockets shortly before it ends.
            Symptom::Closed => self.wait(Duration::from_secs(5)),
            Symptom::Silence(_) => self.wait(Duration::ZERO),
        };
        self.kill();
        let console = self.console.lines();
        if let Some(message) = console.iter().find_map(|line| panic_message(line)) {
            return GuestFailure::Panic { message, tail: last_lines(console) };
        }
        match (by_itself, symptom) {
            (Some(status), _) if !status.success() => {
                let mut tail = last_lines(self.errors.lines());
                let message = tail.pop().unwrap_or_else(|| "it did not say why".to_owned());
                let status = status_text(status);
                match self.is_enclosed {
                    true => GuestFailure::Uml { status, message, tail },
                    false => GuestFailure::Qemu { status, message, tail },
                }
            }
            (None, Symptom::Silence(waited)) => GuestFailure::Silent { waited, tail: last_lines(console) },
            _ => GuestFailure::PoweredOff { tail: last_lines(console) },
        }
    }

    /// Why the console's log is incomplete, if it is. Ends the process.
    pub fn log_error(&self) -> Option<io::Error> {
        self.kill();
        self.console.wait_for_end();
        self.console.lock().log_error.take()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Exit {
    fn lock(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, status: ExitStatus) {
        *self.lock() = Some(status);
        self.changed.notify_all();
    }
}

/// Before the number of the signal that ended a program.
const KILLED: &str = "killed by signal ";

fn status_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("{KILLED}{signal}"),
        (None, None) => status.to_string(),
    }
}

/// The panic message in a console line, without the timestamp.
fn panic_message(line: &str) -> Option<String> {
    const PANIC: &str = "Kernel panic - not syncing";
    line.find(PANIC).and_then(|start| line.get(start..)).map(str::to_owned)
}

fn last_lines(mut lines: Vec<String>) -> Vec<String> {
    lines.split_off(lines.len().saturating_sub(TAIL_LINES))
}

/// The non-blank lines of an output, without control characters, which could manipulate a terminal.
fn lines_of(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let printable = |line: &str| line.chars().filter(|c| !c.is_control()).collect::<String>();
    text.lines().map(|line| printable(line).trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// The end of an output, read by a thread so that its writer never blocks.
#[derive(Debug)]
struct Capture {
    state: Arc<(Mutex<Captured>, Condvar)>,
}

#[derive(Debug, Default)]
struct Captured {
    tail: VecDeque<u8>,
    ended: bool,
    log_error: Option<io::Error>,
}

impl Capture {
    /// `log` gets everything up to the first write error, which is stored.
    fn start(name: &str, source: OwnedFd, mut log: Option<File>) -> io::Result<Capture> {
        let state = Arc::new((Mutex::new(Captured::default()), Condvar::new()));
        let shared = Arc::clone(&state);
        let mut source = File::from(source);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let read = match source.read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Ok(read) => read,
                    // A connection reset is the end of the output, too.
                    Err(_) => 0,
                };
                let logged = log.as_mut().map(|log| log.write_all(buffer.get(..read).unwrap_or_default()));
                let (captured, changed) = &*shared;
                let mut captured = captured.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(Err(error)) = logged {
                    log = None;
                    captured.log_error = Some(error);
                }
                captured.tail.extend(buffer.get(..read).unwrap_or_default());
                let excess = captured.tail.len().saturating_sub(TAIL);
                captured.tail.drain(..excess);
                if read == 0 {
                    captured.ended = true;
                    changed.notify_all();
                    return;
                }
            }
        })?;
        Ok(Capture { state })
    }

    fn lock(&self) -> MutexGuard<'_, Captured> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self) -> Vec<u8> {
        self.lock().tail.iter().copied().collect()
    }

    /// Waits for the rest of the output after its writer has ended.
    fn wait_for_end(&self) {
        drop(self.state.1.wait_timeout_while(self.lock(), DRAIN, |captured| !captured.ended));
    }

    /// All lines, after the writer has ended.
    fn lines(&self) -> Vec<String> {
        self.wait_for_end();
        lines_of(&self.bytes())
    }
}

mod start;
#[cfg(test)]
mod tests;
