//! Errors of runs.

use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use inarch_block::{ChangeReason, WriteError};
use inarch_lifecycle::shown;
use inarch_source::Source;

/// The most trees of a guest: each takes a slot of its PCI bus.
pub(super) const MOST_TREES: usize = 24;

/// Why a run cannot be started, or not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The guest cannot get a disk.
    #[error(transparent)]
    Attach(#[from] super::AttachError),
    /// A cache has the name of no tool, and no place.
    #[error(
        "--cache {name}: there is no tool of that name here; say where the guest sees it, --cache {name}=PATH, or name one of these: {known}"
    )]
    UnknownCache {
        /// The name.
        name: String,
        /// The names of the tools.
        known: String,
    },
    /// One place was given for several caches.
    #[error("--cache {name}: these are {names}, each with a place of its own; give a place to one of them")]
    SeveralCaches {
        /// The name.
        name: String,
        /// The caches that it means.
        names: String,
    },
    /// A cache was asked for twice.
    #[error("--cache {name}: it is asked for twice")]
    CacheTwice {
        /// Its name.
        name: String,
    },
    /// It is not known where the user's home directory is in the guest.
    #[error(
        "--cache {name}: the home directory of the guest's user '{user}' is not known here; say where the guest sees it: --cache {name}=PATH, or -e HOME=DIR"
    )]
    NoHome {
        /// The tool.
        name: &'static str,
        /// The user.
        user: String,
    },
    /// The owner of a cache is not known.
    #[error("--cache: the number of the guest's user '{user}' is not known here; give numbers: -u UID:GID")]
    UnknownUser {
        /// The user.
        user: String,
    },
    /// A guest of another architecture was to have this machine's root.
    #[error(
        "--arch {arch}: this machine's own programs are for {}; give the guest a root for {arch} with --root: a directory, an archive, an image or debian:SUITE",
        inarch_vm::Arch::host()
    )]
    HostRoot {
        /// The guest's architecture.
        arch: inarch_vm::Arch,
    },
    /// There is no command.
    #[error("no command was given: inarch run CMD..., or inarch run in a terminal for a shell")]
    NoCommand,
    /// The guest's processes are to be recorded, and nothing tells them.
    #[error(
        "--by-process: no tree goes by virtiofs, whose requests alone tell which process made them; give one with via=virtiofs, \
         or the root with --via virtiofs"
    )]
    NoProcesses,
    /// An entry point was given for what is no container image.
    #[error(
        "--entrypoint is for container images, and the root is {root}; give the command as it is: inarch run CMD..."
    )]
    Entrypoint {
        /// What the root is.
        root: String,
    },
    /// The container image asks for what cannot be.
    #[error("{image}: {reason}")]
    Image {
        /// The image, printable.
        image: String,
        /// What, and what to do.
        reason: String,
    },
    /// The command and its environment are larger than a kernel takes.
    #[error("{image}: {what} {bytes} bytes; the kernel starts nothing with more than {most}")]
    TooLarge {
        /// The image, printable.
        image: String,
        /// What is, as the beginning of a sentence.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// What a kernel takes.
        most: usize,
    },
    /// A directory of the guest was given by where this process is.
    #[error("-w {}: with a root of its own the guest needs an absolute path", directory.display())]
    RelativeDirectory {
        /// It.
        directory: PathBuf,
    },
    /// This process's working directory is gone.
    #[error("there is no current directory: {0}; go to another, or use -w DIR")]
    NoDirectory(io::Error),
    /// The groups of this process are not known.
    #[error("cannot read this process's groups: {0}")]
    Groups(io::Error),
    /// It is no user.
    #[error("-u {0}: write USER or USER:GROUP, each a name of the guest's or a number")]
    User(String),
    /// So little memory boots nothing.
    #[error("{} of memory is too little for a guest; give it {least} MiB or more (--memory 1G)", size(*bytes))]
    TooLittleMemory {
        /// What was asked for.
        bytes: u64,
        /// Mebibytes that a guest takes at least.
        least: u64,
    },
    /// This machine has less memory.
    #[error("{mib} MiB of memory are more than this machine's {host} MiB")]
    TooMuchMemory {
        /// Mebibytes that were asked for.
        mib: u64,
        /// Mebibytes that this machine has.
        host: u64,
    },
    /// A port of this machine cannot be led into the guest.
    #[error("-p: cannot have the port {port}: {error}")]
    Port {
        /// It.
        port: SocketAddrV4,
        /// The system's error.
        error: io::Error,
    },
    /// Standard input is the command's.
    #[error("the command's own standard input cannot be a tree as well; name a file or a pipe: <(COMMAND)")]
    StandardInput,
    /// A guest has no place for so many trees.
    #[error("{0} trees are too many; a guest takes {MOST_TREES}")]
    TooManyTrees(usize),
    /// User-Mode Linux lacks it.
    #[error("{option}: a guest of User-Mode Linux has no {what}; leave it out, or leave out --vmm uml")]
    NotInUml {
        /// The option.
        option: &'static str,
        /// What was asked for.
        what: &'static str,
    },
    /// Two trees have one place.
    #[error("two trees are to be mounted at {}", destination.display())]
    SamePlace {
        /// It.
        destination: PathBuf,
    },
    /// A tree that is not a directory needs a destination.
    #[error("{from}: say where the guest sees it: --tree {from}:/DIRECTORY")]
    NoPlace {
        /// The tree.
        from: Source,
    },
    /// The root is no place for a tree.
    #[error("a tree cannot be mounted at /; use --root for that")]
    AtRoot,
    /// A place leads upwards.
    #[error("{}: a mount point is given without '..'", destination.display())]
    Upwards {
        /// The place.
        destination: PathBuf,
    },
    /// No directory can be made in a tree that is shared read-only.
    #[error(
        "{}: the guest mounts something at {} in it, and can make no directory in what is live and read-only; make it here, \
         or leave out --via and via=",
        shown(tree),
        shown(missing)
    )]
    NoMountPoint {
        /// The tree.
        tree: PathBuf,
        /// What is missing in it.
        missing: PathBuf,
    },
    /// An unpacked tree has no room in the guest.
    #[error("{from}: {reason}")]
    NoRoom {
        /// The tree.
        from: Source,
        /// How much there is, and what to do.
        reason: String,
    },
    /// A file of an unpacked tree changed.
    #[error("{}: {reason} while it was sent to the guest", shown(path))]
    ChangedOnTheWay {
        /// The file.
        path: PathBuf,
        /// How it was seen.
        reason: ChangeReason,
    },
    /// A file of an unpacked tree cannot be read.
    #[error("{}: cannot read a file of it: {error}", shown(tree))]
    Unreadable {
        /// The tree.
        tree: PathBuf,
        /// The system's error.
        error: String,
    },
    /// An unpacked tree could not be sent.
    #[error("{}: {error}", shown(tree))]
    NotSent {
        /// The tree.
        tree: PathBuf,
        /// Why not.
        error: WriteError,
    },
    /// A tree that the guest uses can no longer be served.
    #[error("{what}: {reason}")]
    Lost {
        /// What is lost, as half a line.
        what: String,
        /// Why.
        reason: String,
    },
    /// What the guest wrote may be lost if the machine fails.
    #[error("{from}: cannot make the guest's writes durable: {error}")]
    NotDurable {
        /// The tree.
        from: Source,
        /// The system's error.
        error: io::Error,
    },
    /// Only writes to a disk with ext4 are kept.
    #[error("{}only trees with ext4 are kept; leave out --via and via=, or add ,ro{more}", of(destination.as_deref()))]
    NotKept {
        /// Where the guest sees the tree.
        destination: Option<PathBuf>,
        /// What else can be done, as the end of the line.
        more: &'static str,
    },
    /// Times that are changed hide what a run changed.
    #[error("--epoch changes times, so that what a kept run changed cannot be told; leave it out")]
    Epoch,
    /// An archive's writes are not kept.
    #[error(
        "{}: what a guest writes to an archive or an image is not kept; unpack it, or mount it with ,ro",
        shown(tree)
    )]
    Archive {
        /// It.
        tree: PathBuf,
    },
    /// The kept run has other trees.
    #[error(
        "the kept run '{name}' has other trees; leave out --root, --tree and what is taken of them, or give them as in its \
         first run: {words}"
    )]
    OtherTrees {
        /// The run.
        name: String,
        /// The words of its first command line that say which.
        words: String,
    },
    /// A tree of the kept run is gone.
    #[error(
        "the kept run '{name}' has {}, which is gone: bring it back; inarch apply {name} brings what the run changed in its \
         other trees to this machine, inarch discard {name} forgets it all",
        shown(tree)
    )]
    TreeGone {
        /// The run.
        name: String,
        /// The tree.
        tree: PathBuf,
    },
}

fn size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{bytes} B") } else { format!("{} MiB", bytes >> 20) }
}

/// The beginning of a line about a path.
fn of(path: Option<&std::path::Path>) -> String {
    path.map_or(String::new(), |path| format!("{}: ", shown(path)))
}
