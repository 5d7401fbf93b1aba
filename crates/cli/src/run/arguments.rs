//! What `inarch run` is told.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use inarch_jobs::run::{PublishedPort, Way};
use inarch_vm::accel::AccelChoice;

use crate::arguments::one_of;
use crate::source::SourceArguments;
use crate::{duration, publish, size, tree_option};

/// Options of `inarch run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch run make check                  test this directory in a VM
  inarch run -t                          a shell in a VM over your own files
  inarch run --tree ~/x:/x,ro ls -l /x   another directory, read-only, at /x
  inarch run -v ~/out:/out make install  a directory live: writes reach it
  inarch run --root ./bookworm --net apt-get update
  inarch run --root oci:app              what a container image says it runs
  inarch run --keep try make             keep its writes; then inarch diff try

What follows CMD is the command's own; '--' before it is for a CMD that begins with '-'.

Exit status: the command's own; 124 timed out; 125 inarch or the VM failed; 126 the command cannot be run; 127 not found.")]
pub struct RunArguments {
    /// The command and its arguments; what a container image runs, or else your shell, where none is given
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,

    /// What the guest has as its root: this machine's own ('host'), a directory, archive or image, or nothing but the trees ('none')
    #[arg(long, value_name = "host|SRC|none", default_value = "host")]
    pub root: OsString,

    /// Another tree; DST is the same path where none is given. OPT is ro, overlay or rw (the guest's writes reach the directory itself), nosuid,
    /// nodev, via=WAY, changes=WHO, writeback, hold, owner=MAP or exclude=GLOB
    #[arg(long, value_name = "SRC[:DST][,OPT]...")]
    pub tree: Vec<OsString>,

    /// A directory live, as docker has it: what the guest writes there reaches SRC, unless :ro is given. The same as --tree SRC:DST,rw
    #[arg(short = 'v', long, value_name = "SRC:DST[:ro|:nosuid,nodev]")]
    pub volume: Vec<OsString>,

    /// The current directory live: what the guest writes there is written. The same as --tree .,rw
    #[arg(long, conflicts_with = "ro")]
    pub rw: bool,

    /// Refuse writes to the root, and to the current directory where that is brought along
    #[arg(long, visible_alias = "read-only")]
    pub ro: bool,

    /// Keep what the guest writes under NAME, and go on from there the next time (inarch diff, apply and discard NAME)
    #[arg(long, value_name = "NAME", visible_alias = "name")]
    pub keep: Option<String>,

    /// Leave nothing behind; always done unless --keep is given, accepted for habit's sake
    #[arg(long, conflicts_with = "keep")]
    pub rm: bool,

    /// Do not hold the files of the current directory's project: one that is edited meanwhile reads as an I/O error
    #[arg(long)]
    pub no_hold: bool,

    /// How trees reach the guest: as a disk with ext4, or with erofs or squashfs and an overlayfs on top; live, by virtiofs or
    /// 9P, with an overlayfs on top; or as an archive that the guest unpacks into its memory, or onto a disk if that is too
    /// small. 'auto' takes the first that the guest's kernel can mount
    #[arg(long, value_name = "auto|ext4|erofs|squashfs|virtiofs|9p|tar", default_value = "auto", hide_possible_values = true,
        value_parser = one_of_ways())]
    pub via: Way,

    /// Run WORD with the command's words after it, in place of a container image's Entrypoint and Cmd; '' is no entry point
    #[arg(long, value_name = "WORD")]
    pub entrypoint: Option<OsString>,

    /// Set a variable in the command's environment, or pass on your own (repeatable)
    #[arg(short = 'e', long = "env", value_name = "KEY[=VALUE]")]
    pub environment: Vec<OsString>,

    /// Working directory in the guest; the current one where the root is this machine's, a container image's own
    #[arg(short = 'w', long, value_name = "DIR", alias = "cwd")]
    pub workdir: Option<PathBuf>,

    /// User in the guest, by name or number; yourself where the root is this machine's, a container image's own, else root
    #[arg(short = 'u', long, value_name = "USER[:GROUP]")]
    pub user: Option<String>,

    /// Give the command a terminal
    #[arg(short = 't', long)]
    pub tty: bool,

    /// Stream standard input to the command; always done, accepted for habit's sake
    #[arg(short = 'i', long)]
    pub interactive: bool,

    /// End the command when it has run for so long (30, 90s, 10m, 2h), with status 124
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub timeout: Option<Duration>,

    /// Do nothing; print the QEMU command line
    #[arg(long)]
    pub dry_run: bool,

    /// Write down in FILE, as JSON, how the run went: status, seconds of each phase, what was asked of each tree
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Print nothing of our own but errors, and why the command failed where that was not its own doing
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// Say how each tree goes, and what runs the guest, even where that is as usual
    #[arg(long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// The virtual machine.
    #[command(flatten)]
    pub machine: MachineArguments,

    /// What is taken.
    #[command(flatten)]
    pub source: SourceArguments,
}

/// Options that shape the virtual machine.
#[derive(Args, Debug)]
#[command(next_help_heading = "The machine")]
pub struct MachineArguments {
    /// The guest's kernel; the newest of /boot where none is given
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// The kernel's modules; /lib/modules/VERSION where none is given
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,

    /// How the guest's instructions run
    #[arg(long, value_name = "auto|kvm|tcg", default_value = "auto", hide_possible_values = true,
        value_parser = one_of::<AccelChoice>(["auto", "kvm", "tcg"]))]
    pub accel: AccelChoice,

    /// Virtual processors; as many as this machine has where not given
    #[arg(long, value_name = "N", alias = "smp", value_parser = processors)]
    pub cpus: Option<u32>,

    /// Memory of the guest; half of this machine's, 2 GiB at most, where not given
    #[arg(short = 'm', long, value_name = "SIZE", visible_alias = "mem", alias = "ram", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Give the guest a network: user (connections out, and in by -p), which --net alone means, or none, the default
    #[arg(long, visible_alias = "network", value_enum, value_name = "user|none", hide_possible_values = true,
        num_args = 0..=1, require_equals = true, default_missing_value = "user")]
    pub net: Option<NetworkArgument>,

    /// Lead a port of this machine to one of the guest's; gives it a network as well. Of this machine's own address 127.0.0.1 alone where
    /// none is given (repeatable)
    #[arg(short = 'p', long, value_name = "[ADDR:]HOST:GUEST[/udp]", value_parser = publish::parse)]
    pub publish: Vec<PublishedPort>,

    /// More words for the kernel's command line (repeatable)
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub append: Vec<String>,

    /// One more argument for QEMU, after all others (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub qemu_arg: Vec<OsString>,

    /// Write down in FILE all that the guest's kernel prints
    #[arg(long, value_name = "FILE")]
    pub console: Option<PathBuf>,

    /// Where the guest's writes are kept while it runs; its free space is the guest's
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub overlay_dir: PathBuf,

    /// Fail if the guest has not spoken after so long; without KVM one that is silent for half of it is started once more
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    pub boot_timeout: Duration,
}

/// A number of processors that a machine can have.
fn processors(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=255).contains(number));
    number.ok_or_else(|| "a guest has 1 to 255 processors".to_owned())
}

/// What a guest reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArgument {
    /// What this machine's user reaches
    User,
    /// Nothing
    None,
}

fn one_of_ways() -> impl TypedValueParser<Value = Way> {
    PossibleValuesParser::new(tree_option::WAYS).try_map(|word| tree_option::via(&word))
}
