//! The signals of this process: those that a run passes on to its command, and those that end a server or another job.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fs, io, thread};

use inarch_jobs::run::SignalSource;
use inarch_jobs::serve::StopHandle;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// Signals to pass on: requests to a program, and others whose default would end this process and leave the terminal
/// raw. Not those of job control, which concern this process, nor those of its own faults.
const PASSED_ON: [i32; 12] =
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXCPU];

/// Has a write beyond the limit of file sizes (`RLIMIT_FSIZE`) fail with `EFBIG`, which is reported as other errors are, instead of
/// ending this process. Programs that it executes do not inherit that: a handler does not outlive execve(2).
pub fn survive_size_limit() {
    if !not_ignored(&[SIGXFSZ]).is_empty() {
        // If it cannot be caught, it ends this process as before.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

/// Catches signals until it is dropped; from then on they do what they do by default.
#[derive(Debug)]
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// Our own end, to wait on.
    readable: UnixStream,
    nobody_listens: Arc<AtomicBool>,
}

impl Signals {
    /// Catches the signals to pass on, except those that this process ignores. With `--profile`, SIGPROF is this process's own.
    pub fn watch() -> io::Result<Box<dyn SignalSource>> {
        let mut wanted = not_ignored(&PASSED_ON);
        wanted.retain(|signal| *signal != SIGPROF || signal_set("SigCgt:") & (1 << (SIGPROF - 1)) == 0);
        let nobody_listens = default_handlers(&wanted)?;
        let (read, write) = UnixStream::pair()?;
        let readable = read.try_clone()?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, &wanted)?;
        nobody_listens.store(false, Ordering::SeqCst);
        Ok(Box::new(Self { delivery, readable, nobody_listens }))
    }
}

impl SignalSource for Signals {
    fn pending(&mut self) -> Vec<i32> {
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

/// SIGINT and SIGTERM, which do not end the process any more: they wait until they lead to something.
pub struct EndingSignals(signal_hook::iterator::Signals);

impl EndingSignals {
    /// Catches them from now on.
    pub fn catch() -> io::Result<EndingSignals> {
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map(EndingSignals)
    }

    /// Starts a thread, as confined as the calling one: the first signal stops the server, the second ends the
    /// process.
    pub fn lead_to(mut self, server: StopHandle) {
        thread::spawn(move || {
            for signal in self.0.forever() {
                if server.is_stopped() {
                    // What the server leaves is cleared away by its guard, which sees our end.
                    std::process::exit(128 + signal);
                }
                server.stop();
            }
        });
    }
}

/// SIGINT, SIGTERM and SIGHUP from when there is something to tidy up before they end this process.
#[derive(Clone, Debug, Default)]
pub struct TidyingSignals {
    job: Arc<OnceLock<StopHandle>>,
    /// The last one that came; 0 if none did.
    caught: Arc<AtomicI32>,
}

impl TidyingSignals {
    /// Catches them from now on: they stop the job. If they cannot be caught, they end the process, as before.
    pub fn catch(&self) {
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
        let TidyingSignals { job, caught } = self.clone();
        thread::spawn(move || {
            for signal in signals.forever() {
                caught.store(signal, Ordering::SeqCst);
                job.wait().stop();
            }
        });
    }

    /// What they stop.
    pub fn lead_to(&self, job: StopHandle) {
        // Only one job is started with them.
        let _ = self.job.set(job);
    }

    /// When the job has stopped: ends this process as the signal would have done.
    pub fn end_as_they_would(&self) {
        let signal = self.caught.load(Ordering::SeqCst);
        if signal != 0 {
            // If that fails, the error is enough.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }
}

/// `signal_hook` never removes a handler, which then swallows signals without a listener. These handlers do what the
/// signals do by default. Installed once for each process.
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

/// Leaves Ctrl-C and Ctrl-\ to the programs that `work` runs, which may take them for something else than an end: an editor does. This process goes on.
///
/// # Errors
/// The signals cannot be caught.
pub fn leave_interrupts<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let nobody_works = Arc::new(AtomicBool::new(false));
    for signal in not_ignored(&INTERRUPTS) {
        // A handler, which a program that is started does not inherit.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&nobody_works))?;
    }
    let done = work();
    nobody_works.store(true, Ordering::SeqCst);
    Ok(done)
}

/// Requests to end, from the terminal.
pub const INTERRUPTS: [i32; 2] = [SIGINT, SIGQUIT];

/// Requests to end, from elsewhere.
pub const TERMINATIONS: [i32; 2] = [SIGTERM, SIGHUP];

/// From now on calls `last` before one of `signals` ends this process, within [`leave_interrupts`] as well.
pub fn end_by(signals: &[i32], last: impl FnOnce() + Send + 'static) {
    let wanted = not_ignored(signals);
    // If they cannot be caught, they end the process all the same.
    let Ok(mut signals) = signal_hook::iterator::Signals::new(wanted) else { return };
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            last();
            // That cannot fail: the signals are those that can be caught.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
}

/// Catches SIGINT, SIGTERM and SIGHUP. The first signal sets a flag, which the work polls. The second signal ends this process.
#[derive(Clone, Debug, Default)]
pub struct NotedSignals(Arc<AtomicUsize>);

impl NotedSignals {
    /// Notes them from now on. Those that cannot be caught end the process, as before.
    pub fn catch() -> NotedSignals {
        let (noted, again) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        for signal in not_ignored(&[SIGINT, SIGTERM, SIGHUP]) {
            // In this order: the first signal finds `again` unset.
            let _ = signal_hook::flag::register_conditional_default(signal, Arc::clone(&again))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&again)))
                .and_then(|_| signal_hook::flag::register_usize(signal, Arc::clone(&noted), signal as usize));
        }
        NotedSignals(noted)
    }

    /// An error once one has come.
    pub fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::SeqCst) != 0 { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }

    /// Ends this process as the signal would have done, if one has come.
    pub fn end_as_they_would(&self) {
        if let Some(signal) = i32::try_from(self.0.load(Ordering::SeqCst)).ok().filter(|signal| *signal != 0) {
            // If that fails, the exit status is enough.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }
}

/// Those of `signals` that this process does not ignore. Under nohup(1) or in a shell's background it ignores some, which stay ignored.
pub fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let ignored = signal_set("SigIgn:");
    signals.iter().copied().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect()
}

/// A set of this process's signals, by its name in `/proc/self/status` (proc(5)): signal N is bit N-1.
fn signal_set(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
