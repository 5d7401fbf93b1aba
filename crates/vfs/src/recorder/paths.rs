//! By which paths nodes are known.

use std::collections::HashMap;

use crate::NodeId;

/// Directories above one another, more than which nobody has.
const MAX_DEPTH: usize = 1 << 12;

#[derive(Debug, Default)]
struct Known {
    lookups: u64,
    /// Nodes whose place is in it.
    children: u64,
    place: Option<(NodeId, Box<[u8]>)>,
}

/// The nodes that a client knows, and where each was last.
#[derive(Debug, Default)]
pub struct Paths {
    nodes: HashMap<NodeId, Known>,
    at: HashMap<(NodeId, Box<[u8]>), NodeId>,
}

impl Paths {
    /// Counts a lookup of a node, which is at this place.
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

    fn put(&mut self, node: NodeId, parent: NodeId, name: &[u8]) {
        if node == NodeId::ROOT {
            return;
        }
        let place = (parent, Box::<[u8]>::from(name));
        self.at.insert(place.clone(), node);
        let Some(known) = self.nodes.get_mut(&node) else { return };
        if known.place.as_ref() == Some(&place) {
            return;
        }
        let before = known.place.replace(place);
        if parent != NodeId::ROOT {
            self.nodes.entry(parent).or_default().children += 1;
        }
        if let Some(before) = before {
            self.leave(node, before);
        }
    }

    /// A node is no longer at a place.
    fn leave(&mut self, node: NodeId, place: (NodeId, Box<[u8]>)) {
        let parent = place.0;
        if self.at.get(&place) == Some(&node) {
            self.at.remove(&place);
        }
        if let Some(known) = self.nodes.get_mut(&parent) {
            known.children = known.children.saturating_sub(1);
            self.collect(parent);
        }
    }

    /// Takes lookups back; gives whether it knows the node no longer.
    pub fn forget(&mut self, node: NodeId, lookups: u64) -> bool {
        if let Some(known) = self.nodes.get_mut(&node) {
            known.lookups = known.lookups.saturating_sub(lookups);
        }
        self.collect(node);
        !self.nodes.contains_key(&node)
    }

    fn collect(&mut self, node: NodeId) {
        let mut at = node;
        while self.nodes.get(&at).is_some_and(|known| known.lookups == 0 && known.children == 0) {
            let Some((parent, name)) = self.nodes.remove(&at).and_then(|known| known.place) else { return };
            let place = (parent, name);
            if self.at.get(&place) == Some(&at) {
                self.at.remove(&place);
            }
            let Some(known) = self.nodes.get_mut(&parent) else { return };
            known.children = known.children.saturating_sub(1);
            at = parent;
        }
    }

    /// A name is gone; gives its path. What had it keeps it for what is still done to it.
    pub fn removed(&mut self, parent: NodeId, name: &[u8]) -> Vec<u8> {
        self.at.remove(&(parent, name.into()));
        self.path_of_name(parent, name)
    }

    /// A name became another one, or changed with it.
    pub fn renamed(&mut self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), exchange: bool) {
        let (moved, other) = (self.at.remove(&(from.0, from.1.into())), self.at.remove(&(to.0, to.1.into())));
        if let Some(moved) = moved {
            self.put(moved, to.0, to.1);
        }
        if let Some(other) = other.filter(|_| exchange) {
            self.put(other, from.0, from.1);
        }
    }

    /// A node's path.
    pub fn path(&self, node: NodeId) -> Vec<u8> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = node;
        while at != NodeId::ROOT {
            match self.nodes.get(&at).and_then(|known| known.place.as_ref()) {
                Some((parent, name)) if names.len() < MAX_DEPTH => {
                    names.push(name);
                    at = *parent;
                }
                // It was never looked up by a name.
                _ => {
                    names.push(b"?");
                    break;
                }
            }
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The path of a name in a directory.
    pub fn path_of_name(&self, parent: NodeId, name: &[u8]) -> Vec<u8> {
        let mut path = self.path(parent);
        if parent != NodeId::ROOT {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// How many nodes it knows.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}
