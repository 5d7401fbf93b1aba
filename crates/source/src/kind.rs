//! Finds out what a file is, by some of its bytes.

use std::fs::File;
use std::io;
use std::path::Path;

use inarch_block::BackingFile;
use inarch_confine::Parse;
pub use inarch_format::probe::FileKind;
use inarch_format::probe::{Found, probe};
use inarch_format::readers;

/// The kinds of files that can be sources, for messages: the continuation of "a source is a directory,".
pub(super) fn accepted() -> String {
    let names: Vec<_> = readers().iter().map(|reader| reader.name).collect();
    let (last, others) = names.split_last().unwrap_or((&"", &[]));
    format!(
        "a tar archive (plain, gzip, zstd, xz; '-' for standard input), a disk image (IMAGE[:VOLUME]), oci:DIR[:TAG], docker://NAME, \
         libvirt:DOMAIN, cache:NAME, or an {} or {last} image",
        others.join(", ")
    )
}

/// Finds out what the file is.
pub(super) fn recognise(path: &Path) -> io::Result<Found> {
    let file = BackingFile::new(File::open(path)?, path.to_owned())?;
    Parse::new().run(|parsing| probe(parsing, &file), || {})?
}
