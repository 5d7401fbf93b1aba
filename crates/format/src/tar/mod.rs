//! Tar: reads archives without unpacking them, and writes trees as archives.
//!
//! *Reading*: an archive is indexed once ([`crate::oci::open_tar_file`]); a file's content is a range of the archive. A
//! compressed archive, or one from a pipe, is first unpacked into a nameless file. It reads v7, ustar, GNU
//! and PAX archives, in any mixture.
//!
//! The parser is our own. The `tar` crate reads entries as a stream: it does not say where the parts of a sparse file
//! are, and does not support global PAX headers or ACLs. `tar-core` parses headers in memory, but supports no negative
//! times, nanoseconds, ACLs or applied global headers (each PAX header would have to be parsed again here). It needs a
//! member's whole chain of headers in one buffer, and recurses once for each of them.
//!
//! *Writing*: [`Tar`] writes POSIX (PAX) archives like GNU tar's.
//!
//! Sources: POSIX.1-2017 `pax`, the manual of GNU tar ("Basic Tar Format", "GNU Extensions to the Archive Format",
//! "Storing Sparse Files"), libarchive's `tar.5`.

mod read;
mod spec;
mod write;

pub(crate) use read::{Archive, Whiteouts, index, opened, read_archive, too_much};
pub use write::Tar;

/// Whether a block is a member's header, by its checksum, which archives from before the `ustar` magic have too.
pub(crate) fn is_header(block: &[u8; 512]) -> bool {
    spec::header::Header(block).is_valid()
}
