//! [`Pass`]: one pass over all nodes of a volume.

use inarch_tree::{DataRange, Extent, FileType, Xattr};

use crate::findings::Loss;
use crate::{Attributes, Item, Node, Volume, VolumeError, join_data};

/// A node's extended attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrsOf {
    /// These attributes.
    Own(Vec<Xattr>),
    /// The attributes of all nodes with this key, which [`Pass::xattrs`] returns for the first of them.
    Shared(Box<[u8]>),
}

/// The type-specific part of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A directory.
    Directory,
    /// A symbolic link's target.
    Symlink(Vec<u8>),
    /// A regular file's extents in the image; the rest is a hole.
    Extents(Vec<Extent>),
    /// A regular file that is stored packed, and its ranges with data; `None`: all of it.
    Packed(Option<Vec<DataRange>>),
    /// A device node, FIFO or socket.
    Other,
}

/// Everything that a walk needs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its attributes.
    pub attributes: Attributes,
    /// Its extended attributes.
    pub xattrs: XattrsOf,
    /// The rest.
    pub body: Body,
    /// Parts that were left out.
    pub losses: Vec<Loss>,
}

/// One pass over all nodes of a volume: each directory is listed once, and each node queried once. The pass bounds
/// what it reads and returns: metadata that many nodes refer to is read once, or counted.
pub trait Pass {
    /// Like [`Volume::list`], from start to end.
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError>;

    /// Returns everything about a node.
    fn facts(&mut self, node: Node) -> Result<Facts, VolumeError>;

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

    fn content(&self, node: Node, size: u64) -> Result<Body, VolumeError> {
        if let Some(extents) = self.0.extents(node, 0, size)? {
            return Ok(Body::Extents(extents));
        }
        let (mut ranges, mut at) = (Vec::new(), 0);
        while let Some(range) = self.0.data(node, at)? {
            join_data(&mut ranges, range.offset, range.length);
            at = range.offset.saturating_add(range.length);
        }
        Ok(Body::Packed(Some(ranges)))
    }
}

impl<V: Volume + ?Sized> Pass for AskedOneByOne<'_, V> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        self.0.list(directory, 0, &mut |item| {
            take(item);
            true
        })
    }

    fn facts(&mut self, node: Node) -> Result<Facts, VolumeError> {
        let attributes = self.0.attributes(node)?;
        let mut losses = Vec::new();
        let xattrs = self.0.xattrs(node, &mut |loss| losses.push(loss))?;
        let body = match attributes.file_type() {
            Some(FileType::Directory) => Body::Directory,
            Some(FileType::Symlink) => Body::Symlink(self.0.target(node)?),
            Some(FileType::Regular) => self.content(node, attributes.size)?,
            _ => Body::Other,
        };
        Ok(Facts { attributes, xattrs: XattrsOf::Own(xattrs), body, losses })
    }
}
