//! Why a hive cannot be read.

use std::io;

/// Why a hive cannot be read. The text follows the hive's name and a colon.
#[derive(Debug, thiserror::Error)]
pub enum HiveError {
    /// The host failed to read it, or it has changed meanwhile.
    #[error("cannot read it at byte {offset}: {error}")]
    Io {
        /// Where.
        offset: u64,
        /// Why.
        error: io::Error,
    },
    /// It is something else.
    #[error("it is no hive of the Windows registry: {0}")]
    NoHive(&'static str),
    /// A cell is not what the reference to it says.
    #[error("it is damaged at byte {offset}: {what}")]
    Damaged {
        /// Where, in the file.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Lists lead in circles, or many keys share the same cells.
    #[error("it is damaged: its lists name more {0} than it has room for")]
    Circle(&'static str),
}

impl HiveError {
    /// Damage of a cell, by its offset from the first bin.
    pub(crate) fn cell(at: u32, what: &'static str) -> HiveError {
        HiveError::Damaged { offset: u64::from(at) + crate::base::LENGTH as u64, what }
    }
}
