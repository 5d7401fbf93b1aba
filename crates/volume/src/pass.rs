//! [`Pass`]: one pass over all nodes of a volume.

use inarch_tree::{DataRange, Extent, FileType, Xattr};

use crate::findings::Loss;
use crate::{Attributes, Item, Node, Volume, VolumeError, join_data};

/// What a node has beside its attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// A directory.
    Directory,
    /// A symbolic link: [`Facts::target`].
    Symlink,
    /// A regular file's extents in the image: [`Facts::extents`].
    Extents,
    /// A regular file that is stored packed, without holes.
    Packed,
    /// The same, with data only in [`Facts::ranges`].
    PackedSparse,
    /// Nothing: a device node, a FIFO or a socket.
    #[default]
    Other,
}

/// Everything that a walk needs of a node. A walk reuses one of them for all nodes, so that its lists are allocated once.
#[derive(Debug, Default)]
pub struct Facts {
    /// Its attributes.
    pub attributes: Attributes,
    /// The rest.
    pub body: Body,
    /// A symbolic link's target.
    pub target: Vec<u8>,
    /// A regular file's extents; the rest is a hole.
    pub extents: Vec<Extent>,
    /// A packed file's ranges with data.
    pub ranges: Vec<DataRange>,
    /// Its extended attributes, unless there is a `shared` key.
    pub xattrs: Vec<Xattr>,
    /// A key, or empty. All nodes with the same key have the same extended attributes; [`Pass::xattrs`] returns them for the
    /// first node.
    pub shared: Vec<u8>,
    /// Parts that were left out.
    pub losses: Vec<Loss>,
}

impl Facts {
    /// Empties the lists.
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

/// One pass over all nodes of a volume: each directory is listed once, and each node queried once. The pass bounds
/// what it reads and returns: metadata that many nodes refer to is read once, or counted.
pub trait Pass {
    /// Like [`Volume::list`], from start to end.
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError>;

    /// Fills `facts`, whose lists are empty, with everything about a node.
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
