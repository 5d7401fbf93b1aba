//! Compares what two runs of a command made: one in place, and one in an upper layer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use inarch_lifecycle::shown;
use rustix::fs::{Mode, OFlags, open};

use super::touched::{Change, Touched};

/// Bytes that are compared at once.
const PIECE: usize = 1 << 18;

/// What the other run did otherwise than the first one, at one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The path.
    pub path: PathBuf,
    /// What it did.
    pub kind: MismatchKind,
}

/// A difference between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchKind {
    /// Only the first run made it.
    NotMade,
    /// Only the other run made it.
    OnlyMade,
    /// The other run changed or removed what was there before.
    OnlyChanged,
    /// Both made it, and this differs.
    Differs {
        /// `type`, `permissions`, `target` or `content`.
        what: &'static str,
    },
    /// One of both cannot be read.
    Unreadable(io::ErrorKind),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = shown(&self.path);
        match self.kind {
            MismatchKind::NotMade => write!(f, "not made the second time: {path}"),
            MismatchKind::OnlyMade => write!(f, "made only the second time: {path}"),
            MismatchKind::OnlyChanged => write!(f, "changed only the second time: {path}"),
            MismatchKind::Differs { what } => write!(f, "differs: {path} ({what})"),
            MismatchKind::Unreadable(error) => write!(f, "cannot be compared: {path} ({error})"),
        }
    }
}

/// The paths that a command left changed, but those that `is_left_out`.
pub(super) fn changes<'t>(touched: &'t Touched, is_left_out: &dyn Fn(&Path) -> bool) -> BTreeMap<&'t Path, Change> {
    let outputs = touched.outputs().map(|output| (output.path, output.change));
    outputs.filter(|(path, change)| *change != Change::Temporary && !is_left_out(path)).collect()
}

/// What the other run did otherwise. The first one made all that it changed, at the paths themselves; what the other one made is
/// beneath `upper`.
pub(super) fn compare(first: &BTreeMap<&Path, Change>, other: &BTreeMap<&Path, Change>, upper: &Path) -> Vec<Mismatch> {
    let paths: BTreeSet<&Path> = first.keys().chain(other.keys()).copied().collect();
    let kind = |path: &Path| match (first.get(path), other.get(path)) {
        (_, Some(Change::Written | Change::Attributes | Change::Removed)) => Some(MismatchKind::OnlyChanged),
        (Some(_), None) => Some(MismatchKind::NotMade),
        (None, Some(_)) => Some(MismatchKind::OnlyMade),
        (Some(_), Some(_)) => {
            let there = upper.join(path.strip_prefix("/").unwrap_or(path));
            let differs = difference(path, &there).map(|what| Some(MismatchKind::Differs { what: what? }));
            differs.unwrap_or_else(|error| Some(MismatchKind::Unreadable(error.kind())))
        }
        (None, None) => None,
    };
    let mismatch = |path: &Path| Some(Mismatch { path: path.to_owned(), kind: kind(path)? });
    paths.into_iter().filter_map(mismatch).collect()
}

/// What differs between two things that a command made.
fn difference(a: &Path, b: &Path) -> io::Result<Option<&'static str>> {
    let (was, is) = (fs::symlink_metadata(a)?, fs::symlink_metadata(b)?);
    let kind = |metadata: &Metadata| metadata.mode() & libc::S_IFMT;
    if kind(&was) != kind(&is) || is_device(was.file_type()) && was.rdev() != is.rdev() {
        return Ok(Some("type"));
    }
    if was.is_symlink() {
        return Ok((fs::read_link(a)? != fs::read_link(b)?).then_some("target"));
    }
    if was.mode() != is.mode() {
        return Ok(Some("permissions"));
    }
    let is_same = !was.is_file() || was.len() == is.len() && has_same_content(a, b)?;
    Ok((!is_same).then_some("content"))
}

fn is_device(kind: FileType) -> bool {
    kind.is_block_device() || kind.is_char_device()
}

fn has_same_content(a: &Path, b: &Path) -> io::Result<bool> {
    let open = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        open(path, flags, Mode::empty()).map(File::from)
    };
    let (mut a, mut b) = (open(a)?, open(b)?);
    let (mut of_a, mut of_b) = (Vec::with_capacity(PIECE), Vec::with_capacity(PIECE));
    loop {
        for (file, piece) in [(&mut a, &mut of_a), (&mut b, &mut of_b)] {
            piece.clear();
            file.take(PIECE as u64).read_to_end(piece)?;
        }
        if of_a != of_b || of_a.is_empty() {
            return Ok(of_a == of_b);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn everything_that_a_file_is_counts() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        let there = upper.join(dir.path().strip_prefix("/").unwrap());
        fs::create_dir_all(&there).unwrap();
        let long = vec![7; 2 * PIECE + 1];
        for place in [dir.path(), &there] {
            fs::create_dir(place.join("directory")).unwrap();
            symlink("target", place.join("link")).unwrap();
            for name in ["same", "content", "length", "mode", "type", "only"] {
                fs::write(place.join(name), &long).unwrap();
            }
        }
        let paths = ["same", "content", "length", "mode", "type", "only", "directory", "link", "none"];
        let paths = paths.map(|name| dir.path().join(name));
        let [same, content, length, mode, kind, only, directory, link, none] = &paths;
        let of = |paths: &[&'static str]| -> Vec<PathBuf> { paths.iter().map(|name| dir.path().join(name)).collect() };
        let all: BTreeMap<&Path, Change> =
            [same, content, length, mode, kind, directory, link].map(|path| (&**path, Change::Made)).into();
        assert_eq!(compare(&all, &all, &upper), []);

        let mut other = long.clone();
        *other.last_mut().unwrap() = 8;
        fs::write(there.join("content"), other).unwrap();
        fs::write(there.join("length"), &long[1..]).unwrap();
        fs::set_permissions(there.join("mode"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_file(there.join("type")).unwrap();
        fs::create_dir(there.join("type")).unwrap();
        fs::remove_file(there.join("link")).unwrap();
        symlink("another", there.join("link")).unwrap();
        let (mut one, mut two) = (all.clone(), all);
        one.insert(only, Change::Made);
        two.insert(none, Change::Removed);
        let told: Vec<(PathBuf, MismatchKind)> =
            compare(&one, &two, &upper).into_iter().map(|mismatch| (mismatch.path, mismatch.kind)).collect();
        let differs = |what| MismatchKind::Differs { what };
        let names = of(&["content", "length", "link", "mode", "none", "only", "type"]);
        let kinds = [
            differs("content"),
            differs("content"),
            differs("target"),
            differs("permissions"),
            MismatchKind::OnlyChanged,
            MismatchKind::NotMade,
            differs("type"),
        ];
        assert_eq!(told, names.into_iter().zip(kinds).collect::<Vec<_>>());
    }
}
