//! Paths that match a pattern, as glob(3) finds them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use inarch_tree::FileType;
use inarch_volume::{Last, Volume, VolumeError, resolve};

use super::list::children;
use super::{Guest, GuestError};

/// The most paths that a pattern may match.
const MOST: usize = 1 << 20;

/// A name of a pattern.
enum Part {
    /// It is what it is.
    Name(Vec<u8>),
    /// Names that match.
    Glob { glob: GlobMatcher, hidden: bool },
}

impl Guest {
    /// The paths that match a pattern of `*`, `?`, `[...]` and `{...}`, by name; those of directories end with a slash if `mark`. Names that begin with a dot
    /// are matched by a dot only.
    ///
    /// # Errors
    /// It is no pattern (a text says why), or a directory is damaged.
    pub fn glob(&self, pattern: &Path, mark: bool) -> Result<Vec<Vec<u8>>, GuestError> {
        let parts = parts(pattern.as_os_str().as_bytes());
        let Some(parts) = parts else { return Err(self.wrong_type(pattern, "it is no pattern")) };
        inarch_source::parse(|_| matching(&*self.volume, &parts, mark))?.map_err(self.fail(pattern))
    }
}

fn parts(pattern: &[u8]) -> Option<Vec<Part>> {
    let names = pattern.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let part = |name: &[u8]| {
        if !name.iter().any(|byte| b"*?[{".contains(byte)) {
            return Some(Part::Name(name.to_vec()));
        }
        let glob = GlobBuilder::new(std::str::from_utf8(name).ok()?).literal_separator(true).build().ok()?;
        Some(Part::Glob { glob: glob.compile_matcher(), hidden: name.starts_with(b".") })
    };
    names.map(part).collect()
}

fn matching(volume: &dyn Volume, parts: &[Part], mark: bool) -> Result<Vec<Vec<u8>>, VolumeError> {
    let mut found: Vec<Vec<u8>> = vec![Vec::new()];
    for part in parts {
        let mut next = Vec::new();
        for above in found {
            let beneath = |name: &[u8]| [&*above, b"/", name].concat();
            match part {
                Part::Name(name) => next.push(beneath(name)),
                Part::Glob { glob, hidden } => {
                    for name in names(volume, &above)? {
                        let is_wanted = !name.starts_with(b".") || *hidden;
                        if is_wanted && glob.is_match(std::ffi::OsStr::from_bytes(&name)) {
                            next.push(beneath(&name));
                        }
                    }
                }
            }
            if next.len() > MOST {
                return Err(VolumeError::Unsupported("too many paths match it".to_owned()));
            }
        }
        found = next;
    }
    let mut paths = Vec::new();
    for mut path in found {
        let Some(node) = resolve(volume, &path, Last::Taken)? else { continue };
        if path.is_empty() || (mark && volume.attributes(node)?.file_type() == Some(FileType::Directory)) {
            path.push(b'/');
        }
        paths.push(path);
    }
    Ok(paths)
}

/// The names in a directory; none if it is no directory.
fn names(volume: &dyn Volume, path: &[u8]) -> Result<Vec<Vec<u8>>, VolumeError> {
    let Some(node) = resolve(volume, path, Last::Followed)? else { return Ok(Vec::new()) };
    if volume.attributes(node)?.file_type() != Some(FileType::Directory) {
        return Ok(Vec::new());
    }
    Ok(children(volume, node)?.into_iter().filter_map(|child| Some(child.ok()?.0)).collect())
}
