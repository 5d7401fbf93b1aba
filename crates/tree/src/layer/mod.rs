//! [`Layer`]: the changes made to a tree, path by path, stored apart from the tree.
//!
//! A layer can be merged over another state of the same tree. Paths that it does not name are as in the lower tree.
//!
//! 1. [`Layer::new`] takes the differences between two trees ([`crate::compare`]). It records what the newer tree has,
//!    what it no longer has, and what the older tree had at each path ([`Identity`]).
//! 2. [`merge()`] merges a layer over a tree. If the tree no longer has what the layer recorded, both sides changed the
//!    path: a [`Conflict`], which the layer wins.
//! 3. `stored` encodes a layer for a later process.
//!
//! The bytes of its files are ranges of host files ([`Lender`]) and of files that the layer's owner knows by name.
//! Nothing here reads them.

mod draft;
mod identity;
mod merge;
mod stored;

use std::sync::Arc;

use crate::{Attributes, Builder, Extents, FileType, InodeId, Tree};

pub use draft::{Bytes, Facts, Holder, LayerError, Part};
pub use identity::{Identity, Lender};
pub use merge::{Below, Conflict, Merged, Origin, merge};
pub use stored::LoadLayerError;

/// What a layer does to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing: it is a directory on the path to other names of the layer.
    Passing,
    /// The layer's inode replaces the lower tree's.
    Changed,
    /// The name is removed.
    Deleted,
}

/// A name of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub mark: Mark,
    /// What the lower tree had there when the layer was made; `None` for a new name.
    pub was: Option<Identity>,
}

/// What a layer knows of one of its inodes besides its attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Provenance {
    /// The lower tree's file from which it was made: an index into the lenders.
    pub origin: Option<u32>,
    /// The file of the lower tree that it is another name of: an index into the lenders.
    pub link: Option<u32>,
    /// Whether all its bytes are those of its origin.
    pub whole: bool,
}

/// The changes made to a tree.
///
/// `tree` contains every changed name, and the directories that lead there.
#[derive(Debug)]
pub struct Layer {
    tree: Arc<Tree>,
    /// The mark of the root, and then of each entry of `tree`.
    root: Name,
    names: Vec<Name>,
    /// For each inode of `tree`.
    sources: Vec<Provenance>,
    /// What the lower tree had in directories that are replaced, by path.
    hidden: Vec<(Vec<u8>, Identity)>,
    lenders: Vec<Lender>,
    /// Other files that hold bytes, by names that the layer's owner understands.
    files: Vec<String>,
    /// Where the bytes of its files are. An extent's backing is an index into the lenders, followed by the files.
    extents: Extents,
}

/// The file that an extent of a layer refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// A file of the lower tree: an index into [`Layer::lenders`].
    Lender(usize),
    /// In a file with this name, an index into [`Layer::files`].
    File(usize, &'a str),
}

impl Layer {
    /// A layer that changes nothing.
    pub fn empty() -> Layer {
        // Building a tree of only a root cannot fail.
        let root = Attributes { mode: 0o040_755, ..Attributes::default() };
        let tree = Builder::new(&root).and_then(Builder::finish).map(Arc::new).unwrap_or_else(|_| unreachable!());
        let root = Name { mark: Mark::Passing, was: None };
        let (names, sources, hidden) = (Vec::new(), vec![Provenance::default()], Vec::new());
        Layer {
            tree,
            root,
            names,
            sources,
            hidden,
            lenders: Vec::new(),
            files: Vec::new(),
            extents: Extents::default(),
        }
    }

    /// Names and attributes. A deleted name is a directory or a device node 0:0.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The lower tree's files that the layer needs.
    pub fn lenders(&self) -> &[Lender] {
        &self.lenders
    }

    /// The names of the other files that the layer needs.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Where the bytes of its own files are, for [`Layer::place`].
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// The file that an extent's backing refers to; `None` for an unknown number.
    pub fn place(&self, backing: u32) -> Option<Place<'_>> {
        let at = backing as usize;
        match at.checked_sub(self.lenders.len()) {
            None => Some(Place::Lender(at)),
            Some(at) => self.files.get(at).map(|name| Place::File(at, name)),
        }
    }

    /// The lower tree's file from which an inode of the layer was made: an index into [`Layer::lenders`].
    pub fn origin(&self, inode: InodeId) -> Option<usize> {
        self.source(inode).origin.map(|at| at as usize)
    }

    /// Whether all bytes of a file are those of its origin.
    pub fn is_whole(&self, inode: InodeId) -> bool {
        self.source(inode).whole
    }

    /// The lower tree's file that lends all bytes of a file, in whatever state it is now.
    pub fn whole_lender(&self, lower: &Tree, inode: InodeId) -> Option<InodeId> {
        let lender = self.lenders.get(self.origin(inode).filter(|_| self.is_whole(inode))?)?;
        let found = lower.lookup(&lender.path)?;
        (lower.inode(found).file_type() == FileType::Regular).then_some(found)
    }

    /// How many names are changed, and how many are removed.
    pub fn counts(&self) -> (u64, u64) {
        let count = |mark| self.names.iter().filter(|name| name.mark == mark).count() as u64;
        (count(Mark::Changed) + u64::from(self.root.mark == Mark::Changed), count(Mark::Deleted))
    }

    /// Whether the layer changes nothing.
    pub fn is_empty(&self) -> bool {
        self.counts() == (0, 0)
    }

    /// What the lower tree had at a path when the layer first changed it; `None` if the layer does not contain the
    /// path.
    pub fn was(&self, path: &[u8]) -> Option<Option<Identity>> {
        let mut at = InodeId::ROOT;
        let mut said = self.root;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let (index, inode) = self.tree.find_entry(at, name)?;
            said = *self.names.get(index)?;
            at = inode;
        }
        (said.mark != Mark::Passing).then_some(said.was)
    }

    pub(crate) fn source(&self, inode: InodeId) -> Provenance {
        self.sources.get(inode.index()).copied().unwrap_or_default()
    }
}
