//! Errors of images.

use std::io;
use std::path::{Path, PathBuf};

use inarch_block::{ChangeReason, WriteError};
use inarch_lifecycle::shown;
use inarch_vm::command::shell_word;

/// Why an image cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The output is a directory.
    #[error("{}: is a directory; name a file in it", shown(output))]
    Directory {
        /// It.
        output: PathBuf,
    },
    /// No format has this name.
    #[error("'{name}' is not an image format; these are: {known}")]
    Format {
        /// The name.
        name: String,
        /// The formats that there are.
        known: String,
    },
    /// Standard output has no name that would say the format.
    #[error("standard output says no format; use --format: {known}")]
    NoFormatOfOutput {
        /// The formats that there are.
        known: String,
    },
    /// The output's name implies no format.
    #[error("{}: its name says no format; end it with one or use --format: {known}", shown(output))]
    NoFormat {
        /// The output.
        output: PathBuf,
        /// The formats that there are.
        known: String,
    },
    /// Any program can compress a pipe, so this one does not.
    #[error(
        "{}: {format} is written without compression; give a pipe to {program} instead: inarch image ... -o - --format {format} | \
         {program} > {}",
        shown(output),
        shown(Path::new(&shell_word(output.as_os_str())))
    )]
    Compressed {
        /// The output.
        output: PathBuf,
        /// The format.
        format: &'static str,
        /// What compresses so.
        program: &'static str,
    },
    /// The output is the source, or inside it.
    #[error("{}: the output {what}; put it somewhere else", shown(output))]
    InSource {
        /// The output.
        output: PathBuf,
        /// What it is, as half a sentence.
        what: &'static str,
    },
    /// A file of the source changed.
    #[error("{}: {reason} while the image was made of it; no image was made", shown(path))]
    Changed {
        /// The file.
        path: PathBuf,
        /// How it was seen.
        reason: ChangeReason,
    },
    /// This process has too many files open.
    #[error("no file descriptor was left to read the tree with; raise ulimit -n")]
    Descriptors,
    /// The disk is full.
    #[error("{}: the disk is full; no image was made", shown(output))]
    Full {
        /// Where the image was to go.
        output: PathBuf,
    },
    /// What was read back is not what was written.
    #[error("{}: {error}; the image is unusable", shown(output))]
    Unusable {
        /// The image.
        output: PathBuf,
        /// What differs.
        error: io::Error,
    },
    /// Writing the output failed.
    #[error("{}: cannot write at byte {offset}: {error}", shown(output))]
    Write {
        /// Where the image was to go.
        output: PathBuf,
        /// Where in it.
        offset: u64,
        /// The system's error.
        error: io::Error,
    },
    /// The source could not be read, or something else went wrong.
    #[error("{}: {error}", shown(output))]
    Failed {
        /// Where the image was to go.
        output: PathBuf,
        /// Why.
        error: WriteError,
    },
    /// The caller stopped the job.
    #[error("interrupted")]
    Stopped,
}
