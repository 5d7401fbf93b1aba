//! One pass over all nodes of a volume.

use inarch_tree::{DataRange, Extent, FileType, Xattr};

use crate::findings::Loss;
use crate::{Attributes, Item, Node, Volume, VolumeError, join_data};

/// The extended attributes of a node that a pass meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrsOf {
    /// These.
    Own(Vec<Xattr>),
    /// All nodes with the same key have the same: [`Pass::xattrs`] is asked for the first of them.
    Shared(Box<[u8]>),
}

/// What a node has beside its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Names.
    Directory,
    /// What it points at.
    Symlink(Vec<u8>),
    /// A regular file's content where it lies; what no extent covers is a hole.
    Extents(Vec<Extent>),
    /// A regular file's content in another form, and the ranges that are no holes; none: all of it.
    Packed(Option<Vec<DataRange>>),
    /// Nothing: a device node, a FIFO or a socket.
    Other,
}

/// All that a walk wants to know of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its attributes.
    pub attributes: Attributes,
    /// Its extended attributes.
    pub xattrs: XattrsOf,
    /// The rest.
    pub body: Body,
    /// Parts of it that are left out.
    pub losses: Vec<Loss>,
}

/// One pass over all nodes of a volume: each directory is listed once, each node asked for once. What it remembers bounds what
/// it reads and gives: pieces of metadata that many nodes name are read for one of them, or counted.
pub trait Pass {
    /// As [`Volume::list`] from the start to the end.
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError>;

    /// Everything of a node.
    fn facts(&mut self, node: Node) -> Result<Facts, VolumeError>;

    /// The extended attributes of a node of which [`Pass::facts`] said that it shares them.
    fn xattrs(&mut self, node: Node) -> Result<Vec<Xattr>, VolumeError> {
        let _ = node;
        Ok(Vec::new())
    }

    /// What was met that a tree cannot hold, a line each.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Asks the methods of a volume one after the other.
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
