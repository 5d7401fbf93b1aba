//! What every format gives: one planner trait, and the three shapes of a plan.

use std::sync::Arc;

use inarch_block::{BlockMap, Content};
pub use inarch_block::{Progress, Sink};
use inarch_tree::{InodeId, Tree};

/// What an image is to be, beside its tree. A format refuses what it cannot do, and says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// Volume name; empty for none.
    pub label: String,
    /// UUID of the file system; the format's own fixed one where there is none.
    pub uuid: Option<[u8; 16]>,
    /// Seconds since 1970 for what the format itself dates (superblocks, its own inodes); the tree's newest mtime
    /// where there is none.
    pub epoch: Option<i64>,
    /// Bytes of the whole image; as many as it takes where there is none.
    pub size: Option<u64>,
    /// Bytes left free for later writes, in a format that can be written to.
    pub free_bytes: u64,
    /// How content is compressed; not at all where there is none.
    pub compression: Option<Compression>,
    /// Whether short files lie among the metadata, in a format that knows that: the image is smaller. For one that is
    /// written, not served: a file that changes would take the metadata around it with it.
    pub inline_files: bool,
    /// Bytes of a data block, in a format that has a choice.
    pub block_size: Option<u32>,
    /// Threads that may work on it; as many as there are processors where it is 0.
    pub threads: usize,
}

/// A way to compress.
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
    /// Its name, as a user writes it.
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
    /// Its level; the algorithm's usual one where there is none.
    pub level: Option<i32>,
}

/// Why a format cannot hold a tree as it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{format}: {reason}")]
pub struct FormatError {
    /// The format's name.
    pub format: &'static str,
    /// What is wrong, where, and what to do.
    pub reason: String,
}

impl FormatError {
    /// Refuses a tree with a name of more than `bytes` bytes.
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

/// A file system or archive format: says where the bytes of a tree go.
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
    /// Where its bytes go.
    pub layout: Layout,
    /// What the user should know of it, a line each: hard links that were split, attributes that were left out.
    pub notes: Vec<String>,
}

/// The three shapes of a plan.
pub enum Layout {
    /// Every block is known, and any can be had at any time: can be served as a disk, or written out.
    Blocks(BlockMap),
    /// One piece after another, at any byte: archives.
    Stream(Box<dyn Stream>),
    /// Where bytes go depends on what they are: compressed images.
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

/// An archive as a sequence of pieces, all of them known before any content is read.
pub trait Stream: Send + Sync {
    /// Bytes of all pieces together.
    fn length(&self) -> u64;

    /// The pieces, in their order.
    fn pieces(&self) -> Box<dyn Iterator<Item = Piece> + Send + '_>;
}

/// An image whose layout depends on content.
pub trait Pack: Send + Sync {
    /// Reads content, compresses it and writes the image; gives its length in bytes. The same content gives the same
    /// bytes, whatever the number of threads.
    fn pack(&self, content: &dyn Content, sink: &dyn Sink, progress: &dyn Progress) -> std::io::Result<u64>;
}
