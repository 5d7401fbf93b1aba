//! `inarch serve 9p`: shares a directory live over 9P2000.L.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::serve::ninep::{self, NinepAddress, NinepRequest};
use inarch_jobs::share::{Share, directory_of};
use inarch_jobs::source::Source;

use super::nbd::parse_tcp;
use super::until_stopped;
use super::virtiofs::ChangesBy;
use crate::access::{AccessArguments, RefusedArguments};
use crate::output::answer;
use crate::sandbox::SandboxArgument;
use crate::source::{CrossArgument, OwnerArguments};
use crate::stats::StatsArguments;
use crate::upper::UpperArguments;

/// Options of `inarch serve 9p`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  inarch serve 9p ~/src --socket /tmp/src.sock &
  qemu-system-x86_64 ... \\
    $(inarch serve 9p ~/src --socket /tmp/src.sock --print-qemu-args)
  guest# mount -t 9p -o trans=tcp,version=9p2000.L,msize=1048576,cache=mmap \\
    10.0.2.100 /mnt

Clients' writes reach the directory unless --ro, --overlay or --ephemeral is given. The server runs until SIGTERM or \
SIGINT; several clients may connect.")]
#[command(override_usage = "inarch serve 9p [OPTIONS] <--socket PATH|--tcp PORT|--vsock PORT> SRC")]
#[command(group = clap::ArgGroup::new("address").required(true))]
pub struct NinepArguments {
    /// The directory to share
    #[arg(value_name = "SRC")]
    pub source: OsString,

    /// The socket to listen on
    #[arg(long, value_name = "PATH", group = "address")]
    pub socket: Option<PathBuf>,

    /// The TCP port to listen on, at 127.0.0.1 unless an address is given. There is no password
    #[arg(long, value_name = "[ADDR:]PORT", group = "address", value_parser = parse_tcp)]
    pub tcp: Option<SocketAddr>,

    /// The vsock port to listen on, for virtual machines of this host
    #[arg(long, value_name = "PORT", group = "address")]
    pub vsock: Option<u32>,

    /// Print the arguments for QEMU, and exit
    #[arg(long)]
    pub print_qemu_args: bool,

    /// Who else changes the tree, which decides what a client may cache
    #[arg(long, value_name = "guest|host|none", default_value = "host", value_enum, hide_possible_values = true)]
    pub changes: ChangesBy,

    #[command(flatten)]
    pub access: AccessArguments,

    #[command(flatten)]
    pub refused: RefusedArguments,

    #[command(flatten)]
    pub upper: UpperArguments,

    /// Limit of a message's bytes, 4096 to 1048576
    #[arg(long, value_name = "BYTES", default_value = "1048576", value_parser = clap::value_parser!(u32).range(4096..=1 << 20))]
    pub msize: u32,

    #[command(flatten)]
    pub cross: CrossArgument,

    /// How owners are mapped.
    #[command(flatten)]
    pub owners: OwnerArguments,

    /// End when a client has used the share and none is connected
    #[arg(long)]
    pub once: bool,

    #[command(flatten)]
    pub stats: StatsArguments,

    #[command(flatten)]
    pub sandbox: SandboxArgument,
}

/// Serves until it is stopped.
pub fn run(arguments: NinepArguments) -> anyhow::Result<ExitCode> {
    let source = Source::parse(&arguments.source)?;
    let address = match (arguments.socket, arguments.tcp, arguments.vsock) {
        (Some(path), _, _) => NinepAddress::Socket(path),
        (_, Some(address), _) => NinepAddress::Tcp(address),
        (_, _, Some(port)) => NinepAddress::Vsock(port),
        (None, None, None) => anyhow::bail!("say where to listen: --socket PATH, --tcp PORT or --vsock PORT"),
    };
    let measures = arguments.stats.measures();
    let share = Share {
        directory: directory_of(&source)?.to_owned(),
        changes: arguments.changes.into(),
        uncached: false,
        read_only: arguments.access.read_only(),
        refused: arguments.refused.into(),
        over: arguments.upper.place()?,
        submounts: arguments.cross.into(),
        xattrs: true,
        acl: false,
        locks: false,
        writeback: false,
        owners: arguments.owners.owners(),
        measures: measures.clone(),
    };
    let request = NinepRequest {
        share,
        address,
        msize: arguments.msize,
        once: arguments.once,
        sandbox: arguments.sandbox.into(),
    };
    if arguments.print_qemu_args {
        answer(ninep::qemu_arguments(&request)? + "\n")?;
    } else {
        let serve = || until_stopped(|events| ninep::start(request, events));
        arguments.stats.around(measures.as_deref(), serve)?;
    }
    Ok(ExitCode::SUCCESS)
}
