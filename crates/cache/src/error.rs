//! [`CacheError`]: why a cache cannot be used.

use std::io;
use std::path::PathBuf;

use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_lifecycle::trust::Obstacle;
use inarch_tree::layer::LayerError;
use inarch_tree::{BuildError, LoadError};

/// Why a cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// There is no directory for it.
    #[error("no directory for caches: set HOME or XDG_STATE_HOME to an absolute path")]
    NoPlace,
    /// The name cannot be one of a cache.
    #[error(
        "'{0}' cannot be the name of a cache: it has 1 to 60 letters, digits, '-', '_' and '.', and does not begin with '.' or '-'"
    )]
    Name(String),
    /// It is not known which branch's it is.
    #[error("scope=branch: {}: {reason}", shown(project))]
    Branch {
        /// The project.
        project: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// A run uses it.
    #[error("cache {name}: {}; it can be removed when that has ended", in_use(*by))]
    InUse {
        /// Its name.
        name: String,
        /// How it is used.
        by: InUse,
    },
    /// It was removed while it was in use.
    #[error("cache {name} was removed meanwhile, and nothing is put into one that was made anew; try again")]
    Removed {
        /// Its name.
        name: String,
    },
    /// There is no such cache.
    #[error("no cache '{name}' in scope '{scope}'; {}", those_that_are(elsewhere))]
    Missing {
        /// Its name.
        name: String,
        /// Its scope.
        scope: String,
        /// The scopes that have one of this name.
        elsewhere: Vec<String>,
    },
    /// Another user could change it.
    #[error("a cache's directory is not used: {0}")]
    Obstacle(#[from] Obstacle),
    /// A file of it cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A file of it is damaged.
    #[error("{}: {reason}; remove the cache with: inarch cache remove {name}", shown(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// The cache's name.
        name: String,
    },
    /// The guest's disk cannot be read.
    #[error("what the guest wrote cannot be read: {0}")]
    Disk(String),
    /// The changes cannot be put together.
    #[error("what the guest wrote cannot be taken: {0}")]
    Layer(#[from] LayerError),
    /// The generation would be too large.
    #[error("the cache would be too large: {0}")]
    Build(#[from] BuildError),
    /// A remote cannot be used.
    #[error("{place}: {reason}")]
    Remote {
        /// Where it is.
        place: String,
        /// Why not.
        reason: String,
    },
    /// A remote's pack has other files than what is here says.
    #[error(
        "the remote's pack {pack} has other files than the pack of this name that is here: {reason}; if the remote is right, remove the cache that is here"
    )]
    Conflict {
        /// The pack.
        pack: String,
        /// What is wrong.
        reason: String,
    },
    /// A URL is none of a remote.
    #[error(transparent)]
    Location(#[from] inarch_remote::LocationError),
    /// Others push all the time.
    #[error("{0}: others have pushed each time between reading and writing; try again")]
    Contended(String),
    /// There are no random numbers or no thread.
    #[error("what the guest wrote cannot be examined: {0}")]
    Io(#[from] io::Error),
}

/// Who keeps a cache from being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// A run that has it to itself.
    Locked,
    /// Runs whose guests share its directory.
    Live,
    /// One who reads its current generation.
    Read,
}

/// What is wrong with a stored generation.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Damage {
    #[error("it is no generation of a cache")]
    Magic,
    #[error("it has format version {0}, which this program does not know")]
    Version(u32),
    #[error("it is damaged: its digest is wrong")]
    Digest,
    #[error("it is damaged: {0}")]
    Table(&'static str),
    #[error("it is no head of a remote of this program")]
    Head,
    #[error("its tree: {0}")]
    Tree(#[from] LoadError),
}

fn in_use(by: InUse) -> &'static str {
    match by {
        InUse::Locked => "a run has it to itself (locked)",
        InUse::Live => "a guest has it live (via=virtiofs)",
        InUse::Read => "a program reads it",
    }
}

fn those_that_are(elsewhere: &[String]) -> String {
    match elsewhere {
        [] => "inarch cache list names those that are there".to_owned(),
        [scope] => format!("there is one in scope '{scope}'"),
        scopes => format!("there are some in scopes '{}'", scopes.join("', '")),
    }
}
