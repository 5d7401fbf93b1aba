//! The options of `inarch run`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command, ValueEnum};
use inarch_jobs::run::{PublishedPort, Vmm, Way, WireOptions};
use inarch_vm::Arch;
use inarch_vm::accel::AccelChoice;

use crate::arguments::one_of;
use crate::profile::ProfileArgument;
use crate::source::SourceArguments;
use crate::tree_option::{self, WireOption};
use crate::{duration, publish, size};

/// Options of `inarch run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch run make check                  test this directory in a VM
  inarch run -t                          a shell in a VM over your own files
  inarch run --tree ~/x:/x,ro ls -l /x   another directory, read-only, at /x
  inarch run -v ~/out:/out make install  a directory live: writes reach it
  inarch run -u root --disk new.img sh -c 'mkfs.ext4 $INARCH_DISK_1'
  inarch run --root ./bookworm --net apt-get update
  inarch run --root oci:app              what a container image says it runs
  inarch run --arch riscv64 --root debian:trixie uname -m
  inarch run --keep try make             keep its writes; then inarch diff try
  inarch run --net --cache maven mvn verify  with Maven's earlier downloads

The options that a project fixes are read from inarch.toml in the current directory or above it, up to that of the repository.

Words after CMD are its arguments; write '--' before a CMD that begins with '-'.

Exit status: the command's own; 124 timed out; 125 inarch or the VM failed; 126 the command cannot be run; 127 not found.")]
pub struct RunArguments {
    /// The command and its arguments; by default what a container image runs, or else your shell
    #[arg(trailing_var_arg = true, value_name = "CMD", add = crate::completions::command_words())]
    pub command: Vec<OsString>,

    /// The guest's root: this machine's own ('host'), a directory, archive or image, nothing but the trees ('none'), or a
    /// Debian that is made once of its packages (debian:SUITE[+PACKAGE]...)
    #[arg(long, value_name = "host|SRC|none|debian:SUITE", default_value = "host")]
    pub root: OsString,

    /// Another tree, at DST (by default the same path). OPT is ro, overlay or rw (the guest's writes reach the
    /// directory itself), nosuid, nodev, via=WAY, msize=BYTES (of via=9p), queues=N (of via=virtiofs), changes=WHO, writeback, hold, owner=MAP or
    /// exclude=GLOB
    #[arg(long, value_name = "SRC[:DST][,OPT]...")]
    pub tree: Vec<OsString>,

    /// Share a directory live, like docker's -v: the guest's writes reach SRC, unless :ro is given. The same as --tree
    /// SRC:DST,rw
    #[arg(short = 'v', long, value_name = "SRC:DST[:ro|:nosuid,nodev]")]
    pub volume: Vec<OsString>,

    /// Share the current directory live: the guest's writes reach it. The same as --tree .,rw
    #[arg(long, conflicts_with = "ro")]
    pub rw: bool,

    /// Refuse writes to the root, and to the current directory if it is brought along
    #[arg(long, visible_alias = "read-only")]
    pub ro: bool,

    /// Give the guest a disk image or a block device as a disk, to which its writes go, unless ,ro: raw, or qcow2 if its
    /// name ends in .qcow2. It is /dev/disk/by-id/virtio-disk1 there, and $INARCH_DISK_1 says its device (repeatable)
    #[arg(long, value_name = "FILE[,ro][,format=raw|qcow2]")]
    pub disk: Vec<OsString>,

    /// Keep what the guest writes under NAME, and continue there next time (inarch diff, apply and discard NAME)
    #[arg(long, value_name = "NAME", visible_alias = "name", add = crate::completions::kept_runs())]
    pub keep: Option<String>,

    /// Give the guest the cache of a tool, and keep what a successful command adds to it; 'inarch cache tools' lists the
    /// tools. Any other NAME needs a PATH in the guest. OPT is ro (add nothing), always (keep what a failed command adds,
    /// too), shared, private or locked (one run at a time), or scope=project|branch|user|NAME, whose cache it is (repeatable)
    #[arg(long, value_name = "NAME[=PATH][,NAME[=PATH]]...[,OPT]...", add = crate::completions::cache_names())]
    pub cache: Vec<String>,

    /// Do without inarch.toml, in which a project fixes options of its runs
    #[arg(long)]
    pub no_project: bool,

    /// Synchronise each cache with a remote: first the guest gets what is newer there, then what it adds
    /// is pushed. URL is s3://BUCKET/PREFIX, gs://, az://, file:///DIR, or https:// (only read); INARCH_CACHE_REMOTE is the
    /// default
    #[arg(long, value_name = "URL", requires = "cache")]
    pub cache_remote: Option<String>,

    /// Leave nothing behind; the default without --keep, accepted out of habit
    #[arg(long, conflicts_with = "keep")]
    pub rm: bool,

    /// Do not hold the files of the current directory's project: one that is edited meanwhile reads as an I/O error
    #[arg(long)]
    pub no_hold: bool,

    /// How trees reach the guest: as a disk with ext4, or with erofs or squashfs and an overlayfs on top; live, by
    /// virtiofs or 9P, with an overlayfs on top; or as an archive that the guest unpacks into its memory, or onto a
    /// disk if its memory is too small. 'auto' is the first that the guest's kernel supports. Options follow their way:
    /// 9p,msize=128K or virtiofs,queues=4
    #[arg(long, value_name = "auto|ext4|erofs|squashfs|virtiofs|9p|tar", default_value = "auto", hide_possible_values = true,
        value_delimiter = ',', value_parser = ViaParser)]
    pub via: Vec<ViaWord>,

    /// Run WORD with the command's words after it, in place of a container image's Entrypoint and Cmd; '' is no entry
    /// point
    #[arg(long, value_name = "WORD")]
    pub entrypoint: Option<OsString>,

    /// Set a variable in the command's environment, or pass your own value on (repeatable)
    #[arg(short = 'e', long = "env", value_name = "KEY[=VALUE]")]
    pub environment: Vec<OsString>,

    /// Working directory in the guest; by default the current one if the root is this machine's, a container image's
    /// own
    #[arg(short = 'w', long, value_name = "DIR", alias = "cwd")]
    pub workdir: Option<PathBuf>,

    /// User in the guest, by name or number; by default you if the root is this machine's, a container image's own,
    /// else root
    #[arg(short = 'u', long, value_name = "USER[:GROUP]", add = crate::completions::users())]
    pub user: Option<String>,

    /// Give the command a terminal
    #[arg(short = 't', long)]
    pub tty: bool,

    /// Stream standard input to the command; the default, accepted out of habit
    #[arg(short = 'i', long)]
    pub interactive: bool,

    /// End the command after this time (30, 90s, 10m, 2h), with status 124
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub timeout: Option<Duration>,

    /// Start nothing; print the command line of the machine
    #[arg(long)]
    pub dry_run: bool,

    /// Write to FILE, as JSON, how the run went: status, seconds of each phase, requests and bytes of each tree
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// At the end, print what the guest asked of each tree, how long that took, and the processor time of the command
    #[arg(long)]
    pub stats: bool,

    #[command(flatten)]
    pub profile: ProfileArgument,

    /// At the end, print how long each part of the run took; with =FILE.svg also draw it there
    #[arg(long, value_name = "FILE.svg", num_args = 0..=1, require_equals = true)]
    pub timings: Option<Option<PathBuf>>,

    /// Write to FILE, as JSON, which files the guest used and changed; see 'inarch trace'
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Record which of the guest's processes made each access, for trees shared by virtiofs; slower
    #[arg(long, requires = "trace")]
    pub by_process: bool,

    /// Print only errors, and why the command failed if that was not its own doing
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// Report the transport of each tree and the accelerator, even if they are the usual ones
    #[arg(long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// Options of the virtual machine.
    #[command(flatten)]
    pub machine: MachineArguments,

    /// What to take of the sources.
    #[command(flatten)]
    pub source: SourceArguments,
}

impl RunArguments {
    /// The one way of `--via`.
    pub fn way(&self) -> anyhow::Result<(Way, WireOptions)> {
        match self.ways()?[..] {
            [way] => Ok(way),
            _ => anyhow::bail!("--via: a run goes one way; 'inarch compare' takes several and measures each"),
        }
    }

    /// The ways of `--via`, each with the options that follow it.
    pub fn ways(&self) -> anyhow::Result<Vec<(Way, WireOptions)>> {
        let mut ways: Vec<(Way, WireOptions)> = Vec::new();
        for word in &self.via {
            match (*word, ways.last_mut()) {
                (ViaWord::Way(way), _) => ways.push((way, WireOptions::default())),
                (ViaWord::Option(option), Some((way, options))) => {
                    option.set(options);
                    if let Some(useless) = options.useless_for(*way) {
                        anyhow::bail!(
                            "--via: {} has no {useless}=; 9p,msize=BYTES and virtiofs,queues=N have options",
                            way.name()
                        );
                    }
                }
                (ViaWord::Option(_), None) => {
                    anyhow::bail!("--via: name the way before its options: 9p,msize=128K or virtiofs,queues=4")
                }
            }
        }
        Ok(ways)
    }
}

/// A word of `--via`.
#[derive(Clone, Copy, Debug)]
pub enum ViaWord {
    /// A way.
    Way(Way),
    /// An option of the way before it.
    Option(WireOption),
}

/// Parses a word of `--via`.
#[derive(Clone)]
struct ViaParser;

impl TypedValueParser for ViaParser {
    type Value = ViaWord;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<ViaWord, clap::Error> {
        if value.as_bytes().contains(&b'=') {
            let option = StringValueParser::new().try_map(|word| tree_option::wire_option(&word));
            return option.parse_ref(command, argument, value).map(ViaWord::Option);
        }
        let way = PossibleValuesParser::new(tree_option::WAYS).try_map(|word| tree_option::via(&word));
        way.parse_ref(command, argument, value).map(ViaWord::Way)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(tree_option::WAYS.into_iter().map(PossibleValue::new)))
    }
}

/// Options of the virtual machine.
#[derive(Args, Debug)]
#[command(next_help_heading = "The machine")]
pub struct MachineArguments {
    /// What the guest's machine is: qemu, a virtual machine, or uml, a process (User-Mode Linux): without KVM it is faster than
    /// qemu, but isolates less, and has one processor and no network
    #[arg(long, value_name = "qemu|uml", default_value = "qemu", hide_possible_values = true, value_parser = vmm())]
    pub vmm: Vmm,

    /// The guest's architecture, by uname's or Debian's name: x86_64, riscv64 or aarch64. Another one than this machine's
    /// takes a --root of its own, and is translated
    #[arg(long, value_name = "ARCH", default_value = Arch::host().name(), hide_default_value = true,
        add = crate::completions::architectures())]
    pub arch: Arch,

    /// The guest's kernel; by default the newest in /boot, or for uml linux.uml. For another architecture it is Debian's,
    /// which debian:SUITE fetches for any
    #[arg(long, value_name = "FILE|debian:SUITE")]
    pub kernel: Option<PathBuf>,

    /// The kernel's modules; by default /lib/modules/VERSION
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,

    /// The firmware, if QEMU's own has a fault.
    #[arg(skip)]
    pub firmware: Option<PathBuf>,

    /// Accelerator of the guest
    #[arg(long, value_name = "auto|kvm|tcg", default_value = "auto", hide_possible_values = true,
        value_parser = one_of::<AccelChoice>(["auto", "kvm", "tcg"]))]
    pub accel: AccelChoice,

    /// Virtual processors; by default as many as this machine has
    #[arg(long, value_name = "N", alias = "smp", value_parser = processors)]
    pub cpus: Option<u32>,

    /// Memory of the guest; by default half of this machine's, at most 2 GiB
    #[arg(short = 'm', long, value_name = "SIZE", visible_alias = "mem", alias = "ram", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Give the guest a network: user (outgoing connections, and incoming ones by -p), which --net alone means, or
    /// none, the default
    #[arg(long, visible_alias = "network", value_enum, value_name = "user|none", hide_possible_values = true,
        num_args = 0..=1, require_equals = true, default_missing_value = "user")]
    pub net: Option<NetworkArgument>,

    /// Forward a port of this machine to the guest, and give it a network. ADDR is 127.0.0.1 by default (repeatable)
    #[arg(short = 'p', long, value_name = "[ADDR:]HOST:GUEST[/udp]", value_parser = publish::parse)]
    pub publish: Vec<PublishedPort>,

    /// Additional words for the kernel's command line (repeatable)
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub append: Vec<String>,

    /// One additional argument for QEMU, after all others (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub qemu_arg: Vec<OsString>,

    /// Write everything that the guest's kernel prints to FILE
    #[arg(long, value_name = "FILE")]
    pub console: Option<PathBuf>,

    /// Directory for the guest's writes while it runs; its free space is the guest's
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub overlay_dir: PathBuf,

    /// Fail if the guest does not answer in this time; without KVM a guest that is silent for half of it is restarted
    /// once
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    pub boot_timeout: Duration,
}

/// A number of processors that a machine can have.
fn processors(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=255).contains(number));
    number.ok_or_else(|| "a guest has 1 to 255 processors".to_owned())
}

/// The guest's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArgument {
    /// Outgoing connections, like those of this machine's user
    User,
    /// None
    None,
}

fn vmm() -> impl TypedValueParser<Value = Vmm> {
    PossibleValuesParser::new(["auto", "qemu", "uml"]).map(|word| if word == "uml" { Vmm::Uml } else { Vmm::Qemu })
}
