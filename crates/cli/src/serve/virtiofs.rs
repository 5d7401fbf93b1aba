//! `inarch serve virtiofs`: shares a directory live over vhost-user-fs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use inarch_jobs::serve::ListenAt;
use inarch_jobs::serve::virtiofs::{self, VirtiofsRequest};
use inarch_jobs::share::{Changes, QUEUE_SIZE, Share, directory_of};
use inarch_jobs::source::Source;

use super::{QemuMemory, until_stopped};
use crate::access::{AccessArguments, RefusedArguments};
use crate::mount::LocksBy;
use crate::output::answer;
use crate::sandbox::SandboxArgument;
use crate::source::{CrossArgument, OwnerArguments};
use crate::stats::StatsArguments;
use crate::upper::UpperArguments;

/// Options of `inarch serve virtiofs`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  inarch serve virtiofs ~/src --socket /tmp/src.sock --tag src &
  qemu-system-x86_64 ... \\
    $(inarch serve virtiofs ~/src --socket /tmp/src.sock --tag src \\
      --print-qemu-args)
  guest# mount -t virtiofs src /mnt

The guest's writes reach the directory unless --ro, --overlay or --ephemeral is given. The server runs until SIGTERM or \
SIGINT; several machines may connect.")]
pub struct VirtiofsArguments {
    /// The directory to share
    #[arg(value_name = "SRC")]
    pub source: OsString,

    /// The socket to listen on
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,

    /// The name that the guest mounts
    #[arg(long, value_name = "TAG", default_value = "inarch")]
    pub tag: String,

    /// Offer the tag to VMMs that have no option for it (User-Mode Linux); QEMU 7.1 to 8.0 may fail on it
    #[arg(long)]
    pub offer_tag: bool,

    /// Who else changes the tree, which decides what the guest's kernel may cache
    #[arg(long, value_name = "guest|host|none", default_value = "host", value_enum, hide_possible_values = true)]
    pub changes: ChangesBy,

    #[command(flatten)]
    pub access: AccessArguments,

    #[command(flatten)]
    pub refused: RefusedArguments,

    #[command(flatten)]
    pub upper: UpperArguments,

    /// Let the guest enforce access control lists
    #[arg(long, conflicts_with = "no_xattr")]
    pub acl: bool,

    /// Offer no extended attributes
    #[arg(long)]
    pub no_xattr: bool,

    /// Let the guest collect writes before it sends them, for many small writes; only with --changes guest
    #[arg(long, conflicts_with_all = ["ro", "overlay", "ephemeral"])]
    pub writeback: bool,

    /// Whose locks count: guest (each guest sees its own), host (every guest and the host's programs see all; costs a request
    /// for each lock and each close). A process that waits for a lock cannot be interrupted there
    #[arg(long, value_name = "guest|host", value_enum, default_value = "guest", hide_possible_values = true)]
    pub locks: LocksBy,

    #[command(flatten)]
    pub qemu: QemuMemory,

    /// Number of request queues, each with a thread
    #[arg(long, visible_alias = "threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: Option<u16>,

    /// Descriptors of each queue, in QEMU's arguments: a power of 2. A request takes one for each 4 KiB. The machine decides, and
    /// the server takes what it says
    #[arg(long, value_name = "N", default_value_t = QUEUE_SIZE, value_parser = queue_size)]
    pub queue_size: u16,

    #[command(flatten)]
    pub cross: CrossArgument,

    /// How owners are mapped.
    #[command(flatten)]
    pub owners: OwnerArguments,

    /// End when the first machine disconnects
    #[arg(long)]
    pub once: bool,

    #[command(flatten)]
    pub stats: StatsArguments,

    #[command(flatten)]
    pub sandbox: SandboxArgument,
}

/// Who may change a shared tree.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ChangesBy {
    /// Only the guest: it caches for a day
    Guest,
    /// The host, other guests and the guest: its cache is a second old at most
    Host,
    /// Nobody: the share is read-only, and the guest caches everything
    None,
}

impl From<ChangesBy> for Changes {
    fn from(by: ChangesBy) -> Changes {
        match by {
            ChangesBy::Guest => Changes::Guest,
            ChangesBy::Host => Changes::Host,
            ChangesBy::None => Changes::None,
        }
    }
}

/// Parses the descriptors of a queue. QEMU's vhost-user-fs takes a power of 2 from 128 to 1024 (`vuf_device_realize` of its
/// hw/virtio/vhost-user-fs.c).
fn queue_size(text: &str) -> Result<u16, String> {
    let size = text.parse().ok().filter(|size: &u16| size.is_power_of_two() && (128..=QUEUE_SIZE).contains(size));
    size.ok_or_else(|| format!("write 128, 256, 512 or {QUEUE_SIZE}"))
}

/// Serves until it is stopped.
pub fn run(arguments: VirtiofsArguments) -> anyhow::Result<ExitCode> {
    let source = Source::parse(&arguments.source)?;
    anyhow::ensure!(
        !arguments.writeback || matches!(arguments.changes, ChangesBy::Guest),
        "--writeback: others would not see what a guest has written; say --changes guest if nobody else changes SRC"
    );
    anyhow::ensure!(
        arguments.locks == LocksBy::Guest || !(arguments.upper.is_given()),
        "--locks host: writes go to an overlay, whose files the host's programs do not have; leave one of them out"
    );
    let measures = arguments.stats.measures();
    let share = Share {
        directory: directory_of(&source)?.to_owned(),
        changes: arguments.changes.into(),
        uncached: false,
        read_only: arguments.access.read_only(),
        refused: arguments.refused.into(),
        over: arguments.upper.place()?,
        submounts: arguments.cross.into(),
        xattrs: !arguments.no_xattr,
        acl: arguments.acl,
        writeback: arguments.writeback,
        locks: arguments.locks == LocksBy::Host,
        owners: arguments.owners.owners(),
        measures: measures.clone(),
    };
    let request = VirtiofsRequest {
        share,
        listen: ListenAt::Path { path: arguments.socket, group: None },
        tag: arguments.tag,
        offer_tag: arguments.offer_tag,
        queues: arguments.queues,
        queue_size: arguments.queue_size,
        once: arguments.once,
        sandbox: arguments.sandbox.into(),
    };
    if arguments.qemu.print_qemu_args {
        answer(arguments.qemu.arguments(virtiofs::qemu_arguments(&request)?))?;
    } else {
        let serve = || until_stopped(|events| virtiofs::start(request, events));
        arguments.stats.around(measures.as_deref(), serve)?;
    }
    Ok(ExitCode::SUCCESS)
}
