//! A layer: what somebody changed of a tree, path by path, apart from the tree itself.
//!
//! It is laid over another state of the same tree: what the layer does not name is as the tree below has it.
//!
//! 1. [`Layer::new`] takes the differences between two trees ([`crate::compare`]) and keeps what the newer one has there,
//!    what is gone, and of each path what the older tree had ([`Identity`]).
//! 2. [`merge`] lays a layer over a tree. Where that tree no longer has what the layer knew, both sides changed: a
//!    [`Conflict`], in which the layer wins.
//! 3. `stored` keeps a layer as bytes for a later process.
//!
//! The bytes of its files are ranges of host files ([`Lender`]) and of files that the owner of the layer knows by name;
//! nothing here reads them.

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

/// What a layer says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing: it is a directory that leads to other names of the layer.
    Passing,
    /// What the layer has there is in the place of what is below.
    Changed,
    /// What was there is gone.
    Deleted,
}

/// A name of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub mark: Mark,
    /// What the tree below had there when the layer was made; nothing for a name that was new.
    pub was: Option<Identity>,
}

/// What a layer knows of one of its inodes beside its attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    /// The file of the tree below that it grew out of: an index into the lenders.
    pub origin: Option<u32>,
    /// A file of the tree below that it is another name of: an index into the lenders.
    pub link: Option<u32>,
    /// Whether its bytes are all those of its origin.
    pub whole: bool,
}

/// What somebody changed of a tree.
///
/// Its own tree has every name that is not as below, and the directories that lead there.
#[derive(Debug)]
pub struct Layer {
    tree: Arc<Tree>,
    /// What it says of the root, and then of each entry of its tree.
    root: Name,
    names: Vec<Name>,
    /// For each inode of its tree.
    sources: Vec<Source>,
    /// What the tree below had in directories that are none any more, by path.
    hidden: Vec<(Vec<u8>, Identity)>,
    lenders: Vec<Lender>,
    /// Files beside the host's that hold bytes of it, by names that mean something to their owner.
    files: Vec<String>,
    /// Where the bytes of its files are: an extent's backing is an index into the lenders, and behind them into the files.
    extents: Extents,
}

/// Where an extent of a layer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// In a file of the tree below.
    Lender(usize),
    /// In a file with this name, an index into [`Layer::files`].
    File(usize, &'a str),
}

impl Layer {
    /// One that says nothing.
    pub fn empty() -> Layer {
        // A tree of nothing but a root is always built.
        let root = Attributes { mode: 0o040_755, ..Attributes::default() };
        let tree = Builder::new(&root).and_then(Builder::finish).map(Arc::new).unwrap_or_else(|_| unreachable!());
        let root = Name { mark: Mark::Passing, was: None };
        let (names, sources, hidden) = (Vec::new(), vec![Source::default()], Vec::new());
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

    /// Names and attributes. What is deleted stands in it as a directory or as a device node 0:0.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The files of the tree below that it needs.
    pub fn lenders(&self) -> &[Lender] {
        &self.lenders
    }

    /// The names of files beside those of the tree below that it needs.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Where the bytes of its own files are, for [`Layer::place`].
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// What an extent's backing is; `None` for none of this layer's.
    pub fn place(&self, backing: u32) -> Option<Place<'_>> {
        let at = backing as usize;
        match at.checked_sub(self.lenders.len()) {
            None => Some(Place::Lender(at)),
            Some(at) => self.files.get(at).map(|name| Place::File(at, name)),
        }
    }

    /// The file of the tree below that an inode of the layer grew out of, an index into [`Layer::lenders`].
    pub fn origin(&self, inode: InodeId) -> Option<usize> {
        self.source(inode).origin.map(|at| at as usize)
    }

    /// Whether all bytes of a file are those of its origin.
    pub fn is_whole(&self, inode: InodeId) -> bool {
        self.source(inode).whole
    }

    /// The file of the tree below that lends all bytes of a file, in whatever state it is there now.
    pub fn whole_lender(&self, lower: &Tree, inode: InodeId) -> Option<InodeId> {
        let lender = self.lenders.get(self.origin(inode).filter(|_| self.is_whole(inode))?)?;
        let found = lower.lookup(&lender.path)?;
        (lower.inode(found).file_type() == FileType::Regular).then_some(found)
    }

    /// How many names changed, and how many are gone.
    pub fn counts(&self) -> (u64, u64) {
        let count = |mark| self.names.iter().filter(|name| name.mark == mark).count() as u64;
        (count(Mark::Changed) + u64::from(self.root.mark == Mark::Changed), count(Mark::Deleted))
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.counts() == (0, 0)
    }

    /// What the tree below had at a path when the layer first changed it; `None` where the layer says nothing of it.
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

    /// What the tree below had at a path that the layer took away or replaced.
    pub fn knew(&self, path: &[u8]) -> Option<Identity> {
        let hidden = || self.hidden.binary_search_by(|(hidden, _)| hidden[..].cmp(path)).ok();
        self.was(path).flatten().or_else(|| self.hidden.get(hidden()?).map(|(_, was)| *was))
    }

    pub(crate) fn source(&self, inode: InodeId) -> Source {
        self.sources.get(inode.index()).copied().unwrap_or_default()
    }
}
