//! Makes a layer of the differences between two trees.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use super::{Identity, Layer, Lender, Mark, Name, Provenance};
use crate::compare::Difference;
use crate::{
    Attributes, BuildError, Builder, Extent, ExtentError, Extents, FileType, Inode, InodeId, Tree, XattrSetId,
};

/// Why no layer can be made of two trees.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The layer is too large.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The extents of a file are invalid.
    #[error(transparent)]
    Extents(#[from] ExtentError),
    /// The bytes of a file could not be found or stored.
    #[error("{0}")]
    Bytes(#[from] io::Error),
}

/// Where the bytes of a layer's file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// All of its bytes are its origin's.
    Whole,
    /// In these parts; bytes that no part covers are zeros.
    Parts(Vec<Part>),
}

/// A part of a file: the bytes from byte `at` of `holder`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub length: u64,
    /// Where in the holder it starts, in bytes.
    pub at: u64,
    /// The file that holds it.
    pub holder: Holder,
}

/// A file that holds bytes of a layer's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A file of the tree below.
    Lender(Lender),
    /// A file that the layer's owner knows by this name.
    File(String),
}

/// What the caller knows of the newer tree besides names and attributes.
pub trait Facts {
    /// The older tree's file from which an inode was made.
    fn origin(&self, new: InodeId) -> Option<Lender>;

    /// Where the bytes of a regular file are.
    fn bytes(&mut self, new: InodeId) -> io::Result<Bytes>;

    /// What an earlier layer recorded as the lower tree's inode at a path; `None` if the layer does not contain the
    /// path.
    fn was(&self, path: &[u8]) -> Option<Option<Identity>>;
}

/// A name that will be in the layer.
struct Node {
    name: Vec<u8>,
    mark: Mark,
    was: Option<Identity>,
    old: Option<InodeId>,
    new: Option<InodeId>,
    children: Vec<usize>,
}

struct Draft<'a> {
    base: &'a Tree,
    newer: &'a Tree,
    nodes: Vec<Node>,
}

impl Layer {
    /// The layer that turns `base` into `newer`. `differences` are those that [`crate::compare::differences`] returns,
    /// in its order.
    ///
    /// # Errors
    /// The layer is too large, or `facts` fails.
    pub fn new(
        base: &Tree,
        newer: &Tree,
        differences: &[Difference],
        facts: &mut dyn Facts,
    ) -> Result<Layer, LayerError> {
        let draft = Draft::new(base, newer, differences, facts);
        let unchanged = draft.unchanged_names(differences);
        draft.build(facts, &unchanged)
    }
}

impl<'a> Draft<'a> {
    fn new(base: &'a Tree, newer: &'a Tree, differences: &[Difference], facts: &dyn Facts) -> Draft<'a> {
        let root = Node {
            name: Vec::new(),
            mark: Mark::Passing,
            was: None,
            old: Some(InodeId::ROOT),
            new: Some(InodeId::ROOT),
            children: Vec::new(),
        };
        let mut draft = Draft { base, newer, nodes: vec![root] };
        // The nodes of the path to the last difference, the root first.
        let mut way = vec![0];
        for difference in differences {
            let names: Vec<&[u8]> =
                difference.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
            let shared = way.iter().skip(1).zip(&names).take_while(|(node, name)| draft.nodes[**node].name == **name);
            let shared = shared.count();
            way.truncate(shared + 1);
            for name in names.get(shared..).unwrap_or_default() {
                let above = way.last().copied().unwrap_or(0);
                way.push(draft.passing(above, name));
            }
            let node = &mut draft.nodes[way.last().copied().unwrap_or(0)];
            node.mark = if difference.new.is_some() { Mark::Changed } else { Mark::Deleted };
            let was = difference.old.map(|id| Identity::of(base, id));
            node.was = facts.was(&difference.path).unwrap_or(was);
            (node.old, node.new) = (difference.old, difference.new);
        }
        draft
    }

    /// A new node for a name on the path to a difference.
    fn passing(&mut self, above: usize, name: &[u8]) -> usize {
        let find = |tree: &Tree, id: Option<InodeId>| tree.find_entry(id?, name).map(|(_, inode)| inode);
        let (old, new) = (self.nodes[above].old, self.nodes[above].new);
        let (old, new) = (find(self.base, old), find(self.newer, new));
        self.nodes.push(Node { name: name.to_vec(), mark: Mark::Passing, was: None, old, new, children: Vec::new() });
        let node = self.nodes.len() - 1;
        self.nodes[above].children.push(node);
        node
    }

    /// For each file of the layer that also has unchanged names, one of them.
    fn unchanged_names(&self, differences: &[Difference]) -> HashMap<InodeId, Vec<u8>> {
        let mut named: HashMap<InodeId, u32> = HashMap::new();
        for id in self.nodes.iter().filter(|node| node.mark == Mark::Changed).filter_map(|node| node.new) {
            if self.newer.inode(id).file_type() != FileType::Directory {
                *named.entry(id).or_default() += 1;
            }
        }
        named.retain(|id, count| self.newer.inode(*id).links() > *count);
        let mut unchanged = HashMap::new();
        if named.is_empty() {
            return unchanged;
        }
        let changed: HashSet<&[u8]> = differences.iter().map(|difference| &difference.path[..]).collect();
        let directories = self.newer.inodes().filter(|(_, inode)| inode.file_type() == FileType::Directory);
        for (directory, _) in directories {
            for entry in self.newer.entries(directory).filter(|entry| named.contains_key(&entry.inode)) {
                let path = join(self.newer.path(directory), entry.name);
                if !changed.contains(&path[..]) {
                    unchanged.entry(entry.inode).or_insert(path);
                }
            }
        }
        unchanged
    }

    /// What the older tree had in directories that the newer tree replaced by something else.
    fn hidden(&self) -> Vec<(Vec<u8>, Identity)> {
        let mut hidden = Vec::new();
        let mut tasks: Vec<(usize, Vec<u8>, bool)> = vec![(0, Vec::new(), false)];
        while let Some((node, path, within)) = tasks.pop() {
            let node = &self.nodes[node];
            if let Some(was) = node.was.filter(|_| within) {
                hidden.push((path.clone(), was));
            }
            let within = within || node.new.is_some_and(|id| self.newer.inode(id).file_type() != FileType::Directory);
            tasks.extend(
                node.children.iter().map(|child| (*child, join(path.clone(), &self.nodes[*child].name), within)),
            );
        }
        hidden.sort();
        hidden
    }

    fn build(self, facts: &mut dyn Facts, unchanged: &HashMap<InodeId, Vec<u8>>) -> Result<Layer, LayerError> {
        let mut making = Making::new(&self)?;
        let mut tasks = vec![(0, InodeId::ROOT)];
        while let Some((node, at)) = tasks.pop() {
            if self.nodes[node].children.is_empty() {
                continue;
            }
            making.builder.list(at)?;
            let first = tasks.len();
            for child in &self.nodes[node].children {
                let id = making.add(&self.nodes[*child], facts, unchanged)?;
                if making.is_directory(&self.nodes[*child]) {
                    tasks.push((*child, id));
                }
            }
            if let Some(new) = tasks.get_mut(first..) {
                new.reverse();
            }
        }
        let root = Name { mark: self.nodes[0].mark, was: self.nodes[0].was };
        making.finish(root, self.hidden())
    }
}

/// A layer under construction.
struct Making<'a> {
    base: &'a Tree,
    newer: &'a Tree,
    builder: Builder,
    names: Vec<Name>,
    sources: Vec<Provenance>,
    /// The layer's inodes by the newer tree's, for files with several names.
    made: HashMap<InodeId, InodeId>,
    lenders: Vec<Lender>,
    lender_index: HashMap<Lender, u32>,
    files: Vec<String>,
    /// Parts of files, each with the file that holds it.
    parts: Vec<(InodeId, Extent, InFile)>,
}

/// Whether an extent's backing is an index into the files, not into the lenders.
type InFile = bool;

impl<'a> Making<'a> {
    fn new(draft: &Draft<'a>) -> Result<Making<'a>, LayerError> {
        let root = draft.newer.inode(InodeId::ROOT);
        let mut making = Making {
            base: draft.base,
            newer: draft.newer,
            builder: Builder::new(&attributes(root, XattrSetId::NONE))?,
            names: Vec::new(),
            sources: vec![Provenance::default()],
            made: HashMap::new(),
            lenders: Vec::new(),
            lender_index: HashMap::new(),
            files: Vec::new(),
            parts: Vec::new(),
        };
        let xattrs = making.xattrs(draft.newer, root);
        making.builder.set_xattrs(InodeId::ROOT, xattrs)?;
        Ok(making)
    }

    fn is_directory(&self, node: &Node) -> bool {
        let is = |tree: &Tree, id: InodeId| tree.inode(id).file_type() == FileType::Directory;
        match (node.new, node.old) {
            (Some(new), _) => is(self.newer, new),
            (None, Some(old)) => is(self.base, old),
            (None, None) => false,
        }
    }

    fn add(
        &mut self,
        node: &Node,
        facts: &mut dyn Facts,
        unchanged: &HashMap<InodeId, Vec<u8>>,
    ) -> Result<InodeId, LayerError> {
        let name = Name { mark: node.mark, was: node.was };
        let Some(new) = node.new else { return self.add_deleted(node, name) };
        let inode = self.newer.inode(new);
        if let Some(id) = self.made.get(&new) {
            self.builder.link(&node.name, *id)?;
            self.names.push(name);
            return Ok(*id);
        }
        let xattrs = self.xattrs(self.newer, inode);
        let id = self.builder.add(&node.name, &attributes(inode, xattrs))?;
        let mut source = Provenance::default();
        if node.mark == Mark::Changed {
            let origin = facts.origin(new);
            source.link = unchanged
                .get(&new)
                .zip(origin.as_ref())
                .map(|(path, origin)| self.lend(Lender { path: path.clone(), identity: origin.identity }));
            source.origin = origin.map(|lender| self.lend(lender));
        }
        match inode.file_type() {
            FileType::Symlink => self.builder.set_target(id, self.newer.symlink_target(new))?,
            FileType::Regular => {
                if let Some(ranges) = self.newer.sparse_ranges(new) {
                    self.builder.set_sparse(id, ranges)?;
                }
                match facts.bytes(new)? {
                    Bytes::Whole => source.whole = true,
                    Bytes::Parts(parts) => parts.into_iter().for_each(|part| self.add_part(id, part)),
                }
            }
            _ => {}
        }
        if inode.file_type() != FileType::Directory && inode.links() > 1 {
            self.made.insert(new, id);
        }
        self.names.push(name);
        self.sources.push(source);
        Ok(id)
    }

    fn add_deleted(&mut self, node: &Node, name: Name) -> Result<InodeId, LayerError> {
        const WHITEOUT: u32 = 0o020_000;
        const DIRECTORY: u32 = 0o040_755;
        let mode = if self.is_directory(node) { DIRECTORY } else { WHITEOUT };
        let id = self.builder.add(&node.name, &Attributes { mode, ..Attributes::default() })?;
        self.names.push(name);
        self.sources.push(Provenance::default());
        Ok(id)
    }

    fn add_part(&mut self, id: InodeId, part: Part) {
        let Part { offset, length, at, holder } = part;
        let (backing, in_file) = match holder {
            Holder::Lender(lender) => (self.lend(lender), false),
            Holder::File(name) => (self.file(name), true),
        };
        self.parts.push((id, Extent { offset, length, at, backing }, in_file));
    }

    fn lend(&mut self, lender: Lender) -> u32 {
        if let Some(at) = self.lender_index.get(&lender) {
            return *at;
        }
        let at = self.lenders.len() as u32;
        self.lender_index.insert(lender.clone(), at);
        self.lenders.push(lender);
        at
    }

    fn file(&mut self, name: String) -> u32 {
        let found = self.files.iter().position(|file| *file == name).unwrap_or_else(|| {
            self.files.push(name);
            self.files.len() - 1
        });
        found as u32
    }

    fn xattrs(&mut self, tree: &Tree, inode: &Inode) -> XattrSetId {
        match inode.xattrs() {
            XattrSetId::NONE => XattrSetId::NONE,
            set => self.builder.intern_xattrs(tree.xattrs(set).to_vec()),
        }
    }

    fn finish(self, root: Name, hidden: Vec<(Vec<u8>, Identity)>) -> Result<Layer, LayerError> {
        let Making { builder, names, sources, lenders, files, parts, .. } = self;
        let tree = Arc::new(builder.finish()?);
        let files_start = lenders.len() as u32;
        let extent = |(id, extent, in_file): (InodeId, Extent, InFile)| {
            let backing = if in_file { files_start + extent.backing } else { extent.backing };
            (id, Extent { backing, ..extent })
        };
        let extents = Extents::new(tree.inode_count(), parts.into_iter().map(extent).collect())?;
        Ok(Layer { tree, root, names, sources, hidden, lenders, files, extents })
    }
}

/// The attributes of an inode, for adding it to another tree.
pub(super) fn attributes(inode: &Inode, xattrs: XattrSetId) -> Attributes {
    Attributes {
        mode: inode.mode(),
        uid: inode.uid(),
        gid: inode.gid(),
        size: inode.size(),
        mtime: inode.mtime(),
        ctime: inode.ctime(),
        source_ino: inode.source_ino(),
        device: inode.device(),
        xattrs,
    }
}

/// A path plus one name.
pub(super) fn join(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
