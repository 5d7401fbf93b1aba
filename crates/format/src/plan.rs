//! The planner's trait, which every format implements, and the three shapes of a plan.

use std::sync::Arc;

use inarch_block::{BlockMap, Content};
pub use inarch_block::{Progress, Sink};
use inarch_tree::{InodeId, Tree};

/// Options of an image. A format refuses options that it does not support.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// Volume name; empty for none.
    pub label: String,
    /// UUID of the file system; `None`: a fixed one of the format.
    pub uuid: Option<[u8; 16]>,
    /// Seconds since 1970, for times that are not in the tree (superblocks, the format's own inodes); `None`: the
    /// tree's newest mtime.
    pub epoch: Option<i64>,
    /// Bytes of the whole image; `None`: as small as possible.
    pub size: Option<u64>,
    /// Bytes to leave free for later writes, in a writable format.
    pub free_bytes: u64,
    /// How to compress content; `None`: not at all.
    pub compression: Option<Compression>,
    /// Whether to store short files among the metadata, in a format that can; the image is smaller. Not for an image
    /// that is served: if the file changed, the metadata in its block could not be read either.
    pub inline_files: bool,
    /// Bytes of a data block, in a format with a choice.
    pub block_size: Option<u32>,
    /// The number of threads; 0: one for each processor.
    pub threads: usize,
}

/// A compression algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// DEFLATE with zlib's header.
    Gzip,
    /// LZ4 blocks.
    Lz4,
    /// Zstandard.
    Zstd,
    /// LZMA2 in an xz container.
    Xz,
}

impl Algorithm {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Gzip => "gzip",
            Algorithm::Lz4 => "lz4",
            Algorithm::Zstd => "zstd",
            Algorithm::Xz => "xz",
        }
    }
}

/// How content is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The level; `None`: the algorithm's default.
    pub level: Option<i32>,
}

/// A tree or options that a format does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{format}: {reason}")]
pub struct FormatError {
    /// The format's name.
    pub format: &'static str,
    /// What is wrong, where, and what to do.
    pub reason: String,
}

impl FormatError {
    /// Refuses a tree with a name longer than `bytes`.
    pub(crate) fn of_long_names(tree: &Tree, format: &'static str, bytes: usize) -> Result<(), FormatError> {
        let Some(inode) = tree.longer_name(bytes) else { return Ok(()) };
        let path = tree.path(inode);
        let path = String::from_utf8_lossy(&path);
        let reason = format!(
            "{path}: a name of it has more than the {bytes} bytes that {format} holds; leave it out, or rename it"
        );
        Err(FormatError { format, reason })
    }
}

/// A file system or archive format: decides where the bytes of a tree go.
pub trait Format: Send + Sync {
    /// Its name on the command line, which is also the usual extension of its files.
    fn name(&self) -> &'static str;

    /// Other usual extensions of its files, in lower case and without the dot.
    fn extensions(&self) -> &'static [&'static str] {
        &[]
    }

    /// Plans an image of `tree`. Opens no file; the same input gives the same plan.
    fn plan(&self, tree: &Arc<Tree>, options: &ImageOptions) -> Result<Planned, FormatError>;
}

/// A planned image.
pub struct Planned {
    /// Where the bytes go.
    pub layout: Layout,
    /// Notes for the user, a line each: hard links that were split, attributes that were left out.
    pub notes: Vec<String>,
}

/// The three shapes of a plan.
pub enum Layout {
    /// Any block can be read at any time: can be served as a disk, or written out.
    Blocks(BlockMap),
    /// A sequence of pieces, at any byte: archives.
    Stream(Box<dyn Stream>),
    /// The layout depends on content: compressed images.
    Packed(Box<dyn Pack>),
}

/// One piece of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes.
    Bytes(Vec<u8>),
    /// So many zeros.
    Zeros(u64),
    /// A range of a regular file's content, within its size.
    File {
        /// The file.
        inode: InodeId,
        /// Where in it the range starts, in bytes.
        offset: u64,
        /// How long it is, in bytes.
        length: u64,
    },
}

impl Piece {
    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Zeros(length) | Piece::File { length, .. } => *length,
        }
    }
}

/// An archive as a sequence of pieces, all known before any content is read.
pub trait Stream: Send + Sync {
    /// Bytes of all pieces together.
    fn length(&self) -> u64;

    /// The pieces, in their order.
    fn pieces(&self) -> Box<dyn Iterator<Item = Piece> + Send + '_>;
}

/// An image whose layout depends on content.
pub trait Pack: Send + Sync {
    /// Reads content, compresses it and writes the image; returns its length in bytes. The same content gives the
    /// same bytes, whatever the number of threads.
    fn pack(&self, content: &dyn Content, sink: &dyn Sink, progress: &dyn Progress) -> std::io::Result<u64>;
}
