//! What a file is, by some of its bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use inarch_format::probe::FileKind;
use inarch_format::probe::{Found, HEAD, TAIL, identify};

/// What a source may be, for messages: goes on after "a source is a directory,".
pub(super) const ACCEPTED: &str = "a tar archive (plain, gzip, zstd, xz; '-' for standard input), oci:DIR[:TAG], or an \
                                   ext4, erofs or squashfs image";

/// What the file is. An empty one, or one that begins with zeros, is taken for an archive: its reader says what it lacks.
pub(super) fn recognise(path: &Path) -> io::Result<Found> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut head = vec![0; size.min(HEAD as u64) as usize];
    file.read_exact_at(&mut head, 0)?;
    let behind = size.min(TAIL as u64);
    let mut tail = vec![0; behind as usize];
    file.read_exact_at(&mut tail, size - behind)?;
    Ok(match identify(&head, &tail) {
        Found::Zeros => Found::Source(FileKind::Tar),
        found => found,
    })
}
