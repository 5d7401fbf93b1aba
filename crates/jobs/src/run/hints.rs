//! Hints for a user whose command failed: [`NotInGuest`] names a file of this machine that the guest does not have.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use inarch_source::KERNEL_TREES;

use super::report::NotInGuest;
use super::request::{Root, RunRequest};

/// Which files of this machine a failed command lacked in the guest: a few at most. `reason` is why it was not started, if it was not.
pub(super) fn of_failure(request: &RunRequest, reason: Option<&str>) -> Vec<NotInGuest> {
    const MOST: usize = 3;
    let mut missing: Vec<&Path> = request.command.iter().filter_map(|word| path_in(word)).collect();
    missing.retain(|path| !is_in_guest(path, request));
    // The agent's words.
    let lacks = |what: &str| reason.is_some_and(|reason| reason.contains(what));
    if lacks("command not found in the guest") {
        missing.extend(request.command.first().and_then(|word| path_in(word)));
    }
    if lacks("the working directory") {
        missing.extend(request.working_directory.as_deref().filter(|path| path.is_absolute()));
    }
    missing.retain(|path| path.exists());
    missing.sort_unstable();
    missing.dedup();
    let hint = |path: &&Path| {
        // A directory can be brought along; for a file its parent directory.
        let tree = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        NotInGuest {
            path: path.to_path_buf(),
            own_directory: own_directory(path).filter(|_| matches!(request.root, Root::Host)),
            tree: tree.parent().map(|_| tree.to_owned()),
        }
    };
    missing.iter().take(MOST).map(hint).collect()
}

/// A word that is an absolute path, or the absolute path after a `=`.
fn path_in(word: &OsString) -> Option<&Path> {
    let bytes = word.as_bytes();
    let path = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) if bytes.first() == Some(&b'-') => bytes.get(at + 1..)?,
        _ => bytes,
    };
    let path = Path::new(OsStr::from_bytes(path));
    // The guest has these too.
    const KERNEL_FILES: [&str; 3] = ["/proc", "/sys", "/dev"];
    (path.is_absolute() && !KERNEL_FILES.iter().any(|of_the_kernel| path.starts_with(of_the_kernel))).then_some(path)
}

/// Whether the guest may have this machine's `path`.
fn is_in_guest(path: &Path, request: &RunRequest) -> bool {
    let here = std::env::current_dir().ok();
    let place = here.map(|here| here.join(request.working_directory.as_deref().unwrap_or(Path::new(""))));
    let mut destinations = request.trees.iter().filter_map(|tree| match &tree.destination {
        Some(destination) => Some(destination.clone()),
        None => std::path::absolute(tree.source.path()).ok(),
    });
    destinations.any(|destination| path.starts_with(destination))
        || match request.root {
            // The command's working directory is brought along.
            Root::Host => own_directory(path).is_none() || place.is_some_and(|place| path.starts_with(place)),
            // Another root may have it.
            Root::Source(_) => true,
            Root::None => false,
        }
}

/// The guest's own directory that contains the path, if the root is this machine's.
fn own_directory(path: &Path) -> Option<PathBuf> {
    let first = path.components().find_map(|component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    })?;
    KERNEL_TREES.iter().any(|name| first == OsStr::new(name)).then(|| Path::new("/").join(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_words() {
        for (word, path) in [
            ("/tmp/x", Some("/tmp/x")),
            ("--file=/tmp/x", Some("/tmp/x")),
            ("relative/x", None),
            ("a=/tmp/x", None),
            ("-l", None),
            ("/dev/null", None),
        ] {
            assert_eq!(path_in(&OsString::from(word)), path.map(Path::new), "{word}");
        }
    }

    #[test]
    fn directories_of_the_guests_own_are_known() {
        assert_eq!(own_directory(Path::new("/tmp/x/y")), Some("/tmp".into()));
        assert_eq!(own_directory(Path::new("/run/x")), Some("/run".into()));
        assert_eq!(own_directory(Path::new("/var/tmp/x")), None);
    }
}
