//! Writes an image to a file, a block device or a pipe.
//!
//! 1. The image's content comes as [`Placed`] parts in ascending order. [`MapParts`] yields those of a block map; an
//!    archive yields its own. Bytes that no part covers are zeros.
//! 2. `batch` cuts the parts into pieces of work: neighbouring small parts gathered in one buffer, long runs of one
//!    file, and gaps.
//! 3. `parallel` gives the batches to threads. A thread fills a buffer from the parts' content and writes it in one
//!    call, which ends at a multiple of its size. A long run is shared with its file where the file system can
//!    (`share`). `sequential` does the same in order, for pipes.
//! 4. `lane` writes a thread's buffers: to a large file past the page cache as long as the disk keeps up (`aio`),
//!    otherwise through the cache (`sink`).
//!
//! Zeros are never written: a file keeps its holes, and a block device zeroes the range.

#[allow(unsafe_code, reason = "the system calls of asynchronous input and output")]
mod aio;
mod batch;
mod buffer;
mod lane;
mod parallel;
mod part;
mod progress;
mod sequential;
#[allow(unsafe_code, reason = "the ioctl that shares a range of one file with another")]
mod share;
mod sink;
mod verify;

use std::io;

use inarch_tree::InodeId;

pub use parallel::{usual_threads, write_parts};
pub use part::{MapParts, Part, Placed};
pub use progress::Progress;
pub use sequential::stream_parts;
pub(crate) use share::{REFUSALS, SHARE_FROM, can_share, clone_range};
pub use sink::{DeviceSink, FileSink, PastCache, Sink};
pub use verify::Verifier;

use crate::{BlockMap, Content};

/// The content of an image's parts.
#[derive(Clone, Copy)]
pub struct ImageSource<'a> {
    /// Renders [`Part::Metadata`]; not needed where there is none.
    pub map: Option<&'a BlockMap>,
    /// The files' content.
    pub content: &'a dyn Content,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes written or copied.
    pub copied: u64,
    /// Bytes shared with the files they come from.
    pub shared: u64,
}

/// Why an image was not written. What was written of it is unusable.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file of the tree changed or cannot be read; [`Content::changed`] has its name and the reason.
    #[error("cannot read a file of the tree: {error}")]
    Content {
        /// The file, where it is known.
        inode: Option<InodeId>,
        /// Why.
        error: io::Error,
    },
    /// The output cannot be written.
    #[error("at byte {offset}: {error}")]
    Output {
        /// The offset in the image.
        offset: u64,
        /// Why.
        error: io::Error,
    },
    /// A thread panicked; standard error has the message. What it was about to write is missing.
    #[error("a thread that wrote it panicked: this is a bug in Inarch")]
    Panicked,
    /// [`Progress::cancelled`] returned true.
    #[error("interrupted")]
    Cancelled,
}
