//! Catches the signals that a session passes on to the command.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fs, io};

use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// Signals that request something, and others whose default action ends the process, which would leave the terminal in
/// raw mode. Not those of job control, which concern this process, nor those of its own faults.
const PASSED_ON: [i32; 12] =
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXCPU];

/// Catches signals until it is dropped; after that they have their default action.
#[derive(Debug)]
pub(super) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// Readable when a signal has come.
    readable: UnixStream,
    nobody_listens: Arc<AtomicBool>,
}

impl Signals {
    pub(super) fn watch() -> io::Result<Self> {
        let ignored = ignored_signals();
        let wanted: Vec<i32> = PASSED_ON.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect();
        let nobody_listens = default_handlers(&wanted)?;
        let (read, write) = UnixStream::pair()?;
        let readable = read.try_clone()?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, &wanted)?;
        nobody_listens.store(false, Ordering::SeqCst);
        Ok(Self { delivery, readable, nobody_listens })
    }

    /// The signals since the last call.
    pub(super) fn pending(&mut self) -> Vec<i32> {
        self.delivery.pending().collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.nobody_listens.store(true, Ordering::SeqCst);
    }
}

/// A handler of `signal_hook` stays installed for good, and swallows the signal when nobody listens. These handlers
/// then perform the default action. Installed once in each process.
fn default_handlers(signals: &[i32]) -> io::Result<Arc<AtomicBool>> {
    static NOBODY_LISTENS: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(flag) = NOBODY_LISTENS.get() {
        return Ok(Arc::clone(flag));
    }
    let flag = Arc::new(AtomicBool::new(true));
    for signal in signals {
        signal_hook::flag::register_conditional_default(*signal, Arc::clone(&flag))?;
    }
    Ok(Arc::clone(NOBODY_LISTENS.get_or_init(|| flag)))
}

/// The mask of signals that this process ignores, as under nohup(1) or in a shell's background; they stay ignored.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
