//! Errors of kept runs.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use inarch_block::OverlayError;
use inarch_format::ext4::PlanError;
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_lifecycle::trust::Obstacle;
use inarch_source::OpenError;
use inarch_tree::compare::TooDeep;
use inarch_tree::layer::{LayerError, LoadLayerError};
use inarch_tree::{BuildError, LoadError};

use super::limits::{LONGEST_NAME, VERSION};

/// Why a kept run cannot be used, compared or applied.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// An operation on a path failed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A tree of the run cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The overlay cannot be opened.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// The disk cannot be made again.
    #[error("{}: {error}", shown(source_path))]
    Plan {
        /// The tree.
        source_path: PathBuf,
        /// What does not fit.
        error: PlanError,
    },
    /// This user has no directory of state.
    #[error("there is no place for kept runs: neither XDG_STATE_HOME nor HOME is set")]
    NoPlace,
    /// The directory of state cannot be used.
    #[error("runs cannot be kept: {obstacle}{}", advice(obstacle))]
    Unusable {
        /// What is in the way to it.
        obstacle: Obstacle,
    },
    /// It is no name.
    #[error(
        "{0:?} is no name for a kept run: write 1 to {LONGEST_NAME} of a-z, A-Z, 0-9, '.', '_', '-', '+' and '@', the first \
         neither '.' nor '-'"
    )]
    Name(String),
    /// There is no run of this name.
    #[error("there is no kept run '{0}'; inarch runs lists those that there are")]
    Missing(String),
    /// Another process discarded it each time it was created.
    #[error("another process keeps discarding the kept run '{0}'")]
    Discarded(String),
    /// Another process uses the run.
    #[error("the kept run '{name}' is in use{}; wait until that has ended", process(owner))]
    InUse {
        /// The run.
        name: String,
        /// The number of the process that does; empty if that is not known.
        owner: String,
    },
    /// The run has no record.
    #[error("the kept run '{0}' has no record")]
    NoRecord(String),
    /// The record is no JSON of ours.
    #[error("{}: is damaged: {error}", shown(path))]
    DamagedRecord {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// Another version of this program wrote the record.
    #[error("{}: has version {version}; this program knows version {VERSION}", shown(path))]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The record cannot be written as JSON.
    #[error(transparent)]
    Encode(serde_json::Error),
    /// Another file system is mounted where a tree of the run was.
    #[error(
        "{}: another file system is mounted there than when the kept run '{name}' changed it; bring that back, or give this \
         run another name; inarch discard {name} forgets what it changed",
        shown(tree)
    )]
    OtherVolume {
        /// The tree.
        tree: PathBuf,
        /// The run.
        name: String,
    },
    /// An apply of the run has begun and not ended.
    #[error("an apply of the kept run '{name}' has begun and not ended; inarch apply {name} finishes it{more}")]
    Applying {
        /// The run.
        name: String,
        /// What else can be done, as the end of the line.
        more: &'static str,
    },
    /// An apply of the run left files of its own in the host's tree.
    #[error(
        "an apply of the kept run '{name}' left {left}; inarch apply {name} removes it or says what to do with it, --force \
         discards the run and leaves it there"
    )]
    Beside {
        /// The run.
        name: String,
        /// The first of the files, and how many more there are.
        left: String,
    },
    /// What was applied is not on this machine any more.
    #[error(
        "{since} the kept run '{name}' was applied, and {path} is not as it was applied; inarch apply {name} brings back what \
         was lost, inarch discard {name} forgets the run"
    )]
    Lost {
        /// What happened since, as the beginning of the line.
        since: &'static str,
        /// The run.
        name: String,
        /// The first path that differs from what was applied, printable.
        path: String,
    },
    /// The stored host tree cannot be read.
    #[error("{}: {error}", shown(path))]
    Tree {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: LoadError,
    },
    /// The stored layer cannot be read.
    #[error("{}: {error}", shown(path))]
    Layer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: LoadLayerError,
    },
    /// What the guest wrote to a disk makes no layer.
    #[error(transparent)]
    NoLayer(#[from] LayerError),
    /// What is left of the changes makes no layer.
    #[error("what the kept run changed: {0}")]
    Rest(LayerError),
    /// Host and layer make no tree.
    #[error("the tree of the kept run: {0}")]
    Merge(BuildError),
    /// The disk of a tree cannot be read.
    #[error("the kept disk of {}: {error}", shown(tree))]
    Disk {
        /// The tree.
        tree: PathBuf,
        /// Why not.
        error: Box<dyn Error + Send + Sync>,
    },
    /// The trees are nested too deeply to be compared.
    #[error("{}: {error}", shown(destination))]
    TooDeep {
        /// Where the guest sees the tree.
        destination: PathBuf,
        /// Where.
        error: TooDeep,
    },
    /// A path is in a tree that this machine does not have any more.
    #[error("{}: it is in {}, which is gone", shown(path), shown(tree))]
    Gone {
        /// The guest's path.
        path: PathBuf,
        /// The tree.
        tree: PathBuf,
    },
    /// A tree with an unfinished apply is gone.
    #[error("{path}: it is gone, and an apply has begun there and not ended; bring it back")]
    GoneMeanwhile {
        /// The tree, printable.
        path: String,
    },
    /// Another directory is where the tree was.
    #[error(
        "{} is not the directory that the run was made over: another one, or another file system, has taken its place; bring \
         that back, or see inarch diff --show for what the guest has",
        shown(tree)
    )]
    OtherDirectory {
        /// The tree.
        tree: PathBuf,
    },
    /// A path has nothing that could be shown or applied.
    #[error("{}: {reason}", shown(path))]
    Nothing {
        /// The guest's path.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// The run changed nothing of the tree that a path is in.
    #[error("{}: the kept run '{name}' changed nothing in this path's tree", shown(path))]
    Unchanged {
        /// The guest's path.
        path: PathBuf,
        /// The run.
        name: String,
    },
    /// The run changed nothing at a path.
    #[error("{}: the kept run '{name}' changed nothing there; inarch diff {name} lists what it changed", shown(path))]
    NothingToApply {
        /// The guest's path.
        path: PathBuf,
        /// The run.
        name: String,
    },
}

impl KeptError {
    /// A failed operation on a path.
    pub(super) fn path(path: &Path, action: &'static str, error: impl Into<io::Error>) -> KeptError {
        PathError::new(path, action, error).into()
    }
}

fn advice(obstacle: &Obstacle) -> &'static str {
    match obstacle.is_distrust() {
        true => "; set XDG_STATE_HOME to a directory of your own (sudo -H sets HOME to root's)",
        false => "",
    }
}

/// A process in brackets, if it is known.
fn process(number: &str) -> String {
    if number.is_empty() { String::new() } else { format!(" (process {number})") }
}
