//! The guest of a [`World`]: its changes to files, and the tree that they give.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::{Content, Cursor};
use inarch_tree::compare::Lineage;
use inarch_tree::{Attributes, Builder, FileType, InodeId, Timestamp, Tree, Xattr};

use super::super::host::is_as_scanned;
use super::{CAPABILITIES, Entries, TIME, World, read, stat_of};

/// A part of a guest's file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Base(InodeId, usize, usize),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    File(Vec<Piece>),
    Symlink(Vec<u8>),
    Directory(Entries),
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    kind: Kind,
    origin: Option<InodeId>,
    mode: u32,
    mtime: Timestamp,
    xattrs: Vec<Xattr>,
}

impl Node {
    /// What the guest has made.
    fn new(kind: Kind, mode: u32) -> Node {
        Node { kind, origin: None, mode, mtime: TIME, xattrs: Vec::new() }
    }
}

impl World {
    pub(super) fn begin_guest(&mut self) {
        let base = Arc::clone(&self.base);
        for (id, inode) in base.inodes() {
            let kind = match inode.file_type() {
                FileType::Directory => {
                    Kind::Directory(base.entries(id).map(|entry| (entry.name.to_vec(), entry.inode.index())).collect())
                }
                FileType::Symlink => Kind::Symlink(base.symlink_target(id).to_vec()),
                _ => {
                    // Pipes have none.
                    let is_file = inode.file_type() == FileType::Regular;
                    let path = || self.root().join(std::str::from_utf8(&base.path(id)).unwrap());
                    let bytes = if is_file { read(&path()) } else { Vec::new() };
                    let pieces = if bytes.is_empty() { vec![] } else { vec![Piece::Base(id, 0, bytes.len())] };
                    self.bytes.insert(id, bytes);
                    Kind::File(pieces)
                }
            };
            let xattrs = base.xattrs(inode.xattrs()).to_vec();
            self.nodes.push(Node { kind, origin: Some(id), mode: inode.mode(), mtime: inode.mtime(), xattrs });
        }
    }

    fn find(&self, path: &str) -> Option<usize> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(0, |at, name| match &self.nodes[at].kind {
            Kind::Directory(entries) => entries.get(name.as_bytes()).copied(),
            _ => None,
        })
    }

    fn is_directory(&self, node: usize) -> bool {
        matches!(self.nodes[node].kind, Kind::Directory(_))
    }

    fn entries(&mut self, path: &str) -> Option<(&mut Entries, Vec<u8>)> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let above = self.find(above)?;
        match &mut self.nodes[above].kind {
            Kind::Directory(entries) => Some((entries, name.as_bytes().to_vec())),
            _ => None,
        }
    }

    fn enter(&mut self, path: &str, node: Node) -> bool {
        let id = self.nodes.len();
        if self.find(path).is_some() {
            return false;
        }
        let Some((entries, name)) = self.entries(path) else { return false };
        entries.insert(name, id);
        self.nodes.push(node);
        true
    }

    /// Writes a file anew: in place, if it is there.
    pub fn write(&mut self, path: &str, bytes: &[u8]) -> bool {
        let pieces = vec![Piece::Bytes(bytes.to_vec())];
        match self.find(path) {
            Some(node) if !self.is_directory(node) => match &mut self.nodes[node].kind {
                Kind::File(old) => {
                    *old = pieces;
                    true
                }
                _ => false,
            },
            Some(_) => false,
            None => self.enter(path, Node::new(Kind::File(pieces), 0o100644)),
        }
    }

    /// Adds to the end of a file.
    pub fn append(&mut self, path: &str, bytes: &[u8]) -> bool {
        let Some(node) = self.find(path) else { return false };
        let Kind::File(pieces) = &mut self.nodes[node].kind else { return false };
        pieces.push(Piece::Bytes(bytes.to_vec()));
        true
    }

    /// Replaces a byte in the first part of a file.
    pub fn edit(&mut self, path: &str, byte: u8) -> bool {
        let Some(node) = self.find(path) else { return false };
        let Kind::File(pieces) = &mut self.nodes[node].kind else { return false };
        match pieces.first().cloned() {
            Some(Piece::Base(id, at, length)) if length > 1 => {
                pieces.splice(0..1, [Piece::Bytes(vec![byte]), Piece::Base(id, at + 1, length - 1)]);
                true
            }
            _ => false,
        }
    }

    /// Lets two files exchange their blocks.
    pub fn exchange_blocks(&mut self, one: &str, other: &str) -> bool {
        let (Some(one), Some(other)) = (self.find(one), self.find(other)) else { return false };
        let (Kind::File(a), Kind::File(b)) = (self.nodes[one].kind.clone(), self.nodes[other].kind.clone()) else {
            return false;
        };
        (self.nodes[one].kind, self.nodes[other].kind) = (Kind::File(b), Kind::File(a));
        true
    }

    pub fn chmod(&mut self, path: &str, mode: u32) -> bool {
        let Some(node) = self.find(path) else { return false };
        self.nodes[node].mode = self.nodes[node].mode & 0o170000 | mode;
        true
    }

    pub fn chown(&mut self, path: &str, uid: u32, gid: u32) -> bool {
        self.find(path).is_some_and(|node| self.owners.insert(node, (uid, gid)).is_none())
    }

    /// Gives a program [`CAPABILITIES`].
    pub fn set_capabilities(&mut self, path: &str) -> bool {
        self.set_xattr(path, "security.capability", CAPABILITIES)
    }

    /// Gives something an extended attribute that it does not have.
    pub fn set_xattr(&mut self, path: &str, name: &str, value: &[u8]) -> bool {
        let Some(node) = self.find(path) else { return false };
        let xattrs = &mut self.nodes[node].xattrs;
        let is_new = xattrs.iter().all(|xattr| *xattr.name != *name.as_bytes());
        xattrs.push(Xattr { name: name.as_bytes().into(), value: value.into() });
        is_new
    }

    /// Takes an extended attribute away that something has.
    pub fn remove_xattr(&mut self, path: &str, name: &str) -> bool {
        let Some(node) = self.find(path) else { return false };
        let xattrs = &mut self.nodes[node].xattrs;
        let before = xattrs.len();
        xattrs.retain(|xattr| *xattr.name != *name.as_bytes());
        xattrs.len() < before
    }

    pub fn mkdir(&mut self, path: &str) -> bool {
        self.enter(path, Node::new(Kind::Directory(BTreeMap::new()), 0o040755))
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> bool {
        self.enter(path, Node::new(Kind::Symlink(target.as_bytes().to_vec()), 0o120777))
    }

    pub fn link(&mut self, from: &str, to: &str) -> bool {
        let Some(node) = self.find(from).filter(|node| !self.is_directory(*node)) else { return false };
        if self.find(to).is_some() {
            return false;
        }
        let Some((entries, name)) = self.entries(to) else { return false };
        entries.insert(name, node);
        true
    }

    /// Removes whatever is there, with all that is in it.
    pub fn remove(&mut self, path: &str) -> bool {
        self.entries(path).is_some_and(|(entries, name)| entries.remove(&name).is_some())
    }

    pub fn rename(&mut self, from: &str, to: &str) -> bool {
        if from == to || to.starts_with(&format!("{from}/")) || from.starts_with(&format!("{to}/")) {
            return false;
        }
        let (Some(node), there) = (self.find(from), self.find(to)) else { return false };
        if there.is_some_and(|there| there == node || self.is_directory(there) != self.is_directory(node)) {
            return false;
        }
        if let Some(Kind::Directory(entries)) = there.map(|there| &self.nodes[there].kind)
            && !entries.is_empty()
        {
            return false;
        }
        let Some((entries, name)) = self.entries(to) else { return false };
        entries.insert(name, node);
        self.remove(from)
    }

    fn bytes_of(&self, pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().fold(Vec::new(), |mut bytes, piece| {
            match piece {
                Piece::Base(id, at, length) => bytes.extend(&self.bytes[id][*at..at + length]),
                Piece::Bytes(own) => bytes.extend(own),
            }
            bytes
        })
    }

    /// The guest's tree, and which node each of its inodes is.
    pub(super) fn guest(&self) -> (Tree, Vec<usize>) {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let attributes = |number: usize| {
            let node = &self.nodes[number];
            let (uid, gid) = self.owners.get(&number).copied().unwrap_or(own);
            let size = if let Kind::File(pieces) = &node.kind { self.bytes_of(pieces).len() as u64 } else { 0 };
            Attributes { mode: node.mode, uid, gid, size, mtime: node.mtime, ..Attributes::default() }
        };
        let mut builder = Builder::new(&attributes(0)).unwrap();
        let (mut of, mut ids) = (vec![0], HashMap::new());
        let mut stack = vec![(InodeId::ROOT, 0)];
        while let Some((id, node)) = stack.pop() {
            builder.list(id).unwrap();
            let Kind::Directory(entries) = &self.nodes[node].kind else { continue };
            for (name, child) in entries {
                if let Some(id) = ids.get(child) {
                    builder.link(name, *id).unwrap();
                    continue;
                }
                let id = builder.add(name, &attributes(*child)).unwrap();
                let set = builder.intern_xattrs(self.nodes[*child].xattrs.clone());
                builder.set_xattrs(id, set).unwrap();
                of.push(*child);
                ids.insert(*child, id);
                match &self.nodes[*child].kind {
                    Kind::Directory(_) => stack.push((id, *child)),
                    Kind::Symlink(target) => builder.set_target(id, target).unwrap(),
                    Kind::File(_) => {}
                }
            }
        }
        (builder.finish().unwrap(), of)
    }

    pub(super) fn double(&self, of: &[usize]) -> Double {
        let pieces = |node: &usize| match &self.nodes[*node].kind {
            Kind::File(pieces) => pieces.clone(),
            _ => Vec::new(),
        };
        let pieces: Vec<Vec<Piece>> = of.iter().map(pieces).collect();
        Double {
            root: self.root(),
            base: Arc::clone(&self.base),
            bytes: pieces.iter().map(|pieces| self.bytes_of(pieces)).collect(),
            base_bytes: self.bytes.clone(),
            pieces,
            origins: of.iter().map(|node| self.nodes[*node].origin).collect(),
        }
    }

    /// Contents of the guest's files, and whether each can be read.
    pub fn guest_files(&self) -> Vec<(Vec<u8>, bool)> {
        let (guest, of) = self.guest();
        let double = self.double(&of);
        let files = guest.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular);
        files.map(|(id, _)| (double.bytes[id.index()].clone(), double.is_readable(id))).collect()
    }

    /// What the guest's regular file at a path holds.
    pub fn guest_file(&self, path: &str) -> Option<Vec<u8>> {
        match &self.nodes[self.find(path)?].kind {
            Kind::File(pieces) => Some(self.bytes_of(pieces)),
            Kind::Symlink(_) | Kind::Directory(_) => None,
        }
    }

    /// What the guest has at every path: bytes, targets; nothing of directories.
    pub fn guest_paths(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut stack = vec![(String::new(), 0)];
        while let Some((path, node)) = stack.pop() {
            match &self.nodes[node].kind {
                Kind::Directory(entries) => {
                    for (name, child) in entries {
                        stack.push((format!("{path}/{}", std::str::from_utf8(name).unwrap()), *child));
                    }
                    found.insert(path, None);
                }
                Kind::File(pieces) => drop(found.insert(path, Some(self.bytes_of(pieces)))),
                Kind::Symlink(target) => drop(found.insert(path, Some(target.clone()))),
            }
        }
        found
    }
}

/// What the guest's files hold, and how they came to be.
pub(super) struct Double {
    root: PathBuf,
    base: Arc<Tree>,
    base_bytes: HashMap<InodeId, Vec<u8>>,
    pieces: Vec<Vec<Piece>>,
    bytes: Vec<Vec<u8>>,
    origins: Vec<Option<InodeId>>,
}

impl Double {
    fn is_readable(&self, id: InodeId) -> bool {
        self.pieces[id.index()].iter().all(|piece| match piece {
            Piece::Base(id, ..) => {
                let path = self.root.join(std::str::from_utf8(&self.base.path(*id)).unwrap());
                stat_of(&path).is_ok_and(|stat| is_as_scanned(&stat, self.base.inode(*id), true))
            }
            Piece::Bytes(_) => true,
        })
    }
}

impl Content for Double {
    fn read(&self, id: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        if !self.is_readable(id) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let bytes = &self.bytes[id.index()];
        let (start, end) = ((offset as usize).min(bytes.len()), ((offset + count) as usize).min(bytes.len()));
        out.copy_from(&bytes[start..end]);
        out.fill_zeros(count - (end - start) as u64);
        Ok(())
    }
}

impl Lineage for Double {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        self.origins[new.index()]
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        self.base_bytes[&old] == self.bytes[new.index()]
    }

    fn lenders(&self, new: InodeId) -> Vec<InodeId> {
        let lends = |piece: &Piece| if let Piece::Base(id, ..) = piece { Some(*id) } else { None };
        let mut lenders: Vec<_> = self.pieces[new.index()].iter().filter_map(lends).collect();
        lenders.sort();
        lenders.dedup();
        lenders
    }
}
