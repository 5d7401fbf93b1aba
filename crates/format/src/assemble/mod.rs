//! Assembles a directory tree from the members of archives and layers.
//!
//! It imitates unpacking, with tables instead of a file system: [`Assembly::add`] does what `tar -x` would do with a
//! member, [`Assembly::remove`] and [`Assembly::clear`] do what whiteouts of an image layer do. [`Assembly::finish`]
//! returns the sorted tree, and where each file's bytes are.
//!
//! It takes about 110 bytes for each name, including the name. Nothing recurses: depth is bounded, and walks use
//! explicit stacks.

mod finish;
mod names;
mod resolve;

use std::collections::HashMap;
use std::sync::Arc;

use inarch_tree::{Attributes, DataRange, NAME_MAX, Timestamp, Xattr};

use names::{Entry, Names};

/// The deepest nesting: as deep as a path of `PATH_MAX` bytes can be.
const MAX_DEPTH: u32 = 2048;

/// `XATTR_NAME_MAX` and `XATTR_SIZE_MAX` of the kernel's include/uapi/linux/limits.h.
const XATTR_LIMITS: (usize, usize) = (255, 65536);

/// Attributes of directories without a member of their own: root's, 0755, of 1970.
const IMPLIED: Attributes = Attributes {
    mode: 0o040755,
    uid: 0,
    gid: 0,
    size: 0,
    mtime: Timestamp { seconds: 0, nanoseconds: 0 },
    ctime: Timestamp { seconds: 0, nanoseconds: 0 },
    source_ino: 0,
    device: (0, 0),
    xattrs: inarch_tree::XattrSetId::NONE,
};

/// Why a member cannot become part of the tree. None is an error of the archive: unpacking would continue too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it is left out, as its path has '..' in it")]
    DotDot,
    #[error("it is left out, as a part of its path is longer than {NAME_MAX} bytes, or holds a NUL")]
    BadName,
    #[error("it is left out, as its path is longer than 4095 bytes")]
    LongPath,
    #[error("it is left out, as it is deeper than {MAX_DEPTH} directories")]
    TooDeep,
    #[error("it is left out, because a parent of it is not a directory")]
    NotADirectory,
    #[error("it is left out, as its path leads through too many symlinks")]
    Loop,
    #[error("it is left out, as it is a hard link to something that is not there before it")]
    NoTarget,
    #[error("it is left out, as it is a hard link to a directory")]
    LinkedDirectory,
    #[error("it is left out, as the root can only be a directory")]
    Root,
    #[error("it is left out, as the target of a symlink is 1 to 4095 bytes without NUL")]
    BadTarget,
    #[error("it is left out, as there are more names than fit 32 bits")]
    Full,
}

/// Where the bytes of a regular file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// All of them, contiguous from byte `at` of backing `backing`.
    Whole { at: u64, backing: u32 },
    /// Those of `ranges`, contiguous from byte `at` of backing `backing`, with holes between the ranges.
    Sparse { at: u64, backing: u32, ranges: Box<[DataRange]> },
}

/// What a member of an archive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    Regular { size: u64, bytes: Bytes },
    Directory,
    Symlink { target: &'a [u8] },
    CharDevice { major: u32, minor: u32 },
    BlockDevice { major: u32, minor: u32 },
    Fifo,
}

/// Attributes of a member, apart from its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Permission bits: the low 12 of `st_mode`.
    pub(crate) permissions: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Timestamp,
    /// Shared between members, so that equal sets need no comparison.
    pub(crate) xattrs: Arc<[Xattr]>,
}

/// What a name names.
#[derive(Debug)]
struct Node {
    mode: u32,
    uid: u32,
    gid: u32,
    /// Index into the sets of extended attributes.
    xattrs: u32,
    seconds: i64,
    nanoseconds: u32,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Whole {
        size: u64,
        at: u64,
        backing: u32,
    },
    /// An index into the sparse files.
    Sparse(u32),
    Symlink {
        start: u32,
        length: u16,
    },
    Device {
        major: u32,
        minor: u32,
    },
    Fifo,
    Directory(Directory),
}

#[derive(Clone, Copy, Debug)]
struct Directory {
    parent: u32,
    depth: u32,
    /// The entry that was added last, alive or not; [`names::NONE`] if there is none.
    last: u32,
    /// The layer that last hid the lower layers' content here.
    cleared: u32,
}

#[derive(Debug)]
struct SparseFile {
    size: u64,
    at: u64,
    backing: u32,
    ranges: Box<[DataRange]>,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Assembly {
    nodes: Vec<Node>,
    names: Names,
    sparse: Vec<SparseFile>,
    targets: Vec<u8>,
    xattr_sets: Vec<Arc<[Xattr]>>,
    xattr_index: HashMap<Arc<[Xattr]>, u32>,
    /// The latest set, and its index.
    recent_set: (Arc<[Xattr]>, u32),
    /// Layers count from 1; the root precedes them.
    layer: u32,
    /// The directory part of the latest path, and its node. Invalid once a name on the way may have changed.
    recent: Option<(Vec<u8>, u32)>,
}

const ROOT: u32 = 0;

impl Assembly {
    /// A tree with only its root.
    pub(crate) fn new() -> Assembly {
        let root = Directory { parent: ROOT, depth: 0, last: names::NONE, cleared: 0 };
        let mut assembly = Assembly {
            nodes: Vec::new(),
            names: Names::new(),
            sparse: Vec::new(),
            targets: Vec::new(),
            xattr_sets: vec![Arc::default()],
            xattr_index: HashMap::from([(Arc::default(), 0)]),
            recent_set: Default::default(),
            layer: 1,
            recent: None,
        };
        assembly.nodes.push(Node::implied(root));
        assembly
    }

    /// Starts the next layer: removals apply only to what came before.
    pub(crate) fn next_layer(&mut self) {
        self.layer += 1;
        self.recent = None;
    }

    /// Adds a member, as unpacking would: creates missing parents (root's, 0755, of 1970), follows symlinks on the
    /// way within the tree, and replaces an existing name. An existing directory keeps its entries and takes the new
    /// attributes.
    pub(crate) fn add(&mut self, path: &[u8], kind: Kind<'_>, facts: Facts) -> Result<(), Refusal> {
        if let Kind::Symlink { target } = kind
            && (target.is_empty() || target.len() > 4095 || target.contains(&0))
        {
            return Err(Refusal::BadTarget);
        }
        let place = self.place(path)?;
        let old = place.and_then(|(parent, name)| self.lookup(parent, name));
        if kind == Kind::Directory {
            let merged = match place {
                None => Some(ROOT),
                Some(_) => old.filter(|node| self.directory(*node).is_some()),
            };
            if let Some(node) = merged {
                self.set_facts(node, 0o040000, facts);
                if let Some((parent, name)) = place {
                    self.put(parent, name, node)?;
                }
                return Ok(());
            }
        }
        let Some((parent, name)) = place else { return Err(Refusal::Root) };
        let (kind_bits, body) = self.body(kind, parent)?;
        let node = self.push(Node { body, ..Node::implied(Directory::default()) })?;
        self.set_facts(node, kind_bits, facts);
        self.put(parent, name, node)?;
        if old.is_some() {
            self.recent = None;
        }
        Ok(())
    }

    /// Adds the hard link `path` to `target`.
    pub(crate) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), Refusal> {
        let node = match self.find(target)? {
            Some(node) if self.directory(node).is_some() => return Err(Refusal::LinkedDirectory),
            Some(node) => node,
            None => return Err(Refusal::NoTarget),
        };
        let (parent, name) = self.place(path)?.ok_or(Refusal::Root)?;
        if self.lookup(parent, name).is_some_and(|old| old != node) {
            self.recent = None;
        }
        self.put(parent, name, node)
    }

    /// Removes what lower layers have at `path`; what this layer added stays.
    pub(crate) fn remove(&mut self, path: &[u8]) -> Result<(), Refusal> {
        let (head, name) = resolve::split(path)?;
        let Some(name) = name else { return Ok(()) };
        let Some(parent) = self.walk(head, false)? else { return Ok(()) };
        let Some(entry) = self.names.find(parent, name) else { return Ok(()) };
        self.recent = None;
        let Entry { node, layer, .. } = *self.names.entry(entry);
        if layer < self.layer {
            self.names.set(entry, names::NONE, self.layer);
        } else if node != names::NONE {
            self.hide_below(node);
        }
        Ok(())
    }

    /// Removes what lower layers have in the directory `path`.
    pub(crate) fn clear(&mut self, path: &[u8]) -> Result<(), Refusal> {
        resolve::split(path)?;
        if let Some(node) = self.walk(path, false)? {
            self.recent = None;
            self.hide_below(node);
        }
        Ok(())
    }

    /// Removes what lower layers have beneath a directory, including in directories that this layer touched.
    fn hide_below(&mut self, node: u32) {
        let mut pending = vec![node];
        while let Some(node) = pending.pop() {
            let layer = self.layer;
            let Some(directory) = self.directory_mut(node).filter(|directory| directory.cleared < layer) else {
                continue;
            };
            directory.cleared = layer;
            let mut at = directory.last;
            while at != names::NONE {
                let Entry { node, layer, previous, .. } = *self.names.entry(at);
                if layer < self.layer {
                    self.names.set(at, names::NONE, layer);
                } else if node != names::NONE {
                    pending.push(node);
                }
                at = previous;
            }
        }
    }

    fn body(&mut self, kind: Kind<'_>, parent: u32) -> Result<(u32, Body), Refusal> {
        Ok(match kind {
            Kind::Regular { size, bytes: Bytes::Whole { at, backing } } => {
                (0o100000, Body::Whole { size, at, backing })
            }
            Kind::Regular { size, bytes: Bytes::Sparse { at, backing, ranges } } => {
                let index = u32::try_from(self.sparse.len()).map_err(|_| Refusal::Full)?;
                self.sparse.push(SparseFile { size, at, backing, ranges });
                (0o100000, Body::Sparse(index))
            }
            Kind::Directory => (0o040000, Body::Directory(self.new_directory(parent)?)),
            Kind::Symlink { target } => {
                let start = u32::try_from(self.targets.len()).map_err(|_| Refusal::Full)?;
                self.targets.extend_from_slice(target);
                (0o120000, Body::Symlink { start, length: target.len() as u16 })
            }
            Kind::CharDevice { major, minor } => (0o020000, Body::Device { major, minor }),
            Kind::BlockDevice { major, minor } => (0o060000, Body::Device { major, minor }),
            Kind::Fifo => (0o010000, Body::Fifo),
        })
    }

    fn new_directory(&self, parent: u32) -> Result<Directory, Refusal> {
        let depth = self.directory(parent).map_or(0, |directory| directory.depth) + 1;
        if depth > MAX_DEPTH {
            return Err(Refusal::TooDeep);
        }
        // It has nothing of lower layers, so nothing needs hiding in it.
        Ok(Directory { parent, depth, last: names::NONE, cleared: self.layer })
    }

    fn set_facts(&mut self, node: u32, kind_bits: u32, facts: Facts) {
        let xattrs = self.intern(&facts.xattrs);
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.mode = kind_bits | (facts.permissions & 0o7777);
            (node.uid, node.gid) = (facts.uid, facts.gid);
            (node.seconds, node.nanoseconds) = (facts.mtime.seconds, facts.mtime.nanoseconds);
            node.xattrs = xattrs;
        }
    }

    fn intern(&mut self, set: &Arc<[Xattr]>) -> u32 {
        if !Arc::ptr_eq(&self.recent_set.0, set) {
            self.recent_set = (Arc::clone(set), self.find_set(set));
        }
        self.recent_set.1
    }

    /// The index of a set. Equal ones are stored once.
    fn find_set(&mut self, set: &Arc<[Xattr]>) -> u32 {
        let mut set = Arc::clone(set);
        if !set.is_sorted_by(|a, b| a.name < b.name) {
            let mut sorted = set.to_vec();
            sorted.sort();
            sorted.dedup_by(|b, a| a.name == b.name);
            set = sorted.into();
        }
        if let Some(index) = self.xattr_index.get(&*set) {
            return *index;
        }
        // There are no more sets than nodes, which have 32-bit numbers.
        let index = self.xattr_sets.len() as u32;
        self.xattr_sets.push(Arc::clone(&set));
        self.xattr_index.insert(set, index);
        index
    }

    fn push(&mut self, node: Node) -> Result<u32, Refusal> {
        let index = u32::try_from(self.nodes.len()).ok().filter(|index| *index < names::NONE);
        self.nodes.push(node);
        index.ok_or(Refusal::Full)
    }

    fn directory(&self, node: u32) -> Option<&Directory> {
        match self.nodes.get(node as usize) {
            Some(Node { body: Body::Directory(directory), .. }) => Some(directory),
            _ => None,
        }
    }

    fn directory_mut(&mut self, node: u32) -> Option<&mut Directory> {
        match self.nodes.get_mut(node as usize) {
            Some(Node { body: Body::Directory(directory), .. }) => Some(directory),
            _ => None,
        }
    }
}

impl Default for Directory {
    fn default() -> Directory {
        Directory { parent: ROOT, depth: 0, last: names::NONE, cleared: 0 }
    }
}

impl Node {
    fn implied(directory: Directory) -> Node {
        Node {
            mode: IMPLIED.mode,
            uid: IMPLIED.uid,
            gid: IMPLIED.gid,
            xattrs: 0,
            seconds: IMPLIED.mtime.seconds,
            nanoseconds: IMPLIED.mtime.nanoseconds,
            body: Body::Directory(directory),
        }
    }
}

/// Whether an extended attribute is kept in a tree and supported by the kernel.
pub(crate) fn is_kept(name: &[u8], value: &[u8]) -> bool {
    let namespaces: [&[u8]; 3] = [b"user.", b"security.", b"trusted."];
    let known = namespaces.iter().any(|space| name.starts_with(space) && name.len() > space.len())
        || matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default");
    known && !name.contains(&0) && name.len() <= XATTR_LIMITS.0 && value.len() <= XATTR_LIMITS.1
}

#[cfg(test)]
mod tests;
