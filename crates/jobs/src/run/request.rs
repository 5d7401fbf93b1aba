//! [`RunRequest`]: what to run, and in which guest.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use inarch_cache::{CachePlace, CacheRemote};
use inarch_source::Source;
use inarch_tree::select::Selection;
use inarch_vfs::RecordLevel;
use inarch_vm::Arch;
use inarch_vm::accel::AccelChoice;
use inarch_vm::machine::PublishedPort;
use inarch_vm::session::{SignalSource, Streams};

use super::attached::AttachedDisk;
use super::way::{Way, WireOptions};
use crate::share::{Changes, Refused};

/// The guest's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// This machine's own.
    Host,
    /// Another tree.
    Source(Source),
    /// Nothing but the trees, and what the initramfs contains.
    None,
}

/// What a guest's machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vmm {
    /// QEMU: a virtual machine, under KVM or translated.
    #[default]
    Qemu,
    /// A kernel of User-Mode Linux: a process of this machine, with one processor and without a network. It shields this
    /// machine less than a virtual machine does.
    Uml,
}

/// The name of a kept run, and the arguments that describe it.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The name.
    pub name: String,
    /// The command-line words that say which trees there are; a later run without such words has the same trees.
    pub words: Vec<OsString>,
    /// The directory in which they were given.
    pub directory: PathBuf,
}

/// A tree other than the root.
#[derive(Clone, Debug)]
pub struct TreeMount {
    /// Its source.
    pub source: Source,
    /// The guest's path; the same path if `None`.
    pub destination: Option<PathBuf>,
    /// Refuse writes, instead of throwing them away at the end.
    pub read_only: bool,
    /// Its transport.
    pub via: Way,
    /// How its requests travel, if it is live.
    pub wire: WireOptions,
    /// For a live directory: who may change it.
    pub changes: Changes,
    /// For a directory that only the guest changes: the guest's kernel collects writes before it sends them.
    pub writeback: bool,
    /// For a live directory: the guest's writes reach it, instead of being thrown away at the end.
    pub write_through: bool,
    /// What the guest cannot leave in a directory that receives its writes.
    pub refused: Refused,
    /// Share it live, if `via` does not decide.
    pub live: bool,
    /// For a snapshot of a directory: hold its files, so that the guest can read them after the host has changed them.
    pub hold: bool,
    /// What to take of the source.
    pub selection: Selection,
}

/// A cache that a run has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCache {
    /// Where it is.
    pub place: CachePlace,
    /// Where the guest sees it: an absolute path.
    pub destination: PathBuf,
    /// The user and group of the guest to whom its files belong.
    pub owner: (u32, u32),
    /// Whether what the guest adds is published.
    pub publish: Publish,
    /// How runs share it.
    pub mode: Mode,
    /// Whether the guest has a directory live, with locks that all see, instead of a disk with a snapshot.
    pub live: bool,
    /// The remote whose newer generation the guest gets, and to which what it adds is pushed.
    pub remote: Option<CacheRemote>,
}

/// How runs that have a cache at the same time share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Each publishes; the rules of the cache decide where two have changed the same.
    #[default]
    Shared,
    /// A run publishes only if no other has published since it began: no generation has files of two runs that did not know of each other.
    Private,
    /// One at a time: others wait for it.
    Locked,
}

/// When a run publishes what its guest adds to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// Never: it is thrown away.
    Never,
    /// If the command succeeds.
    OnSuccess,
    /// However the command ends, if it ends.
    Always,
}

/// Begins to catch the signals of a run.
pub type CatchSignalsOfRun = fn() -> io::Result<Box<dyn SignalSource>>;

/// What to run, and in which guest.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The guest's root.
    pub root: Root,
    /// What to take of the root.
    pub root_selection: Selection,
    /// The transport of the root, and of the working directory if it is brought along.
    pub root_via: Way,
    /// How its requests travel, if it is live.
    pub root_wire: WireOptions,
    /// Refuse writes to the root, instead of throwing them away at the end.
    pub root_read_only: bool,
    /// Whether to hold the files of the working directory's project, see [`TreeMount::hold`].
    pub hold: bool,
    /// Other trees.
    pub trees: Vec<TreeMount>,
    /// Caches.
    pub caches: Vec<RunCache>,
    /// Disk images and block devices that the guest gets as disks.
    pub disks: Vec<AttachedDisk>,
    /// Files that those may name: backing files and data files. They get no others.
    pub with: Vec<PathBuf>,
    /// The command and its arguments; if empty, what a container image defines, or else the user's shell.
    pub command: Vec<OsString>,
    /// Replaces a container image's entry point; an empty word means none.
    pub entrypoint: Option<OsString>,
    /// Variables set in addition to those passed on.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether the command gets this process's variables, where the root is this machine's.
    pub own_environment: bool,
    /// Working directory in the guest.
    pub working_directory: Option<PathBuf>,
    /// `USER[:GROUP]`, each a name in the guest or a number.
    pub user: Option<String>,
    /// Whether the command gets a terminal.
    pub terminal: bool,
    /// Whether to start a shell if neither the command nor an image says what to run.
    pub shell: bool,
    /// What the command's standard streams are connected to.
    pub streams: Arc<Streams>,
    /// Begins, when the guest is up, to catch the signals that are passed on to the command; `None` passes none on.
    pub signals: Option<CatchSignalsOfRun>,
    /// Time limit of the command. The guest's start has the same limit, or `boot_timeout` if that is longer.
    pub timeout: Option<Duration>,
    /// The guest's architecture.
    pub arch: Arch,
    /// The guest's kernel; by default the newest in /boot.
    pub kernel: Option<PathBuf>,
    /// Directory of the kernel's modules.
    pub modules: Option<PathBuf>,
    /// The firmware by which QEMU starts the kernel under TCG, not on x86-64; by default the one that QEMU brings.
    pub firmware: Option<PathBuf>,
    /// What the guest's machine is.
    pub vmm: Vmm,
    /// Whether the guest may use RAID 5 and 6 under User-Mode Linux, which then takes longer to start.
    pub raid: bool,
    /// The accelerator.
    pub accel: AccelChoice,
    /// Virtual processors.
    pub cpus: Option<u32>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Whether the guest has a network.
    pub net: bool,
    /// Ports of this machine that are forwarded to the guest.
    pub published: Vec<PublishedPort>,
    /// Additional kernel parameters.
    pub kernel_parameters: Vec<String>,
    /// Additional arguments for QEMU.
    pub qemu_arguments: Vec<OsString>,
    /// The file for the output of the guest's kernel.
    pub console: Option<PathBuf>,
    /// The directory for the guest's writes while it runs.
    pub overlay_dir: PathBuf,
    /// How long the guest may take to say HELLO.
    pub boot_timeout: Duration,
    /// Keep the guest's writes under this name, instead of throwing them away.
    pub keep: Option<Keep>,
    /// Whether to measure how long each kind of request to a live tree takes.
    pub measures: bool,
    /// Whether to record what the guest does with its trees, and in which detail.
    pub trace: Option<RecordLevel>,
}

impl RunRequest {
    /// A run of `command` over this machine's own files, with the defaults of `inarch run`; passes no signals on.
    pub fn new(command: Vec<OsString>, streams: Streams) -> RunRequest {
        RunRequest {
            root: Root::Host,
            root_selection: Selection::default(),
            root_via: Way::Auto,
            root_wire: WireOptions::default(),
            root_read_only: false,
            hold: true,
            trees: Vec::new(),
            caches: Vec::new(),
            disks: Vec::new(),
            with: Vec::new(),
            command,
            entrypoint: None,
            environment: Vec::new(),
            own_environment: true,
            working_directory: None,
            user: None,
            terminal: false,
            shell: false,
            streams: Arc::new(streams),
            signals: None,
            timeout: None,
            arch: Arch::host(),
            kernel: None,
            modules: None,
            firmware: None,
            vmm: Vmm::Qemu,
            raid: false,
            accel: AccelChoice::Auto,
            cpus: None,
            memory: None,
            net: false,
            published: Vec::new(),
            kernel_parameters: Vec::new(),
            qemu_arguments: Vec::new(),
            console: None,
            measures: false,
            trace: None,
            overlay_dir: "/var/tmp".into(),
            boot_timeout: Duration::from_secs(60),
            keep: None,
        }
    }
}
