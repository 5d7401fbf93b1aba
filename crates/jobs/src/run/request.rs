//! What a run is asked for.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use inarch_tree::select::Selection;
use inarch_vm::accel::AccelChoice;
use inarch_vm::machine::PublishedPort;
use inarch_vm::session::{SignalSource, Streams};

use super::Keep;
use crate::device::FileSystem;
use crate::share::{Changes, Refused};
use crate::source::Source;

/// What the guest has as its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// This machine's own.
    Host,
    /// Another tree.
    Source(Source),
    /// Nothing but the trees, and what the initramfs holds.
    None,
}

/// How a tree reaches the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As a disk with this file system: a snapshot.
    Disk(FileSystem),
    /// As the directory itself, live, by virtiofs.
    Virtiofs,
    /// As the directory itself, live, by 9P.
    Ninep,
    /// As an archive that the guest unpacks, into its memory or onto a disk: a snapshot.
    Tar,
    /// As is best for what the guest's kernel has, and for where its writes are to go.
    Auto,
}

impl Way {
    /// Its name, as in `--via`.
    pub fn name(self) -> &'static str {
        match self {
            Way::Disk(format) => format.name(),
            Way::Virtiofs => "virtiofs",
            Way::Ninep => "9p",
            Way::Tar => "tar",
            Way::Auto => "auto",
        }
    }

    /// Whether the guest sees the directory itself, and no snapshot.
    pub fn is_live(self) -> bool {
        matches!(self, Way::Virtiofs | Way::Ninep)
    }
}

/// A tree besides the root.
#[derive(Clone, Debug)]
pub struct TreeMount {
    /// Where it comes from.
    pub source: Source,
    /// Where the guest sees it; at the same path where there is none.
    pub destination: Option<PathBuf>,
    /// Writes fail, instead of being thrown away at the end.
    pub read_only: bool,
    /// How it reaches the guest.
    pub via: Way,
    /// Of a directory that is shared live: who may change it meanwhile.
    pub changes: Changes,
    /// Of one that only the guest changes: its kernel collects writes before it sends them.
    pub writeback: bool,
    /// Of a directory that is shared live: the guest's writes reach it, instead of being thrown away at the end.
    pub write_through: bool,
    /// What the guest cannot leave in a directory that its writes reach.
    pub refused: Refused,
    /// It is shared live, if `via` leaves that open.
    pub live: bool,
    /// Of a snapshot of a directory: its files are held, so that the guest can read them when the host has changed them.
    pub hold: bool,
    /// What of it is taken.
    pub selection: Selection,
}

/// What to run, in what guest.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The guest's root.
    pub root: Root,
    /// What of the root is taken.
    pub root_selection: Selection,
    /// How the root reaches the guest, and the working directory if it is brought along.
    pub root_via: Way,
    /// Writes to the root fail, instead of being thrown away at the end.
    pub root_read_only: bool,
    /// Whether the files of the working directory's project are held, as [`TreeMount::hold`] says.
    pub hold: bool,
    /// Other trees.
    pub trees: Vec<TreeMount>,
    /// The command and its arguments; if empty, what a container image says, or else the user's shell.
    pub command: Vec<OsString>,
    /// The word that takes the place of a container image's entry point; none does if it is empty.
    pub entrypoint: Option<OsString>,
    /// Variables set besides those passed on.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory in the guest.
    pub working_directory: Option<PathBuf>,
    /// `USER[:GROUP]`, each a name of the guest's or a number.
    pub user: Option<String>,
    /// Whether the command gets a terminal.
    pub terminal: bool,
    /// Whether a shell is started where neither the command nor an image says what is run.
    pub shell: bool,
    /// What the command's standard streams are connected to.
    pub streams: Arc<Streams>,
    /// Begins to catch the signals that are passed on to the command, when the guest is up; none are where there is none.
    pub signals: Option<fn() -> io::Result<Box<dyn SignalSource>>>,
    /// The command is ended when it has run for so long; and the guest, if it takes longer than this, and than
    /// `boot_timeout`, to start it.
    pub timeout: Option<Duration>,
    /// The guest's kernel; the newest of /boot if there is none.
    pub kernel: Option<PathBuf>,
    /// Directory of the kernel's modules.
    pub modules: Option<PathBuf>,
    /// How the guest's instructions run.
    pub accel: AccelChoice,
    /// Virtual processors.
    pub cpus: Option<u32>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Whether the guest has a network.
    pub net: bool,
    /// Ports of this machine that lead to the guest's.
    pub published: Vec<PublishedPort>,
    /// More words for the guest's kernel.
    pub kernel_parameters: Vec<String>,
    /// More arguments for QEMU.
    pub qemu_arguments: Vec<OsString>,
    /// Where all that the guest's kernel prints is written down.
    pub console: Option<PathBuf>,
    /// Where the guest's writes are kept while it runs.
    pub overlay_dir: PathBuf,
    /// How long the guest may take until its first word.
    pub boot_timeout: Duration,
    /// Under what name its writes are kept, instead of being thrown away.
    pub keep: Option<Keep>,
}
