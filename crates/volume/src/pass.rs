//! [`Pass`]: one pass over all nodes of a volume.

use inarch_tree::{DataRange, Extent, FileType, Xattr};

use crate::findings::Loss;
use crate::{Attributes, Item, Node, Volume, VolumeError, join_data};

/// What a node has beside its attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// A directory.
    Directory,
    /// What it points at: [`Facts::target`].
    Symlink,
    /// A regular file's content where it lies: [`Facts::extents`].
    Extents,
    /// A regular file's content in another form, without holes.
    Packed,
    /// The same with holes between [`Facts::ranges`].
    PackedSparse,
    /// Nothing: a device node, a FIFO or a socket.
    #[default]
    Other,
}

/// All that a walk wants to know of a node. A walk has one of them, which is filled for each node in turn, so that its lists keep
/// their memory.
#[derive(Debug, Default)]
pub struct Facts {
    /// Its attributes.
    pub attributes: Attributes,
    /// The rest.
    pub body: Body,
    /// What a symbolic link points at.
    pub target: Vec<u8>,
    /// Where a regular file's content lies; what no extent covers is a hole.
    pub extents: Vec<Extent>,
    /// What of a packed file is no hole.
    pub ranges: Vec<DataRange>,
    /// Its extended attributes, if it has no `shared`.
    pub xattrs: Vec<Xattr>,
    /// Not empty: all nodes with the same bytes here have the same extended attributes, and [`Pass::xattrs`] is asked for the
    /// first of them.
    pub shared: Vec<u8>,
    /// Parts of it that are left out.
    pub losses: Vec<Loss>,
}

impl Facts {
    /// Nothing is known yet.
    pub(crate) fn clear(&mut self) {
        let Facts { attributes: _, body: _, target, extents, ranges, xattrs, shared, losses } = self;
        target.clear();
        extents.clear();
        ranges.clear();
        xattrs.clear();
        shared.clear();
        losses.clear();
    }
}

/// One pass over all nodes of a volume: each directory is listed once, each node asked for once. What it remembers bounds what
/// it reads and gives: pieces of metadata that many nodes name are read for one of them, or counted.
pub trait Pass {
    /// Like [`Volume::list`], from start to end.
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError>;

    /// Fills `facts`, whose lists are empty, with everything of a node.
    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError>;

    /// The extended attributes of a node for which [`Pass::facts`] returned a shared key.
    fn xattrs(&mut self, node: Node) -> Result<Vec<Xattr>, VolumeError> {
        let _ = node;
        Ok(Vec::new())
    }

    /// Notes on what a tree cannot hold, a line each.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// A pass that calls the methods of a volume.
pub struct AskedOneByOne<'a, V: ?Sized>(&'a V);

impl<'a, V: Volume + ?Sized> AskedOneByOne<'a, V> {
    /// Of `volume`.
    pub fn new(volume: &'a V) -> AskedOneByOne<'a, V> {
        AskedOneByOne(volume)
    }

    fn content(&self, node: Node, facts: &mut Facts) -> Result<Body, VolumeError> {
        if let Some(extents) = self.0.extents(node, 0, facts.attributes.size)? {
            facts.extents = extents;
            return Ok(Body::Extents);
        }
        let mut at = 0;
        while let Some(range) = self.0.data(node, at)? {
            join_data(&mut facts.ranges, range.offset, range.length);
            at = range.offset.saturating_add(range.length);
        }
        Ok(Body::PackedSparse)
    }
}

impl<V: Volume + ?Sized> Pass for AskedOneByOne<'_, V> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        self.0.list(directory, 0, &mut |item| {
            take(item);
            true
        })
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        facts.attributes = self.0.attributes(node)?;
        facts.xattrs = self.0.xattrs(node, &mut |loss| facts.losses.push(loss))?;
        facts.body = match facts.attributes.file_type() {
            Some(FileType::Directory) => Body::Directory,
            Some(FileType::Symlink) => {
                facts.target = self.0.target(node)?;
                Body::Symlink
            }
            Some(FileType::Regular) => self.content(node, facts)?,
            _ => Body::Other,
        };
        Ok(())
    }
}
