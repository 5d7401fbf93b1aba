//! The common result of all readers: a tree and its content.

use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::Content;
use inarch_confine::Parsing;
use inarch_tree::Tree;
use inarch_volume::{Findings, Volume, VolumeError, Walked, walk};

use crate::oci::ImageConfig;

/// What a reader makes of an image or archive.
pub struct TreeAndContent {
    /// The files on it.
    pub tree: Arc<Tree>,
    /// Their content.
    pub content: Arc<dyn Content>,
    /// What was left out, and why: a line each.
    pub notes: Vec<String>,
    /// How a container image is to be started.
    pub image: Option<ImageConfig>,
}

impl TreeAndContent {
    /// Reads everything of a volume. If damage is refused, any damage is an error.
    pub fn walk(parsing: Parsing, volume: Arc<dyn Volume>, damage: Damage) -> Result<TreeAndContent, ReadError> {
        let format = volume.format();
        let walked = walk(parsing, &*volume, &mut |_| {});
        let walked = walked.map_err(|error| ReadError::of_volume(format, error).into_damage())?;
        let Walked { tree, extents, packed, findings } = walked;
        damage.refuse(format, &findings, &tree)?;
        let tree = Arc::new(tree);
        let notes = findings.into_notes(&tree);
        let content = Walked::content(&tree, extents, packed, volume);
        Ok(TreeAndContent { tree, content, notes, image: None })
    }
}

/// How to treat a damaged archive or image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damage {
    /// Refuse it.
    #[default]
    Refused,
    /// Read what can be read. [`TreeAndContent::notes`] lists what cannot.
    Salvaged,
}

impl Damage {
    /// Fails if damage was found and is refused.
    pub(crate) fn refuse(self, format: &'static str, findings: &Findings, tree: &Tree) -> Result<(), ReadError> {
        match findings.damage(tree).filter(|_| self == Damage::Refused) {
            Some(reason) => Err(ReadError::Damaged { format, reason }),
            None => Ok(()),
        }
    }

    /// An error if damage is refused, otherwise the reason, for a note.
    pub(crate) fn or_refuse(self, format: &'static str, reason: String) -> Result<String, ReadError> {
        match self {
            Damage::Refused => Err(ReadError::Damaged { format, reason }),
            Damage::Salvaged => Ok(reason),
        }
    }
}

/// An image that cannot be read.
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
    /// The image makes no sense, or uses something unsupported.
    #[error("{format}: {reason}")]
    Format {
        /// The format's name.
        format: &'static str,
        /// What was found, where, and what was expected.
        reason: String,
    },
    /// It is damaged. With [`Damage::Salvaged`] part of it can be read.
    #[error("{format}: {reason}; --salvage takes what can be read, and says what could not")]
    Damaged {
        /// The format's name.
        format: &'static str,
        /// What is wrong, and where.
        reason: String,
    },
    /// Unpacking failed, for lack of room or permission.
    #[error("cannot keep what it unpacks to in {}: {error}; make room there, or have another directory used", .directory.display())]
    Spool {
        /// The directory for unpacked data.
        directory: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
}

impl ReadError {
    /// A volume that cannot be opened or walked.
    pub(crate) fn of_volume(format: &'static str, error: VolumeError) -> ReadError {
        match error {
            VolumeError::Io { offset, error } => ReadError::Io { offset, error },
            other => ReadError::Format { format, reason: other.to_string() },
        }
    }

    /// Converts an error behind the superblock to damage: part of the image may still be readable.
    pub(crate) fn into_damage(self) -> ReadError {
        match self {
            ReadError::Format { format, reason } => ReadError::Damaged { format, reason },
            other => other,
        }
    }
}
