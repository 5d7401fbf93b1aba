//! `inarch serve`: serves a tree to a virtual machine that the user starts.

mod blk;
mod file;
mod nbd;
mod ninep;
mod virtiofs;
pub mod virtiofsd;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use inarch_jobs::serve::{ServedTree, Service, ServiceEvent, ServiceReport};
use inarch_jobs::{DiskFormat, Events, JobError, Writes};

use crate::access::AccessArguments;
use crate::arguments::one_of;
use crate::output::{complain, introduce};
use crate::profile::ProfileArgument;
use crate::sandbox::SandboxArgument;
use crate::say::limited;
use crate::signals::EndingSignals;
use crate::source::{SRC_HELP, SourceArguments};
use crate::stats::of_disk;

/// Options of `inarch serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch serve blk ~/src --socket /tmp/src.sock       a disk for QEMU and others
  inarch serve virtiofs ~/src --socket /tmp/src.sock  a live directory
  inarch serve file rootfs.tar /tmp/root.raw          a raw image file

'inarch help serve PROTOCOL' explains a protocol.")]
pub struct ServeArguments {
    /// The protocol.
    #[command(subcommand)]
    pub offering: Offering,
}

/// The protocols of `serve`.
#[derive(Subcommand, Debug)]
pub enum Offering {
    /// As a vhost-user-blk disk with a file system
    Blk(blk::BlkArguments),
    /// As a network block device, for any NBD client
    Nbd(nbd::NbdArguments),
    /// As a raw image file, for any program that opens one
    File(file::FileArguments),
    /// As a live directory for guests (vhost-user-fs)
    Virtiofs(virtiofs::VirtiofsArguments),
    /// As a live directory for any 9P2000.L client
    #[command(name = "9p")]
    Ninep(ninep::NinepArguments),
}

/// What to serve: the same for every disk.
#[derive(Args, Debug)]
pub struct TreeArguments {
    /// The tree: a directory, an archive or an image
    #[arg(value_name = "SRC", help = SRC_HELP)]
    pub source: OsString,

    /// File system of the disk; only ext4 is writable
    #[arg(long, value_name = "ext4|erofs|squashfs", default_value = "ext4", hide_possible_values = true,
        value_parser = one_of::<DiskFormat>(DiskFormat::ALL.map(DiskFormat::name)))]
    pub format: DiskFormat,

    #[command(flatten)]
    pub access: AccessArguments,

    /// Keep the guest's writes in this file for next time; by default they are thrown away
    #[arg(long, value_name = "FILE", conflicts_with = "ro")]
    pub overlay: Option<PathBuf>,

    /// Directory for writes that are thrown away
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub overlay_dir: PathBuf,

    /// Serial number of the disk, by which the guest finds it; derived from the socket or path by default
    #[arg(long, value_name = "SERIAL", value_parser = parse_serial)]
    pub serial: Option<String>,

    #[command(flatten)]
    pub measured: DiskStatsArguments,

    /// What to take of the source.
    #[command(flatten)]
    pub filters: SourceArguments,

    #[command(flatten)]
    pub sandbox: SandboxArgument,
}

/// What is measured of a served disk.
#[derive(Args, Clone, Debug)]
pub struct DiskStatsArguments {
    /// At the end, print how much was read and written, and how long that took
    #[arg(long)]
    pub stats: bool,

    #[command(flatten)]
    pub profile: ProfileArgument,
}

impl TreeArguments {
    fn served(self) -> anyhow::Result<ServedTree> {
        let writes = match (self.access.read_only(), self.overlay) {
            (true, _) => Writes::Refused,
            (false, Some(file)) => Writes::Kept(file),
            (false, None) => Writes::ThrownAway(self.overlay_dir),
        };
        let source = self.filters.disk.source(&self.source)?;
        let (selection, sandbox) = (self.filters.selection(&[])?, self.sandbox.into());
        Ok(ServedTree { source, selection, format: self.format, writes, serial: self.serial, sandbox })
    }
}

fn parse_serial(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_good = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_plain) && text.len() <= 20;
    if is_good {
        Ok(text.to_owned())
    } else {
        Err("a serial number is a letter and at most 19 letters, digits and '-'".to_owned())
    }
}

/// The memory in QEMU's arguments.
#[derive(Args, Debug)]
pub struct QemuMemory {
    /// Print the arguments for QEMU, and exit
    #[arg(long)]
    pub print_qemu_args: bool,

    /// Memory of the machine in these arguments, as for -m; none leaves it out, if another server's arguments have it
    #[arg(long, value_name = "SIZE|none", default_value = "4G", value_parser = parse_memory)]
    pub qemu_memory: Memory,
}

/// The machine's memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory(Option<u64>);

impl QemuMemory {
    /// The arguments of a device, and of the shared memory that it needs.
    fn arguments(&self, device: String) -> String {
        match self.qemu_memory {
            Memory(Some(bytes)) => format!("{} {device}\n", inarch_vm::machine::shared_memory_arguments(bytes)),
            Memory(None) => device + "\n",
        }
    }
}

fn parse_memory(text: &str) -> Result<Memory, String> {
    let bytes = (text != "none").then(|| crate::size::parse(text)).transpose()?;
    if bytes.is_some_and(|bytes| bytes == 0 || bytes % 4096 != 0) {
        return Err(format!("'{text}' is not a number of pages of 4 KiB"));
    }
    Ok(Memory(bytes))
}

/// Starts a server, prints how to use what it serves, and waits until SIGINT or SIGTERM ends it, or it ends by itself.
fn until_stopped(start: impl FnOnce(Events<ServiceEvent>) -> Result<Service, JobError>) -> anyhow::Result<()> {
    told_until_stopped(start, introduce).map(drop)
}

/// The same for a disk. What was asked of it is printed and drawn at the end, if that is wanted.
fn disk_until_stopped(
    measured: DiskStatsArguments,
    start: impl FnOnce(Events<ServiceEvent>) -> Result<Service, JobError>,
) -> anyhow::Result<()> {
    let DiskStatsArguments { stats, profile } = measured;
    let profile = profile.begin()?;
    let served = told_until_stopped(start, introduce);
    let asked = served.as_ref().ok().and_then(|report| report.disk.as_ref()).map(of_disk).unwrap_or_default();
    if stats && !asked.is_empty() {
        complain(&asked);
    }
    served.map(drop).and(profile.map_or(Ok(()), |profile| profile.end(asked)))
}

/// Lines of what clients cause that are said at once, at most.
const FAULTS: u32 = 5;

/// Like [`until_stopped`], where `introduce` gets the lines that say how to use what is served.
fn told_until_stopped(
    start: impl FnOnce(Events<ServiceEvent>) -> Result<Service, JobError>,
    introduce: fn(&str),
) -> anyhow::Result<ServiceReport> {
    // Caught before the socket or mount is visible: a program that sees it may end the server.
    let signals = EndingSignals::catch()?;
    let complain_of_few = limited(FAULTS);
    let service = start(Events::new(move |event| match event {
        // Clients that come and go by the thousand must not fill a log.
        ServiceEvent::Fault(_) => complain_of_few(event),
        event => complain(event),
    }))?;
    service.confine_waiter();
    signals.lead_to(service.stopper());
    if let Some(lines) = service.introduction() {
        introduce(lines);
    }
    Ok(service.wait()?)
}

/// Serves until it is stopped.
pub fn run(arguments: ServeArguments) -> anyhow::Result<ExitCode> {
    match arguments.offering {
        Offering::Blk(arguments) => blk::run(arguments),
        Offering::Nbd(arguments) => nbd::run(arguments),
        Offering::File(arguments) => file::run(arguments),
        Offering::Virtiofs(arguments) => virtiofs::run(arguments),
        Offering::Ninep(arguments) => ninep::run(arguments),
    }
}
