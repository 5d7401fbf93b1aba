//! What every reader of a format gives: a tree, and where its content lies.

use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::Content;
use inarch_confine::Parsing;
use inarch_tree::Tree;
use inarch_volume::{Findings, Volume, VolumeError, Walked, walk};

use crate::oci::ImageConfig;

/// An image, opened.
pub struct Opened {
    /// The files on it.
    pub tree: Arc<Tree>,
    /// What they hold.
    pub content: Arc<dyn Content>,
    /// What of it could not be taken, and why: a line each.
    pub notes: Vec<String>,
    /// How a container image says that it is started.
    pub image: Option<ImageConfig>,
}

impl Opened {
    /// Everything of a volume. Where damage is refused, any of it is an error.
    pub fn walk(parsing: Parsing, volume: Arc<dyn Volume>, damage: Damage) -> Result<Opened, ReadError> {
        let format = volume.format();
        let walked = walk(parsing, &*volume, &mut |_| {});
        let walked = walked.map_err(|error| ReadError::of_volume(format, error).into_damage())?;
        let Walked { tree, extents, packed, findings } = walked;
        damage.refuse(format, &findings, &tree)?;
        let tree = Arc::new(tree);
        let notes = findings.into_notes(&tree);
        let content = Walked::content(&tree, extents, packed, volume);
        Ok(Opened { tree, content, notes, image: None })
    }
}

/// What becomes of an archive or image that is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damage {
    /// It is refused.
    #[default]
    Refused,
    /// What can be read of it is taken. What could not is told in [`Opened::notes`].
    Salvaged,
}

impl Damage {
    /// Fails where damage was found and is refused.
    pub(crate) fn refuse(self, format: &'static str, findings: &Findings, tree: &Tree) -> Result<(), ReadError> {
        match findings.damage(tree).filter(|_| self == Damage::Refused) {
            Some(reason) => Err(ReadError::Damaged { format, reason }),
            None => Ok(()),
        }
    }

    /// The error of damage that is refused; where it is not, the reason, for a note.
    pub(crate) fn or_refuse(self, format: &'static str, reason: String) -> Result<String, ReadError> {
        match self {
            Damage::Refused => Err(ReadError::Damaged { format, reason }),
            Damage::Salvaged => Ok(reason),
        }
    }
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
    /// It is damaged. With [`Damage::Salvaged`] a part of it can be read.
    #[error("{format}: {reason}; --salvage takes what can be read, and says what could not")]
    Damaged {
        /// The format's name.
        format: &'static str,
        /// What is wrong, and where.
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

impl ReadError {
    /// Of a volume that cannot be opened, or not walked through.
    pub(crate) fn of_volume(format: &'static str, error: VolumeError) -> ReadError {
        match error {
            VolumeError::Io { offset, error } => ReadError::Io { offset, error },
            other => ReadError::Format { format, reason: other.to_string() },
        }
    }

    /// What was found wrong behind the superblock: a part of the image may be readable all the same.
    pub(crate) fn into_damage(self) -> ReadError {
        match self {
            ReadError::Format { format, reason } => ReadError::Damaged { format, reason },
            other => other,
        }
    }
}
