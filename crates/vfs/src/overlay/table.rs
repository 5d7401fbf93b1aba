//! The overlay's nodes: the nodes of each layer behind them, and their places.

use std::collections::HashMap;

use rustix::io::Errno;

use crate::accessed::{Accessed, Credit};
use crate::host::Permissions;
use crate::slab::Slab;
use crate::told::Told;
use crate::{HandleId, NodeId};

/// Set in the inode numbers of what was created in the upper layer, so that they differ from lower ones.
pub const MADE_ABOVE: u64 = 1 << 62;

/// The layers' nodes behind a node. The overlay holds one look-up of each.
#[derive(Clone, Copy, Debug)]
pub struct Layers {
    pub lower: Option<NodeId>,
    pub upper: Option<NodeId>,
    pub is_directory: bool,
    /// The handle that keeps a file alive that was copied up without a name.
    pub nameless: Option<HandleId>,
    /// The number that stat(2) shows. It survives a copy-up, unless the file separates from its other hard links.
    pub inode: u64,
}

#[derive(Debug)]
struct Node {
    layers: Layers,
    lookups: u64,
    /// The number of nodes placed in it.
    children: u64,
    /// Its directory and name; `None` if its name was removed.
    place: Option<(u32, Box<[u8]>)>,
    /// Whether clients' attributes are still valid; see [`Accessed`].
    accessed: Accessed,
    told: Told,
    /// Whether it was copied up with other permissions than clients saw last.
    is_told_otherwise: bool,
}

impl Node {
    /// A node that was looked up once.
    fn new(layers: Layers) -> Node {
        Node {
            layers,
            lookups: 1,
            children: 0,
            place: None,
            accessed: Accessed::default(),
            told: Told::default(),
            is_told_otherwise: false,
        }
    }
}

/// The nodes that a client knows.
#[derive(Debug)]
pub struct Table {
    nodes: Slab<Node>,
    by_upper: HashMap<NodeId, u32>,
    by_place: HashMap<(u32, Box<[u8]>), u32>,
    /// Whether it pays that clients open directories.
    pub credit: Credit,
}

impl Table {
    /// The root, which is in both layers; `upper` is its upper node.
    pub fn new(inode: u64, upper: NodeId) -> Table {
        let (by_upper, by_place) = (HashMap::new(), HashMap::new());
        let mut table = Table { nodes: Slab::new(), by_upper, by_place, credit: Credit::default() };
        let (lower, upper) = (Some(NodeId::ROOT), Some(upper));
        let layers = Layers { lower, upper, is_directory: true, nameless: None, inode };
        table.nodes.insert(Node::new(layers));
        table
    }

    fn get(&self, node: NodeId) -> Result<&Node, Errno> {
        self.nodes.place(node.0).and_then(|index| self.nodes.get(index)).ok_or(Errno::STALE)
    }

    fn index(&self, node: NodeId) -> Result<u32, Errno> {
        self.nodes.place(node.0).ok_or(Errno::STALE)
    }

    /// The layers' nodes behind a node.
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

    /// Whether a directory was removed, so that nothing can be created in it.
    pub fn is_removed(&self, node: NodeId) -> bool {
        node != NodeId::ROOT && self.get(node).is_ok_and(|node| node.layers.is_directory && node.place.is_none())
    }

    /// The node that clients know at a place.
    pub fn known_at(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let index = *self.by_place.get(&(self.index(parent).ok()?, name.into()))?;
        self.nodes.get(index).filter(|node| node.lookups > 0).map(|_| NodeId(self.nodes.number(index)))
    }

    /// The node of an upper layer's node.
    pub fn of_upper(&self, upper: NodeId) -> Option<NodeId> {
        self.by_upper.get(&upper).map(|index| NodeId(self.nodes.number(*index)))
    }

    /// Makes a directory hide the lower one, which it returns.
    pub fn part_from_lower(&mut self, node: NodeId) -> Option<NodeId> {
        let index = self.index(node).ok()?;
        self.nodes.get_mut(index)?.layers.lower.take()
    }

    /// Replaces the upper node of the root.
    pub fn set_root(&mut self, upper: NodeId) {
        if let Some(root) = self.nodes.get_mut(0) {
            root.layers.upper = Some(upper);
        }
    }

    /// A node's directory and name.
    pub fn place(&self, node: NodeId) -> Result<(NodeId, Box<[u8]>), Errno> {
        let (parent, name) = self.get(node)?.place.as_ref().ok_or(Errno::STALE)?;
        Ok((NodeId(self.nodes.number(*parent)), name.clone()))
    }

    /// Counts a look-up.
    pub fn count_lookup(&mut self, node: NodeId) -> Result<(), Errno> {
        let index = self.index(node)?;
        self.nodes.get_mut(index).ok_or(Errno::STALE)?.lookups += 1;
        self.told_of(index);
        Ok(())
    }

    /// Records that a client read or wrote a node.
    pub fn accessed(&self, node: NodeId) {
        if let Ok(node) = self.get(node)
            && node.accessed.set()
            && let Some(directory) = self.directory_of(node)
        {
            directory.accessed.add();
            self.credit.accessed();
        }
    }

    /// Records that a client got a node's attributes.
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

    /// Records the permissions that a client sees.
    pub fn tell_permissions(&mut self, node: NodeId, permissions: Permissions) {
        self.update_told(node, |told| told.tell(permissions));
    }

    /// Records the permissions that a client has changed, and sees now.
    pub fn tell_changed_permissions(&mut self, node: NodeId, permissions: Permissions) {
        self.update_told(node, |told| told.tell_changed(permissions));
    }

    fn update_told(&mut self, node: NodeId, update: impl FnOnce(&mut Told)) {
        if let Ok(index) = self.index(node)
            && let Some(node) = self.nodes.get_mut(index)
        {
            update(&mut node.told);
            node.is_told_otherwise = false;
        }
    }

    /// Records that a client has changed the ACL.
    pub fn list_changed(&mut self, node: NodeId) {
        if let Ok(index) = self.index(node)
            && let Some(node) = self.nodes.get_mut(index)
        {
            node.told.list_changed();
        }
    }

    /// See [`FileSystem::is_contested`](crate::FileSystem::is_contested).
    pub fn is_contested(&self, node: NodeId) -> bool {
        self.get(node).is_ok_and(|node| node.told.is_contested())
    }

    /// The permissions that clients saw last; `None` if the node was copied up with others since.
    pub fn told_permissions(&self, node: NodeId) -> Result<Option<Permissions>, Errno> {
        let node = self.get(node)?;
        Ok(if node.is_told_otherwise { None } else { Some(node.told.permissions().unwrap_or_default()) })
    }

    /// Records the permissions of a node's copy.
    pub fn brought_up_with(&mut self, node: NodeId, permissions: Permissions) {
        if let Ok(index) = self.index(node)
            && let Some(node) = self.nodes.get_mut(index)
        {
            node.is_told_otherwise |= node.told.permissions().unwrap_or_default() != permissions;
        }
    }

    /// Records a complete listing.
    pub fn listed(&self, node: NodeId) {
        if self.get(node).is_ok_and(|node| node.accessed.set_listed()) {
            self.credit.listed();
        }
    }

    /// Whether a client that opens a directory should list it again; `None` if it should stop opening directories.
    pub fn opened(&self, node: NodeId) -> Option<bool> {
        let names = |node: &Node| u32::try_from(node.children).unwrap_or(u32::MAX);
        let requests = self.get(node).ok().and_then(|node| node.accessed.take_listing(names(node)));
        self.credit.spend(requests).then_some(requests.is_some())
    }

    /// `None` if a client does not know the node at a place; otherwise whether it has read or written the node since
    /// it got the attributes.
    pub fn is_known(&self, parent: NodeId, name: &[u8]) -> Option<bool> {
        let node = self.nodes.get(*self.by_place.get(&(self.index(parent).ok()?, name.into()))?)?;
        (node.lookups > 0).then_some(node.accessed.is_set())
    }

    /// Counts a look-up of what the layers have at a place. Returns its node, the layers' look-ups that are surplus
    /// because the node has them already, and the nodes that are gone.
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
                // A node copied up meanwhile differs from the lower one, but its name still leads to it.
                at.filter(|at| self.nodes.get(*at).is_some_and(|node| node.layers.lower == found.lower))
            }
            (None, None) => None,
        };
        let (index, surplus) = match known {
            Some(index) => {
                self.told_of(index);
                let node = self.nodes.get_mut(index).ok_or(Errno::STALE)?;
                node.lookups += 1;
                // It holds one look-up of each layer, and takes the new one where it has none.
                let mut surplus = found;
                if node.layers.lower.is_none() && node.layers.is_directory {
                    surplus.lower = None;
                    node.layers.lower = found.lower;
                }
                (index, surplus)
            }
            None => {
                let index = self.nodes.insert(Node::new(found)).ok_or(Errno::NFILE)?;
                if let Some(upper) = found.upper {
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

    /// Records a copy-up; `nameless` is the handle that keeps a copy without a name alive. If the copy separates from
    /// its other hard links, `inode` is its new number.
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

    /// Drops look-ups; returns the layers' nodes of what is gone.
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

    /// Starts over without a client.
    fn begin_anew(&mut self) {
        self.credit.renew();
        if let Some(root) = self.nodes.get_mut(0) {
            root.accessed = Accessed::default();
        }
    }

    /// Drops all look-ups.
    pub fn clear(&mut self) {
        let root = self.get(NodeId::ROOT).map_or(0, |root| root.layers.inode);
        // Numbers are never given out twice.
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

    /// Records that a name was removed.
    pub fn remove_place(&mut self, parent: NodeId, name: &[u8]) -> Vec<Layers> {
        let mut gone = Vec::new();
        if let Ok(parent) = self.index(parent)
            && let Some(index) = self.by_place.get(&(parent, name.into())).copied()
        {
            self.unset_place(index, &mut gone);
        }
        gone
    }

    /// Records a rename: what had the new name is gone, or has the old one.
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
        // Nothing more is to be refreshed there.
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

    /// The number of nodes.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}
