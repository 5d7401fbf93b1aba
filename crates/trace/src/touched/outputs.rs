//! What a command left, path by path.
//!
//! Each path is decided by what was there before the command and by what is there at its end.

use std::collections::BTreeSet;
use std::path::Path;

use super::places::Put;
use super::{Before, Known, Touched, shown_path};

/// What became of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// It was not there, and is now.
    Made,
    /// It was there with other content, or as another file.
    Written,
    /// Only its attributes are others.
    Attributes,
    /// It was there, and is not now.
    Removed,
    /// It was made, and is not there any more.
    Temporary,
}

impl Change {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Change::Made => "made",
            Change::Written => "written",
            Change::Attributes => "attributes",
            Change::Removed => "removed",
            Change::Temporary => "temporary",
        }
    }
}

/// Something that the command changed.
#[derive(Clone, Copy, Debug)]
pub struct Output<'t> {
    /// Its absolute path.
    pub path: &'t Path,
    /// How.
    pub change: Change,
    /// Whether it is a directory, as far as that was seen.
    pub is_directory: bool,
    pids: Option<&'t BTreeSet<u32>>,
}

impl<'t> Output<'t> {
    /// The processes that changed it, if processes are recorded.
    pub fn processes(&self) -> impl Iterator<Item = u32> + use<'t> {
        self.pids.into_iter().flatten().copied()
    }
}

impl Touched {
    /// What the command changed, by path.
    pub fn outputs(&self) -> impl Iterator<Item = Output<'_>> {
        // A path where nothing was before, and of which no change is known, has nothing now either.
        let is_told = |known: &Known| known.before == Before::There || known.change().is_some();
        let known = self.known.iter().filter(|(_, known)| is_told(known)).map(|(path, _)| &**path);
        let paths: BTreeSet<&[u8]> = known.chain(self.places.paths()).collect();
        paths.into_iter().filter_map(|path| self.output(path))
    }

    fn output<'t>(&'t self, path: &'t [u8]) -> Option<Output<'t>> {
        let before = self.known.get(path);
        let was_there = before.is_some_and(|known| known.before == Before::There);
        let was_directory = before.is_some_and(|known| known.is_directory);
        let in_place = before.and_then(Known::change);
        let original = self.places.original(path);
        let came_along = original.as_ref().and_then(|original| self.known.get(original));
        let came_along = came_along.filter(|known| known.before == Before::There);
        if original.is_some_and(|original| *original == *path) && (was_there || in_place.is_some()) {
            return Some(self.told(path, in_place?, was_directory));
        }
        let now = match self.places.shown(path) {
            Some((Put::Made, is_directory)) => Some(is_directory),
            Some((Put::Original(_), is_directory)) => {
                Some(is_directory || came_along.is_some_and(|known| known.is_directory))
            }
            Some((Put::Gone | Put::Hole, _)) => None,
            None => came_along.map(|known| known.is_directory),
        };
        let (change, is_directory) = match (was_there, now) {
            (true, Some(is_directory)) => (Change::Written, is_directory),
            (true, None) => (Change::Removed, was_directory),
            (false, Some(is_directory)) => (Change::Made, is_directory),
            (false, None) => match self.places.change(path)? {
                (Put::Hole, _) => return None,
                (_, is_directory) => (Change::Temporary, is_directory),
            },
        };
        Some(self.told(path, change, is_directory))
    }

    fn told<'t>(&'t self, path: &'t [u8], change: Change, is_directory: bool) -> Output<'t> {
        let path = shown_path(path);
        Output { path, change, is_directory, pids: self.changed_by(path) }
    }
}
