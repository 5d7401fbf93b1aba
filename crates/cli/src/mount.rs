//! `inarch mount`: mounts a tree on this machine.

mod background;
mod image;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use clap::{Args, ValueEnum};
use inarch_jobs::appliance::Isolation;
use inarch_jobs::mount::{
    self, Changes, MountEvent, MountHandle, MountRequest, MountWrites, RecordLevel, RecordRequest, Rings, Via,
};
use inarch_jobs::share::Refused;
use inarch_jobs::{Events, shown};

use crate::EXIT_FAILED;
use crate::access::{AccessArguments, RefusedArguments};
use crate::disk::machine::isolation;
use crate::disk_options::{DiskOptions, FormatOption};
use crate::output::{complain, introduce};
use crate::sandbox::SandboxArgument;
use crate::signals::EndingSignals;
use crate::source::{CrossArgument, OwnerArguments, SRC_HELP};
use crate::stats::StatsArguments;
use crate::upper::UpperArguments;
use background::{Child, start};

/// Options of `inarch mount`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch mount --background ~/src /mnt --ephemeral && ls /mnt
  inarch mount -b image.tar.zst /mnt --overlay ~/changes
  inarch umount /mnt
  inarch mount --rw guest.qcow2 /mnt           # a guest's disk
  inarch mount ~/src ~/build --changes guest   # until Ctrl-C

The mount stays until SIGTERM, SIGINT or 'inarch umount DIR'. Users other than root need fusermount3 (Debian's package \
fuse3). With --background the status is 0 once the mount answers, 125 if nothing is mounted.")]
pub struct MountArguments {
    /// What to mount
    #[arg(value_name = "SRC", help = SRC_HELP)]
    pub source: OsString,

    /// Where: a directory outside SRC, or SRC itself
    #[arg(value_name = "DIR")]
    pub point: PathBuf,

    #[command(flatten)]
    pub access: AccessArguments,

    #[command(flatten)]
    pub refused: RefusedArguments,

    /// Options as for mount(8): ro, rw, nosuid, nodev; default_permissions and defaults are accepted, and change nothing
    #[arg(short = 'o', value_name = "OPT[,OPT]", value_delimiter = ',', value_parser = mount_option)]
    pub options: Vec<MountOption>,

    #[command(flatten)]
    pub upper: UpperArguments,

    /// Whose locks count: guest (only programs in the mount see each other's), host (everybody with SRC's files open
    /// sees them; costs a request for each lock and each close)
    #[arg(long, value_name = "guest|host", value_enum, default_value = "guest", hide_possible_values = true)]
    pub locks: LocksBy,

    /// Who changes SRC meanwhile: guest (only programs in the mount; cached for a day), host (anybody; cached for a
    /// second), none (nobody; read-only, cached for good). Default: host. Exception: with --overlay or --ephemeral by the
    /// kernel, changes made elsewhere may not be seen
    #[arg(long, value_name = "guest|host|none", value_enum, hide_possible_values = true)]
    pub changes: Option<ChangesArgument>,

    /// Who serves the mount: kernel (as fast as SRC; root only), fuse (a server, which supports everything), auto
    /// (the kernel if it can do what is asked for; the line at the start says why not)
    #[arg(long, value_name = "auto|kernel|fuse", value_enum, default_value = "auto", hide_possible_values = true)]
    pub via: ViaArgument,

    /// Record each access in FILE, one line of JSON each: names looked up, found or not, files opened, read and
    /// written, changes, and failures
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Detail of --record: process (every access with its process; nothing is cached), command (each access once;
    /// cached as usual, and faster)
    #[arg(
        long,
        value_name = "command|process",
        value_enum,
        default_value = "process",
        hide_possible_values = true,
        requires = "record"
    )]
    pub record_level: RecordLevelArgument,

    /// How long requests take.
    #[command(flatten)]
    pub stats: StatsArguments,

    /// Show what can be read of a damaged archive or image, and report what cannot
    #[arg(long)]
    pub salvage: bool,

    /// What a disk image needs beside itself.
    #[command(flatten)]
    pub disk: DiskOptions,

    #[command(flatten)]
    pub cross: CrossArgument,

    /// Whose files the mount shows.
    #[command(flatten)]
    pub owners: OwnerArguments,

    /// Use io_uring for the kernel's requests, which is faster: auto (if this machine has it switched on), on (or
    /// fail), off
    #[arg(long, value_name = "auto|on|off", value_enum, default_value = "auto", hide_possible_values = true)]
    pub io_uring: RingsArgument,

    #[command(flatten)]
    pub sandbox: SandboxArgument,

    /// Return as soon as the mount answers, and serve it in the background until it is unmounted
    #[arg(short, long)]
    pub background: bool,

    /// Append the background server's messages to FILE; default: inarch/mount.log in $XDG_STATE_HOME or
    /// ~/.local/state
    #[arg(long, value_name = "FILE", requires = "background")]
    pub log: Option<PathBuf>,

    #[command(flatten)]
    pub format: FormatOption,

    /// With --rw, of a disk image: print at the end what took how long; with a FILE, also draw it as an SVG picture
    #[arg(long, value_name = "FILE.svg", num_args = 0..=1, require_equals = true)]
    pub timings: Option<Option<PathBuf>>,

    /// With --rw, of a disk image: what stands between its file systems and this machine, a process (User-Mode Linux) or a virtual
    /// machine (QEMU). By default a process where one can do it
    #[arg(long, value_name = "auto|process|vm", default_value = "auto", hide_possible_values = true, value_parser = isolation())]
    pub isolate: Isolation,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

/// An option as mount(8) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountOption {
    /// `ro`
    ReadOnly,
    /// `rw`
    Writable,
    /// `nosuid`
    NoSuid,
    /// `nodev`
    NoDev,
    /// What holds anyway.
    Usual,
}

fn mount_option(text: &str) -> Result<MountOption, String> {
    match text {
        "ro" => Ok(MountOption::ReadOnly),
        "rw" => Ok(MountOption::Writable),
        "nosuid" => Ok(MountOption::NoSuid),
        "nodev" => Ok(MountOption::NoDev),
        "default_permissions" | "defaults" => Ok(MountOption::Usual),
        _ => Err(format!(
            "'{text}' is not a mount option; these are: ro, rw, nosuid, nodev, default_permissions, defaults"
        )),
    }
}

/// See [`Rings`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RingsArgument {
    /// Where it is switched on
    Auto,
    /// It must be
    On,
    /// Never
    Off,
}

impl From<RingsArgument> for Rings {
    fn from(argument: RingsArgument) -> Rings {
        match argument {
            RingsArgument::Auto => Rings::Auto,
            RingsArgument::On => Rings::Required,
            RingsArgument::Off => Rings::Never,
        }
    }
}

/// See [`Via`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ViaArgument {
    /// The kernel where it can
    Auto,
    /// It must
    Kernel,
    /// It does not
    Fuse,
}

impl From<ViaArgument> for Via {
    fn from(argument: ViaArgument) -> Via {
        match argument {
            ViaArgument::Auto => Via::Auto,
            ViaArgument::Kernel => Via::Kernel,
            ViaArgument::Fuse => Via::Fuse,
        }
    }
}

/// Where locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LocksBy {
    /// By the kernel that mounts
    Guest,
    /// On the host's files
    Host,
}

/// See [`RecordLevel`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RecordLevelArgument {
    /// Each access once
    Command,
    /// Every access, with its process
    Process,
}

impl From<RecordLevelArgument> for RecordLevel {
    fn from(argument: RecordLevelArgument) -> RecordLevel {
        match argument {
            RecordLevelArgument::Command => RecordLevel::Command,
            RecordLevelArgument::Process => RecordLevel::Process,
        }
    }
}

/// See [`Changes`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ChangesArgument {
    /// Programs in the mount alone
    Guest,
    /// Everybody
    Host,
    /// Nobody
    None,
}

impl From<ChangesArgument> for Changes {
    fn from(argument: ChangesArgument) -> Changes {
        match argument {
            ChangesArgument::Guest => Changes::Guest,
            ChangesArgument::Host => Changes::Host,
            ChangesArgument::None => Changes::None,
        }
    }
}

/// Mounts, and serves until stopped; or starts that in the background, with the same arguments, `words`.
pub fn run(arguments: MountArguments, words: &[OsString]) -> anyhow::Result<ExitCode> {
    if !arguments.background {
        return serve(arguments);
    }
    let is_mounted = start(words.iter().cloned()).unwrap_or_else(|error| {
        complain(error);
        false
    });
    Ok(if is_mounted { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

/// Mounts, and serves until stopped.
pub fn serve(arguments: MountArguments) -> anyhow::Result<ExitCode> {
    let MountArguments {
        source,
        point,
        access,
        refused,
        options,
        upper,
        record,
        record_level,
        stats: measuring,
        locks,
        changes,
        via,
        cross,
        owners,
        io_uring,
        sandbox,
        salvage,
        disk,
        background,
        log,
        format,
        timings,
        isolate,
        quiet,
    } = arguments;
    let last = options.iter().rev().find(|option| matches!(option, MountOption::ReadOnly | MountOption::Writable));
    let ro = last.map_or(access.read_only(), |option| *option == MountOption::ReadOnly);
    let mut refused = Refused::from(refused);
    refused.privileges |= options.contains(&MountOption::NoSuid);
    refused.devices |= options.contains(&MountOption::NoDev);
    let writes = match upper.place()? {
        Some(_) if ro => {
            anyhow::bail!("-o ro contradicts --overlay and --ephemeral, which take writes; leave one of them out")
        }
        Some(place) => MountWrites::Over(place),
        None if ro => MountWrites::Refused,
        None => MountWrites::Through,
    };
    let asks = access.asks_for_writes() || last == Some(&MountOption::Writable);
    let image = match asks && writes == MountWrites::Through {
        true => image::of(&source, format.format, &disk.with)?,
        false => None,
    };
    if image.is_some() {
        image::refuse(&[
            (!disk.key.is_empty(), "--key"),
            (!disk.also.is_empty(), "--also"),
            (refused.privileges, "--nosuid"),
            (refused.devices, "--nodev"),
            (locks == LocksBy::Host, "--locks host"),
            (changes.is_some(), "--changes"),
            (matches!(via, ViaArgument::Kernel), "--via kernel"),
            (record.is_some(), "--record"),
            (measuring.stats, "--stats"),
            (measuring.profile.is_given(), "--profile"),
            (salvage, "--salvage"),
            (owners != OwnerArguments::default(), "--owner"),
            (matches!(io_uring, RingsArgument::On), "--io-uring on"),
        ])?;
    } else if timings.is_some() || isolate != Isolation::Auto {
        anyhow::bail!("--timings and --isolate are for a disk image that is mounted with --rw");
    }
    let source = match &image {
        Some(image) => image.source(),
        None => disk.source_in(&source, format)?,
    };
    let (changes, owners, rings) = (changes.map(Changes::from), owners.owners(), io_uring.into());
    let (locks, sandbox) = (locks == LocksBy::Host, sandbox.into());
    let submounts = cross.into();
    let record = record.map(|file| RecordRequest { file, level: record_level.into() });
    let measures = measuring.measures();
    let request = MountRequest {
        source,
        point,
        via: via.into(),
        changes,
        submounts,
        writes,
        refused,
        owners,
        locks,
        record,
        measures: measures.clone(),
        rings,
        sandbox,
        salvage,
        remote: None,
    };
    request.check()?;
    let mut child = background.then(|| Child::begin(log.as_deref())).transpose()?;
    if let (Some(child), true) = (&mut child, image.is_some()) {
        child.close_inherited()?;
    }
    // What is wrong with the request was said before a machine is started for it.
    let remote = image.map(|image| image.server(timings, isolate)).transpose()?;
    let request = MountRequest { remote, ..request };
    measuring.around(measures.as_deref(), || until_unmounted(request, quiet, child))?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts, prints what is mounted, and waits for the unmount, SIGINT or SIGTERM.
fn until_unmounted(request: MountRequest, quiet: bool, child: Option<Child>) -> anyhow::Result<()> {
    // They are caught before the mount is visible, because its users may end the server. An earlier signal ends this process.
    let signals = Arc::new(Mutex::new(None));
    let caught = Arc::clone(&signals);
    let mounted = mount::start(
        request,
        Events::new(move |event| match event {
            MountEvent::Mounting => {
                *caught.lock().unwrap_or_else(PoisonError::into_inner) = Some(EndingSignals::catch());
            }
            event if quiet && !event.is_fault() => {}
            event => complain(event),
        }),
    )?;
    let report = mounted.report().clone();
    let is_in_background = child.is_some();
    let begun = tell(&mounted, quiet, child);
    if begun.is_err() {
        mounted.stop();
    }
    mounted.confine_waiter();
    let signals = signals.lock().unwrap_or_else(PoisonError::into_inner).take();
    let caught = match signals {
        Some(Ok(signals)) => {
            signals.lead_to(mounted.stopper());
            Ok(())
        }
        Some(Err(error)) => {
            mounted.stop();
            Err(anyhow::anyhow!("cannot catch signals: {error}"))
        }
        None => Ok(()),
    };
    let ended = mounted.wait();
    begun?;
    caught?;
    ended?;
    if is_in_background && !quiet {
        complain(format_args!("{} is unmounted", shown(&report.point)));
    }
    Ok(())
}

/// Says what is mounted, and lets the caller of a server in the background go.
fn tell(mounted: &MountHandle, quiet: bool, child: Option<Child>) -> anyhow::Result<()> {
    let report = mounted.report();
    if let Some(child) = &child {
        child.detach()?;
        mounted.answers()?;
    }
    if !quiet {
        let log = child.as_ref().map(Child::introduction).unwrap_or_default();
        introduce(&format!("{}\n{}{log}", report.line(), report.confined));
        report.hidden.iter().for_each(complain);
    }
    let introduce_in_log = || {
        if !quiet {
            complain(report.absolute_line());
        }
    };
    child.map_or(Ok(()), |child| child.answer(introduce_in_log))
}
