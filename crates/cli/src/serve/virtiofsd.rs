//! Takes the command line of virtiofsd, so that this program can stand in for it.
//!
//! Started by that name (a symbolic link is enough), this program takes the options of the Rust and of the C virtiofsd, and serves as
//! `inarch serve virtiofs` does. Options that only tune virtiofsd itself have no effect. What would change what a guest may see or do, and
//! is not supported, is refused.
//!
//! Sources: virtiofsd's README.md and its doc/xattr-mapping.md (1.10); QEMU's docs/tools/virtiofsd.rst (7.2) for the C program.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::{CommandFactory, Parser};
use inarch_jobs::serve::virtiofs::{self, VirtiofsRequest};
use inarch_jobs::serve::{ListenAt, group_of};
use inarch_jobs::share::{Changes, QUEUE_SIZE, Refused, Share, Submounts};
use inarch_jobs::{Sandbox, shown};
use inarch_tree::select::{IdRange, Owners};

use super::told_until_stopped;
use crate::output::{answer, complain};

/// What `--print-capabilities` prints: libvirt reads it (QEMU's docs/interop/vhost-user.json).
const CAPABILITIES: &str = "{\n  \"type\": \"fs\"\n}\n";

/// The options. Those of `-o` become such options first; see [`spelled_out`].
#[derive(Parser, Debug)]
#[command(name = "virtiofsd", version = env!("INARCH_VERSION"), disable_help_subcommand = true, args_override_self = true)]
#[command(about = "Inarch in the place of virtiofsd: shares a directory with a guest")]
#[command(after_help = "\
Example:
  virtiofsd --socket-path /tmp/src.sock --shared-dir ~/src

Also takes -o source=DIR,cache=MODE,... of the C program, and options that only tune virtiofsd, which have no effect. \
'inarch help serve virtiofs' explains what this server can do besides.")]
struct VirtiofsdArguments {
    /// The directory to share
    #[arg(long, value_name = "DIR", required_unless_present = "print_capabilities")]
    shared_dir: Vec<PathBuf>,

    /// The socket to listen on
    #[arg(long, value_name = "PATH", visible_alias = "socket", conflicts_with = "fd",
        required_unless_present_any = ["fd", "print_capabilities"])]
    socket_path: Option<PathBuf>,

    /// The group that may connect to the socket
    #[arg(long, value_name = "GROUP", requires = "socket_path")]
    socket_group: Option<String>,

    /// The descriptor of a socket that listens already
    #[arg(long, value_name = "FD")]
    fd: Option<i32>,

    /// The name that the guest mounts, for VMMs that have none
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,

    /// What the guest's kernel caches: auto (for a second), always (for a day), never, metadata (as never)
    #[arg(long, value_name = "auto|always|never|metadata", default_value = "auto",
        value_parser = ["auto", "always", "never", "none", "metadata"], hide_possible_values = true)]
    cache: String,

    /// Offer extended attributes
    #[arg(long, overrides_with = "no_xattr")]
    xattr: bool,

    /// Offer no extended attributes, the default
    #[arg(long)]
    no_xattr: bool,

    /// Have the guest enforce access control lists; implies --xattr
    #[arg(long, overrides_with = "no_posix_acl")]
    posix_acl: bool,

    #[arg(long, hide = true)]
    no_posix_acl: bool,

    /// Refuse writes
    #[arg(long)]
    readonly: bool,

    /// Let the guest collect writes; only with --cache always
    #[arg(long, overrides_with = "no_writeback")]
    writeback: bool,

    #[arg(long, hide = true)]
    no_writeback: bool,

    /// Show each mount below the directory as one of its own, and not as a part of the directory
    #[arg(long, overrides_with = "no_announce_submounts")]
    announce_submounts: bool,

    #[arg(long, hide = true)]
    no_announce_submounts: bool,

    /// Take locks on the host's files, where its programs see them
    #[arg(long, alias = "flock", overrides_with = "no_posix_lock")]
    posix_lock: bool,

    #[arg(long, alias = "no-flock", hide = true)]
    no_posix_lock: bool,

    /// Owners that the guest sees: map:GUEST:HOST:COUNT
    #[arg(long, value_name = "MAP", value_delimiter = ',', value_parser = id_map)]
    translate_uid: Vec<IdRange>,

    /// The same for groups
    #[arg(long, value_name = "MAP", value_delimiter = ',', value_parser = id_map)]
    translate_gid: Vec<IdRange>,

    /// How the server confines itself: namespace and chroot are one here; none
    #[arg(long, value_name = "namespace|chroot|none", default_value = "namespace",
        value_parser = ["namespace", "chroot", "none"], hide_possible_values = true)]
    sandbox: String,

    /// Print what this server can do, for libvirt, and exit
    #[arg(long)]
    print_capabilities: bool,

    /// Capabilities that the server is to have, or not: -mknod is heeded, and no other can be taken away
    #[arg(long, value_name = "[+-]CAP[:[+-]CAP]...", allow_hyphen_values = true)]
    modcaps: Option<String>,

    /// Refused if given: these change what a guest sees.
    #[arg(long, hide = true, value_name = "MAP", alias = "xattr-map", num_args = 1)]
    xattrmap: Option<String>,
    #[arg(long, hide = true, num_args = 1)]
    uid_map: Option<String>,
    #[arg(long, hide = true, num_args = 1)]
    gid_map: Option<String>,
    #[arg(long, hide = true)]
    security_label: bool,

    #[command(flatten)]
    _tuning: Tuning,
}

/// Options without effect here.
#[derive(clap::Args, Debug)]
struct Tuning {
    #[arg(long, hide = true, num_args = 1)]
    thread_pool_size: Option<OsString>,
    #[arg(long, hide = true, num_args = 1)]
    queue_size: Option<OsString>,
    #[arg(long, hide = true, num_args = 1)]
    log_level: Option<OsString>,
    #[arg(long, hide = true, num_args = 1)]
    seccomp: Option<OsString>,
    #[arg(long, hide = true, num_args = 1)]
    inode_file_handles: Option<OsString>,
    #[arg(long, hide = true, num_args = 1)]
    rlimit_nofile: Option<OsString>,
    #[arg(long, hide = true, num_args = 1)]
    timeout: Option<OsString>,
    #[arg(long, hide = true, num_args = 1)]
    migration_mode: Option<OsString>,
    #[arg(long, hide = true, num_args = 1)]
    migration_on_error: Option<OsString>,
    #[arg(long, hide = true)]
    migration_verify_handles: bool,
    #[arg(long, hide = true)]
    migration_confirm_paths: bool,
    #[arg(long, hide = true)]
    syslog: bool,
    #[arg(long, hide = true)]
    killpriv_v2: bool,
    #[arg(long, hide = true)]
    no_killpriv_v2: bool,
    #[arg(long, hide = true)]
    no_security_label: bool,
    #[arg(long, hide = true, alias = "no-allow-direct-io")]
    allow_direct_io: bool,
    #[arg(long, hide = true)]
    allow_mmap: bool,
    #[arg(long, hide = true)]
    allow_root: bool,
    #[arg(long, hide = true)]
    preserve_noatime: bool,
    #[arg(long, hide = true)]
    readdirplus: bool,
    #[arg(long, hide = true)]
    no_readdirplus: bool,
    #[arg(long, hide = true)]
    debug: bool,
    #[arg(short, hide = true)]
    d: bool,
    #[arg(short, long, hide = true)]
    foreground: bool,
}

/// Whether a program of this name is to be taken for virtiofsd.
pub fn is_meant(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new("virtiofsd"))
}

/// Serves, as virtiofsd with these words would, until the first machine disconnects.
pub fn run(words: &[OsString]) -> Result<anyhow::Result<ExitCode>, clap::Error> {
    let words = spelled_out(words)
        .map_err(|message| VirtiofsdArguments::command().error(clap::error::ErrorKind::InvalidValue, message))?;
    Ok(serve(VirtiofsdArguments::try_parse_from(words)?))
}

/// The words with those of `-o` as options of their own: `-o source=/x,no_xattr` as `--shared-dir=/x --no-xattr`.
fn spelled_out(words: &[OsString]) -> Result<Vec<OsString>, String> {
    let mut all = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_str();
        let list = match text {
            Some("-o") => words.next().ok_or("-o: a value is missing")?.to_str(),
            Some(text) if text.starts_with("-o") => text.strip_prefix("-o"),
            _ => {
                all.push(word.clone());
                continue;
            }
        };
        let list = list.ok_or("-o: its value is not UTF-8; write --shared-dir DIR")?;
        for option in list.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            let name = if name == "source" { "shared-dir".to_owned() } else { name.replace('_', "-") };
            // The C program takes both for each of its switches.
            all.push(value.map_or(format!("--{name}"), |value| format!("--{name}={value}")).into());
        }
    }
    Ok(all)
}

/// Parses `map:GUEST:HOST:COUNT` of virtiofsd's `--translate-uid`.
fn id_map(text: &str) -> Result<IdRange, String> {
    let numbers = text.strip_prefix("map:").ok_or("only map:GUEST:HOST:COUNT is supported")?;
    let parts: Vec<&str> = numbers.split(':').collect();
    let [guest, host, count] = parts[..] else { return Err("map:GUEST:HOST:COUNT has three numbers".to_owned()) };
    format!("{host}:{guest}:{count}").parse().map_err(|error: inarch_tree::select::IdRangeError| error.to_string())
}

/// Whether `--modcaps` takes the capability away with which guests make devices. It is an error if it takes another away.
fn forbids_devices(list: &str) -> anyhow::Result<bool> {
    let mut forbids = false;
    for one in list.split(':') {
        match one.strip_prefix('-').map(str::to_ascii_lowercase).as_deref() {
            None => {}
            Some("mknod" | "cap_mknod") => forbids = true,
            Some(_) => {
                bail!("--modcaps {one}: of the server's capabilities only mknod can be taken away; leave it out")
            }
        }
    }
    Ok(forbids)
}

fn serve(arguments: VirtiofsdArguments) -> anyhow::Result<ExitCode> {
    if arguments.print_capabilities {
        answer(CAPABILITIES)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (is_given, option) in [
        (arguments.xattrmap.is_some(), "--xattrmap"),
        (arguments.uid_map.is_some(), "--uid-map"),
        (arguments.gid_map.is_some(), "--gid-map"),
        (arguments.security_label, "--security-label"),
    ] {
        ensure!(
            !is_given,
            "{option} is not supported by Inarch in the place of virtiofsd, and changes what a guest sees"
        );
    }
    let forbids_devices = arguments.modcaps.as_deref().map_or(Ok(false), forbids_devices)?;
    let (changes, uncached) = match &*arguments.cache {
        "auto" => (Changes::Host, false),
        "always" => (Changes::Guest, false),
        _ => (Changes::Host, true),
    };
    if arguments.writeback && changes != Changes::Guest {
        complain("--writeback has an effect only with --cache always: others would not see what the guest has written");
    }
    let Some((directory, others)) = arguments.shared_dir.split_first() else { bail!("--shared-dir is missing") };
    // The last of two would count. A caller who can add a word to the line could then choose what is shared.
    if let Some(other) = others.iter().find(|other| *other != directory) {
        bail!("{} and {}: only one directory can be shared", shown(directory), shown(other));
    }
    let directory = directory.clone();
    let share = Share {
        directory,
        changes,
        uncached,
        read_only: arguments.readonly,
        refused: Refused { devices: forbids_devices, ..Refused::default() },
        over: None,
        submounts: if arguments.announce_submounts { Submounts::Separate } else { Submounts::Merged },
        xattrs: arguments.xattr || arguments.posix_acl,
        acl: arguments.posix_acl,
        writeback: arguments.writeback,
        locks: arguments.posix_lock,
        owners: Owners { users: arguments.translate_uid, groups: arguments.translate_gid, ..Owners::default() },
        measures: None,
    };
    let listen = match (arguments.socket_path, arguments.fd) {
        (Some(path), _) => {
            let group = arguments.socket_group.map(|name| group_of(&name));
            ListenAt::Path { path, group: group.transpose()? }
        }
        (None, Some(number)) => ListenAt::Inherited(number),
        (None, None) => bail!("--socket-path or --fd is missing"),
    };
    let request = VirtiofsRequest {
        share,
        listen,
        offer_tag: arguments.tag.is_some(),
        tag: arguments.tag.unwrap_or_else(|| "inarch".to_owned()),
        queues: None,
        queue_size: QUEUE_SIZE,
        once: true,
        sandbox: if arguments.sandbox == "none" { Sandbox::None } else { Sandbox::Auto },
    };
    // Its starter knows how to use it.
    told_until_stopped(|events| virtiofs::start(request, events), |_| {})?;
    Ok(ExitCode::SUCCESS)
}
