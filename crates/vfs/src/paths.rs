//! [`Paths`]: follows the names of the nodes that a client knows, and builds the nodes' paths.

use std::collections::HashMap;

use crate::NodeId;
use crate::digest::Digest;

/// The deepest supported nesting of directories.
const MAX_DEPTH: usize = 1 << 12;

/// A name in a directory.
type Place = (NodeId, Box<[u8]>);

#[derive(Debug, Default)]
struct Known {
    lookups: u64,
    /// The number of nodes placed in it.
    children: u32,
    /// Whether it still has the name of its place.
    is_named: bool,
    /// Its current or last place; for a node created without a name, its directory and an empty name. `None` if it was
    /// never found by name.
    place: Option<Place>,
}

/// The nodes that a client knows, and their places.
#[derive(Debug, Default)]
pub struct Paths {
    nodes: HashMap<NodeId, Known>,
    /// The node at each place, by the place's digest.
    at: HashMap<u128, NodeId>,
    /// The additional places of nodes with several.
    further: HashMap<NodeId, Vec<Place>>,
    digest: Digest,
}

/// A path, and whether it still leads there.
#[derive(Debug, PartialEq, Eq)]
pub struct Path {
    pub bytes: Vec<u8>,
    pub is_named: bool,
}

impl Paths {
    /// Counts a look-up of a node at this place.
    pub fn found(&mut self, node: NodeId, parent: NodeId, name: &[u8]) {
        self.counted(node);
        self.put(node, parent, name);
    }

    /// Counts a lookup of a node.
    pub fn counted(&mut self, node: NodeId) {
        if node != NodeId::ROOT {
            self.nodes.entry(node).or_default().lookups += 1;
        }
    }

    /// Counts a look-up of a node created without a name in a directory.
    pub fn made_unnamed(&mut self, node: NodeId, parent: NodeId) {
        self.counted(node);
        if let Some(known) = self.nodes.get_mut(&node)
            && known.place.is_none()
        {
            known.place = Some((parent, Box::default()));
            self.entered(parent);
        }
    }

    fn number(&self, parent: NodeId, name: &[u8]) -> u128 {
        self.digest.of((parent, name))
    }

    fn put(&mut self, node: NodeId, parent: NodeId, name: &[u8]) {
        let Some(known) = self.nodes.get(&node) else { return };
        let is_there =
            known.is_named && known.place.as_ref().is_some_and(|place| place.0 == parent && *place.1 == *name);
        let before = self.at.insert(self.number(parent, name), node);
        if let Some(other) = before.filter(|other| *other != node) {
            self.lose(other, parent, name);
        }
        if is_there {
            return;
        }
        self.take_further(node, parent, name);
        self.entered(parent);
        let Some(known) = self.nodes.get_mut(&node) else { return };
        let before = known.place.replace((parent, name.into()));
        let was_named = std::mem::replace(&mut known.is_named, true);
        match before {
            Some(place) if was_named => self.further.entry(node).or_default().push(place),
            Some(place) => self.left(place.0),
            None => {}
        }
    }

    /// Records that a node lost a place.
    fn lose(&mut self, node: NodeId, parent: NodeId, name: &[u8]) {
        if self.take_further(node, parent, name) {
            return;
        }
        let next = self.further.get_mut(&node).and_then(Vec::pop);
        let Some(known) = self.nodes.get_mut(&node) else { return };
        match next {
            Some(next) => {
                let before = known.place.replace(next);
                before.into_iter().for_each(|place| self.left(place.0));
                if self.further.get(&node).is_some_and(Vec::is_empty) {
                    self.further.remove(&node);
                }
            }
            None => known.is_named = false,
        }
    }

    /// Removes an additional place of a node; returns false if it is none.
    fn take_further(&mut self, node: NodeId, parent: NodeId, name: &[u8]) -> bool {
        let Some(places) = self.further.get_mut(&node) else { return false };
        let Some(at) = places.iter().position(|place| place.0 == parent && *place.1 == *name) else { return false };
        places.swap_remove(at);
        if places.is_empty() {
            self.further.remove(&node);
        }
        self.left(parent);
        true
    }

    /// A directory got another place.
    fn entered(&mut self, parent: NodeId) {
        if parent != NodeId::ROOT {
            self.nodes.entry(parent).or_default().children += 1;
        }
    }

    /// A directory lost a place.
    fn left(&mut self, parent: NodeId) {
        if let Some(known) = self.nodes.get_mut(&parent) {
            known.children = known.children.saturating_sub(1);
            self.collect(parent);
        }
    }

    /// Drops look-ups.
    pub fn forget(&mut self, node: NodeId, lookups: u64) {
        if let Some(known) = self.nodes.get_mut(&node) {
            known.lookups = known.lookups.saturating_sub(lookups);
        }
        self.collect(node);
    }

    /// Removes a node without look-ups and places, and then its ancestors for which that is true too.
    fn collect(&mut self, node: NodeId) {
        let mut emptied = vec![node];
        while let Some(node) = emptied.pop() {
            if !self.nodes.get(&node).is_some_and(|known| known.lookups == 0 && known.children == 0) {
                continue;
            }
            let last = self.nodes.remove(&node).and_then(|known| known.place);
            for (parent, name) in last.into_iter().chain(self.further.remove(&node).into_iter().flatten()) {
                let number = self.number(parent, &name);
                if self.at.get(&number) == Some(&node) {
                    self.at.remove(&number);
                }
                if let Some(known) = self.nodes.get_mut(&parent) {
                    known.children = known.children.saturating_sub(1);
                    emptied.push(parent);
                }
            }
        }
    }

    /// A name is absent. The node that had it keeps it for later accesses.
    pub fn removed(&mut self, parent: NodeId, name: &[u8]) {
        if let Some(node) = self.at.remove(&self.number(parent, name)) {
            self.lose(node, parent, name);
        }
    }

    /// A name was renamed or exchanged.
    pub fn renamed(&mut self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), exchange: bool) {
        let mut take = |(parent, name)| {
            let node = self.at.remove(&self.number(parent, name))?;
            self.lose(node, parent, name);
            Some(node)
        };
        let (moved, other) = (take(from), take(to));
        if let Some(moved) = moved {
            self.put(moved, to.0, to.1);
        }
        if let Some(other) = other.filter(|_| exchange) {
            self.put(other, from.0, from.1);
        }
    }

    /// A node's path.
    pub fn path(&self, node: NodeId) -> Path {
        let mut names: Vec<&[u8]> = Vec::new();
        let (mut at, mut is_named) = (node, true);
        while at != NodeId::ROOT {
            match self.nodes.get(&at) {
                Some(Known { place: Some((parent, name)), is_named: known, .. }) if names.len() < MAX_DEPTH => {
                    is_named &= known;
                    if !name.is_empty() {
                        names.push(name);
                    }
                    at = *parent;
                }
                // A node that was never found by name, or too deep.
                _ => {
                    is_named = false;
                    names.push(b"?");
                    break;
                }
            }
        }
        names.reverse();
        Path { bytes: names.join(&b'/'), is_named }
    }

    /// The paths of a node's additional names.
    pub fn further_paths(&self, node: NodeId) -> Vec<Path> {
        let places = self.further.get(&node).into_iter().flatten();
        places.map(|(parent, name)| self.path_of_name(*parent, name)).collect()
    }

    /// The path of a name in a directory.
    pub fn path_of_name(&self, parent: NodeId, name: &[u8]) -> Path {
        let Path { mut bytes, is_named } = self.path(parent);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Path { bytes, is_named }
    }

    /// Whether a client knows the node, or a node placed in it.
    pub fn knows(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// The number of nodes.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is left of what it knew.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.at.is_empty() && self.further.is_empty()
    }
}
