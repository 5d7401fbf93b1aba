//! The machine of an appliance: a run of this program over the host's tree, in a process or in a virtual machine.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use inarch_format::disk::DiskFormat;
use inarch_lifecycle::Events;
use inarch_source::Source;
use inarch_tree::select::{Filter, PathList, Selection};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::Serialize;

use super::choice::Choice;
use super::wire::{self, Kind};
use super::{ARGUMENT, ApplianceError, ApplianceEvent, ApplianceRequest, error};
use crate::JobError;
use crate::run::{
    self, AttachedDisk, Outcome, Root, RunEvent, RunNote, RunRequest, RunStopper, Streams, TreeMount, Vmm, Way,
    WireOptions,
};
use crate::share::{Changes, Refused};

/// The directories of the host's root that an appliance has: those of programs, drivers and settings.
const OF_THE_HOST: [&str; 10] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "nix", "gnu"];

/// Parts of them that no tool needs. Files that an administrator puts into /usr/local may be as secret as those in /etc.
const NOT_NEEDED: [&str; 10] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/src",
    "usr/include",
    "usr/local/etc",
    "usr/local/share",
    "usr/local/src",
    "usr/local/games",
    "usr/local/include",
];

/// The settings of the host that the guest gets: those of the tools, and nothing secret. A guest whose kernel was taken over by
/// the image could write them into the image.
const SETTINGS: [&str; 15] = [
    "alternatives",
    "e2fsck.conf",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld-musl-*",
    "localtime",
    "lvm",
    "magic",
    "mke2fs.conf",
    "modprobe.d",
    "nsswitch.conf",
    "passwd",
    "xattr.conf",
];

/// Where the guest has this program, if it does not lie in those.
const PROGRAM: &str = "/run/inarch/program";

/// Processors: more take longer to start than they save.
const PROCESSORS: u32 = 1;

/// Memory by default: e2fsck of a large file system takes some.
const MEMORY: u64 = 512 << 20;

/// How long a machine that is not wanted any more may take to unmount and switch itself off.
const PATIENCE: Duration = Duration::from_secs(20);

/// A machine that runs this program.
#[derive(Debug)]
pub(super) struct Running {
    to: File,
    from: File,
    run: Option<run::RunHandle>,
    /// Whether the image may be written to.
    is_written: bool,
    /// The last line of the program's standard error.
    words: Arc<Mutex<VecDeque<u8>>>,
    greeted: Arc<OnceLock<Instant>>,
}

/// Starts the machine with the image as its disk.
pub(super) fn start(
    request: &ApplianceRequest,
    image: AttachedDisk,
    choice: Choice,
    events: &Events<ApplianceEvent>,
) -> Result<Running, ApplianceError> {
    let is_written = !image.read_only;
    let ((input, to), (from, output), (errors, error)) = (pipe()?, pipe()?, pipe()?);
    let words = Arc::<Mutex<VecDeque<u8>>>::default();
    listen(errors.into(), Arc::clone(&words)).map_err(ApplianceError::Stream)?;
    let (program, tree) = program().map_err(ApplianceError::Program)?;
    let command = vec![program.into_os_string(), OsString::from(ARGUMENT)];
    let usual = RunRequest::new(command, Streams { input: Some(input), output, error });
    let run = RunRequest {
        root: Root::Host,
        root_selection: root()?,
        own_environment: false,
        root_via: Way::Disk(DiskFormat::Ext4),
        root_read_only: true,
        hold: false,
        trees: tree.into_iter().chain(modules(choice.vmm)).collect(),
        disks: vec![image],
        with: request.with.clone(),
        working_directory: Some("/".into()),
        user: Some("0:0".to_owned()),
        kernel: request.kernel.clone(),
        vmm: choice.vmm,
        raid: choice.raid,
        kernel_parameters: choice.second_table.then(|| "gpt".to_owned()).into_iter().collect(),
        accel: request.accel,
        cpus: Some(PROCESSORS),
        memory: Some(request.memory.unwrap_or(MEMORY)),
        boot_timeout: request.boot_timeout,
        ..usual
    };
    let greeted = Arc::<OnceLock<Instant>>::default();
    let (told, first) = (events.clone(), Arc::clone(&greeted));
    let tell = move |event: RunEvent| {
        if let RunEvent::Acceleration { .. } | RunEvent::Uml = event {
            let _ = first.set(Instant::now());
        }
        told.emit(ApplianceEvent::Machine(event));
    };
    let run = run::start(run, Events::new(tell)).map_err(|error| ApplianceError::Machine(Box::new(error)))?;
    Ok(Running { to: to.into(), from: from.into(), run: Some(run), is_written, words, greeted })
}

impl Running {
    /// When the guest's agent spoke.
    pub fn greeted(&self) -> Option<Instant> {
        self.greeted.get().copied()
    }

    /// Ends the machine at once, from any thread.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let stopper = self.run.as_ref().map(run::RunHandle::stopper);
        move || stopper.iter().for_each(RunStopper::stop)
    }

    pub fn tell(&mut self, message: &impl Serialize) -> Result<(), ApplianceError> {
        let told = wire::tell(&mut self.to, message);
        told.map_err(|error| self.lost(error))
    }

    pub fn send(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), ApplianceError> {
        let sent = wire::send(&mut self.to, kind, bytes);
        sent.map_err(|error| self.lost(error))
    }

    /// The next frame.
    pub fn receive(&mut self) -> Result<(Kind, Vec<u8>), ApplianceError> {
        match wire::receive(&mut self.from) {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Another way to send frames, for another thread.
    pub fn requests(&self) -> io::Result<File> {
        self.to.try_clone()
    }

    /// Whether the program has said something that was not received yet.
    pub fn has_answer(&self) -> bool {
        super::is_readable(&self.from)
    }

    /// Waits until the machine has switched itself off and the image is released.
    pub fn end(mut self) -> Result<(), ApplianceError> {
        let Some(run) = self.run.take() else { return Err(ApplianceError::Protocol) };
        // The program ends at the end of its input.
        let Ok(null) = File::open("/dev/null") else { return Err(ApplianceError::Protocol) };
        self.to = null;
        let report = run.wait();
        match report.result {
            Ok(Outcome::Exited(0)) => Ok(()),
            Ok(outcome) => Err(self.ended(&outcome, &report.notes)),
            Err(error) => Err(ApplianceError::Machine(Box::new(error))),
        }
    }

    /// Why the connection is lost: the machine's own reason, if it has one.
    fn lost(&mut self, error: io::Error) -> ApplianceError {
        if error.kind() == io::ErrorKind::InvalidData {
            return ApplianceError::Stream(error);
        }
        let Some(run) = self.run.take() else { return ApplianceError::Stream(error) };
        if let Ok(null) = File::open("/dev/null") {
            self.to = null;
        }
        let report = run.wait();
        match report.result {
            Err(JobError::Stopped) => ApplianceError::Machine(Box::new(JobError::Stopped)),
            Err(error) => ApplianceError::Machine(Box::new(error)),
            Ok(outcome) => self.ended(&outcome, &report.notes),
        }
    }

    /// Says why it ended. A file of this machine that changed is the cause of what the program says last.
    fn ended(&self, outcome: &Outcome, notes: &[RunNote]) -> ApplianceError {
        let how = || match outcome {
            Outcome::Exited(status) => format!("its program exited with status {status}"),
            Outcome::Signaled(signal) => format!("signal {signal} ended its program"),
            Outcome::TimedOut => "it ran out of time".to_owned(),
            Outcome::Failed { message, .. } => message.clone(),
            Outcome::GuestDied => "its kernel died".to_owned(),
        };
        let why = notes.first().map(RunNote::to_string).or_else(|| self.last_words()).unwrap_or_else(how);
        ApplianceError::Ended { why: error::one_line(why.as_bytes()) }
    }

    fn last_words(&self) -> Option<String> {
        let bytes: Vec<u8> = self.words.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let last = bytes.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty())?;
        Some(error::one_line(last))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(run) = self.run.take() else { return };
        match (self.is_written, File::open("/dev/null")) {
            (true, Ok(null)) => {
                // The program unmounts what it has mounted at the end of its input.
                self.to = null;
                let stopper = run.stopper();
                let end = move || {
                    thread::sleep(PATIENCE);
                    stopper.stop();
                };
                let watch = thread::Builder::new().name("appliance-end".to_owned()).spawn(end);
                if watch.is_err() {
                    run.stop();
                }
            }
            _ => run.stop(),
        }
        drop(run.wait());
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), ApplianceError> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|errno| ApplianceError::Stream(errno.into()))
}

/// Remembers the last bytes of what the program says of its own failure.
fn listen(mut errors: File, words: Arc<Mutex<VecDeque<u8>>>) -> io::Result<()> {
    const MOST: usize = 4096;
    let read = move || {
        let mut buffer = [0; 1024];
        while let Ok(length @ 1..) = errors.read(&mut buffer) {
            let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
            words.extend(buffer.get(..length).unwrap_or_default());
            let excess = words.len().saturating_sub(MOST);
            words.drain(..excess);
        }
    };
    thread::Builder::new().name("appliance-errors".to_owned()).spawn(read).map(drop)
}

/// What the guest's root has of the host's.
fn root() -> Result<Selection, ApplianceError> {
    Ok(Selection { leave_out: left_out(), filter: settings()?, ..Selection::default() })
}

/// What the guest's root does not have of the host's: all but programs, drivers and settings.
fn left_out() -> Vec<Vec<u8>> {
    let names = std::fs::read_dir("/").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let others = names.filter(|name| !OF_THE_HOST.iter().any(|kept| name == kept));
    others.map(|name| name.into_encoded_bytes()).chain(NOT_NEEDED.map(|path| path.as_bytes().to_vec())).collect()
}

/// Leaves out all settings but [`SETTINGS`].
fn settings() -> Result<Filter, ApplianceError> {
    let kept = SETTINGS.iter().fold(Filter::builder(), |filter, name| filter.include(&format!("/etc/{name}")));
    kept.exclude("/etc/*").build().map_err(|error| ApplianceError::Program(io::Error::other(error)))
}

/// This program's path in the guest, and the tree that brings it there, if the guest's root does not have it.
fn program() -> io::Result<(PathBuf, Option<TreeMount>)> {
    let path = std::env::current_exe()?;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("it has no path"));
    };
    if is_in_root(&path)? {
        return Ok((path, None));
    }
    let tree = read_only_tree(directory, PROGRAM.into(), itself(name)?);
    Ok((Path::new(PROGRAM).join(name), Some(tree)))
}

/// The drivers of User-Mode Linux, where the guest's tools look for them: this host has them in another place.
fn modules(vmm: Vmm) -> Option<TreeMount> {
    let directory = Path::new(inarch_vm::uml::MODULES);
    let place = Path::new("/lib").canonicalize().ok()?.join("modules");
    (vmm == Vmm::Uml && directory.is_dir()).then(|| read_only_tree(directory, place, Selection::default()))
}

/// A tree of this host that the guest has on a disk of its own.
fn read_only_tree(directory: &Path, destination: PathBuf, selection: Selection) -> TreeMount {
    TreeMount {
        source: Source::Directory(directory.to_owned()),
        destination: Some(destination),
        read_only: true,
        via: Way::Disk(DiskFormat::Ext4),
        wire: WireOptions::default(),
        changes: Changes::None,
        writeback: false,
        write_through: false,
        refused: Refused::default(),
        live: false,
        hold: false,
        selection,
    }
}

/// Selects one file of a directory: it may lie in somebody's home, beside what is secret.
fn itself(name: &OsStr) -> io::Result<Selection> {
    // No directory is looked into.
    let filter = Filter::builder().exclude("*/").build().map_err(io::Error::other)?;
    let only = PathList::parse(&[name.as_bytes(), b"\0"].concat());
    Ok(Selection { filter, only: Some(Arc::new(only)), ..Selection::default() })
}

/// Whether the guest's root has a file of this host.
fn is_in_root(path: &Path) -> io::Result<bool> {
    let first = path.iter().nth(1);
    let is_kept = first.is_some_and(|first| OF_THE_HOST.iter().any(|kept| first == *kept));
    let below = path.strip_prefix("/").unwrap_or(path);
    let is_left_out = NOT_NEEDED.iter().any(|left_out| below.starts_with(left_out));
    // Another file system mounted on the way is not in the tree.
    let device = |path: &Path| Ok::<_, io::Error>(path.metadata()?.dev());
    let root = device(Path::new("/"))?;
    let on_the_way = path.ancestors().map(device).collect::<io::Result<Vec<_>>>()?;
    Ok(is_kept && !is_left_out && on_the_way.iter().all(|other| *other == root))
}

#[cfg(test)]
mod tests;
