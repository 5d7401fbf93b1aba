//! Digests of the files that a command used.

use std::fmt::Write;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use inarch_vfs::{Identity, is_shown_as};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes that are read at once.
const PIECE: usize = 1 << 18;

/// What is known of a file's content when the command has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    /// Of all its bytes, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The file is not as it was when it was first used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
}

/// The content of the regular file at `path`, whose identity was recorded. Both fields are empty if the file cannot be
/// read.
pub(super) fn content(path: &Path, recorded: Option<Identity>) -> Content {
    match digest(path, recorded) {
        Ok(sha256) => Content { changed: sha256.is_none(), sha256 },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Content { sha256: None, changed: recorded.is_some() },
        Err(_) => Content::default(),
    }
}

/// `None` if the file is another one, or is changed meanwhile.
fn digest(path: &Path, recorded: Option<Identity>) -> io::Result<Option<String>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut file = match open(path, flags, Mode::empty()) {
        // A link or a socket is there now.
        Err(Errno::LOOP | Errno::NXIO) if recorded.is_some() => return Ok(None),
        file => File::from(file?),
    };
    let before = file.metadata()?;
    if !before.is_file() || recorded.is_some_and(|recorded| !is(&before, recorded)) {
        return if recorded.is_some() { Ok(None) } else { Err(io::ErrorKind::InvalidInput.into()) };
    }
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => hash.update(&piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let after = file.metadata()?;
    let state = |file: &Metadata| (file.size(), file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec());
    if state(&before) != state(&after) {
        return Ok(None);
    }
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(Some(text))
}

/// Whether the file at `path` is no longer the recorded one, or has changed.
pub(super) fn is_changed(path: &Path, recorded: Identity) -> bool {
    match fs::symlink_metadata(path) {
        Ok(file) => !is(&file, recorded),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Whether a file's content is still what it was.
fn is(file: &Metadata, recorded: Identity) -> bool {
    let Identity { inode, mode, size, mtime } = recorded;
    is_shown_as(file.ino(), inode)
        && file.mode() & libc::S_IFMT == mode & libc::S_IFMT
        && file.size() == size
        && (file.mtime(), file.mtime_nsec()) == (mtime.seconds, i64::from(mtime.nanoseconds))
}

#[cfg(test)]
mod tests {
    use inarch_tree::Timestamp;

    use super::*;

    const OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn identity(path: &Path) -> Identity {
        let file = fs::symlink_metadata(path).unwrap();
        let mtime = Timestamp { seconds: file.mtime(), nanoseconds: file.mtime_nsec() as u32 };
        Identity { inode: file.ino(), mode: file.mode(), size: file.size(), mtime }
    }

    #[test]
    fn a_file_has_a_digest_while_it_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "abc").unwrap();
        let recorded = Some(identity(&path));
        let known = Content { sha256: Some(OF_ABC.to_owned()), changed: false };
        assert_eq!(content(&path, recorded), known);
        assert_eq!(content(&path, None), known);
        assert!(recorded.is_some_and(|recorded| !is_changed(&path, recorded)));
        let changed = Content { sha256: None, changed: true };
        fs::write(&path, "abcd").unwrap();
        assert_eq!(content(&path, recorded), changed);
        assert!(recorded.is_some_and(|recorded| is_changed(&path, recorded)));
        fs::remove_file(&path).unwrap();
        assert_eq!(content(&path, recorded), changed);
        assert!(recorded.is_some_and(|recorded| is_changed(&path, recorded)));
        assert_eq!(content(&path, None), Content::default());
        std::os::unix::fs::symlink("other", &path).unwrap();
        fs::write(dir.path().join("other"), "abc").unwrap();
        assert_eq!(content(&path, recorded), changed);
        assert_eq!((content(&path, None), content(dir.path(), None)), (Content::default(), Content::default()));
    }
}
