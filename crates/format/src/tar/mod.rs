//! Tar: archives as a source that is read without unpacking, and as a format that trees are written in.
//!
//! *Reading*: an archive is indexed once ([`open_file`], [`open_stream`], [`open`]); a file's content is a range of the
//! archive itself. A compressed archive, or one that comes through a pipe, is unpacked once into a nameless file and
//! then read the same way. v7, ustar, GNU and PAX archives are understood, in whatever mixture.
//!
//! The parser is our own. The `tar` crate reads entries as a stream: it knows nothing of where the parts of a sparse
//! file lie, of global PAX headers or ACLs. `tar-core` takes headers from memory, but has no negative times, no
//! nanoseconds, ACLs or applied global headers (so that each PAX header would have to be parsed a second time here),
//! wants a member's whole chain of headers in one buffer, and recurses once for each of them.
//!
//! *Writing*: [`Tar`] gives POSIX (PAX) archives as GNU tar writes them.
//!
//! Sources: POSIX.1-2017 `pax`, the manual of GNU tar ("Basic Tar Format", "GNU Extensions to the Archive Format",
//! "Storing Sparse Files"), libarchive's `tar.5`.

mod read;
mod spec;
mod write;

pub(crate) use read::{Archive, Whiteouts, index, opened, read_archive, too_much};
pub use read::{open, open_file, open_stream};
pub use write::Tar;

/// Whether a block is the header of a member: by its checksum, which archives from before the `ustar` magic have as well.
pub(crate) fn is_header(block: &[u8; 512]) -> bool {
    spec::header::Header(block).is_valid()
}
