//! Walks all directories of a volume into a tree.
//!
//! Each directory is read before its subdirectories, and no directory twice, so the walk ends whatever the image
//! says. [`Pass`] bounds what is read and stored in proportion to the image.

use std::sync::Arc;

use hashbrown::HashMap;
use inarch_block::{BackedFiles, Content};
use inarch_confine::Parsing;
use inarch_tree::{
    Attributes as TreeAttributes, BuildError, Builder, DataRange, Extent, Extents, FileType, InodeId, Tree, XattrSetId,
};

use crate::{
    Attributes, Body, Facts, Findings, Item, Loss, Node, Pass, TARGET_MAX, Volume, VolumeError, WalkedFiles, join_data,
};

/// The most bytes of extended attributes in a tree: blocks and values may be shared, so an image can refer to far
/// more bytes than it has.
const XATTR_BYTES: usize = 512 << 20;
/// The most losses of one directory that are reported.
const TOLD: usize = 20;
/// The most entries for which room is reserved ahead.
const EXPECTED: u64 = 1 << 20;

/// The result of a walk.
pub struct Walked {
    /// The tree.
    pub tree: Tree,
    /// The extents of regular files in the volume's backings, except those in `packed`.
    pub extents: Extents,
    /// Regular files that are stored packed, ascending.
    pub packed: Vec<(InodeId, Node)>,
    /// What was left out, and other notes.
    pub findings: Findings,
}

impl Walked {
    /// The content of the tree's files.
    pub fn content(
        tree: &Arc<Tree>,
        extents: Extents,
        packed: Vec<(InodeId, Node)>,
        volume: Arc<dyn Volume>,
    ) -> Arc<dyn Content> {
        let plain = BackedFiles::new(Arc::clone(tree), extents, volume.backings().to_vec());
        match packed.is_empty() {
            true => Arc::new(plain),
            false => Arc::new(WalkedFiles::new(Arc::clone(tree), plain, packed, volume)),
        }
    }
}

/// Walks `volume` into a tree. Calls `met` with the attributes of each inode, in the order of inode IDs.
///
/// Damaged parts are left out and recorded in [`Walked::findings`]; the caller decides whether that is an error.
/// Fails if the host fails, if the root cannot be read, or if the tree would be too large.
pub fn walk(_: Parsing, volume: &dyn Volume, met: &mut dyn FnMut(&Attributes)) -> Result<Walked, VolumeError> {
    let mut pass = volume.pass();
    let mut facts = Facts::default();
    pass.facts(volume.root(), &mut facts).map_err(about_root)?;
    if facts.attributes.file_type() != Some(FileType::Directory) {
        return Err(about_root(VolumeError::Damaged("is no directory".to_owned())));
    }
    let statistics = volume.statistics();
    let expected = statistics.inodes.saturating_sub(statistics.free_inodes).min(EXPECTED) as usize;
    let mut root = tree_attributes(&facts.attributes);
    let builder = Builder::with_capacity(&root, expected, 0).map_err(not_built)?;
    let mut walk = Walk {
        pass: &mut *pass,
        met,
        builder,
        extents: Vec::with_capacity(expected),
        packed: Vec::new(),
        known: HashMap::with_capacity(expected),
        sets: HashMap::new(),
        newest_set: 0,
        xattr_bytes: 0,
        stack: vec![(volume.root(), InodeId::ROOT)],
        findings: Findings::default(),
        names: Names::default(),
        ranges: Vec::new(),
    };
    walk.known.insert(volume.root(), InodeId::ROOT);
    root.xattrs = walk.xattrs(volume.root(), &mut facts)?;
    walk.builder.set_root(&root).map_err(not_built)?;
    facts.losses.drain(..).for_each(|loss| walk.findings.push(InodeId::ROOT, b"", loss));
    (walk.met)(&facts.attributes);
    while let Some((node, dir)) = walk.stack.pop() {
        walk.directory(node, dir, &mut facts)?;
    }
    let Walk { builder, extents, packed, mut findings, .. } = walk;
    volume.notes().into_iter().chain(pass.notes()).for_each(|note| findings.push_general(note));
    let tree = builder.finish().map_err(not_built)?;
    let extents = Extents::new(tree.inode_count(), extents).map_err(|error| VolumeError::Damaged(error.to_string()))?;
    Ok(Walked { tree, extents, packed, findings })
}

fn about_root(error: VolumeError) -> VolumeError {
    match error {
        VolumeError::Damaged(reason) => VolumeError::Damaged(format!("its root {reason}")),
        other => other,
    }
}

fn not_built(error: BuildError) -> VolumeError {
    VolumeError::Damaged(error.to_string())
}

/// A walk in progress.
struct Walk<'a> {
    pass: &'a mut (dyn Pass + 'a),
    met: &'a mut dyn FnMut(&Attributes),
    builder: Builder,
    extents: Vec<(InodeId, Extent)>,
    packed: Vec<(InodeId, Node)>,
    /// The tree's inodes by node.
    known: HashMap<Node, InodeId>,
    /// Sets of extended attributes by key.
    sets: HashMap<Box<[u8]>, XattrSetId>,
    newest_set: u32,
    xattr_bytes: usize,
    /// Directories still to be listed, the next one last.
    stack: Vec<(Node, InodeId)>,
    findings: Findings,
    names: Names,
    ranges: Vec<DataRange>,
}

/// The names of a directory.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    /// The position of each name in `bytes`, its length, and its node.
    list: Vec<(usize, usize, Node)>,
}

impl Names {
    fn push(&mut self, name: &[u8], node: Node) {
        self.list.push((self.bytes.len(), name.len(), node));
        self.bytes.extend_from_slice(name);
    }

    fn get(&self, index: usize) -> Option<(&[u8], Node)> {
        let (start, length, node) = *self.list.get(index)?;
        Some((self.bytes.get(start..start + length)?, node))
    }

    /// Sorts the names by their bytes; returns the number of duplicates, which are dropped.
    fn sort(&mut self) -> usize {
        let bytes = &self.bytes;
        let name = |entry: &(usize, usize, Node)| bytes.get(entry.0..entry.0 + entry.1).unwrap_or_default();
        if self.list.is_sorted_by(|a, b| name(a) < name(b)) {
            return 0;
        }
        self.list.sort_by(|a, b| name(a).cmp(name(b)));
        let before = self.list.len();
        self.list.dedup_by(|b, a| name(a) == name(b));
        before - self.list.len()
    }
}

impl Walk<'_> {
    fn directory(&mut self, node: Node, dir: InodeId, facts: &mut Facts) -> Result<(), VolumeError> {
        self.builder.list(dir).map_err(not_built)?;
        let mut names = std::mem::take(&mut self.names);
        self.read_names(node, dir, &mut names)?;
        let oldest = self.stack.len();
        for index in 0..names.list.len() {
            let Some((name, node)) = names.get(index) else { continue };
            let loss = match self.entry(dir, name, node, facts) {
                Ok(()) => continue,
                Err(VolumeError::Damaged(reason)) => Loss::damage(format!("{reason}; it is left out")),
                Err(VolumeError::Unsupported(reason)) => Loss::sound(format!("{reason}; it is left out")),
                Err(error) => return Err(error),
            };
            self.findings.push(dir, name, loss);
        }
        // The first of them is to be listed next.
        if let Some(added) = self.stack.get_mut(oldest..) {
            added.reverse();
        }
        self.names = names;
        Ok(())
    }

    /// Lists everything readable of a directory, sorted.
    fn read_names(&mut self, node: Node, dir: InodeId, names: &mut Names) -> Result<(), VolumeError> {
        names.bytes.clear();
        names.list.clear();
        let (findings, mut lost) = (&mut self.findings, 0);
        let mut lose = |loss: Loss| {
            lost += 1;
            if lost <= TOLD {
                findings.push(dir, b"", loss);
            }
        };
        let listed = self.pass.list(node, &mut |item| match item {
            Item::Entry(entry) => names.push(entry.name, entry.node),
            Item::Lost(loss) => lose(loss),
        });
        match listed {
            Ok(()) => {}
            Err(VolumeError::Damaged(reason)) => lose(Loss::damage(reason)),
            Err(VolumeError::Unsupported(reason)) => lose(Loss::sound(reason)),
            Err(error) => return Err(error),
        }
        match names.sort() {
            0 => {}
            twice => lose(Loss::damage(format!("has {twice} names twice"))),
        }
        Ok(())
    }

    /// Adds a name to the directory being listed.
    fn entry(&mut self, dir: InodeId, name: &[u8], node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        if let Some(known) = self.known.get(&node) {
            return self.builder.link(name, *known).map_err(|error| match error {
                BuildError::Misuse(_) => {
                    VolumeError::Damaged("is a directory that has a name already, or is within itself".to_owned())
                }
                other => not_built(other),
            });
        }
        facts.clear();
        self.pass.facts(node, facts)?;
        if facts.body == Body::Symlink && (!(1..=TARGET_MAX).contains(&facts.target.len()) || facts.target.contains(&0))
        {
            return Err(VolumeError::Damaged(
                "is a symlink whose target is not 1 to 4095 bytes without NUL".to_owned(),
            ));
        }
        let xattrs = self.xattrs(node, facts)?;
        let attributes = &facts.attributes;
        let id =
            self.builder.add(name, &TreeAttributes { xattrs, ..tree_attributes(attributes) }).map_err(not_built)?;
        self.known.insert(node, id);
        (self.met)(attributes);
        match facts.body {
            Body::Directory => self.stack.push((node, id)),
            Body::Symlink => self.builder.set_target(id, &facts.target).map_err(not_built)?,
            Body::Extents => self.content(id, attributes.size, &facts.extents)?,
            Body::Packed => self.packed.push((id, node)),
            Body::PackedSparse => {
                self.packed.push((id, node));
                self.set_sparse(id, attributes.size, &facts.ranges)?;
            }
            Body::Other => {}
        }
        facts.losses.drain(..).for_each(|loss| self.findings.push(dir, name, loss));
        Ok(())
    }

    /// Sets the content of a file of `size` bytes.
    fn content(&mut self, id: InodeId, size: u64, extents: &[Extent]) -> Result<(), VolumeError> {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.clear();
        for extent in extents.iter().filter(|extent| extent.length > 0) {
            join_data(&mut ranges, extent.offset, extent.length);
            self.extents.push((id, *extent));
        }
        let result = self.set_sparse(id, size, &ranges);
        self.ranges = ranges;
        result
    }

    fn set_sparse(&mut self, id: InodeId, size: u64, ranges: &[DataRange]) -> Result<(), VolumeError> {
        let whole = [DataRange { offset: 0, length: size }];
        match size == 0 || ranges == whole {
            true => Ok(()),
            false => self.builder.set_sparse(id, ranges).map_err(not_built),
        }
    }

    /// The set of a node's extended attributes. What is left out is added to its losses.
    fn xattrs(&mut self, node: Node, facts: &mut Facts) -> Result<XattrSetId, VolumeError> {
        let list = match &*facts.shared {
            [] if facts.xattrs.is_empty() => return Ok(XattrSetId::NONE),
            [] => std::mem::take(&mut facts.xattrs),
            key => match self.sets.get(key) {
                Some(set) => return Ok(*set),
                None => self.pass.xattrs(node)?,
            },
        };
        if self.xattr_bytes > XATTR_BYTES {
            let most = XATTR_BYTES >> 20;
            let text = format!("has extended attributes beyond the {most} MiB that are read; they are left out");
            facts.losses.push(Loss::sound(text));
            return Ok(XattrSetId::NONE);
        }
        let bytes: usize = list.iter().map(|xattr| xattr.name.len() + xattr.value.len() + size_of_val(xattr)).sum();
        let set = self.builder.intern_xattrs(list);
        if set.0 > self.newest_set {
            self.newest_set = set.0;
            // The builder stores a set twice, once as a key.
            self.xattr_bytes += 2 * bytes;
        }
        if !facts.shared.is_empty() {
            self.sets.insert(facts.shared.as_slice().into(), set);
        }
        Ok(set)
    }
}

fn tree_attributes(attributes: &Attributes) -> TreeAttributes {
    let is_file = attributes.file_type() == Some(FileType::Regular);
    TreeAttributes {
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        size: if is_file { attributes.size } else { 0 },
        mtime: attributes.mtime,
        ctime: attributes.ctime,
        source_ino: attributes.inode,
        device: attributes.device,
        xattrs: XattrSetId::NONE,
    }
}
