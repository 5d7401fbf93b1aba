//! Serves the view of a command, and waits for its end.

use std::ffi::OsString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use inarch_fuse::{ConnectionOptions, ReadDirPlus, Session, SessionOptions};
use inarch_mount::DEVICE;
use inarch_vfs::{Changes, HostDirectory, HostOptions, RecordLevel, Recorder, Recording, Submounts};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::handle::{Duty, TraceEvent, handle_of};
use super::touched::Touched;
use super::view::{DEVICE_COMES, outermost, outside_by_itself, words};
use super::{TraceError, TraceReport, TraceRequest};
use crate::PathError;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::confinement::{Access, Confinement, Grants, Work};
use crate::record::processes::Processes;

/// Smaller files that are only read go through the kernel's cache of the view: see the mount's.
const PASSTHROUGH_FROM: u64 = 256 << 10;

/// How long processes may outlive the command before that is worth a line.
const GRACE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The main function of a trace's thread. The command dies with this thread.
pub(super) fn trace(request: &TraceRequest, duty: &Duty) -> Result<TraceReport, TraceError> {
    let outside = outermost(outside_by_itself().into_iter().chain(request.outside.iter().cloned()).collect());
    let name = format!("inarch-trace-{}-{:016x}", std::process::id(), rand_number());
    let setup = |what| move |error: io::Error| LifecycleError::Setup { what, error };
    let listener = SocketAddr::from_abstract_name(&name).and_then(|name| UnixListener::bind_addr(&name));
    let listener = listener.map_err(setup("a socket"))?;
    let socket = OsString::from(name);
    let mut child = Command::new("/proc/self/exe")
        .args(words(&socket, &outside, &request.command))
        .spawn()
        .map_err(setup("a process"))?;
    let handle = handle_of(&child).map_err(setup("a pidfd"))?;
    let served = View::of_child(&listener, &child, &handle).and_then(|view| view.serve(request));
    let served = match served {
        Ok(served) => served,
        Err(error) => {
            // It waits for its view, or has ended.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    duty.is_ready(handle.try_clone().map_err(setup("a descriptor"))?);
    let failure = served.failure()?;
    let status = wait_for(&mut child, &handle, duty)?;
    if let Some((status, reason)) = failure {
        return Err(TraceError::NotExecuted { status, reason });
    }
    served.finish(status, outside, duty)
}

/// A number that nobody else can know.
fn rand_number() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Waits for the command's end, and tells when it is stopped.
fn wait_for(child: &mut Child, handle: &OwnedFd, duty: &Duty) -> Result<ExitStatus, TraceError> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::PidFd(handle.as_fd()), options) {
            Ok(Some(status)) if status.stopped() => {
                // Take the stop away, so that the next one is seen.
                let _ = waitid(WaitId::PidFd(handle.as_fd()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
                duty.events.emit(TraceEvent::CommandStopped);
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return child.wait().map_err(|error| LifecycleError::Wait(error).into()),
            Err(errno) => return Err(LifecycleError::Wait(errno.into()).into()),
        }
    }
}

/// A view that is mounted in the child's namespace, and not served yet.
struct View {
    stream: UnixStream,
    device: OwnedFd,
    /// The child's mount namespace.
    namespace: PathBuf,
}

impl View {
    /// Waits for the child's connection, and for the device.
    fn of_child(listener: &UnixListener, child: &Child, handle: &OwnedFd) -> Result<View, TraceError> {
        let wait = |error: io::Error| LifecycleError::Wait(error);
        let stream = loop {
            let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(handle, PollFlags::IN)];
            poll(&mut polled, None).map_err(|errno| wait(errno.into()))?;
            if polled[0].revents().is_empty() {
                return Err(wait(io::Error::other("the process that becomes the command ended too early")).into());
            }
            let (stream, _) = listener.accept().map_err(wait)?;
            let peer = socket_peercred(&stream).map_err(|errno| wait(errno.into()))?;
            // Anybody who can read the child's command line can connect.
            if u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(child.id()) {
                break stream;
            }
        };
        let device = receive_device(&stream)?;
        let namespace = std::fs::read_link(format!("/proc/{}/ns/mnt", child.id())).map_err(wait)?;
        Ok(View { stream, device, namespace })
    }

    /// Serves it in threads of their own.
    fn serve(self, request: &TraceRequest) -> Result<Served, TraceError> {
        let View { stream, device, namespace } = self;
        let options = HostOptions {
            changes: Changes::Guest,
            submounts: Submounts::Merged,
            host_files_from: PASSTHROUGH_FROM,
            ..HostOptions::default()
        };
        let root = Path::new("/");
        let fail = |error: inarch_vfs::HostError| PathError::new(&error.path, "cannot open it", error.error);
        let layer = Arc::new(HostDirectory::new(root, options).map_err(fail)?);
        let recording = Recording::new(request.level).with_repeats();
        let processes = Processes::default();
        let layer = Arc::new(Recorder::new(layer, recording.clone(), move |thread| processes.of(thread)));
        let mut confinement = Confinement::new(Work::Mount).granted(root, Access::Change)?;
        confinement = confinement.granted(Path::new(DEVICE), Access::Device)?;
        let session = Session::new(device, layer, session_options(request));
        let setup = |error| LifecycleError::Thread(error);
        let taken = recording.clone();
        let writer = thread::Builder::new().name("record".into()).spawn(move || {
            let mut touched = Touched::default();
            let accesses = taken.write_to(&mut touched)?;
            Ok((touched, accesses))
        });
        let writer = writer.map_err(setup)?;
        let (ended, ends) = io::pipe().map_err(|error| LifecycleError::Setup { what: "a pipe", error })?;
        let sandbox = request.sandbox;
        let session = thread::Builder::new().name("view".into()).spawn(move || {
            let _ends = ends;
            sandbox.enter(&confinement);
            session.run().map_err(|error| error.to_string())
        });
        let session = session.map_err(setup)?;
        Ok(Served { stream, namespace, recording, writer, session, ended: ended.into() })
    }
}

fn receive_device(stream: &UnixStream) -> Result<OwnedFd, TraceError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut first = [0];
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut first)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let received = received.map_err(|errno| LifecycleError::Wait(errno.into()))?;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut devices) => devices.next(),
        _ => None,
    });
    match device {
        Some(device) if first == [DEVICE_COMES] => Ok(device),
        _ if received.bytes == 0 => {
            let error = io::Error::other("the process that becomes the command ended too early");
            Err(LifecycleError::Wait(error).into())
        }
        _ => {
            let (status, reason) = failure_of(first[0], stream)?;
            Err(TraceError::NotExecuted { status, reason })
        }
    }
}

/// The rest of a failure, of which `status` is the first byte.
fn failure_of(status: u8, mut stream: &UnixStream) -> Result<(u8, String), TraceError> {
    const MOST: u64 = 4096;
    let mut reason = Vec::new();
    (&mut stream).take(MOST).read_to_end(&mut reason).map_err(LifecycleError::Wait)?;
    Ok((status, String::from_utf8_lossy(&reason).into_owned()))
}

/// What is negotiated with the kernel for a view.
fn session_options(request: &TraceRequest) -> SessionOptions {
    let connection = ConnectionOptions {
        // What is listed is not looked up yet.
        readdirplus: ReadDirPlus::Never,
        exclusive: true,
        cache_symlinks: request.level == RecordLevel::Command,
        posix_acl: true,
        kill_privileges: true,
        ..ConnectionOptions::default()
    };
    // In a container the host's files are on an overlayfs.
    SessionOptions { connection, passthrough_depth: 2, ..SessionOptions::default() }
}

/// A view that is served.
struct Served {
    stream: UnixStream,
    namespace: PathBuf,
    recording: Recording,
    writer: JoinHandle<io::Result<(Touched, u64)>>,
    session: JoinHandle<Result<(), String>>,
    /// Readable at the session's end.
    ended: OwnedFd,
}

impl Served {
    /// Waits until the command is executed; why it was not.
    fn failure(&self) -> Result<Option<(u8, String)>, TraceError> {
        let mut status = [0];
        match (&self.stream).read(&mut status).map_err(LifecycleError::Wait)? {
            0 => Ok(None),
            _ => failure_of(status[0], &self.stream).map(Some),
        }
    }

    /// Waits until the last process has left the view, or until the trace is stopped.
    fn finish(self, status: ExitStatus, outside: Vec<PathBuf>, duty: &Duty) -> Result<TraceReport, TraceError> {
        let mut polled = [PollFd::new(&self.ended, PollFlags::IN)];
        if poll(&mut polled, Some(&GRACE)) == Ok(0) {
            duty.events.emit(TraceEvent::Waiting { processes: processes_in(&self.namespace) });
        }
        let is_over = duty.stop.wait_readable(&self.ended).map_err(LifecycleError::Wait)?;
        if is_over {
            let ended = self.session.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()));
            ended.map_err(TraceError::Served)?;
        }
        self.recording.end();
        let written = self.writer.join().map_err(|_| LifecycleError::Panicked)?;
        let (touched, accesses) = written.map_err(LifecycleError::Wait)?;
        Ok(TraceReport { status, touched: touched.within(&outside), outside, accesses })
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
