//! The set of paths that a view shows, as a tree of names.

use std::collections::{HashMap, HashSet};

use inarch_tree::Timestamp;

use crate::{Attributes, Identity};

/// A name, without slashes.
type Name = Box<[u8]>;

/// The place of a path in the set.
pub(super) type Spot = u32;

/// The root's place.
pub(super) const ROOT: Spot = 0;

/// Whether a path is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Neither shown nor hidden so far.
    #[default]
    Unnamed,
    Shown,
    Absent,
}

#[derive(Clone, Debug, Default)]
struct Place {
    parent: Spot,
    name: Name,
    state: State,
    children: HashMap<Name, Spot>,
    names: Option<HashSet<Name>>,
    /// Bytes and time of last write that a directory is shown with.
    was: Option<(u64, Timestamp)>,
}

/// What an [`Only`](super::Only) shows. Paths are relative to the root; slashes at the beginning and end do not matter.
#[derive(Clone, Debug)]
pub struct Shown {
    places: Vec<Place>,
    shows_others: bool,
}

impl Shown {
    /// Nothing but the root, so far.
    pub fn nothing() -> Shown {
        Shown { places: vec![Place { state: State::Shown, ..Place::default() }], shows_others: false }
    }

    /// Also shows every path that was not named.
    pub fn and_all_others(self) -> Shown {
        Shown { shows_others: true, ..self }
    }

    /// Shows a path, and the directories that lead to it.
    pub fn show(&mut self, path: &[u8]) {
        let mut spot = self.spot(path);
        while self.places[spot as usize].state == State::Unnamed {
            self.places[spot as usize].state = State::Shown;
            spot = self.places[spot as usize].parent;
        }
    }

    /// Hides a path and everything beneath it. Such a path counts as absent, and is not [missed](super::Only::missed).
    pub fn hide(&mut self, path: &[u8]) {
        let spot = self.spot(path);
        if spot != ROOT {
            self.places[spot as usize].state = State::Absent;
        }
    }

    /// Shows a directory with the length and mtime of `identity`, because later changes of its names have changed both.
    pub fn show_directory(&mut self, path: &[u8], identity: &Identity) {
        self.show(path);
        let spot = self.spot(path);
        self.places[spot as usize].was = Some((identity.size, identity.mtime));
    }

    /// Makes the listing of a directory contain these names, besides those that are shown, and no others. A name that
    /// is [hidden](Shown::hide) is not listed.
    pub fn list<'n>(&mut self, path: &[u8], names: impl Iterator<Item = &'n [u8]>) {
        let spot = self.spot(path);
        self.places[spot as usize].names.get_or_insert_default().extend(names.map(Name::from));
    }

    /// The place of a path, which is made if need be.
    fn spot(&mut self, path: &[u8]) -> Spot {
        let mut spot = ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            spot = match self.places[spot as usize].children.get(name) {
                Some(child) => *child,
                None => {
                    // A path for each place fills the memory long before the numbers end.
                    let child = self.places.len() as Spot;
                    self.places.push(Place { parent: spot, name: name.into(), ..Place::default() });
                    self.places[spot as usize].children.insert(name.into(), child);
                    child
                }
            };
        }
        spot
    }

    /// The place of a name in a directory, if it has one.
    pub(super) fn child(&self, directory: Option<Spot>, name: &[u8]) -> Option<Spot> {
        self.places[directory? as usize].children.get(name).copied()
    }

    pub(super) fn parent(&self, spot: Spot) -> Spot {
        self.places[spot as usize].parent
    }

    /// Whether a path at this place is shown.
    pub(super) fn is_shown(&self, spot: Option<Spot>) -> bool {
        match self.state(spot) {
            State::Shown => true,
            State::Absent => false,
            State::Unnamed => self.shows_others,
        }
    }

    pub(super) fn state(&self, spot: Option<Spot>) -> State {
        spot.map_or(State::Unnamed, |spot| self.places[spot as usize].state)
    }

    /// Whether the listing of a directory has this name.
    pub(super) fn is_listed(&self, directory: Option<Spot>, name: &[u8]) -> bool {
        let state = self.state(self.child(directory, name));
        let names = directory.and_then(|directory| self.places[directory as usize].names.as_ref());
        match (state, names) {
            (State::Shown, _) => true,
            (State::Absent, _) => false,
            (State::Unnamed, Some(names)) => names.contains(name),
            (State::Unnamed, None) => self.shows_others,
        }
    }

    /// The attributes that a directory is shown with.
    pub(super) fn shown(&self, spot: Option<Spot>, attributes: Attributes) -> Attributes {
        let was = spot.and_then(|spot| self.places[spot as usize].was);
        match was.filter(|_| attributes.mode & libc::S_IFMT == libc::S_IFDIR) {
            Some((size, mtime)) => Attributes { size, mtime, ..attributes },
            None => attributes,
        }
    }

    /// The path of a name in a directory.
    pub(super) fn path(&self, directory: Spot, name: &[u8]) -> Vec<u8> {
        let mut names = vec![name];
        let mut spot = directory;
        while spot != ROOT {
            names.push(&self.places[spot as usize].name);
            spot = self.parent(spot);
        }
        names.into_iter().rev().flat_map(|name| [b"/", name]).flatten().copied().collect()
    }
}
