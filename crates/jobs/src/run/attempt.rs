//! Boots a guest once: serves its disks, starts its machine and runs its session.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use inarch_lifecycle::LifecycleError;
use inarch_lifecycle::named::create_named;
use inarch_vm::accel::Accel;
use inarch_vm::command::MachineCommand;
use inarch_vm::kernel::Kernel;
use inarch_vm::machine::{self, Machine, PublishedPort};
use inarch_vm::process::{self, GuestFailure, Process, Symptom};
use inarch_vm::qemu::Qemu;
use inarch_vm::session::{Outcome, Report, Session, SessionError};
use rustix::fs::MemfdFlags;

use super::attach_error::AttachError;
use super::attached::OpenDisk;
use super::clock::Clock;
use super::failure::DiskFailure;
use super::live_disk::LiveDisk;
use super::shares::{SharedTree, Wire, connect_sockets};
use super::sockets::{Serving, Sockets, by_sockets, pair};
use super::unpacked::UnpackedTree;
use super::vmm::Program;
use super::{RunError, RunFault};
use crate::JobError;
use crate::share::QUEUE_SIZE;

/// How long a guest may take to switch itself off when its session is over.
const POWER_OFF: Duration = Duration::from_secs(30);

/// How long QEMU may then take to write what it keeps back of images.
const LAST_WRITES: Duration = Duration::from_secs(60);

/// Everything of a guest that does not change between boot attempts.
pub(super) struct Guest {
    pub program: Program,
    pub kernel: Kernel,
    pub firmware: Option<PathBuf>,
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
        clock: &Clock,
        session: impl FnOnce(Session) -> Result<Report, SessionError>,
    ) -> Attempt {
        // Forgets the broken ring of an earlier guest, which was started in vain.
        drop(failure.take_ring());
        let serving = Serving::default();
        let started = connected(|agent, console| {
            let initramfs = machine::Endpoint::Descriptor(in_memory(&self.initramfs)?);
            self.machine(accel, disks, Sockets::Served(failure, &serving), [agent, console, initramfs])
        })
        .and_then(|(command, ends)| {
            clock.machine_starts();
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
        clock.machine_took(process.cpu());
        let is_complete = was_complete(&result);
        let ring = failure.take_ring().filter(|_| !is_complete);
        let result = match (failure.take().or(ring), result) {
            (Some(error), _) => Err(error),
            (None, Ok(report)) if is_complete => Ok(report),
            (None, Ok(_) | Err(SessionError::Closed)) => Err(process.explain(Symptom::Closed).into()),
            (None, Err(SessionError::NoHello { waited })) => Err(process.explain(Symptom::Silence(waited)).into()),
            (None, Err(error)) => Err(error.into()),
        };
        let result = result.map_err(|error| self.explained(error));
        if !self.end(&process, result.is_ok()) {
            failure.tell_fault(RunFault::QemuKilled { waited: LAST_WRITES });
        }
        serving.wait();
        if let (Some(path), Some(error)) = (&self.console, process.log_error()) {
            failure.tell_fault(RunFault::Console { path: path.clone(), error: Arc::new(error) });
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
                let queues = shared.options.queues.unwrap_or(queues);
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
                disks.push(disk.served(sockets)?);
                continue;
            }
            let image = disk.of_machine(matches!(sockets, Sockets::Named));
            images.push(image.map_err(|error| LifecycleError::Setup { what: "a descriptor", error })?);
        }
        let machine = Machine {
            kernel: self.kernel.clone(),
            firmware: self.firmware.clone(),
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

/// Creates the file for the guest's console.
fn console_log(path: &Path) -> Result<File, JobError> {
    create_named(path).map_err(|error| JobError::path(path, "cannot write the guest's console there", error))
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

/// Whether a session went on to its end. A guest that powers off then takes its rings away.
fn was_complete(result: &Result<Report, SessionError>) -> bool {
    match result {
        Ok(report) => report.outcome != Outcome::GuestDied,
        // The command has ended, and only its output went nowhere.
        Err(error) => matches!(error, SessionError::Output { .. }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_whose_output_went_nowhere_was_complete() {
        let full = SessionError::Output { stream: "output", source: std::io::ErrorKind::StorageFull.into() };
        assert!(was_complete(&Err(full)) && !was_complete(&Err(SessionError::Closed)));
        let report = |outcome| Ok(Report { outcome, started: None, ended: None });
        assert!(was_complete(&report(Outcome::Exited(0))) && !was_complete(&report(Outcome::GuestDied)));
    }
}
