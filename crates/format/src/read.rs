//! What every reader of a format gives: a tree, and where its content lies.

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
}
