//! The nodes of the overlay: which node of each layer is behind them, and where they are.

use std::collections::HashMap;

use rustix::io::Errno;

use crate::accessed::{Accessed, Credit};
use crate::host::Permissions;
use crate::slab::Slab;
use crate::{HandleId, NodeId};

/// Set in the inode numbers of what was made above, so that they differ from those below.
pub const MADE_ABOVE: u64 = 1 << 62;

/// What is behind a node. The overlay has one lookup of each.
#[derive(Clone, Copy, Debug)]
pub struct Layers {
    pub lower: Option<NodeId>,
    pub upper: Option<NodeId>,
    pub is_directory: bool,
    /// What keeps the file above, which was brought up when it had no name any more.
    pub nameless: Option<HandleId>,
    /// The number that stat(2) shows: stays the same when it is brought up, but of a file that parts from other names.
    pub inode: u64,
}

#[derive(Debug)]
struct Node {
    layers: Layers,
    lookups: u64,
    /// Nodes that lie in it.
    children: u64,
    /// Its directory and its name there; without, its name is gone.
    place: Option<(u32, Box<[u8]>)>,
    /// Whether clients know its attributes, and of what is in it.
    accessed: Accessed,
    told: Told,
}

/// Permissions as clients were told of them last.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    permissions: Permissions,
    /// Whether it was brought up with other ones.
    is_old: bool,
}

/// All nodes that a client knows.
#[derive(Debug)]
pub struct Table {
    nodes: Slab<Node>,
    by_upper: HashMap<NodeId, u32>,
    by_place: HashMap<(u32, Box<[u8]>), u32>,
    /// Whether it pays that clients open directories.
    pub credit: Credit,
}

impl Table {
    /// Of the root, which lies in both layers; what is above is `upper`.
    pub fn new(inode: u64, upper: NodeId) -> Table {
        let (by_upper, by_place) = (HashMap::new(), HashMap::new());
        let mut table = Table { nodes: Slab::new(), by_upper, by_place, credit: Credit::default() };
        let (lower, upper) = (Some(NodeId::ROOT), Some(upper));
        let layers = Layers { lower, upper, is_directory: true, nameless: None, inode };
        let (accessed, told) = (Accessed::default(), Told::default());
        table.nodes.insert(Node { layers, lookups: 1, children: 0, place: None, accessed, told });
        table
    }

    fn get(&self, node: NodeId) -> Result<&Node, Errno> {
        self.nodes.place(node.0).and_then(|index| self.nodes.get(index)).ok_or(Errno::STALE)
    }

    fn index(&self, node: NodeId) -> Result<u32, Errno> {
        self.nodes.place(node.0).ok_or(Errno::STALE)
    }

    /// What is behind a node.
    pub fn layers(&self, node: NodeId) -> Result<Layers, Errno> {
        Ok(self.get(node)?.layers)
    }

    /// The directory that a node is in; the root is in itself.
    pub fn parent(&self, node: NodeId) -> Result<NodeId, Errno> {
        if node == NodeId::ROOT {
            return Ok(node);
        }
        let place = self.get(node)?.place.as_ref().ok_or(Errno::NOENT)?;
        Ok(NodeId(self.nodes.number(place.0)))
    }

    /// Whether a directory has no name any more, so that nothing is in it, and nothing can be made in it.
    pub fn is_removed(&self, node: NodeId) -> bool {
        node != NodeId::ROOT && self.get(node).is_ok_and(|node| node.layers.is_directory && node.place.is_none())
    }

    /// The node that clients know at a place.
    pub fn known_at(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let index = *self.by_place.get(&(self.index(parent).ok()?, name.into()))?;
        self.nodes.get(index).filter(|node| node.lookups > 0).map(|_| NodeId(self.nodes.number(index)))
    }

    /// The node behind which a node of the upper layer is.
    pub fn of_upper(&self, upper: NodeId) -> Option<NodeId> {
        self.by_upper.get(&upper).map(|index| NodeId(self.nodes.number(*index)))
    }

    /// A directory hides what is below from now on; gives what that was.
    pub fn part_from_lower(&mut self, node: NodeId) -> Option<NodeId> {
        let index = self.index(node).ok()?;
        self.nodes.get_mut(index)?.layers.lower.take()
    }

    /// The upper layer's root is another node.
    pub fn set_root(&mut self, upper: NodeId) {
        if let Some(root) = self.nodes.get_mut(0) {
            root.layers.upper = Some(upper);
        }
    }

    /// Where a node is: its directory, and its name.
    pub fn place(&self, node: NodeId) -> Result<(NodeId, Box<[u8]>), Errno> {
        let (parent, name) = self.get(node)?.place.as_ref().ok_or(Errno::STALE)?;
        Ok((NodeId(self.nodes.number(*parent)), name.clone()))
    }

    /// Counts a further lookup of a node.
    pub fn count_lookup(&mut self, node: NodeId) -> Result<(), Errno> {
        let index = self.index(node)?;
        self.nodes.get_mut(index).ok_or(Errno::STALE)?.lookups += 1;
        self.told_of(index);
        Ok(())
    }

    /// A client has read or written a node.
    pub fn accessed(&self, node: NodeId) {
        if let Ok(node) = self.get(node)
            && node.accessed.set()
            && let Some(directory) = self.directory_of(node)
        {
            directory.accessed.add();
            self.credit.accessed();
        }
    }

    /// A client is told the attributes of a node.
    pub fn told(&self, node: NodeId) {
        let _ = self.index(node).map(|index| self.told_of(index));
    }

    fn told_of(&self, index: u32) {
        if let Some(node) = self.nodes.get(index)
            && node.accessed.clear()
            && let Some(directory) = self.directory_of(node)
        {
            directory.accessed.subtract();
            self.credit.told();
        }
    }

    fn directory_of(&self, node: &Node) -> Option<&Node> {
        self.nodes.get(node.place.as_ref()?.0)
    }

    /// A client is told these permissions of a node.
    pub fn tell_permissions(&mut self, node: NodeId, permissions: Permissions) {
        if let Ok(index) = self.index(node)
            && let Some(node) = self.nodes.get_mut(index)
        {
            node.told = Told { permissions, is_old: false };
        }
    }

    /// Permissions as clients were told of them last; none if the node was brought up with other ones since.
    pub fn told_permissions(&self, node: NodeId) -> Result<Option<Permissions>, Errno> {
        let told = self.get(node)?.told;
        Ok((!told.is_old).then_some(told.permissions))
    }

    /// A node is brought up with these permissions.
    pub fn brought_up_with(&mut self, node: NodeId, permissions: Permissions) {
        if let Ok(index) = self.index(node)
            && let Some(node) = self.nodes.get_mut(index)
        {
            node.told.is_old |= node.told.permissions != permissions;
        }
    }

    /// A client has read a directory to its end.
    pub fn listed(&self, node: NodeId) {
        if self.get(node).is_ok_and(|node| node.accessed.set_listed()) {
            self.credit.listed();
        }
    }

    /// Whether a client shall read a directory anew that it opens; `None` if it shall not ask to open any.
    pub fn opened(&self, node: NodeId) -> Option<bool> {
        let names = |node: &Node| u32::try_from(node.children).unwrap_or(u32::MAX);
        let requests = self.get(node).ok().and_then(|node| node.accessed.take_listing(names(node)));
        self.credit.spend(requests).then_some(requests.is_some())
    }

    /// Whether a client knows the node at a place; and if so, whether it has read or written it since it was told of it.
    pub fn is_known(&self, parent: NodeId, name: &[u8]) -> Option<bool> {
        let node = self.nodes.get(*self.by_place.get(&(self.index(parent).ok()?, name.into()))?)?;
        (node.lookups > 0).then_some(node.accessed.is_set())
    }

    /// Counts a lookup of what was found in the layers at a place. Gives its node, what of the layers' lookups is to be
    /// given back, because the node has them already, and nodes that are gone for it.
    pub fn found(
        &mut self,
        place: Option<(NodeId, &[u8])>,
        found: Layers,
    ) -> Result<(NodeId, Layers, Vec<Layers>), Errno> {
        let place = place.map(|(parent, name)| Ok((self.index(parent)?, name))).transpose()?;
        let known = match (found.upper, place) {
            (Some(upper), _) => self.by_upper.get(&upper).copied(),
            (None, Some((parent, name))) => {
                let at = self.by_place.get(&(parent, name.into())).copied();
                // What was brought up meanwhile is no longer what lies below, but its name still leads to it.
                at.filter(|at| self.nodes.get(*at).is_some_and(|node| node.layers.lower == found.lower))
            }
            (None, None) => None,
        };
        let (index, surplus) = match known {
            Some(index) => {
                self.told_of(index);
                let node = self.nodes.get_mut(index).ok_or(Errno::STALE)?;
                node.lookups += 1;
                // It has one lookup of each layer; of what it lacks it takes the new one.
                let mut surplus = found;
                if node.layers.lower.is_none() && node.layers.is_directory {
                    surplus.lower = None;
                    node.layers.lower = found.lower;
                }
                (index, surplus)
            }
            None => {
                let layers = found;
                let (accessed, told) = (Accessed::default(), Told::default());
                let node = Node { layers, lookups: 1, children: 0, place: None, accessed, told };
                let index = self.nodes.insert(node).ok_or(Errno::NFILE)?;
                if let Some(upper) = layers.upper {
                    self.by_upper.insert(upper, index);
                }
                (index, Layers { lower: None, upper: None, ..found })
            }
        };
        let mut gone = Vec::new();
        if let Some((parent, name)) = place {
            self.set_place(index, parent, name, &mut gone);
        }
        Ok((NodeId(self.nodes.number(index)), surplus, gone))
    }

    /// A node was brought up, and lies above from now on; without a name, what keeps it there is `nameless`. If it parts from
    /// what was below, it is shown under another `inode` number.
    pub fn set_upper(
        &mut self,
        node: NodeId,
        upper: NodeId,
        nameless: Option<HandleId>,
        inode: Option<u64>,
    ) -> Result<(), Errno> {
        let index = self.index(node)?;
        let layers = &mut self.nodes.get_mut(index).ok_or(Errno::STALE)?.layers;
        (layers.upper, layers.nameless) = (Some(upper), nameless);
        layers.inode = inode.unwrap_or(layers.inode);
        self.by_upper.insert(upper, index);
        Ok(())
    }

    /// Takes lookups back; gives what was behind nodes that are gone.
    pub fn forget(&mut self, node: NodeId, lookups: u64) -> Vec<Layers> {
        let mut gone = Vec::new();
        if node == NodeId::ROOT {
            return gone;
        }
        let Ok(index) = self.index(node) else { return gone };
        if let Some(node) = self.nodes.get_mut(index) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.collect(index, &mut gone);
        if self.nodes.len() == 1 {
            self.begin_anew();
        }
        gone
    }

    /// There is no client any more.
    fn begin_anew(&mut self) {
        self.credit.renew();
        if let Some(root) = self.nodes.get_mut(0) {
            root.accessed = Accessed::default();
        }
    }

    /// Takes all of them back.
    pub fn clear(&mut self) {
        let root = self.get(NodeId::ROOT).map_or(0, |root| root.layers.inode);
        // Numbers that were given are not given again.
        for index in self.nodes.occupied().into_iter().skip(1) {
            self.nodes.remove(index);
        }
        self.by_upper.clear();
        self.by_place.clear();
        self.begin_anew();
        if let Some(node) = self.nodes.get_mut(0) {
            node.children = 0;
            node.layers.inode = root;
        }
    }

    /// A name is gone.
    pub fn remove_place(&mut self, parent: NodeId, name: &[u8]) -> Vec<Layers> {
        let mut gone = Vec::new();
        if let Ok(parent) = self.index(parent)
            && let Some(index) = self.by_place.get(&(parent, name.into())).copied()
        {
            self.unset_place(index, &mut gone);
        }
        gone
    }

    /// A name became another one, and what had that is gone, or has the first one now.
    pub fn rename(&mut self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), exchange: bool) -> Vec<Layers> {
        let mut gone = Vec::new();
        let (Ok(source), Ok(target)) = (self.index(from.0), self.index(to.0)) else { return gone };
        let moved = self.by_place.get(&(source, from.1.into())).copied();
        let other = self.by_place.get(&(target, to.1.into())).copied();
        if moved.is_some() && moved == other {
            return gone;
        }
        for index in [moved, other].into_iter().flatten() {
            self.unset_place(index, &mut gone);
        }
        if let Some(index) = moved {
            self.set_place(index, target, to.1, &mut gone);
        }
        if let Some(index) = other.filter(|_| exchange) {
            self.set_place(index, source, from.1, &mut gone);
        }
        gone
    }

    fn set_place(&mut self, index: u32, parent: u32, name: &[u8], gone: &mut Vec<Layers>) {
        let key = (parent, name.into());
        if self.by_place.get(&key) == Some(&index) {
            return;
        }
        let Some(above) = self.nodes.get_mut(parent) else { return };
        above.children += 1;
        if let Some(other) = self.by_place.get(&key).copied() {
            self.unset_place(other, gone);
        }
        self.unset_place(index, gone);
        if let Some(node) = self.nodes.get_mut(index) {
            node.place = Some(key.clone());
            self.by_place.insert(key, index);
        }
    }

    fn unset_place(&mut self, index: u32, gone: &mut Vec<Layers>) {
        // No more is to be told of it there.
        self.told_of(index);
        let Some(place) = self.nodes.get_mut(index).and_then(|node| node.place.take()) else { return };
        self.by_place.remove(&place);
        if let Some(above) = self.nodes.get_mut(place.0) {
            above.children = above.children.saturating_sub(1);
        }
        self.collect(place.0, gone);
    }

    fn collect(&mut self, index: u32, gone: &mut Vec<Layers>) {
        let mut at = index;
        while let Some(node) = self.nodes.get(at).filter(|node| node.lookups == 0 && node.children == 0) {
            let layers = node.layers;
            self.told_of(at);
            let place = self.nodes.remove(at).and_then(|node| node.place);
            gone.push(layers);
            if let Some(upper) = layers.upper.filter(|upper| self.by_upper.get(upper) == Some(&at)) {
                self.by_upper.remove(&upper);
            }
            let Some(place) = place else { return };
            self.by_place.remove(&place);
            at = place.0;
            if let Some(above) = self.nodes.get_mut(at) {
                above.children = above.children.saturating_sub(1);
            }
        }
    }

    /// How many nodes there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}
