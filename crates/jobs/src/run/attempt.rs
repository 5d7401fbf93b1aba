//! One boot: disks, machine, session.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use inarch_block::Device;
use inarch_vhost::Pending;
use inarch_vhost::blk::{BlkOptions, BlkServer};
use inarch_vm::accel::Accel;
use inarch_vm::kernel::Kernel;
use inarch_vm::machine::{self, Machine, Source};
use inarch_vm::process::{Process, Symptom};
use inarch_vm::protocol::SessionRequest;
use inarch_vm::qemu::{Qemu, QemuCommand};
use inarch_vm::session::{Report, Session, SessionError, SessionOptions, Streams};
use rustix::fs::MemfdFlags;

use super::trees::Disk;
use crate::JobError;
use crate::device::{ANNOUNCED_BYTES, Prepared};
use crate::notes::notes;

/// A disk whose device is being made in the background.
pub(super) struct LiveDisk {
    source: PathBuf,
    serial: String,
    read_only: bool,
    pending: Arc<Pending<Device>>,
    writable: Arc<OnceLock<u64>>,
}

/// What went wrong with a disk, and the machine that must not wait for it.
#[derive(Default)]
pub(super) struct DiskFailure {
    state: Mutex<(Option<JobError>, Option<Arc<Process>>)>,
}

impl DiskFailure {
    fn set(&self, error: JobError) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.get_or_insert(error);
        if let Some(process) = &state.1 {
            process.kill();
        }
    }

    /// From now on a failure ends `process`; one that was there before does so at once.
    fn watch(&self, process: &Arc<Process>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0.is_some() {
            process.kill();
        }
        state.1 = Some(Arc::clone(process));
    }

    /// The failure, if there was one.
    pub fn take(&self) -> Option<JobError> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

impl LiveDisk {
    /// Begins to make the device of `disk`; calls `ready` when it is there.
    pub fn start(disk: &Disk, failure: &Arc<DiskFailure>, ready: impl FnOnce(&Prepared) + Send + 'static) -> LiveDisk {
        let pending = Arc::new(Pending::new());
        let live = LiveDisk {
            source: disk.recipe.source.clone(),
            serial: disk.serial.clone(),
            read_only: disk.read_only,
            pending: Arc::clone(&pending),
            writable: Arc::default(),
        };
        let writable = Arc::clone(&live.writable);
        let (recipe, failure) = (disk.recipe.clone(), Arc::clone(failure));
        thread::spawn(move || match recipe.prepare() {
            Ok(prepared) => {
                // Only this thread sets it.
                prepared.writable_bytes().map(|bytes| writable.set(bytes));
                pending.set(Ok(Arc::clone(&prepared.device)));
                ready(&prepared);
            }
            Err(error) => {
                pending.set(Err(error.to_string()));
                failure.set(error);
            }
        });
        live
    }

    /// A disk that nobody makes: for a machine that is not started.
    pub fn idle(disk: &Disk) -> LiveDisk {
        LiveDisk {
            source: disk.recipe.source.clone(),
            serial: disk.serial.clone(),
            read_only: disk.read_only,
            pending: Arc::new(Pending::new()),
            writable: Arc::default(),
        }
    }

    /// What the user should know of the disk at the end of its use.
    pub fn notes(&self) -> Vec<String> {
        let device = self.pending.get().and_then(Result::ok);
        device.map(|device| notes(device, &self.source, self.writable.get().copied())).unwrap_or_default()
    }

    /// Serves the disk on one end of a new connection; gives the other.
    fn connect(&self, queues: u16) -> Result<OwnedFd, JobError> {
        let (ours, theirs) = pair()?;
        let options = BlkOptions {
            queues,
            capacity: ANNOUNCED_BYTES,
            read_only: self.read_only,
            serial: self.serial.as_str().into(),
            ..BlkOptions::default()
        };
        let server = BlkServer::new(Arc::clone(&self.pending), options);
        // It ends when QEMU does. What goes wrong on the way is an error status in the guest; the device remembers why.
        thread::spawn(move || server.serve_stream(ours));
        Ok(theirs)
    }
}

/// What a guest is made of, for any number of attempts to boot it.
pub(super) struct Guest {
    pub qemu: Qemu,
    pub kernel: Kernel,
    pub initramfs: Vec<u8>,
    pub cpus: u32,
    pub memory: u64,
    pub network: bool,
}

/// The sockets on our side of a machine.
struct Ends {
    agent: UnixStream,
    console: OwnedFd,
}

impl Guest {
    /// Boots and holds the session.
    ///
    /// # Errors
    /// [`JobError::Guest`] with [`GuestFailure::Silent`](inarch_vm::process::GuestFailure::Silent) if the guest does
    /// not speak within `patience`; the command was not started then.
    pub fn attempt(
        &self,
        accel: Accel,
        disks: &[LiveDisk],
        failure: &DiskFailure,
        patience: Duration,
        session: impl FnOnce(Session) -> Result<Report, SessionError>,
    ) -> Result<Report, JobError> {
        let (command, ends) = self.machine(accel, disks)?;
        let process = Arc::new(Process::spawn(command, ends.console)?);
        failure.watch(&process);
        let result = Session::greet(ends.agent, patience).and_then(session);
        if let Some(error) = failure.take() {
            process.kill();
            return Err(error);
        }
        match result {
            Ok(report) if report.outcome == inarch_vm::session::Outcome::GuestDied => {
                Err(process.explain(Symptom::Closed).into())
            }
            Ok(report) => {
                process.kill();
                Ok(report)
            }
            Err(SessionError::Closed) => Err(process.explain(Symptom::Closed).into()),
            Err(SessionError::NoHello { waited }) => Err(process.explain(Symptom::Silence(waited)).into()),
            Err(error) => {
                process.kill();
                Err(error.into())
            }
        }
    }

    /// The command line, for people to read: its descriptors are not connected to anything.
    pub fn command_line(&self, accel: Accel, disks: &[LiveDisk]) -> Result<String, JobError> {
        Ok(self.machine(accel, disks)?.0.shell_line())
    }

    fn machine(&self, accel: Accel, disks: &[LiveDisk]) -> Result<(QemuCommand, Ends), JobError> {
        let (agent, agent_theirs) = pair()?;
        let (console, console_theirs) = pair()?;
        let queues = self.cpus.clamp(1, 8) as u16;
        let disks = disks
            .iter()
            .enumerate()
            .map(|(i, disk)| {
                let socket = Source::Descriptor(disk.connect(queues)?);
                Ok(machine::Disk { socket, id: format!("tree{i}"), queues })
            })
            .collect::<Result<_, JobError>>()?;
        let machine = Machine {
            kernel: self.kernel.clone(),
            initramfs: Some(Source::Descriptor(in_memory(&self.initramfs)?)),
            parameters: Vec::new(),
            accel,
            cpus: self.cpus,
            memory: self.memory,
            agent: Some(Source::Descriptor(agent_theirs)),
            console: Source::Descriptor(console_theirs),
            disks,
            network: self.network,
        };
        Ok((machine.command(&self.qemu), Ends { agent, console: console.into() }))
    }
}

/// Holds the session of `request` with this process's streams and signals.
pub(super) fn hold(
    session: Session,
    request: &SessionRequest,
    streams: Streams,
    timeout: Option<Duration>,
) -> Result<Report, SessionError> {
    let warn = |line: &str| eprintln!("inarch: {line}");
    session.run(request, streams, &SessionOptions { timeout, signals: true, warn: &warn, ..SessionOptions::default() })
}

fn pair() -> Result<(UnixStream, OwnedFd), JobError> {
    let (ours, theirs) =
        UnixStream::pair().map_err(|error| JobError::Other(format!("cannot make a socket: {error}")))?;
    Ok((ours, theirs.into()))
}

/// A file without a name that holds `bytes`.
fn in_memory(bytes: &[u8]) -> Result<OwnedFd, JobError> {
    let make = || -> std::io::Result<OwnedFd> {
        let mut file = std::fs::File::from(rustix::fs::memfd_create("initramfs", MemfdFlags::CLOEXEC)?);
        std::io::Write::write_all(&mut file, bytes)?;
        Ok(file.into())
    };
    make().map_err(|error| JobError::Other(format!("cannot keep the initramfs in memory: {error}")))
}
