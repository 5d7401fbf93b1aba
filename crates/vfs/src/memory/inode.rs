//! The inodes of a file system in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};
use std::time::SystemTime;

use inarch_tree::Timestamp;
use rustix::io::Errno;

use super::content::Content;
use crate::NodeId;
use crate::slab::Slab;

/// The memory that an inode counts for, besides its content.
pub const INODE_SPACE: u64 = 512;

/// The memory that a name counts for, besides its bytes.
pub const NAME_SPACE: u64 = 128;

/// A file, directory or whatever else has names.
#[derive(Debug)]
pub struct Inode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u64,
    /// The link count; a directory counts its name, its `.` and each subdirectory's `..`.
    pub links: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub birth: Timestamp,
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    pub kind: Kind,
    /// Look-ups, and open handles.
    pub lookups: u64,
    pub opened: u64,
}

/// The data that depends on the type.
#[derive(Debug)]
pub enum Kind {
    File(Arc<RwLock<Content>>),
    Directory(Directory),
    Symlink(Box<[u8]>),
    Special,
}

/// A directory's names.
#[derive(Debug)]
pub struct Directory {
    /// The parent directory.
    pub parent: u32,
    names: HashMap<Box<[u8]>, (u64, u32)>,
    /// In order of creation: a name keeps its offset for its lifetime.
    order: BTreeMap<u64, Box<[u8]>>,
    next: u64,
}

/// The offsets of `.` and `..`.
pub const DOTS: u64 = 2;

impl Directory {
    /// Without names.
    pub fn new(parent: u32) -> Directory {
        Directory { parent, names: HashMap::new(), order: BTreeMap::new(), next: DOTS }
    }

    /// The inode with a name.
    pub fn get(&self, name: &[u8]) -> Option<u32> {
        self.names.get(name).map(|(_, inode)| *inode)
    }

    /// Adds a name, replacing an earlier one.
    pub fn insert(&mut self, name: &[u8], inode: u32) {
        if let Some((_, old)) = self.names.get_mut(name) {
            *old = inode;
            return;
        }
        self.names.insert(name.into(), (self.next, inode));
        self.order.insert(self.next, name.into());
        self.next += 1;
    }

    /// Takes a name away.
    pub fn remove(&mut self, name: &[u8]) {
        if let Some((place, _)) = self.names.remove(name) {
            self.order.remove(&place);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The entries from an offset on: offset, name and inode.
    pub fn from(&self, place: u64) -> impl Iterator<Item = (u64, &[u8], u32)> {
        self.order.range(place..).filter_map(|(place, name)| Some((*place, &**name, self.get(name)?)))
    }
}

impl Inode {
    /// An inode without a name.
    pub fn new(mode: u32, (uid, gid): (u32, u32), kind: Kind) -> Inode {
        let now = now();
        Inode {
            mode,
            uid,
            gid,
            device: 0,
            links: 0,
            atime: now,
            mtime: now,
            ctime: now,
            birth: now,
            xattrs: BTreeMap::new(),
            kind,
            lookups: 0,
            opened: 0,
        }
    }

    /// Its names, if it is a directory.
    pub fn directory(&self) -> Result<&Directory, Errno> {
        if let Kind::Directory(directory) = &self.kind { Ok(directory) } else { Err(Errno::NOTDIR) }
    }

    /// The same, for changes; updates the times.
    pub fn directory_mut(&mut self) -> Result<&mut Directory, Errno> {
        self.touch(true);
        if let Kind::Directory(directory) = &mut self.kind { Ok(directory) } else { Err(Errno::NOTDIR) }
    }

    /// Its content, if it is a file.
    pub fn content(&self) -> Result<&Arc<RwLock<Content>>, Errno> {
        match &self.kind {
            Kind::File(content) => Ok(content),
            Kind::Directory(_) => Err(Errno::ISDIR),
            Kind::Symlink(_) => Err(Errno::LOOP),
            Kind::Special => Err(Errno::NXIO),
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }

    /// Updates ctime, and with `content` also mtime.
    pub fn touch(&mut self, content: bool) {
        self.ctime = now();
        if content {
            self.mtime = self.ctime;
        }
    }
}

/// The inode table.
#[derive(Debug)]
pub struct Inodes {
    inodes: Slab<Inode>,
}

/// The root's index.
pub const ROOT: u32 = 0;

impl Inodes {
    /// A table with the root only.
    pub fn new(mut root: Inode) -> Inodes {
        root.links = 2;
        root.lookups = 1;
        let mut inodes = Slab::new();
        inodes.insert(root);
        Inodes { inodes }
    }

    /// The place of a node.
    pub fn index(&self, node: NodeId) -> Result<u32, Errno> {
        self.inodes.place(node.0).ok_or(Errno::STALE)
    }

    /// The number of the node at a place.
    pub fn number(&self, index: u32) -> NodeId {
        NodeId(self.inodes.number(index))
    }

    /// What is at a place.
    pub fn at(&self, index: u32) -> Result<&Inode, Errno> {
        self.inodes.get(index).ok_or(Errno::STALE)
    }

    /// The same, to change it.
    pub fn at_mut(&mut self, index: u32) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(index).ok_or(Errno::STALE)
    }

    /// A node.
    pub fn get(&self, node: NodeId) -> Result<&Inode, Errno> {
        self.at(self.index(node)?)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, node: NodeId) -> Result<&mut Inode, Errno> {
        self.at_mut(self.index(node)?)
    }

    /// Adds one.
    pub fn insert(&mut self, inode: Inode) -> Result<u32, Errno> {
        self.inodes.insert(inode).ok_or(Errno::NOSPC)
    }

    /// Removes an inode that has no name, no look-ups and no open handle; returns it.
    pub fn collect(&mut self, index: u32) -> Option<Inode> {
        let inode = self.inodes.get(index)?;
        let is_used = inode.links > 0 || inode.lookups > 0 || inode.opened > 0;
        if is_used { None } else { self.inodes.remove(index) }
    }

    /// All places.
    pub fn all(&self) -> Vec<u32> {
        self.inodes.occupied()
    }
}

/// The current time.
pub fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX), nanoseconds: now.subsec_nanos() }
}
