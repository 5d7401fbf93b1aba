//! Writing an image out: to a file, to a block device, or down a pipe.
//!
//! 1. What the image holds comes as [`Placed`] parts in ascending order: [`MapParts`] gives those of a block map, an
//!    archive gives its own. What no part covers is zeros.
//! 2. `batch` cuts them into pieces of work: neighbouring small parts that are gathered in one buffer, long runs of
//!    one file, and gaps.
//! 3. `parallel` gives the batches to threads. A buffer is filled from the parts' sources and written by one call,
//!    which ends at a multiple of its size; a long run is shared with its file where the file system can (`share`).
//!    `sequential` does the same in order, for pipes.
//! 4. `lane` writes a thread's buffers: to a large file past the page cache as long as the disk has room for them (`aio`), and
//!    through it (`sink`) when it has not.
//!
//! Zeros are never written: a file keeps its holes, a block device is told to zero the range.

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

pub use parallel::write_parts;
pub use part::{MapParts, Part, Placed};
pub use progress::Progress;
pub use sequential::stream_parts;
pub use share::SHARE_FROM;
pub(crate) use share::{REFUSALS, can_share, clone_range};
pub use sink::{DeviceSink, FileSink, PastCache, Sink};
pub use verify::Verifier;

use crate::{BlockMap, Content};

/// Where the bytes of an image come from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Renders [`Part::Metadata`]; not needed where there is none.
    pub map: Option<&'a BlockMap>,
    /// What the files hold.
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

/// Why an image was not written; what was written of it is not to be used.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file of the tree cannot be read, or changed; [`Content::changed`] says which and why.
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
        /// Where in the image.
        offset: u64,
        /// Why.
        error: io::Error,
    },
    /// A thread panicked, as standard error says: what it was about to write is missing.
    #[error("a thread that wrote it failed: this is a mistake in the program")]
    Panicked,
    /// [`Progress::cancelled`] said so.
    #[error("interrupted")]
    Cancelled,
}
