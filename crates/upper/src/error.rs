//! Errors of upper layers.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;

/// Why writes over a tree cannot be kept where they are to go.
#[derive(Debug, thiserror::Error)]
pub enum UpperError {
    /// An operation on a path failed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Each write would change the tree, and show in it.
    #[error(
        "{}: cannot keep writes there: it lies in {}, which is to stay as it is; name a directory outside",
        shown(place),
        shown(tree)
    )]
    WithinTree {
        /// Where writes were to go.
        place: PathBuf,
        /// The tree.
        tree: PathBuf,
    },
    /// No write fits into no bytes.
    #[error("--in-memory 0 has no room for any write; name a size such as 1G")]
    NoMemory,
    /// There is no file system in memory.
    #[error("cannot keep writes in memory: {0}")]
    Memory(io::Error),
    /// Another user could change what is written.
    #[error(
        "{}: cannot keep writes there: it is another user's, who could change them; name a directory of your own",
        shown(place)
    )]
    OtherUser {
        /// The directory.
        place: PathBuf,
    },
    /// Other users can enter the directory, and would reach files whose directories in the tree are closed to them, devices and
    /// set-user-ID programs.
    #[error(
        "{}: cannot keep writes there: other users can enter it (mode {mode:04o}) and would reach what is written; close it with \
         chmod 700, or name a directory that does not exist yet",
        shown(place)
    )]
    OpenToOthers {
        /// The directory.
        place: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The directory was not made for writes over a tree.
    #[error(
        "{}: cannot keep writes there: it has other things in it ({}); name an empty directory, or one with the directories \
         upper and work of an overlayfs",
        shown(place),
        shown(Path::new(name))
    )]
    OtherThings {
        /// The directory.
        place: PathBuf,
        /// One of the things in it.
        name: OsString,
    },
    /// Another process writes there.
    #[error("{}: another inarch keeps writes there just now; end it, or name another directory", shown(place))]
    InUse {
        /// The directory.
        place: PathBuf,
    },
    /// What is kept there belongs to another tree.
    #[error(
        "{}: cannot keep writes over {} there: it has those over {belongs}; name another directory",
        shown(place),
        shown(Path::new(tree))
    )]
    OtherTree {
        /// The directory.
        place: PathBuf,
        /// The tree.
        tree: String,
        /// What the existing writes belong to.
        belongs: String,
    },
}
