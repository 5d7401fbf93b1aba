//! `inarch serve`: a tree for a virtual machine that someone else starts.

mod blk;
mod file;
mod nbd;
mod ninep;
mod virtiofs;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use inarch_jobs::serve::{ServedTree, Service, ServiceEvent};
use inarch_jobs::source::Source;
use inarch_jobs::{Events, FileSystem, JobError, Writes};

use crate::access::AccessArguments;
use crate::arguments::one_of;
use crate::output::{complain, introduce};
use crate::sandbox::SandboxArgument;
use crate::signals::EndingSignals;
use crate::source::{SRC_HELP, SourceArguments};

/// Options of `inarch serve`.
#[derive(Args, Debug)]
pub struct ServeArguments {
    /// How the tree is offered.
    #[command(subcommand)]
    pub offering: Offering,
}

/// The ways to serve.
#[derive(Subcommand, Debug)]
pub enum Offering {
    /// As a vhost-user-blk disk with a file system
    Blk(blk::BlkArguments),
    /// As a network block device, for whatever speaks NBD
    Nbd(nbd::NbdArguments),
    /// As a file that is a raw image, for whatever opens one
    File(file::FileArguments),
    /// As a live directory that guests share (vhost-user-fs)
    Virtiofs(virtiofs::VirtiofsArguments),
    /// As a live directory for whatever mounts 9P2000.L
    #[command(name = "9p")]
    Ninep(ninep::NinepArguments),
}

/// What is offered: the same for every way to serve.
#[derive(Args, Debug)]
pub struct TreeArguments {
    /// What to serve: a directory, an archive or an image
    #[arg(value_name = "SRC", help = SRC_HELP)]
    pub source: OsString,

    /// The file system that it is offered as; only ext4 can be written to
    #[arg(long, value_name = "ext4|erofs|squashfs", default_value = "ext4", hide_possible_values = true,
        value_parser = one_of::<FileSystem>(FileSystem::ALL.map(FileSystem::name)))]
    pub format: FileSystem,

    #[command(flatten)]
    pub access: AccessArguments,

    /// Keep the guest's writes in this file, for the next time; thrown away where not given
    #[arg(long, value_name = "FILE", conflicts_with = "ro")]
    pub overlay: Option<PathBuf>,

    /// Where thrown-away writes are kept meanwhile
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub overlay_dir: PathBuf,

    /// The disk's serial number, by which the guest finds it; made of the place where it is served where not given
    #[arg(long, value_name = "SERIAL", value_parser = parse_serial)]
    pub serial: Option<String>,

    /// What is taken.
    #[command(flatten)]
    pub filters: SourceArguments,

    #[command(flatten)]
    pub sandbox: SandboxArgument,
}

impl TreeArguments {
    fn served(self) -> anyhow::Result<ServedTree> {
        let writes = match (self.access.read_only(), self.overlay) {
            (true, _) => Writes::Refused,
            (false, Some(file)) => Writes::Kept(file),
            (false, None) => Writes::ThrownAway(self.overlay_dir),
        };
        let source = Source::parse(&self.source)?;
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

/// What QEMU's arguments say of the machine's memory.
#[derive(Args, Debug)]
pub struct QemuMemory {
    /// Print the arguments that QEMU needs, and end
    #[arg(long)]
    pub print_qemu_args: bool,

    /// How much memory they give the machine, as -m does; none leaves that out, where another server's arguments say it
    #[arg(long, value_name = "SIZE|none", default_value = "4G", value_parser = parse_memory, requires = "print_qemu_args")]
    pub qemu_memory: Memory,
}

/// The machine's memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory(Option<u64>);

impl QemuMemory {
    /// The arguments of a device, and of the memory that it takes.
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

/// Starts a server, says how to use what it serves, and waits until it ends: by SIGINT or SIGTERM, or by itself.
fn until_stopped(
    start: impl FnOnce(Events<ServiceEvent>) -> Result<Service, JobError>,
) -> anyhow::Result<()> {
    // Before a socket or a mount can be seen: who sees it may have the server end.
    let signals = EndingSignals::catch()?;
    let service = start(Events::new(complain))?;
    introduce(service.introduction());
    service.confine_waiter();
    signals.lead_to(service.stopper());
    Ok(service.wait()?)
}

/// Serves until told to stop.
pub fn run(arguments: ServeArguments) -> anyhow::Result<ExitCode> {
    match arguments.offering {
        Offering::Blk(arguments) => blk::run(arguments),
        Offering::Nbd(arguments) => nbd::run(arguments),
        Offering::File(arguments) => file::run(arguments),
        Offering::Virtiofs(arguments) => virtiofs::run(arguments),
        Offering::Ninep(arguments) => ninep::run(arguments),
    }
}
