//! `inarch run`: runs a command in a virtual machine.
//!
//! 1. The request is resolved: which trees at which paths, which kernel, which user ([`trees`], [`guest`],
//!    [`command`]). What runs in the guest ([`launch`]) may be known only when the root is open, because a container
//!    image may define it.
//! 2. Scan and plan of every tree begin in the background. Each disk is served on one end of a socket pair, where the
//!    first request waits for the plan.
//! 3. QEMU starts ([`boot`]) with the other ends, and with a kernel and an initramfs in memory. Without `--keep` or a
//!    cache, what the guest writes has no name in a file system, so nothing can be left behind.
//! 4. The agent says HELLO and gets the command. The session relays streams and signals until the command ends.
//! 5. QEMU is ended. A kept run's writes are folded into a layer ([`keep`]). The user learns what matters: files that changed, a full
//!    overlay.

mod asked_caches;
mod attach_error;
mod attached;
mod attempt;
mod boot;
mod cached;
mod choice;
mod clock;
mod command;
mod error;
mod event;
mod failure;
mod freshen;
pub(crate) mod guest;
mod handle;
mod hints;
mod holding;
mod keep;
mod launch;
mod live_disk;
mod observed;
mod project;
mod project_file;
mod report;
mod request;
mod session;
mod shares;
mod sockets;
pub(crate) mod traced;
mod trees;
mod unpacked;
mod vmm;
mod way;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use inarch_lifecycle::Events;
use inarch_lifecycle::descriptors;
use inarch_lifecycle::shown;
use inarch_tree::scan::Reason;
use inarch_vfs::RecordLevel;
use inarch_vm::accel::{Accel, Decision};
use inarch_vm::initramfs::{self, Features};
use inarch_vm::kernel::Kernel;
pub use inarch_vm::machine::PublishedPort;
use inarch_vm::modules::ModuleTree;
pub use inarch_vm::session::{SignalSource, Streams};
use inarch_vm::uml;

use crate::JobError;
pub use crate::device::DiskReport;
pub use asked_caches::AskedCaches;
pub use attach_error::AttachError;
pub use attached::{AttachedDisk, FileId};
use attached::{OpenDisk, Purpose};
pub(crate) use attached::{Part, Qcow2Image};
use attempt::Guest;
use choice::Choice;
use clock::Clock;
pub use error::RunError;
pub use event::{FirstStart, RunEvent, RunFault};
use failure::DiskFailure;
pub use handle::{RunHandle, RunStopper, start};
use keep::Kept;
pub use keep::kept_words;
use launch::Launch;
use live_disk::LiveDisk;
pub use project_file::{PROJECT_FILE, ProjectFile, ProjectFileError, Setting};
pub use report::{
    CacheUse, CpuSeconds, Moments, NotInGuest, Outcome, Phases, RestSeconds, RunNote, RunReport, Step, TreeReport,
};
pub use request::{CatchSignalsOfRun, Keep, Mode, Publish, Root, RunCache, RunRequest, TreeMount, Vmm};
use shares::Wire;
use traced::RunTrace;
use trees::{Chosen, Disk, GuestAbilities, Look, Trees};
pub use way::{Way, WireOptions};

/// Runs the command. Emits its events by `failure`, which also ends the run when a disk fails.
fn run(request: &RunRequest, failure: &Arc<DiskFailure>) -> RunReport {
    let began = Instant::now();
    let words: Vec<String> = request.command.iter().map(|word| shown(Path::new(word))).collect();
    let words = words.join(" ");
    let _turns = match cached::take_turns(&request.caches, &words, failure) {
        Ok(turns) => turns,
        Err(error) => return RunReport::of_failure(error),
    };
    let opened = request.keep.as_ref().map(|keep| Kept::open(keep, failure.events())).transpose();
    let mut kept = match opened {
        Ok(kept) => kept,
        Err(error) => return RunReport::of_failure(error),
    };
    let mut job = match Job::begin(request, kept.as_mut(), failure.events()) {
        Ok(job) => job,
        Err(error) => {
            if let Some(kept) = kept {
                kept.refuse();
            }
            return RunReport::of_failure(error);
        }
    };
    if request.trace == Some(RecordLevel::Process) && !job.trees.need(Wire::Virtiofs) {
        if let Some(kept) = kept {
            kept.refuse();
        }
        return RunReport::of_failure(RunError::NoProcesses.into());
    }
    let trace = request.trace.map(RunTrace::new);
    if let Some(trace) = &trace {
        job.trees.record(trace);
    }
    if request.measures {
        job.trees.measure();
    }
    job.tell_choices(failure.events());
    let (sender, launch) = mpsc::channel();
    let disks: Vec<LiveDisk> = job.trees.disks.iter().map(|disk| job.start(disk, failure, &sender)).collect();
    job.tell_launch(sender, failure.events());
    let mut clock = Clock::from(began);
    let observed = trace.as_ref().and_then(RunTrace::observed);
    let session = job.guest().and_then(|guest| job.boot(&guest, &disks, failure, &launch, &clock, observed));
    clock.stop();
    let times = session.as_ref().ok().map(|report| (report.started, report.ended));
    let result = session.and_then(|report| match report.outcome {
        Outcome::Failed { status, message } => Err(JobError::Command { status, message }),
        Outcome::GuestDied => Err(JobError::GuestDied),
        outcome => Ok(outcome),
    });
    let (trees, notes) =
        (job.tree_reports(&disks), disks.iter().flat_map(LiveDisk::notes).map(RunNote::Disk).collect());
    let (phases, caches) = (Phases::default(), Vec::new());
    let mut report = RunReport {
        result,
        phases,
        moments: None,
        cpu: None,
        rest: None,
        machine_cpu: clock.machine_cpu(),
        trees,
        notes,
        hints: Vec::new(),
        caches,
        trace: None,
    };
    if let Some((Some(started), Some(ended))) = times {
        report.moments = clock.moments(&started, &ended);
        report.cpu = Some(ended.cpu.into());
        report.rest = Some(ended.cpu.into());
    }
    report.hints = match (&report.result, report.status()) {
        (Err(JobError::Command { message, .. }), _) => hints::of_failure(request, Some(message)),
        (Ok(_), Some(1..)) => hints::of_failure(request, None),
        _ => Vec::new(),
    };
    let status = report.status();
    if let (Some(trace), Ok(ended), Some(_)) = (trace, &report.result, status) {
        match trace.finish(ended, &job.ways()) {
            Ok(trace) => {
                report.notes.extend(trace.lacks_processes.then_some(RunNote::TraceLacksProcesses));
                report.notes.extend(trace.touched.lacks().then_some(RunNote::TraceLacksPaths));
                report.trace = Some(trace);
            }
            Err(error) => report.result = Err(error.into()),
        }
    }
    report.caches = cached::publish(&request.caches, &disks, &report, &words, failure);
    if let Some(Err(error)) = kept.map(|kept| kept.end(disks, status, failure.events()))
        && report.result.is_ok()
    {
        report.result = Err(error);
    }
    report.phases = clock.phases();
    report
}

/// Whether this is the first time since this machine started that the user is told of guests without KVM. Records
/// that it was told.
pub fn fall_back_is_news() -> bool {
    guest::verdicts().tell_once()
}

/// The QEMU command line of the run, for a shell. Scans, connects and starts nothing, and opens no source. Of the disks that QEMU opens
/// itself, it reads the heads, and locks none. Assumes that a tree to be unpacked fits into the guest's memory.
pub fn dry_run(request: &RunRequest, events: &Events<RunEvent>) -> Result<String, JobError> {
    let job = Job::new(request, None, Look::Nowhere, events)?;
    let guest = job.guest()?;
    let disks: Vec<LiveDisk> = job.trees.disks.iter().map(LiveDisk::idle).collect();
    let accel = match guest.qemu() {
        None => None,
        Some(qemu) => Some(match job.decide(&guest, qemu)? {
            Decision::Use(accel) => accel,
            Decision::TryKvm => Accel::Kvm,
            Decision::FallBack(_) => Accel::Tcg,
        }),
    };
    guest.command_line(accel, &disks)
}

/// A valid request, before anything is started for it.
struct Job<'a> {
    request: &'a RunRequest,
    directory: Option<PathBuf>,
    /// The directory whose tree is brought along if it is not part of the root.
    place: Option<PathBuf>,
    trees: Trees,
    kernel: Kernel,
    modules: ModuleTree,
    memory: u64,
    open_files: Option<(u64, u64)>,
    /// Disks that QEMU opens itself; shared by the attempts to boot.
    attached: Arc<Vec<OpenDisk>>,
    /// What to run, if that is known without opening a disk.
    launch: Option<Launch>,
}

impl<'a> Job<'a> {
    fn new(
        request: &'a RunRequest,
        kept: Option<&Kept>,
        look: Look,
        events: &Events<RunEvent>,
    ) -> Result<Job<'a>, JobError> {
        request.vmm.check(request)?;
        let memory = guest::memory(request.memory)?;
        let directory = command::directory(request)?;
        let place = kept.and_then(Kept::place).or_else(|| directory.clone());
        let kernel = match request.vmm {
            Vmm::Qemu => guest::find_kernel(request.arch, request.kernel.as_deref(), |fault| {
                events.emit(RunEvent::Fault(fault))
            })?,
            Vmm::Uml => uml::find(request.kernel.as_deref())?,
        };
        let modules = guest::modules(&kernel, request.modules.as_deref())?;
        let abilities = GuestAbilities { has: &|module| modules.has(module), memory };
        let mut trees = trees::trees(request, place.as_deref(), &abilities, look)?;
        if let (true, Some(directory)) = (request.hold, &directory) {
            trees.hold_project(directory);
        }
        if let Some(kept) = kept {
            refuse_what_is_not_kept(&trees)?;
            kept.take(&mut trees.disks)?;
        }
        let open_files = descriptors::take_limit();
        let purpose = if look == Look::Nowhere { Purpose::Look } else { Purpose::Use };
        let open = |(at, disk)| OpenDisk::open(disk, &request.with, at + 1, purpose).map_err(RunError::from);
        let attached = request.disks.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        if request.vmm == Vmm::Uml {
            attached.iter().try_for_each(|disk| disk.take_for_serving(purpose)).map_err(RunError::from)?;
        }
        Ok(Job {
            request,
            directory,
            place,
            trees,
            kernel,
            modules,
            memory,
            open_files,
            attached: attached.into(),
            launch: None,
        })
    }

    /// Prepares a run. `kept` records that its command is about to start.
    fn begin(request: &'a RunRequest, kept: Option<&mut Kept>, events: &Events<RunEvent>) -> Result<Job<'a>, JobError> {
        // Before a machine waits for it.
        if let Root::Source(source) = &request.root {
            source.fetch()?;
        }
        request.trees.iter().try_for_each(|tree| tree.source.fetch())?;
        let mut job = Job::new(request, kept.as_deref(), Look::AtUnpacked, events)?;
        // Report obvious errors before anything is opened.
        let _ = request.user.as_deref().map(command::user).transpose()?;
        let unpacked = job.trees.unpacked.iter().find(|tree| tree.destination == Path::new("/"));
        let may_be_an_image = matches!(&request.root, Root::Source(source) if source.may_be_an_image());
        if unpacked.is_some() || !may_be_an_image {
            let image = unpacked.and_then(|tree| tree.image.as_ref());
            job.launch = Some(Launch::new(request, job.directory.as_deref(), image)?);
        }
        if let (Some(kept), Some(keep)) = (kept, &request.keep) {
            kept.begin(request, keep, &job.trees, job.place.as_deref())?;
        }
        Ok(job)
    }

    /// Reports the transport chosen for each `--via auto` tree.
    fn tell_choices(&self, events: &Events<RunEvent>) {
        for Chosen { destination, choice: Choice { way, reason, is_usual } } in &self.trees.chosen {
            let (destination, way, reason, is_usual) = (destination.clone(), *way, *reason, *is_usual);
            events.emit(RunEvent::Way { destination, way, reason, is_usual });
        }
        for (at, disk) in self.attached.iter().enumerate() {
            let (image, format, number) = (disk.path().to_owned(), disk.format(), at + 1);
            events.emit(RunEvent::Disk { image, format, number });
        }
        let notes = self.trees.unpacked.iter().flat_map(|tree| &tree.notes);
        notes.for_each(|note| events.emit(RunEvent::Tree(note.clone())));
    }

    /// Where the guest mounts each tree, and how it reaches the guest; the root first, and each mount point after what is above it.
    fn ways(&self) -> Vec<(PathBuf, &'static str)> {
        let Trees { disks, shares, unpacked, .. } = &self.trees;
        let disks = disks.iter().filter_map(|disk| Some((disk.destination.clone()?, disk.recipe.format.name())));
        let shares = shares.iter().map(|shared| (shared.destination.clone(), shared.way().name()));
        let unpacked = unpacked.iter().map(|tree| (tree.destination.clone(), Way::Tar.name()));
        let mut ways: Vec<_> = disks.chain(shares).chain(unpacked).collect();
        ways.sort_by_key(|(destination, _)| (destination.components().count(), destination.clone()));
        ways
    }

    /// Reports how each tree was used.
    fn tree_reports(&self, disks: &[LiveDisk]) -> Vec<TreeReport> {
        let why = |destination: &Path| {
            let chosen = self.trees.chosen.iter().find(|chosen| chosen.destination == destination);
            chosen.map(|chosen| chosen.choice.reason)
        };
        let report = |source: String, destination: Option<&Path>, way, disk, requests| TreeReport {
            source,
            destination: destination.map(shown),
            way,
            why: destination.and_then(why),
            disk,
            requests,
            operations: Vec::new(),
            slowest_files: Vec::new(),
        };
        let disks = self.trees.disks.iter().zip(disks).map(|(disk, live)| {
            let source = disk.recipe.source.to_string();
            report(source, disk.destination.as_deref(), disk.recipe.format.name(), live.report(), None)
        });
        let shares = self.trees.shares.iter().map(|shared| {
            let (source, requests) = (shown(&shared.share.directory), shared.requests.load(Ordering::Relaxed));
            let (operations, slowest_files) =
                shared.share.measures.as_deref().map(crate::share::reports).unwrap_or_default();
            let report = report(source, Some(&shared.destination), shared.way().name(), None, Some(requests));
            TreeReport { operations, slowest_files, ..report }
        });
        let unpacked = self
            .trees
            .unpacked
            .iter()
            .map(|tree| report(tree.source.to_string(), Some(&tree.destination), Way::Tar.name(), None, None));
        disks.chain(shares).chain(unpacked).collect()
    }

    /// Begins to make `disk`. If the disk defines what to run, sends that to `launch`; sets `failure` if nothing can be
    /// run.
    fn start(&self, disk: &Disk, failure: &Arc<DiskFailure>, launch: &Sender<Launch>) -> LiveDisk {
        let (source, events) = (disk.recipe.source.clone(), failure.events().clone());
        let decides = self.launch.is_none() && disk.destination.as_deref() == Some(Path::new("/"));
        let deciding = decides.then(|| (self.request.clone(), self.directory.clone(), launch.clone()));
        let failed = Arc::clone(failure);
        LiveDisk::start(disk, failure, move |prepared| {
            if let Some((request, directory, launch)) = deciding {
                match Launch::new(&request, directory.as_deref(), prepared.image.as_ref()) {
                    Ok(found) => found.tell(prepared.image.is_some(), &launch, &events),
                    // The channel is closed after this.
                    Err(error) => failed.set(error.into()),
                }
            }
            prepared.notes.iter().for_each(|note| events.emit(RunEvent::Tree(note.clone())));
            let [files, directories] =
                [Reason::UnreadableFile, Reason::UnreadableDirectory].map(|reason| prepared.report.count(reason));
            if files + directories > 0 {
                events.emit(RunEvent::Unreadable { source: source.to_string(), files, directories });
            }
        })
    }

    /// Sends what to run, if that is known already.
    fn tell_launch(&self, sender: Sender<Launch>, events: &Events<RunEvent>) {
        if let Some(launch) = &self.launch {
            let is_of_image = self.trees.unpacked.iter().any(|tree| tree.image.is_some());
            launch.clone().tell(is_of_image, &sender, events);
        }
    }

    fn guest(&self) -> Result<Guest, JobError> {
        let request = self.request;
        let program = request.vmm.find(request.arch)?;
        let disks = !self.trees.disks.is_empty() || !self.attached.is_empty();
        let file_systems = self.trees.file_systems();
        let features = Features {
            channel: request.vmm.channel(),
            file_systems: file_systems.into_iter().map(str::to_owned).collect(),
            disks,
            network: request.net || self.trees.need(Wire::NinepOverTcp),
            sockets: self.trees.need(Wire::Ninep),
        };
        let initramfs = initramfs::build(request.arch, &self.modules, &features)?;
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get().min(255) as u32);
        Ok(Guest {
            program,
            kernel: self.kernel.clone(),
            firmware: request.firmware.clone(),
            initramfs,
            cpus: if request.vmm == Vmm::Uml { 1 } else { request.cpus.unwrap_or(processors) },
            memory: self.memory,
            raid: request.raid,
            network: request.net,
            shares: self.trees.shares.clone(),
            unpacked: self.trees.unpacked.clone(),
            attached: Arc::clone(&self.attached),
            published: request.published.clone(),
            parameters: request.kernel_parameters.clone(),
            arguments: request.qemu_arguments.clone(),
            console: request.console.clone(),
        })
    }
}

/// Refuses to keep writes to the overlay of a shared directory, because it is unknown what they were written over, and
/// writes to an unpacked tree.
fn refuse_what_is_not_kept(trees: &Trees) -> Result<(), RunError> {
    let shares = trees.shares.iter().filter(|shared| shared.overlaid).map(|shared| &shared.destination);
    let unpacked = trees.unpacked.iter().filter(|tree| !tree.read_only).map(|tree| &tree.destination);
    match shares.chain(unpacked).next() {
        Some(destination) => Err(RunError::NotKept { destination: Some(destination.clone()), more: " or ,rw" }),
        None => Ok(()),
    }
}
