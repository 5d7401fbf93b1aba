//! Serves the view of a command, and waits for its end.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use inarch_fuse::{ConnectionOptions, ReadDirPlus, RequestCounts, Session, SessionOptions};
use inarch_lifecycle::LifecycleError;
use inarch_lifecycle::PathError;
use inarch_lifecycle::confinement::{Access, Confinement, Grants};
use inarch_lifecycle::guard::{Guard, Guarded};
use inarch_lifecycle::scratch::Scratch;
use inarch_mount::{DEVICE, Detached, FuseAccess, Mount};
use inarch_vfs::{Changes, FileSystem, HostDirectory, HostOptions, RecordLevel, Recorder, Recording, Submounts};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};
use rustix::thread::{CapabilitySet, capabilities};

use super::descriptors::inherited;
use super::duty::{Duty, TraceEvent};
use super::processes::{Observer, TracedProcess};
use super::statistics::{Calls, Statistics, calls, processor_time, requests};
use super::touched::{Gathering, Touched};
use super::view::{ENTERED, outermost, outside_by_itself, send, words};
use super::{TraceError, TraceReport, TraceRequest};
use crate::record::processes::Processes;

/// How long processes may outlive the command before that is worth a line.
const GRACE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Whether the command was ended by someone at its terminal, or by a program that ends others; a shell says so by a status.
pub(super) fn was_interrupted(status: ExitStatus) -> bool {
    let interrupts = [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    let signal = status.signal().or(status.code().and_then(|code| code.checked_sub(128)));
    signal.is_some_and(|signal| interrupts.contains(&signal))
}

/// This machine's files, for a view.
pub(super) fn host(read_only: bool) -> Result<Arc<HostDirectory>, TraceError> {
    let options = HostOptions {
        changes: Changes::Host,
        read_only,
        submounts: Submounts::Merged,
        host_files_from: HostOptions::PASSTHROUGH_FROM,
        ..HostOptions::default()
    };
    let fail = |error: inarch_vfs::HostError| PathError::new(&error.path, "cannot open it", error.error);
    let host = HostDirectory::new(Path::new("/"), options).map_err(fail)?;
    // Until the view exists: its mounts are placed at mount points of this machine, and the server behind one of those may not answer.
    host.leave_servers_alone(true);
    Ok(Arc::new(host))
}

/// What a command gets from its starter: standard streams, by default those of this process, and the soft limit of
/// descriptors, by default the present one.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub input: Option<Stdio>,
    pub output: Option<Stdio>,
    pub errors: Option<Stdio>,
    pub limit: Option<u64>,
}

/// The outermost paths that are not recorded.
pub(super) fn outside_of(request: &TraceRequest) -> Vec<PathBuf> {
    outermost(outside_by_itself().into_iter().chain(request.outside.iter().cloned()).collect())
}

/// Runs the command with `layer`, which is over `host`, as its root directory, and records what it does there, ignored paths included. `confinement`
/// is that of the threads that serve it. Calls `started` with a pidfd of the command. It dies with this thread.
pub(super) fn run_in_view(
    request: &TraceRequest,
    (layer, host): (Arc<dyn FileSystem>, &HostDirectory),
    confinement: Confinement,
    given: Given,
    duty: &Duty,
    started: impl FnOnce(OwnedFd),
) -> Result<TraceReport, TraceError> {
    let outside = outside_of(request);
    let setup = |what| move |error: io::Error| LifecycleError::Setup { what, error };
    let mut inherited = inherited(&outside).map_err(setup("a list of the open files"))?;
    let own = [given.input.is_some(), given.output.is_some(), given.errors.is_some()];
    inherited.retain(|one| !own.get(one.descriptor as usize).is_some_and(|is_own| *is_own));
    let name = format!("inarch-trace-{}-{:016x}", std::process::id(), unknown_number());
    let listener = SocketAddr::from_abstract_name(&name).and_then(|name| UnixListener::bind_addr(&name));
    let listener = listener.map_err(setup("a socket"))?;
    let socket = OsString::from(name);
    let Given { input, output, errors, limit } = given;
    let limit = limit.map_or_else(OsString::new, |soft| soft.to_string().into());
    let (view, device) = View::new()?;
    let mut child = Command::new("/proc/self/exe");
    child.args(words((&socket, view.point(), &limit), &outside, &request.command));
    input.map(|input| child.stdin(input));
    output.map(|output| child.stdout(output));
    errors.map(|errors| child.stderr(errors));
    let spawned = child.spawn().map_err(setup("a process"))?;
    // Our ends of its streams close here.
    drop(child);
    let mut child = spawned;
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let handle = handle.map_err(|errno| setup("a pidfd")(errno.into()))?;
    // While it starts.
    let served = Served::start(device, request, layer, confinement);
    let entered =
        served.and_then(|served| Ok((view.enter(&listener, (&child, &handle), host, &served.recording)?, served)));
    let ((stream, namespace), served) = match entered {
        Ok(entered) => entered,
        Err(error) => {
            return Err(early_end(&mut child, error));
        }
    };
    let (began, time) = (Instant::now(), processor_time());
    started(handle.try_clone().map_err(setup("a descriptor"))?);
    let failure = failure(&stream).map_err(|error| early_end(&mut child, error))?;
    let (status, calls) = wait_for(&mut child, &handle, duty)?;
    let elapsed = began.elapsed();
    duty.events.emit(TraceEvent::CommandEnded);
    if let Some((status, reason)) = failure {
        return Err(TraceError::NotExecuted { status, reason });
    }
    let counts = Arc::clone(&served.counts);
    let Recorded { touched, accesses, processes, is_complete } = served.finish(&namespace, duty)?;
    let processor_time = processor_time().saturating_sub(time);
    let statistics = Statistics { requests: requests(&counts), calls, elapsed, processor_time };
    let is_outside = |path: &Path| outside.iter().any(|outside| path.starts_with(outside));
    let touched = touched.without(is_outside);
    let (trees, verification) = (Vec::new(), None);
    Ok(TraceReport {
        status,
        is_timed_out: false,
        touched,
        outside,
        inherited,
        accesses,
        processes,
        lacks_processes: false,
        statistics,
        trees,
        verification,
        is_complete,
    })
}

/// Ends a child that has not become the command, and says why it has not: somebody at the terminal may have ended it.
fn early_end(child: &mut Child, error: TraceError) -> TraceError {
    // It waits for its view, or has ended. Then its status is what it was.
    let _ = child.kill();
    match child.wait() {
        Ok(status) if was_interrupted(status) => TraceError::Interrupted(status),
        _ => error,
    }
}

/// A number that nobody else can know.
fn unknown_number() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Waits for the command's end, and tells when it is stopped. Returns its calls, too, where the kernel counts them.
fn wait_for(child: &mut Child, handle: &OwnedFd, duty: &Duty) -> Result<(ExitStatus, Option<Calls>), TraceError> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::PidFd(handle.as_fd()), options) {
            Ok(Some(status)) if status.stopped() => {
                // Take the stop away, so that the next one is seen.
                let _ = waitid(WaitId::PidFd(handle.as_fd()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
                duty.events.emit(TraceEvent::CommandStopped);
            }
            Err(Errno::INTR) => {}
            Ok(_) => {
                // They are gone with the wait.
                let calls = calls(child.id());
                return Ok((child.wait().map_err(LifecycleError::Wait)?, calls));
            }
            Err(errno) => return Err(LifecycleError::Wait(errno.into()).into()),
        }
    }
}

/// The mount of a view, before the child has it.
enum View {
    /// For root: mounted nowhere.
    Detached(Detached),
    /// For a user: on a directory of its own. Dropped in this order.
    Attached { mount: Mount, guard: Guard, directory: Scratch },
}

impl View {
    /// Mounts it; returns the device for a session.
    fn new() -> Result<(View, OwnedFd), TraceError> {
        let may_mount = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        let source = Path::new("trace");
        if may_mount {
            let (mount, device) = Detached::fuse(source, MountAttrFlags::empty()).map_err(TraceError::View)?;
            return Ok((View::Detached(mount), device));
        }
        let directory = Scratch::within(&std::env::temp_dir())?;
        let (mount, device, guard) = Guard::of_fuse(directory.path(), source, FuseAccess::Change, Guarded::Mount)?;
        Ok((View::Attached { mount, guard, directory }, device))
    }

    /// Where it is mounted; empty if nowhere.
    fn point(&self) -> &Path {
        match self {
            View::Detached(_) => Path::new(""),
            View::Attached { directory, .. } => directory.path(),
        }
    }

    /// Waits until the child has it as its root, takes it away from here, and lets the child and the recording begin. Returns the child's stream, and its mount namespace.
    fn enter(
        self,
        listener: &UnixListener,
        (child, handle): (&Child, &OwnedFd),
        host: &HostDirectory,
        recording: &Recording,
    ) -> Result<(UnixStream, PathBuf), TraceError> {
        let wait = |error: io::Error| LifecycleError::Wait(error);
        let too_early = || wait(io::Error::other("the process that becomes the command ended too early"));
        let stream = loop {
            let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(handle, PollFlags::IN)];
            match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                polled => polled.map_err(|errno| wait(errno.into()))?,
            };
            if polled[0].revents().is_empty() {
                return Err(too_early().into());
            }
            let (stream, _) = listener.accept().map_err(wait)?;
            let peer = socket_peercred(&stream).map_err(|errno| wait(errno.into()))?;
            // Anybody who can read the child's command line can connect.
            if u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(child.id()) {
                break stream;
            }
        };
        if let View::Detached(mount) = &self {
            send(&stream, mount.root()).map_err(wait)?;
        }
        let mut status = [0];
        match (&stream).read(&mut status).map_err(wait)? {
            0 => return Err(too_early().into()),
            _ if status[0] == ENTERED => {}
            _ => {
                let (status, reason) = failure_of(status[0], &stream)?;
                return Err(TraceError::NotExecuted { status, reason });
            }
        }
        if let View::Attached { mount, mut guard, directory } = self {
            // The child's copy is in use.
            guard.unmount(mount, false)?;
            drop(directory);
        }
        // What the child does from here on is the command's.
        host.leave_servers_alone(false);
        recording.begin();
        (&stream).write_all(&[ENTERED]).map_err(wait)?;
        // A command that has ended already has none any more; then what it left behind is not named.
        let namespace = std::fs::read_link(format!("/proc/{}/ns/mnt", child.id())).unwrap_or_default();
        Ok((stream, namespace))
    }
}

/// Waits until the command is executed; why it was not.
fn failure(mut stream: &UnixStream) -> Result<Option<(u8, String)>, TraceError> {
    let mut status = [0];
    match stream.read(&mut status).map_err(LifecycleError::Wait)? {
        0 => Ok(None),
        _ => failure_of(status[0], stream).map(Some),
    }
}

/// Reads the rest of a failure; `status` is its first byte.
fn failure_of(status: u8, stream: &UnixStream) -> Result<(u8, String), TraceError> {
    const MOST: u64 = 4096;
    let mut reason = Vec::new();
    stream.take(MOST).read_to_end(&mut reason).map_err(LifecycleError::Wait)?;
    Ok((status, String::from_utf8_lossy(&reason).into_owned()))
}

/// What is negotiated with the kernel for a view.
fn session_options(request: &TraceRequest) -> SessionOptions {
    let connection = ConnectionOptions {
        // What is listed is not looked up yet.
        readdirplus: ReadDirPlus::Never,
        cache_symlinks: request.level == RecordLevel::Command,
        keeps_pages: true,
        posix_acl: true,
        kill_privileges: true,
        ..ConnectionOptions::default()
    };
    // In a container the host's files are on an overlayfs.
    SessionOptions { connection, passthrough_depth: 2, ..SessionOptions::default() }
}

/// What was recorded of a view.
struct Recorded {
    touched: Touched,
    accesses: u64,
    processes: Vec<TracedProcess>,
    /// Whether the last process has left the view.
    is_complete: bool,
}

/// A view that is served.
struct Served {
    recording: Recording,
    observer: Observer,
    counts: Arc<RequestCounts>,
    writer: Gathering,
    session: JoinHandle<Result<(), String>>,
    /// Readable at the session's end.
    ended: OwnedFd,
}

impl Served {
    /// Serves `layer` in threads of their own.
    fn start(
        device: OwnedFd,
        request: &TraceRequest,
        layer: Arc<dyn FileSystem>,
        confinement: Confinement,
    ) -> Result<Served, TraceError> {
        let recording = Recording::new(request.level).with_repeats().with_names().prepared();
        let observer = Observer::start().map_err(LifecycleError::Thread)?;
        let (processes, sight) = (Processes::default(), observer.sight());
        let process_of = move |thread, kind| {
            let process = processes.of(thread);
            sight.sees(process, kind);
            process
        };
        let layer = Arc::new(Recorder::new(layer, recording.clone(), process_of));
        let confinement = confinement.granted(Path::new(DEVICE), Access::Device)?;
        let session = Session::new(device, layer, session_options(request));
        let counts = session.counts();
        let writer = Touched::default().gather(&recording).map_err(LifecycleError::Thread)?;
        let (ended, ends) = io::pipe().map_err(|error| LifecycleError::Setup { what: "a pipe", error })?;
        let sandbox = request.sandbox;
        let session = thread::Builder::new().name("view".into()).spawn(move || {
            let _ends = ends;
            sandbox.enter(&confinement);
            session.run().map_err(|error| error.to_string())
        });
        let session = session.map_err(LifecycleError::Thread)?;
        Ok(Served { recording, observer, counts, writer, session, ended: ended.into() })
    }

    /// Waits until the last process has left the view, or until the trace is stopped. Returns what was
    /// recorded.
    fn finish(self, namespace: &Path, duty: &Duty) -> Result<Recorded, TraceError> {
        let mut polled = [PollFd::new(&self.ended, PollFlags::IN)];
        if poll(&mut polled, Some(&GRACE)) == Ok(0) {
            duty.events.emit(TraceEvent::Waiting { processes: processes_in(namespace) });
        }
        let is_over = duty.stop.wait_readable(&self.ended).map_err(LifecycleError::Wait)?;
        if is_over {
            let ended = self.session.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()));
            ended.map_err(TraceError::Served)?;
        }
        self.recording.end();
        let written = self.writer.join().map_err(|_| LifecycleError::Panicked)?;
        let (touched, accesses) = written.map_err(LifecycleError::Wait)?;
        Ok(Recorded { touched, accesses, processes: self.observer.finish(), is_complete: is_over })
    }
}

/// The processes in a mount namespace, and their names.
fn processes_in(namespace: &Path) -> Vec<(u32, String)> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_there =
        |number: &u32| std::fs::read_link(format!("/proc/{number}/ns/mnt")).is_ok_and(|there| there == namespace);
    let name = |number| std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    numbers.filter(is_there).map(|number| (number, name(number).trim_end().to_owned())).collect()
}
