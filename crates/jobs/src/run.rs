//! A command in a virtual machine.
//!
//! 1. The request is resolved: which trees, which kernel, which user, where ([`trees`], [`guest`], [`command`]).
//!    What is run in it ([`launch`]) may be known only when the root is open: a container image says it.
//! 2. Every tree's scan and plan begin in the background; its disk is served on one end of a socket pair, where the
//!    first request waits for the plan.
//! 3. QEMU starts with the other ends, a kernel and an initramfs in memory: nothing of a run has a name in any
//!    file system, so nothing can be left behind.
//! 4. The agent speaks; it gets the command, and the session relays streams and signals until it ends.
//! 5. QEMU is ended, and what the user should know is said: files that changed, a full overlay.

mod attempt;
mod choice;
mod command;
pub(crate) mod guest;
mod hints;
mod holding;
mod keep;
mod launch;
mod project;
mod shares;
mod trees;
mod unpacked;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use inarch_tree::scan::Reason;
use inarch_tree::select::Selection;
use inarch_vm::accel::{self, Accel, AccelChoice, Decision, Subject, Verdict};
use inarch_vm::initramfs::{self, Features};
use inarch_vm::kernel::Kernel;
pub use inarch_vm::machine::PublishedPort;
use inarch_vm::modules::ModuleTree;
use inarch_vm::process::GuestFailure;
use inarch_vm::qemu::Qemu;
use inarch_vm::session::{Outcome, Report, Streams};

use crate::JobError;
use crate::descriptors;
use crate::device::FileSystem;
use crate::notes::{lasting, say};
use crate::share::{Changes, Refused};
use crate::source::Source;
use attempt::{DiskFailure, Guest, LiveDisk};
use holding::Holding;
use keep::Kept;
pub use keep::{Keep, kept_words};
use launch::Launch;
use shares::Wire;
use trees::{Chosen, Disk, GuestAbilities, Trees};

/// What the guest has as its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// This machine's own.
    Host,
    /// Another tree.
    Source(Source),
    /// Nothing but the trees, and what the initramfs holds.
    None,
}

/// How a tree reaches the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As a disk with this file system: a snapshot.
    Disk(FileSystem),
    /// As the directory itself, live, by virtiofs.
    Virtiofs,
    /// As the directory itself, live, by 9P.
    Ninep,
    /// As an archive that the guest unpacks, into its memory or onto a disk: a snapshot.
    Tar,
    /// As is best for what the guest's kernel has, and for where its writes are to go.
    Auto,
}

impl Way {
    /// Its name, as in `--via`.
    pub fn name(self) -> &'static str {
        match self {
            Way::Disk(format) => format.name(),
            Way::Virtiofs => "virtiofs",
            Way::Ninep => "9p",
            Way::Tar => "tar",
            Way::Auto => "auto",
        }
    }

    /// Whether the guest sees the directory itself, and no snapshot.
    pub fn is_live(self) -> bool {
        matches!(self, Way::Virtiofs | Way::Ninep)
    }
}

/// A tree besides the root.
#[derive(Clone, Debug)]
pub struct TreeMount {
    /// Where it comes from.
    pub source: Source,
    /// Where the guest sees it; at the same path where there is none.
    pub destination: Option<PathBuf>,
    /// Writes fail, instead of being thrown away at the end.
    pub read_only: bool,
    /// How it reaches the guest.
    pub via: Way,
    /// Of a directory that is shared live: who may change it meanwhile.
    pub changes: Changes,
    /// Of one that only the guest changes: its kernel collects writes before it sends them.
    pub writeback: bool,
    /// Of a directory that is shared live: the guest's writes reach it, instead of being thrown away at the end.
    pub write_through: bool,
    /// What the guest cannot leave in a directory that its writes reach.
    pub refused: Refused,
    /// It is shared live, if `via` leaves that open.
    pub live: bool,
    /// Of a snapshot of a directory: its files are held, so that the guest can read them when the host has changed them.
    pub hold: bool,
    /// What of it is taken.
    pub selection: Selection,
}

/// What to run, in what guest.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The guest's root.
    pub root: Root,
    /// What of the root is taken.
    pub root_selection: Selection,
    /// How the root reaches the guest, and the working directory if it is brought along.
    pub root_via: Way,
    /// Writes to the root fail, instead of being thrown away at the end.
    pub root_read_only: bool,
    /// Whether the files of the working directory's project are held, as [`TreeMount::hold`] says.
    pub hold: bool,
    /// Other trees.
    pub trees: Vec<TreeMount>,
    /// The command and its arguments; if empty, what a container image says, or else the user's shell.
    pub command: Vec<OsString>,
    /// The word that takes the place of a container image's entry point; none does if it is empty.
    pub entrypoint: Option<OsString>,
    /// Variables set besides those passed on.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory in the guest.
    pub working_directory: Option<PathBuf>,
    /// `USER[:GROUP]`, each a name of the guest's or a number.
    pub user: Option<String>,
    /// Whether the command gets a terminal.
    pub terminal: bool,
    /// The command is ended when it has run for so long; and the guest, if it takes longer than this, and than
    /// `boot_timeout`, to start it.
    pub timeout: Option<Duration>,
    /// Nothing of our own is printed but errors.
    pub quiet: bool,
    /// Also what is as usual is said.
    pub verbose: bool,
    /// The guest's kernel; the newest of /boot if there is none.
    pub kernel: Option<PathBuf>,
    /// Directory of the kernel's modules.
    pub modules: Option<PathBuf>,
    /// How the guest's instructions run.
    pub accel: AccelChoice,
    /// Virtual processors.
    pub cpus: Option<u32>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Whether the guest has a network.
    pub net: bool,
    /// Ports of this machine that lead to the guest's.
    pub published: Vec<PublishedPort>,
    /// More words for the guest's kernel.
    pub kernel_parameters: Vec<String>,
    /// More arguments for QEMU.
    pub qemu_arguments: Vec<OsString>,
    /// Where all that the guest's kernel prints is written down.
    pub console: Option<PathBuf>,
    /// Where the guest's writes are kept while it runs.
    pub overlay_dir: PathBuf,
    /// How long the guest may take until its first word.
    pub boot_timeout: Duration,
    /// Under what name its writes are kept, instead of being thrown away.
    pub keep: Option<Keep>,
}

impl RunRequest {
    fn say(&self, line: impl std::fmt::Display) {
        if !self.quiet {
            say(line);
        }
    }

    /// Says that the guest runs under TCG, once in the life of this machine's system: `reason` is told to who asks for it.
    fn say_fall_back(&self, reason: &str) {
        if self.verbose {
            self.say(format_args!("the guest runs under TCG: {reason}"));
        } else if !self.quiet && guest::verdicts().tell_once() {
            say("the guest runs under TCG, which is slower than KVM (inarch doctor says why; this is said once)");
        }
    }
}

/// How long a guest may be silent under a KVM of which nobody knows yet whether it works. Where it does, a guest
/// speaks within a second.
const KVM_PATIENCE: Duration = Duration::from_secs(8);

/// The status of a command that ran out of time.
const TIMED_OUT: u8 = 124;

/// Runs the command; its exit status as a shell would give it, 124 if it ran out of time.
///
/// # Errors
/// The command could not be run, or its guest failed.
pub fn run(request: &RunRequest) -> Result<u8, JobError> {
    let mut kept = request.keep.as_ref().map(Kept::open).transpose()?;
    let job = match Job::begin(request, kept.as_mut()) {
        Ok(job) => job,
        Err(error) => {
            if let Some(kept) = kept {
                kept.refuse();
            }
            return Err(error);
        }
    };
    job.say_choices();
    let failure = Arc::new(DiskFailure::default());
    let (sender, launch) = mpsc::channel();
    let disks: Vec<LiveDisk> = job.trees.disks.iter().map(|disk| job.start(disk, &failure, &sender)).collect();
    job.tell_launch(sender);
    let report = job.guest().and_then(|guest| job.boot(&guest, &disks, &failure, &launch));
    if let (Ok(Report { outcome: Outcome::TimedOut, .. }), Some(limit)) = (&report, request.timeout) {
        say(format_args!("the command ran longer than {} and was ended (status {TIMED_OUT})", lasting(limit)));
    }
    let result = report.and_then(status);
    // What a command failed of is not kept from anybody.
    if !request.quiet || !matches!(result, Ok(0)) {
        disks.iter().flat_map(LiveDisk::notes).for_each(say);
    }
    if !request.quiet && matches!(result, Ok(1..) | Err(JobError::Command { .. })) {
        let reason = match &result {
            Err(JobError::Command { message, .. }) => Some(&**message),
            _ => None,
        };
        hints::of_failure(request, reason).iter().for_each(say);
    }
    let known = match &result {
        Ok(status) | Err(JobError::Command { status, .. }) => Some(*status),
        Err(_) => None,
    };
    let ended = kept.map_or(Ok(()), |kept| kept.end(disks, known));
    result.and_then(|status| ended.map(|()| status))
}

/// The status that a shell would give.
fn status(report: Report) -> Result<u8, JobError> {
    match report.outcome {
        Outcome::Exited(status) => Ok(status),
        Outcome::Signaled(signal) => Ok(128 + signal),
        Outcome::TimedOut => Ok(TIMED_OUT),
        Outcome::Failed { status, message } => Err(JobError::Command { status, message }),
        Outcome::GuestDied => Err(JobError::Other("the guest died".to_owned())),
    }
}

/// The QEMU command line of the run, as a shell would read it. Nothing is scanned or started.
pub fn dry_run(request: &RunRequest) -> Result<String, JobError> {
    let job = Job::new(request, None)?;
    let guest = job.guest()?;
    let disks: Vec<LiveDisk> = job.trees.disks.iter().map(LiveDisk::idle).collect();
    let accel = match job.decide(&guest)? {
        Decision::Use(accel) => accel,
        Decision::TryKvm => Accel::Kvm,
        Decision::FallBack(_) => Accel::Tcg,
    };
    guest.command_line(accel, &disks)
}

/// A request that makes sense, before anything is started for it.
struct Job<'a> {
    request: &'a RunRequest,
    directory: Option<PathBuf>,
    /// The directory whose tree is brought along where it is not part of the root.
    place: Option<PathBuf>,
    trees: Trees,
    kernel: Kernel,
    modules: ModuleTree,
    memory: u64,
    open_files: Option<(u64, u64)>,
    /// What is run, where no disk must be opened to know it.
    launch: Option<Launch>,
}

impl<'a> Job<'a> {
    fn new(request: &'a RunRequest, kept: Option<&Kept>) -> Result<Job<'a>, JobError> {
        let memory = guest::memory(request.memory)?;
        let directory = command::directory(request)?;
        let place = kept.and_then(Kept::place).or_else(|| directory.clone());
        let kernel = guest::find_kernel(request.kernel.as_deref())?;
        let modules = guest::modules(&kernel, request.modules.as_deref())?;
        let abilities = GuestAbilities { has: &|module| modules.has(module), memory };
        let mut trees = trees::trees(request, place.as_deref(), &abilities)?;
        if let (true, Some(directory)) = (request.hold, &directory) {
            trees.hold_project(directory);
        }
        if let Some(kept) = kept {
            refuse_what_is_not_kept(&trees)?;
            kept.take(&mut trees.disks)?;
        }
        let open_files = descriptors::take_limit();
        Ok(Job { request, directory, place, trees, kernel, modules, memory, open_files, launch: None })
    }

    /// The job, of which a kept run knows that it is about to be done.
    fn begin(request: &'a RunRequest, kept: Option<&mut Kept>) -> Result<Job<'a>, JobError> {
        let mut job = Job::new(request, kept.as_deref())?;
        // What is plainly wrong is said before anything is opened.
        let _ = request.user.as_deref().map(command::user).transpose()?;
        let unpacked = job.trees.unpacked.iter().find(|tree| tree.destination == Path::new("/"));
        let may_be_an_image = matches!(&request.root, Root::Source(source) if source.may_be_an_image());
        if unpacked.is_some() || !may_be_an_image {
            let image = unpacked.and_then(|tree| tree.image.as_ref());
            job.launch = Some(Launch::new(request, job.directory.as_deref(), image)?);
        }
        if let (Some(kept), Some(keep)) = (kept, &request.keep) {
            kept.begin(request, keep, &job.trees.disks, job.place.as_deref())?;
        }
        Ok(job)
    }

    /// Says how trees go of which nobody said it: where that is as usual only to somebody who looks on, as what a program
    /// writes is better alone in a log.
    fn say_choices(&self) {
        let is_watched = self.request.verbose || std::io::stderr().is_terminal();
        let chosen = self.trees.chosen.iter().filter(|chosen| is_watched || !chosen.choice.is_usual);
        for Chosen { destination, choice } in chosen {
            let destination = crate::notes::shown(destination);
            self.request.say(format_args!("{destination} goes by {}: {}", choice.way.name(), choice.reason));
        }
        self.trees.unpacked.iter().flat_map(|tree| &tree.notes).for_each(|note| self.request.say(note));
    }

    /// Begins to make `disk`. If what is run depends on it, `launch` is told of that, or `failure` why nothing can be run.
    fn start(&self, disk: &Disk, failure: &Arc<DiskFailure>, launch: &Sender<Launch>) -> LiveDisk {
        let (source, quiet) = (disk.recipe.source.clone(), self.request.quiet);
        let decides = self.launch.is_none() && disk.destination.as_deref() == Some(Path::new("/"));
        let deciding = decides.then(|| (self.request.clone(), self.directory.clone(), launch.clone()));
        let failed = Arc::clone(failure);
        LiveDisk::start(disk, failure, move |prepared| {
            if let Some((request, directory, launch)) = deciding {
                match Launch::new(&request, directory.as_deref(), prepared.image.as_ref()) {
                    Ok(found) => found.tell(&request, prepared.image.is_some(), &launch),
                    // The channel's end comes after it.
                    Err(error) => failed.set(error),
                }
            }
            if !quiet {
                prepared.notes.iter().for_each(say);
            }
            let unreadable =
                [Reason::UnreadableFile, Reason::UnreadableDirectory].map(|reason| prepared.report.count(reason));
            if let (false, [files, directories]) = (quiet, unreadable)
                && files + directories > 0
            {
                say(format_args!(
                    "{source}: {files} files and {directories} directories are not readable and left out \
                     (inarch plan {source} lists them)"
                ));
            }
        })
    }

    /// Tells what is run if that is known already.
    fn tell_launch(&self, sender: Sender<Launch>) {
        if let Some(launch) = &self.launch {
            let is_of_image = self.trees.unpacked.iter().any(|tree| tree.image.is_some());
            launch.clone().tell(self.request, is_of_image, &sender);
        }
    }

    fn guest(&self) -> Result<Guest, JobError> {
        let request = self.request;
        let qemu = Qemu::find()?;
        let (file_systems, disks) = (self.trees.file_systems(), !self.trees.disks.is_empty());
        let features = Features {
            file_systems: file_systems.into_iter().map(str::to_owned).collect(),
            disks,
            network: request.net || self.trees.need(Wire::NinepOverTcp),
            sockets: self.trees.need(Wire::Ninep),
        };
        let initramfs = initramfs::build(&self.modules, &features)?;
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get().min(255) as u32);
        Ok(Guest {
            qemu,
            kernel: self.kernel.clone(),
            initramfs,
            cpus: request.cpus.unwrap_or(processors),
            memory: self.memory,
            network: request.net,
            shares: self.trees.shares.clone(),
            unpacked: self.trees.unpacked.clone(),
            published: request.published.clone(),
            parameters: request.kernel_parameters.clone(),
            arguments: request.qemu_arguments.clone(),
            console: request.console.clone(),
        })
    }

    fn decide(&self, guest: &Guest) -> Result<Decision, JobError> {
        Ok(accel::decide(self.request.accel, &guest::verdicts(), subject(guest))?)
    }

    /// Boots with the acceleration that was asked for, or that works.
    fn boot(
        &self,
        guest: &Guest,
        disks: &[LiveDisk],
        failure: &Arc<DiskFailure>,
        launch: &Receiver<Launch>,
    ) -> Result<Report, JobError> {
        let request = self.request;
        let streams = || {
            Streams::of_process().map_err(|error| JobError::Other(format!("a standard stream cannot be used: {error}")))
        };
        let session = command::session(request, &self.trees, &streams()?, self.open_files);
        // A tree that is scanned or unpacked for long delays the start as long: only who wants an end at all gets one.
        let start = request.timeout.map(|timeout| timeout.max(request.boot_timeout));
        let limits = attempt::Limits { start, command: request.timeout };
        let attempt = |accel, patience, fall_back: Option<&str>| {
            let streams = streams()?;
            let hold = |live| {
                // Of a machine that does not come up for another reason there is something else to say.
                fall_back.inspect(|reason| request.say_fall_back(reason));
                let _holding = Holding::begin(disks, &request.overlay_dir);
                let (launch, limits) = limits.wait_for(launch)?;
                attempt::hold(live, &launch.complete(session.clone()), streams, limits, request.quiet)
            };
            Ok::<_, JobError>(guest.attempt(accel, disks, failure, patience, hold))
        };
        for port in &request.published {
            let refused = |error| JobError::Other(format!("-p: cannot have the port {}: {error}", port.host));
            port.check().map_err(refused)?;
        }
        // A verdict that cannot be kept only costs the next run another look. What the user adds may be at fault, too.
        let is_usual = request.kernel_parameters.is_empty() && request.qemu_arguments.is_empty();
        let remember = |verdict| {
            if is_usual {
                drop(guest::verdicts().remember(subject(guest), verdict));
            }
        };
        let (mut suspect, mut fall_back) = (None, None);
        let accel = match self.decide(guest)? {
            Decision::Use(accel) => {
                if request.verbose {
                    request.say(format_args!("the guest runs under {}", accel.to_string().to_uppercase()));
                }
                accel
            }
            Decision::FallBack(reason) => {
                fall_back = Some(reason);
                Accel::Tcg
            }
            Decision::TryKvm => {
                let tried = attempt(Accel::Kvm, KVM_PATIENCE, None)?;
                if tried.greeted {
                    remember(Verdict::Works);
                    return tried.result;
                }
                let Some(reason) = kvm_failure(&tried.result) else {
                    return tried.result;
                };
                fall_back = Some(reason.clone());
                suspect = Some(reason);
                Accel::Tcg
            }
        };
        let tried = attempt(accel, request.boot_timeout, fall_back.as_deref())?;
        // Only the same machine coming up without KVM shows that it was KVM's fault.
        if let (true, Some(reason)) = (tried.greeted, suspect) {
            remember(Verdict::Broken(reason));
        }
        if let (false, Accel::Kvm, Some(reason)) = (tried.greeted, accel, kvm_failure(&tried.result)) {
            remember(Verdict::Broken(reason));
        }
        // Asking QEMU for its version takes as long as starting it: it is asked when something went wrong.
        if let (false, Err(JobError::Guest(GuestFailure::Qemu { .. } | GuestFailure::PoweredOff { .. }))) =
            (tried.greeted, &tried.result)
        {
            guest.qemu.version()?;
        }
        tried.result
    }
}

/// What is written to an overlay of a shared directory is not kept: there is no saying what it was written over. Nor is
/// what is written to something unpacked.
fn refuse_what_is_not_kept(trees: &Trees) -> Result<(), JobError> {
    let shares = trees.shares.iter().filter(|shared| shared.overlaid).map(|shared| &shared.destination);
    let unpacked = trees.unpacked.iter().filter(|tree| !tree.read_only).map(|tree| &tree.destination);
    match shares.chain(unpacked).next() {
        Some(destination) => Err(JobError::Other(format!(
            "{}: only trees with ext4 are kept; leave out --via and via=, or add ,ro or ,rw",
            crate::notes::shown(destination)
        ))),
        None => Ok(()),
    }
}

fn subject(guest: &Guest) -> Subject<'_> {
    Subject { qemu: guest.qemu.path(), kernel: &guest.kernel.release }
}

/// Why a guest that did not speak makes KVM suspect; `None` if something else ended it.
fn kvm_failure(result: &Result<Report, JobError>) -> Option<String> {
    match result {
        Err(JobError::Guest(GuestFailure::Silent { .. })) => {
            Some("/dev/kvm opens, but no guest comes up under it".into())
        }
        // The words of a failed assertion are for those who work on QEMU.
        Err(JobError::Guest(GuestFailure::Qemu { message, .. })) if message.contains("Assertion `") => Some(
            "QEMU gives up under this KVM, which does not do what it needs (so it is within some virtual machines)"
                .into(),
        ),
        Err(JobError::Guest(GuestFailure::Qemu { message, .. })) => Some(format!("QEMU cannot use KVM ({message})")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_assertion_of_qemu_is_told_in_other_words() {
        let failure = |message: &str| {
            let (status, message) = ("killed by signal 6".to_owned(), message.to_owned());
            kvm_failure(&Err(JobError::Guest(GuestFailure::Qemu { status, message, tail: Vec::new() }))).unwrap()
        };
        let told = failure("qemu: ../target/i386/kvm/kvm.c:3079: kvm_buf_set_msrs: Assertion `ret == 5' failed.");
        assert!(told.contains("KVM") && !told.contains("kvm.c") && !told.contains("Assertion"), "{told}");
        assert_eq!(failure("Permission denied"), "QEMU cannot use KVM (Permission denied)");
    }
}
