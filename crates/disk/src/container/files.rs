//! [`NamedFiles`]: the files that the user named for an image.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::Backing;

use super::Reference;

/// Files that the user named, each for one that an image names.
///
/// A file stands for the one whose name has the same last component: the user may have moved both, and a path in an image
/// leads nowhere on this machine. Of several, the first that was not taken yet is taken. So each serves once, and a chain
/// whose images have the same name in different directories is named in order.
#[derive(Default)]
pub struct NamedFiles {
    files: Vec<(PathBuf, Arc<dyn Backing>)>,
}

impl NamedFiles {
    /// The files with their paths.
    pub fn new(files: Vec<(PathBuf, Arc<dyn Backing>)>) -> NamedFiles {
        NamedFiles { files }
    }

    /// Takes the file that stands for `reference`.
    pub fn take(&mut self, reference: &Reference) -> Option<Arc<dyn Backing>> {
        let at = self.files.iter().position(|(path, _)| reference.is_answered_by(path))?;
        Some(self.files.remove(at).1)
    }

    /// The paths that no image asked for.
    pub fn left(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().map(|(path, _)| path)
    }
}

impl Reference {
    /// Whether a file that the user named stands for the one that the image names: by the last component of its path.
    pub fn is_answered_by(&self, path: &Path) -> bool {
        path.file_name().map(OsStr::as_bytes) == Some(last_component(&self.name))
    }
}

/// What follows the last slash, or the last backslash of a name from Windows.
fn last_component(name: &[u8]) -> &[u8] {
    name.rsplit(|byte| matches!(byte, b'/' | b'\\')).next().unwrap_or(name)
}
