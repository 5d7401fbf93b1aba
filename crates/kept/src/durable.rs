//! Writes the small files of a kept run: after a power loss there is the old one or the new one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use inarch_lifecycle::trust;

/// Replaces a file's content atomically. On return the change is durable.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    super::staged::call()?;
    let new = path.with_extension("new");
    let mut file = trust::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
