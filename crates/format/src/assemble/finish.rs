//! Turns the assembled names into a tree.

use inarch_tree::{Attributes, BuildError, Builder, DataRange, Extent, Extents, InodeId, Timestamp, Tree, XattrSetId};

use super::{Assembly, Body, Node, ROOT, names};

/// What a walk over the assembled names adds up.
struct Build {
    builder: Builder,
    extents: Vec<(InodeId, Extent)>,
    /// The inode of each node that has a name.
    inodes: Vec<InodeId>,
    /// The ID of each set of extended attributes seen so far.
    sets: Vec<Option<XattrSetId>>,
}

/// A node without an inode yet.
const NO_INODE: InodeId = InodeId(u32::MAX);

impl Assembly {
    /// The tree, and where its files' bytes lie.
    pub(crate) fn finish(mut self) -> Result<(Tree, Extents), BuildError> {
        self.names.drop_table();
        let mut root = self.nodes.first().map(|node| node.attributes(0)).unwrap_or(super::IMPLIED);
        let mut build = Build {
            builder: Builder::with_capacity(&root, self.names.len(), self.names.byte_count())?,
            extents: Vec::new(),
            inodes: vec![NO_INODE; self.nodes.len()],
            sets: vec![None; self.xattr_sets.len()],
        };
        let set = self.nodes.first().map_or(0, |node| node.xattrs);
        root.xattrs = build.xattrs(&self, set);
        build.builder.set_root(&root)?;
        let mut pending = vec![(ROOT, InodeId::ROOT)];
        let mut children = Vec::new();
        while let Some((node, inode)) = pending.pop() {
            self.children(node, &mut children);
            build.builder.list(inode)?;
            let first = pending.len();
            for (entry, child) in &children {
                let name = self.names.name(self.names.entry(*entry));
                let id = build.add(&self, name, *child)?;
                if self.directory(*child).is_some() {
                    pending.push((*child, id));
                }
            }
            pending[first..].reverse();
        }
        let Build { builder, extents, .. } = build;
        let tree = builder.finish()?;
        let extents = Extents::new(tree.inode_count(), extents)
            .map_err(|_| BuildError::Misuse("the parts of a sparse file overlap"))?;
        Ok((tree, extents))
    }

    /// The entries of a directory and their nodes, sorted by name.
    fn children(&self, node: u32, out: &mut Vec<(u32, u32)>) {
        out.clear();
        let mut at = self.directory(node).map_or(names::NONE, |directory| directory.last);
        while at != names::NONE {
            let entry = self.names.entry(at);
            if entry.node != names::NONE {
                out.push((at, entry.node));
            }
            at = entry.previous;
        }
        out.sort_unstable_by_key(|(entry, _)| self.names.name(self.names.entry(*entry)));
    }
}

impl Build {
    fn add(&mut self, assembly: &Assembly, name: &[u8], index: u32) -> Result<InodeId, BuildError> {
        let (Some(node), Some(known)) = (assembly.nodes.get(index as usize), self.inodes.get(index as usize)) else {
            return Err(BuildError::Misuse("no such node"));
        };
        if *known != NO_INODE {
            self.builder.link(name, *known)?;
            return Ok(*known);
        }
        let sparse = match node.body {
            Body::Sparse(index) => assembly.sparse.get(index as usize),
            _ => None,
        };
        let mut attributes = node.attributes(sparse.map_or(0, |file| file.size));
        attributes.xattrs = self.xattrs(assembly, node.xattrs);
        let inode = self.builder.add(name, &attributes)?;
        if let Some(known) = self.inodes.get_mut(index as usize) {
            *known = inode;
        }
        match node.body {
            Body::Symlink { start, length } => {
                let target = assembly.targets.get(start as usize..start as usize + usize::from(length));
                self.builder.set_target(inode, target.unwrap_or_default())?;
            }
            Body::Whole { size: length @ 1.., at, backing } => {
                self.extents.push((inode, Extent { offset: 0, length, at, backing }));
            }
            _ => {}
        }
        if let Some(file) = sparse {
            self.builder.set_sparse(inode, &file.ranges)?;
            let mut at = file.at;
            for DataRange { offset, length } in file.ranges.iter().copied() {
                self.extents.push((inode, Extent { offset, length, at, backing: file.backing }));
                at = at.saturating_add(length);
            }
        }
        Ok(inode)
    }

    fn xattrs(&mut self, assembly: &Assembly, index: u32) -> XattrSetId {
        let Some(known) = self.sets.get_mut(index as usize) else { return XattrSetId::NONE };
        let set = || assembly.xattr_sets.get(index as usize).map(|set| set.to_vec()).unwrap_or_default();
        *known.get_or_insert_with(|| self.builder.intern_xattrs(set()))
    }
}

impl Node {
    /// Its attributes, except extended ones; `sparse` is the size of a sparse file.
    fn attributes(&self, sparse: u64) -> Attributes {
        let mtime = Timestamp { seconds: self.seconds, nanoseconds: self.nanoseconds };
        let (size, device) = match self.body {
            Body::Whole { size, .. } => (size, (0, 0)),
            Body::Device { major, minor } => (0, (major, minor)),
            _ => (sparse, (0, 0)),
        };
        let (mode, uid, gid) = (self.mode, self.uid, self.gid);
        Attributes { mode, uid, gid, size, mtime, ctime: mtime, device, ..Attributes::default() }
    }
}
