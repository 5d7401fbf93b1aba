//! Tracks what is at each path that the command changed: a new file, a file from another path, or nothing.
//!
//! The rename of a directory records only the directory, though its content moves with it. So the latest change of a path, or of a
//! directory above it, says what is at the path.

use std::collections::BTreeMap;
use std::ops::Bound;

/// An absolute path. The root's is empty.
pub type Name = Box<[u8]>;

/// What a change left at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// What the command made.
    Made,
    /// What was at this path before the command.
    Original(Name),
    /// Nothing. What was there before the command, or was made or put there by name, is gone.
    Gone,
    /// Nothing. Something was taken away that had come with its directory.
    Hole,
}

#[derive(Clone, Debug)]
struct Now {
    put: Put,
    is_directory: bool,
    /// A number that grows with each change.
    since: u64,
}

/// The bytes of what is known, and the most that they may be. What finds no room is not remembered.
#[derive(Clone, Debug)]
pub struct Room {
    taken: usize,
    most: usize,
    lacks: bool,
}

impl Default for Room {
    fn default() -> Room {
        Room::of(usize::MAX)
    }
}

impl Room {
    /// A budget of `most` bytes.
    pub fn of(most: usize) -> Room {
        Room { taken: 0, most, lacks: false }
    }

    /// Takes bytes; returns whether there was room.
    pub fn takes(&mut self, bytes: usize) -> bool {
        match self.taken.checked_add(bytes).filter(|taken| *taken <= self.most) {
            Some(taken) => self.taken = taken,
            None => self.lacks = true,
        }
        !self.lacks
    }

    /// Gives bytes back.
    pub fn gives(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_sub(bytes);
    }

    /// Whether something found no room. From then on nothing does.
    pub fn lacks(&self) -> bool {
        self.lacks
    }
}

/// The changes. See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Places {
    changed: BTreeMap<Name, Now>,
    clock: u64,
    /// For these changes, and for all else that is known of paths.
    pub room: Room,
}

/// Something that is on its way to another path, with the changes beneath it.
#[derive(Debug)]
pub struct Moving {
    put: Put,
    is_directory: bool,
    beneath: Vec<(Name, Now)>,
}

fn joined(path: &[u8], rest: &[u8]) -> Name {
    [path, rest].concat().into()
}

/// All that lies beneath `path` in a map, and the rest of each name.
pub fn beneath<'m, V>(map: &'m BTreeMap<Name, V>, path: &[u8]) -> impl Iterator<Item = (Name, &'m V)> + use<'m, V> {
    let start = joined(path, b"/");
    let length = path.len();
    map.range::<[u8], _>((Bound::Included(&*start), Bound::Unbounded))
        .take_while(move |(name, _)| name.starts_with(&start))
        .map(move |(name, value)| (name[length..].into(), value))
}

impl Places {
    /// The change that says what is at `path` now, and the length of the path that it is of: the latest one of the path or of a
    /// directory above it. Of those of the same time the nearest one.
    fn latest(&self, path: &[u8]) -> Option<(usize, &Now)> {
        let mut latest: Option<(usize, &Now)> = None;
        if !self.changed.is_empty() {
            let ends = (0..path.len()).rev().filter(|at| path[*at] == b'/');
            for end in std::iter::once(path.len()).chain(ends) {
                if let Some(now) = self.changed.get(&path[..end])
                    && latest.is_none_or(|(_, later)| now.since > later.since)
                {
                    latest = Some((end, now));
                }
            }
        }
        latest
    }

    /// The path before the command of what is at `path` now; `None` if the command made or removed it.
    pub fn original(&self, path: &[u8]) -> Option<Name> {
        match self.latest(path) {
            None => Some(path.into()),
            Some((end, Now { put: Put::Original(from), .. })) => Some(joined(from, &path[end..])),
            Some(_) => None,
        }
    }

    fn set(&mut self, path: &[u8], put: Put, is_directory: bool) {
        self.clock += 1;
        self.insert(path, Now { put, is_directory, since: self.clock });
    }

    fn insert(&mut self, path: &[u8], now: Now) {
        let of = |now: &Now| if let Put::Original(from) = &now.put { from.len() } else { 0 };
        let before = self.changed.get(path).map(of);
        let new = if before.is_none() { path.len() + size_of::<(Name, Now)>() } else { 0 };
        self.room.gives(before.unwrap_or(0));
        if self.room.takes(new + of(&now)) {
            self.changed.insert(path.into(), now);
        }
    }

    /// The command made something.
    pub fn make(&mut self, path: &[u8], is_directory: bool) {
        self.set(path, Put::Made, is_directory);
    }

    /// Gives what moved with its directory an entry of its own. Moves nothing.
    pub fn pin(&mut self, path: &[u8], original: Name, is_directory: bool) {
        let since = self.latest(path).map_or(0, |(_, now)| now.since);
        self.insert(path, Now { put: Put::Original(original), is_directory, since });
    }

    /// The command removed what was at a path.
    pub fn remove(&mut self, path: &[u8], is_directory: bool) {
        let had_change = self.changed.get(path).is_some_and(|now| now.put != Put::Hole);
        let put = if had_change || self.original(path).is_some_and(|original| *original == *path) {
            Put::Gone
        } else {
            Put::Hole
        };
        self.set(path, put, is_directory);
    }

    /// Takes what is at a path away, to be put elsewhere.
    pub fn take(&mut self, path: &[u8], is_directory: bool) -> Moving {
        let put = self.original(path).map_or(Put::Made, Put::Original);
        // A later change of a directory above may have covered some.
        let is_shown = |rest: &Name| self.shown(&joined(path, rest)).is_some();
        let inner = beneath(&self.changed, path).filter(|(rest, _)| is_shown(rest));
        let beneath: Vec<(Name, Now)> = inner.map(|(rest, now)| (rest, now.clone())).collect();
        self.remove(path, is_directory);
        for (rest, now) in &beneath {
            if matches!(now.put, Put::Original(_) | Put::Made) {
                self.set(&joined(path, rest), Put::Gone, now.is_directory);
            }
        }
        Moving { put, is_directory, beneath }
    }

    /// Puts it there.
    pub fn put(&mut self, path: &[u8], moving: Moving) {
        let Moving { put, is_directory, beneath } = moving;
        self.set(path, put, is_directory);
        for (rest, Now { put, is_directory, .. }) in beneath {
            let put = if put == Put::Gone { Put::Hole } else { put };
            let place = joined(path, &rest);
            // What was there before stays known as gone.
            let was_there = self.changed.get(&place).is_some_and(|now| now.put == Put::Gone);
            let put = if put == Put::Hole && was_there { Put::Gone } else { put };
            self.set(&place, put, is_directory);
        }
    }

    /// Adds the changes in a tree that is mounted elsewhere. They are newer: no change above covers them.
    pub fn extend(&mut self, other: Places) {
        let clock = self.clock;
        self.clock += other.clock;
        self.room.lacks |= other.room.lacks;
        let later = other.changed.into_iter().map(|(path, now)| (path, Now { since: now.since + clock, ..now }));
        self.changed.extend(later);
    }

    /// Forgets the changes of all other paths.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&Name) -> bool) {
        self.changed.retain(|path, _| is_kept(path));
    }

    /// What the last change of this very path left there, and whether that is a directory. A directory above it may have been
    /// changed since.
    pub fn change(&self, path: &[u8]) -> Option<(&Put, bool)> {
        self.changed.get(path).map(|now| (&now.put, now.is_directory))
    }

    /// The same, if it says what is at the path now.
    pub fn shown(&self, path: &[u8]) -> Option<(&Put, bool)> {
        let latest = self.latest(path).filter(|(end, _)| *end == path.len());
        latest.map(|(_, now)| (&now.put, now.is_directory))
    }

    /// What was put where it is now by name, and its path before: the same if it was moved away and back.
    pub fn moved(&self) -> Vec<(Name, Name)> {
        let shown = self.changed.keys().filter_map(|path| match self.shown(path)? {
            (Put::Original(from), _) => Some((path.clone(), from.clone())),
            _ => None,
        });
        shown.collect()
    }

    /// The paths that were changed.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.changed.keys().map(|path| &**path)
    }

    /// The changes that say what the names in a directory are.
    pub fn names_in(&self, directory: &[u8]) -> impl Iterator<Item = (Name, &Put)> {
        let names = beneath(&self.changed, directory).filter(|(rest, _)| !rest[1..].contains(&b'/'));
        names.filter_map(|(rest, _)| {
            let (put, _) = self.shown(&joined(directory, &rest))?;
            Some((rest[1..].into(), put))
        })
    }
}
