//! Boots a guest once: serves its disks, starts its machine and runs its session.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use inarch_block::{Device, ReadFiles};
use inarch_format::ext4::Numbering;
use inarch_vhost::blk::BlkServer;
use inarch_vhost::{Event, Pending};
use inarch_vm::accel::Accel;
use inarch_vm::command::MachineCommand;
use inarch_vm::kernel::Kernel;
use inarch_vm::machine::{self, Machine, PublishedPort};
use inarch_vm::process::{self, GuestFailure, Process, Symptom};
use inarch_vm::protocol::{ProcessEvent, SOCKET_OF_AGENT, SOCKET_OF_FIRST_TREE, SessionRequest};
use inarch_vm::qemu::Qemu;
use inarch_vm::session::{CatchSignals, Outcome, Report, Session, SessionError, SessionOptions, Streams};
use rustix::fs::MemfdFlags;

use super::RunError;
use super::attached::{AttachError, OpenDisk};
use super::cached::freshen;
use super::holding::{Held, Part};
use super::launch::Launch;
use super::report::{DiskReport, RunEvent};
use super::request::CatchSignalsOfRun;
use super::shares::{SharedTree, Wire, connect_sockets};
use super::trees::Disk;
use super::unpacked::UnpackedTree;
use super::vmm::Program;
use crate::JobError;
use crate::cache::Snapshot;
use crate::device::confinement::disk_among_others;
use crate::device::{Prepared, Watcher, disk_options};
use crate::events::Events;
use crate::kept::{Layered, WrittenDisk};
use crate::lifecycle::LifecycleError;
use crate::lifecycle::named::create_named;
use crate::notes::notes;
use crate::share::QUEUE_SIZE;
use crate::source::Source;
use crate::text::shown;

/// How long the scan of a guest's tree runs at the lowest priority: the guest needs its disk only when its kernel is
/// up. It runs on all processors, because the kernel boots on one most of the time. The time is limited, because beside
/// other work such threads get a hundredth of a processor.
const SCAN_PATIENCE: Duration = Duration::from_millis(1500);

/// How long a guest may take to switch itself off when its session is over.
const POWER_OFF: Duration = Duration::from_secs(30);

/// How long QEMU may then take to write what it keeps back of images.
const LAST_WRITES: Duration = Duration::from_secs(60);

/// A disk whose device is made in the background.
pub(super) struct LiveDisk {
    source: Source,
    serial: String,
    read_only: bool,
    hold: Option<Held>,
    pending: Arc<Pending<Device>>,
    writable: Arc<OnceLock<u64>>,
    /// Of the disk of a cache: the inode numbers that its tree has there.
    numbering: Arc<OnceLock<Numbering>>,
    /// Of the disk of a cache: which of its files are read.
    reads: Arc<OnceLock<Arc<ReadFiles>>>,
}

/// The failure of a disk, the machine that must not wait for the disk, and where the events of the run go.
#[derive(Debug)]
pub(super) struct DiskFailure {
    state: Mutex<(Option<JobError>, Option<Arc<Process>>)>,
    events: Events<RunEvent>,
}

impl DiskFailure {
    pub fn new(events: Events<RunEvent>) -> DiskFailure {
        DiskFailure { state: Mutex::default(), events }
    }

    /// Receives what happens in the run.
    pub fn events(&self) -> &Events<RunEvent> {
        &self.events
    }

    /// Tells that a part of the run failed which the guest can go on without.
    pub fn tell_fault(&self, fault: impl std::fmt::Display) {
        self.events.emit(RunEvent::Fault(fault.to_string()));
    }

    pub fn set(&self, error: JobError) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.get_or_insert(error);
        if let Some(process) = &state.1 {
            process.kill();
        }
    }

    /// From now on a failure ends `process`; an earlier failure ends it at once.
    fn watch(&self, process: &Arc<Process>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0.is_some() {
            process.kill();
        }
        state.1 = Some(Arc::clone(process));
    }

    /// Whether there was a failure, or the run was stopped.
    pub fn is_set(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    /// The failure, if there was one.
    pub fn take(&self) -> Option<JobError> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// Records into `reads` which files are read, beside what `other` records.
fn counting(other: Option<Watcher>, reads: Arc<OnceLock<Arc<ReadFiles>>>) -> Watcher {
    Watcher(Arc::new(move |content, tree| {
        let content =
            other.as_ref().map_or_else(|| Arc::clone(&content), |Watcher(watch)| watch(Arc::clone(&content), tree));
        let files = Arc::new(ReadFiles::new(content, tree.inode_count()));
        // The disk is made once.
        let _ = reads.set(Arc::clone(&files));
        files
    }))
}

impl LiveDisk {
    /// Begins to make the device of `disk`; calls `ready` when it exists.
    pub fn start(disk: &Disk, failure: &Arc<DiskFailure>, ready: impl FnOnce(&Prepared) + Send + 'static) -> LiveDisk {
        let live = LiveDisk::idle(disk);
        let (pending, writable) = (Arc::clone(&live.pending), Arc::clone(&live.writable));
        let numbering = matches!(disk.recipe.source, Source::Cache(_)).then(|| Arc::clone(&live.numbering));
        let (mut recipe, failure) = (disk.recipe.clone(), Arc::clone(failure));
        recipe.patience = SCAN_PATIENCE;
        if numbering.is_some() {
            recipe.trace = Some(counting(recipe.trace.take(), Arc::clone(&live.reads)));
        }
        thread::spawn(move || {
            freshen(&recipe.source, &failure);
            match recipe.prepare() {
                Ok(mut prepared) => {
                    // Only this thread sets them.
                    prepared.writable_bytes().map(|bytes| writable.set(bytes));
                    numbering.zip(prepared.numbering.take()).map(|(cell, numbering)| cell.set(numbering));
                    pending.set(Ok(Arc::clone(&prepared.device)));
                    ready(&prepared);
                }
                Err(error) => {
                    pending.set(Err(error.to_string()));
                    failure.set(error);
                }
            }
        });
        live
    }

    /// A disk whose device is never made, for a machine that is not started.
    pub fn idle(disk: &Disk) -> LiveDisk {
        LiveDisk {
            source: disk.recipe.source.clone(),
            serial: disk.serial.clone(),
            read_only: disk.read_only,
            hold: disk.hold.clone(),
            pending: Arc::new(Pending::new()),
            writable: Arc::default(),
            numbering: Arc::default(),
            reads: Arc::default(),
        }
    }

    /// The disk and its files to be held, if any.
    pub fn held_part(&self) -> Option<Part> {
        Some(Part { device: Arc::clone(&self.pending), held: self.hold.clone()? })
    }

    /// What the user should know of the disk after its use.
    pub fn notes(&self) -> Vec<String> {
        let device = self.pending.get().and_then(Result::ok);
        device.map(|device| notes(device, &self.source, self.writable.get().copied())).unwrap_or_default()
    }

    /// Whether it is a disk of this source.
    pub fn is_of(&self, source: &Source) -> bool {
        self.source == *source
    }

    /// The generation of a cache of which it was made.
    pub fn cache_snapshot(&self) -> Option<Arc<Snapshot>> {
        match &self.source {
            Source::Cache(cache) => cache.snapshot().cloned(),
            _ => None,
        }
    }

    /// The disk of a cache, with what the guest wrote to it.
    pub fn written(&self) -> Option<WrittenDisk> {
        self.pending.get()?.ok()?;
        let (device, snapshot) = (self.pending.wait().ok()?, self.cache_snapshot()?);
        let numbering = self.numbering.get()?.clone();
        let layered = Arc::new(Layered::plain(&snapshot.generation.tree));
        Some(WrittenDisk { layered, host: snapshot.content(), device, numbering })
    }

    /// How many files of a cache the guest has read, and how many of their bytes.
    pub fn cache_reads(&self) -> (u64, u64) {
        let device = self.pending.get().and_then(Result::ok);
        let files = self.reads.get().map_or(0, |reads| reads.count());
        (files, device.map_or(0, |device| device.events().file_bytes_read))
    }

    /// Counters of the guest's requests.
    pub fn report(&self) -> Option<DiskReport> {
        let device = self.pending.get().and_then(Result::ok);
        Some(DiskReport::of(device?))
    }

    /// Whether this guest wrote nothing to it.
    pub fn is_untouched(&self) -> bool {
        let device = self.pending.get().and_then(Result::ok);
        device.is_none_or(|device| device.events().bytes_written == 0)
    }

    /// Makes all writes durable.
    pub fn flush(&self) -> Result<(), JobError> {
        let device = self.pending.get().and_then(Result::ok);
        device
            .map_or(Ok(()), |device| device.flush())
            .map_err(|error| RunError::NotDurable { from: self.source.clone(), error }.into())
    }

    /// Serves the disk on one end of a new connection; returns the other.
    fn connect(&self, queues: u16, failure: &Arc<DiskFailure>) -> Result<OwnedFd, JobError> {
        let (ours, theirs) = pair()?;
        let options = disk_options(queues, self.read_only, &self.serial);
        let (source, failure) = (self.source.clone(), Arc::clone(failure));
        let faults = Arc::clone(&failure);
        let fail = move |reason: &dyn std::fmt::Display| {
            let what = format!("{source}: its disk can no longer be served");
            failure.set(RunError::Lost { what, reason: reason.to_string() }.into());
        };
        let fail = Arc::new(fail);
        let on_event = {
            let fail = Arc::clone(&fail);
            // A failed request is an error status in the guest, and the device records why. But for a stopped queue the
            // guest would wait for ever.
            move |event: Event| match event {
                Event::QueueStopped { .. } => fail(&event),
                Event::RequestPanicked { .. } => faults.tell_fault(event),
                _ => {}
            }
        };
        let server = BlkServer::new(Arc::clone(&self.pending), options).on_event(on_event);
        let confinement = disk_among_others(&self.source)?.ends_processes();
        // The thread ends when QEMU does.
        thread::spawn(move || {
            confinement.enter();
            if let Err(error) = server.serve_stream(ours) {
                fail(&error);
            }
        });
        Ok(theirs)
    }
}

/// Everything of a guest that does not change between boot attempts.
pub(super) struct Guest {
    pub program: Program,
    pub kernel: Kernel,
    pub initramfs: Vec<u8>,
    pub cpus: u32,
    pub memory: u64,
    pub raid: bool,
    pub network: bool,
    pub shares: Vec<SharedTree>,
    pub unpacked: Vec<UnpackedTree>,
    /// Disks that QEMU opens.
    pub attached: Arc<Vec<OpenDisk>>,
    pub published: Vec<PublishedPort>,
    /// Parameters for the kernel, and arguments for QEMU, from the user.
    pub parameters: Vec<String>,
    pub arguments: Vec<OsString>,
    /// The file for the output of the guest's kernel.
    pub console: Option<PathBuf>,
}

/// The result of a boot.
pub(super) struct Attempt {
    /// Whether the agent said HELLO. Then the command may have run, and must not run again.
    pub greeted: bool,
    /// The session's report, or the error that ended it early.
    pub result: Result<Report, JobError>,
}

/// The source of the sockets in a machine's command line.
#[derive(Clone, Copy)]
enum Sockets<'a> {
    /// Servers of this process, which report their failure here.
    Served(&'a Arc<DiskFailure>, &'a Serving),
    /// No servers: only names, for people to read.
    Named,
}

impl Sockets<'_> {
    /// The socket that `serve` returns, or the name alone.
    fn get(
        self,
        name: &str,
        serve: impl FnOnce(&Arc<DiskFailure>) -> Result<OwnedFd, JobError>,
    ) -> Result<machine::Endpoint, JobError> {
        match self {
            Sockets::Served(failure, _) => serve(failure).map(machine::Endpoint::Descriptor),
            Sockets::Named => Ok(machine::Endpoint::Path(format!("{name}.sock").into())),
        }
    }

    /// A disk that serves an image.
    fn of_image(self, disk: &OpenDisk) -> Result<machine::Disk, JobError> {
        let id = disk.serial.clone();
        let socket = self.get(&id, |failure| {
            let (socket, thread) = disk.serve(failure)?;
            if let Sockets::Served(_, serving) = self {
                serving.0.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
            }
            Ok(socket)
        })?;
        Ok(machine::Disk { socket, id, queues: 1 })
    }
}

/// The threads that serve images, which end when the machine does. Until then the images are in use.
#[derive(Default)]
struct Serving(Mutex<Vec<JoinHandle<()>>>);

impl Serving {
    /// Waits until the images are released.
    fn wait(self) {
        for thread in self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            // A server that panicked has released its image as well.
            let _ = thread.join();
        }
    }
}

/// Makes connections of the virtio socket device of the agent's port and the streams: those that are real, by their numbers.
fn by_sockets(
    agent: machine::Endpoint,
    streams: Vec<machine::Stream>,
) -> (Option<machine::Endpoint>, Vec<machine::Stream>, HashMap<u32, OwnedFd>) {
    let ports = streams.into_iter().enumerate().map(|(at, stream)| (SOCKET_OF_FIRST_TREE + at as u32, stream.socket));
    let ports = ports.chain([(SOCKET_OF_AGENT, agent)]).filter_map(|(port, socket)| match socket {
        machine::Endpoint::Descriptor(socket) => Some((port, socket)),
        machine::Endpoint::Path(_) => None,
    });
    (None, Vec::new(), ports.collect())
}

/// Our ends of a machine's sockets.
struct Ends {
    agent: UnixStream,
    console: OwnedFd,
}

impl Guest {
    /// QEMU, if the machine is one of it.
    pub fn qemu(&self) -> Option<&Qemu> {
        match &self.program {
            Program::Qemu(qemu) => Some(qemu),
            Program::Uml => None,
        }
    }

    /// Boots, waits at most `patience` for HELLO, and then runs the session.
    pub fn attempt(
        &self,
        accel: Option<Accel>,
        disks: &[LiveDisk],
        failure: &Arc<DiskFailure>,
        patience: Duration,
        session: impl FnOnce(Session) -> Result<Report, SessionError>,
    ) -> Attempt {
        let serving = Serving::default();
        let started = connected(|agent, console| {
            let initramfs = machine::Endpoint::Descriptor(in_memory(&self.initramfs)?);
            self.machine(accel, disks, Sockets::Served(failure, &serving), [agent, console, initramfs])
        })
        .and_then(|(command, ends)| {
            let log = self.console.as_deref().map(console_log).transpose()?;
            let process = Arc::new(Process::spawn(command, ends.console, log)?);
            Ok((process, ends.agent))
        });
        let (process, agent) = match started {
            Ok(started) => started,
            Err(error) => return Attempt { greeted: false, result: Err(error) },
        };
        failure.watch(&process);
        let (greeted, result) = match Session::greet(agent, patience) {
            Ok(live) => (true, session(live)),
            Err(error) => (false, Err(error)),
        };
        let result = match (failure.take(), result) {
            (Some(error), _) => Err(error),
            (None, Ok(report)) if report.outcome != Outcome::GuestDied => Ok(report),
            (None, Ok(_) | Err(SessionError::Closed)) => Err(process.explain(Symptom::Closed).into()),
            (None, Err(SessionError::NoHello { waited })) => Err(process.explain(Symptom::Silence(waited)).into()),
            (None, Err(error)) => Err(error.into()),
        };
        let result = result.map_err(|error| self.explained(error));
        if !self.end(&process, result.is_ok()) {
            let seconds = LAST_WRITES.as_secs();
            failure.tell_fault(format_args!(
                "QEMU did not end within {seconds} s, and was killed: what it had not written to the guest's disk images is lost"
            ));
        }
        serving.wait();
        if let (Some(path), Some(error)) = (&self.console, process.log_error()) {
            failure.tell_fault(format_args!("{}: the log of the guest's console is incomplete: {error}", shown(path)));
        }
        Attempt { greeted, result }
    }

    /// Ends the machine. QEMU writes what it keeps back of images when it ends by itself; false if it did not.
    fn end(&self, process: &Process, powers_off: bool) -> bool {
        let mut is_written = true;
        if !self.attached.is_empty() {
            if powers_off {
                process.wait(POWER_OFF);
            }
            if self.qemu().is_some() {
                is_written = process.terminate(LAST_WRITES);
            }
        }
        process.kill();
        is_written
    }

    /// In QEMU's message about a locked image a descriptor stands for the file.
    fn explained(&self, error: JobError) -> JobError {
        let JobError::Guest(GuestFailure::Qemu { message, tail, .. }) = &error else { return error };
        let words = tail.last().filter(|_| message.starts_with("Is another process using the image"));
        // QEMU repeats its argument, which has the disk's name.
        let is_locked = |disk: &&OpenDisk| {
            let names = [format!("drive={},", disk.serial), format!("\"{}\"", disk.serial)];
            words.is_some_and(|words| names.iter().any(|name| words.contains(name)))
        };
        match self.attached.iter().find(is_locked) {
            Some(disk) => {
                let (path, to_read) = (disk.path().to_owned(), disk.read_only);
                RunError::from(AttachError::InUse { path, to_read }).into()
            }
            None => error,
        }
    }

    /// The command line, for people to read: with names in place of descriptors. Starts nothing.
    pub fn command_line(&self, accel: Option<Accel>, disks: &[LiveDisk]) -> Result<String, JobError> {
        let ours = ["agent.sock", "console.log", "initramfs.cpio"].map(|name| machine::Endpoint::Path(name.into()));
        Ok(self.machine(accel, disks, Sockets::Named, ours)?.shell_line())
    }

    /// The machine with these disks. `ours` are the agent's socket, the console and the initramfs.
    fn machine(
        &self,
        accel: Option<Accel>,
        disks: &[LiveDisk],
        sockets: Sockets<'_>,
        ours: [machine::Endpoint; 3],
    ) -> Result<MachineCommand, JobError> {
        let [agent, console, initramfs] = ours;
        let (queues, is_uml) = (self.cpus.clamp(1, 8) as u16, self.qemu().is_none());
        let mut disks: Vec<_> = disks
            .iter()
            .enumerate()
            .map(|(i, disk)| {
                let id = format!("tree{i}");
                let socket = sockets.get(&id, |failure| disk.connect(queues, failure))?;
                Ok(machine::Disk { socket, id, queues })
            })
            .collect::<Result<_, JobError>>()?;
        let shares = self
            .shares
            .iter()
            .filter(|shared| shared.wire == Wire::Virtiofs)
            .map(|shared| {
                let socket = sockets.get(&shared.tag, |failure| shared.connect(queues, is_uml, failure))?;
                Ok(machine::Share { socket, tag: shared.tag.clone(), queues, queue_size: QUEUE_SIZE })
            })
            .collect::<Result<_, JobError>>()?;
        let by_socket: Vec<_> = self.shares.iter().filter(|shared| shared.wire == Wire::Ninep).collect();
        let forwards = self
            .shares
            .iter()
            .filter(|shared| shared.wire == Wire::NinepOverTcp)
            .map(|shared| {
                let socket = sockets.get(&shared.tag, |failure| shared.connect_ninep(failure))?;
                Ok(machine::Forward { socket, id: shared.tag.clone(), port: shared.port() })
            })
            .collect::<Result<_, JobError>>()?;
        let streams: Vec<_> = self
            .unpacked
            .iter()
            .map(|tree| {
                let socket = sockets.get(&tree.port(), |failure| tree.connect(failure))?;
                Ok(machine::Stream { socket, port: tree.port() })
            })
            .collect::<Result<_, JobError>>()?;
        let (agent, streams, ports) =
            if is_uml { by_sockets(agent, streams) } else { (Some(agent), streams, HashMap::new()) };
        let vsock = match by_socket.is_empty() && !is_uml {
            true => None,
            false => Some(sockets.get("sockets", |failure| connect_sockets(&by_socket, ports, failure))?),
        };
        let mut images = Vec::new();
        for disk in self.attached.iter() {
            if is_uml {
                disks.push(sockets.of_image(disk)?);
                continue;
            }
            let image = disk.of_machine(matches!(sockets, Sockets::Named));
            images.push(image.map_err(|error| LifecycleError::Setup { what: "a descriptor", error })?);
        }
        let machine = Machine {
            kernel: self.kernel.clone(),
            initramfs: Some(initramfs),
            parameters: self.parameters.clone(),
            verbose: self.console.is_some(),
            // User-Mode Linux has none.
            accel: accel.unwrap_or(Accel::Tcg),
            cpus: self.cpus,
            memory: self.memory,
            agent,
            console,
            disks,
            images,
            shares,
            sockets: vsock,
            forwards,
            streams,
            network: self.network,
            published: self.published.clone(),
            raid: self.raid,
            arguments: self.arguments.clone(),
        };
        match &self.program {
            Program::Qemu(qemu) => Ok(machine.command(qemu)),
            Program::Uml => Ok(machine.uml_command()?),
        }
    }
}

/// Calls `make` with the machine's ends of two connections, the agent's and the console's; returns our ends too.
fn connected<T>(
    make: impl FnOnce(machine::Endpoint, machine::Endpoint) -> Result<T, JobError>,
) -> Result<(T, Ends), JobError> {
    let (agent, agent_theirs) = pair()?;
    let console = process::console_pipe();
    let (console, console_theirs) = console.map_err(|error| LifecycleError::Setup { what: "a pipe", error })?;
    let made = make(machine::Endpoint::Descriptor(agent_theirs), machine::Endpoint::Descriptor(console_theirs))?;
    Ok((made, Ends { agent, console }))
}

/// A session's time limits.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// From HELLO to the command's start.
    pub start: Option<Duration>,
    /// From the command's start to its end.
    pub command: Option<Duration>,
}

impl Limits {
    /// After HELLO, waits until the root defines what to run; returns that and the remaining limits.
    pub fn wait_for(self, launch: &Receiver<Launch>) -> Result<(Launch, Limits), SessionError> {
        let began = Instant::now();
        let launch = match self.start {
            Some(start) => launch.recv_timeout(start),
            None => launch.recv().map_err(RecvTimeoutError::from),
        };
        let launch = launch.map_err(|error| match error {
            RecvTimeoutError::Timeout => SessionError::NotStarted { waited: self.start.unwrap_or_default() },
            // There will be none; the reason has been reported.
            RecvTimeoutError::Disconnected => SessionError::Closed,
        })?;
        Ok((launch, Limits { start: self.start.map(|start| start.saturating_sub(began.elapsed())), ..self }))
    }
}

/// Creates the file for the guest's console.
fn console_log(path: &Path) -> Result<File, JobError> {
    create_named(path).map_err(|error| JobError::path(path, "cannot write the guest's console there", error))
}

/// Runs the session of `request` with these streams, and signals from `catch`. Tells of warnings, and of the guest's processes.
pub(super) fn hold(
    session: Session,
    request: &SessionRequest,
    streams: Streams,
    limits: Limits,
    catch: Option<CatchSignalsOfRun>,
    events: &Events<RunEvent>,
    processes: &dyn Fn(Vec<ProcessEvent>),
) -> Result<Report, SessionError> {
    /// Further warnings are dropped.
    const MOST_WARNINGS: usize = 20;
    let told = Cell::new(0);
    let warn = |line: &str| {
        if told.replace(told.get() + 1) < MOST_WARNINGS {
            events.emit(RunEvent::Guest(line.to_owned()));
        }
    };
    let Limits { start, command: timeout } = limits;
    let signals = catch.as_ref().map(|catch| catch as &CatchSignals<'_>);
    let options = SessionOptions { start, timeout, signals, warn: &warn, processes, ..SessionOptions::default() };
    session.run(request, streams, &options)
}

pub(super) fn pair() -> Result<(UnixStream, OwnedFd), JobError> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| LifecycleError::Setup { what: "a socket", error })?;
    Ok((ours, theirs.into()))
}

/// A nameless file that contains `bytes`.
fn in_memory(bytes: &[u8]) -> Result<OwnedFd, JobError> {
    let make = || -> std::io::Result<OwnedFd> {
        let mut file = std::fs::File::from(rustix::fs::memfd_create("initramfs", MemfdFlags::CLOEXEC)?);
        std::io::Write::write_all(&mut file, bytes)?;
        Ok(file.into())
    };
    make().map_err(JobError::Initramfs)
}
