//! What every reader of a format gives: a tree, and where its content lies.

use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::Content;
use inarch_tree::Tree;

/// An image, opened.
pub struct Opened {
    /// The files on it.
    pub tree: Arc<Tree>,
    /// What they hold.
    pub content: Arc<dyn Content>,
    /// What of it could not be taken, and why: a line each.
    pub notes: Vec<String>,
}

/// Why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The host failed to read it.
    #[error("cannot read the image at byte {offset}: {error}")]
    Io {
        /// Where.
        offset: u64,
        /// Why.
        error: std::io::Error,
    },
    /// What is on it makes no sense, or was not understood.
    #[error("{format}: {reason}")]
    Format {
        /// The format's name.
        format: &'static str,
        /// What was found, where, and what was expected.
        reason: String,
    },
    /// There is no room, or no way, to keep what is unpacked of it.
    #[error("cannot keep what it unpacks to in {}: {error}; make room there, or have another directory used", .directory.display())]
    Spool {
        /// Where it was to be kept.
        directory: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
}
