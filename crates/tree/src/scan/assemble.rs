//! Assembles the workers' listings into one tree that does not depend on which worker read what.

use std::collections::HashMap;
use std::sync::Arc;

use super::ScanError;
use super::chunk::{Chunk, Findings, Listing};
use crate::inode::Inode;
use crate::tree::{RawDirectory, RawEntry};
use crate::{FileType, InodeId, Tree, Xattr, XattrSetId};

/// Formats reserve a few inode numbers.
const INODES_MAX: usize = (u32::MAX - 16) as usize;

/// Where a directory's listing is.
#[derive(Clone, Copy)]
struct Place {
    worker: u32,
    /// `u32::MAX` for a directory that could not be read.
    listing: u32,
}

struct Assembly {
    tree: Tree,
    /// Inodes with several names, by device and inode number of the host.
    hard_links: HashMap<(u64, u64), InodeId>,
    /// For each worker, the tree's id of each of its attribute sets.
    set_ids: Vec<Vec<Option<XattrSetId>>>,
    set_index: HashMap<Vec<Xattr>, XattrSetId>,
    /// Directories to be listed, the next one last.
    stack: Vec<(u32, InodeId)>,
}

/// Assembles the tree. Frees every chunk once its last listing is in the tree.
pub(super) fn assemble(findings: &mut [Findings], serials: u32) -> Result<Tree, ScanError> {
    let sum = |count: fn(&Chunk) -> usize| findings.iter().flat_map(|f| &f.chunks).map(count).sum::<usize>();
    let entries = sum(|chunk| chunk.inodes.len());
    let name_bytes = sum(|chunk| chunk.names.len());
    let target_bytes = sum(|chunk| chunk.target_bytes.len());
    if entries >= INODES_MAX || u32::try_from(name_bytes).is_err() || u32::try_from(target_bytes).is_err() {
        return Err(ScanError::TooLarge);
    }
    let places = places(findings, serials);
    let root = findings.iter().enumerate().find_map(|(worker, f)| f.root.map(|inode| (worker, inode)));
    let (worker, mut root) = root.ok_or(ScanError::Root(rustix::io::Errno::NOENT))?;
    let mut assembly = Assembly {
        tree: Tree {
            inodes: Vec::with_capacity(entries + 1),
            entries: Vec::with_capacity(entries),
            directories: Vec::with_capacity(findings.iter().map(|f| f.listings.len()).sum()),
            names: Vec::with_capacity(name_bytes),
            targets: Vec::with_capacity(sum(|chunk| chunk.target_ends.len())),
            target_bytes: Vec::with_capacity(target_bytes),
            sparse: Vec::with_capacity(sum(|chunk| chunk.sparse.len())),
            xattr_sets: vec![Arc::default()],
        },
        hard_links: HashMap::new(),
        set_ids: findings.iter().map(|f| vec![None; f.xattr_sets.len()]).collect(),
        set_index: HashMap::new(),
        stack: vec![(0, InodeId::ROOT)],
    };
    root.links = 2;
    root.xattrs = assembly.xattrs(root.xattrs, worker, findings);
    assembly.tree.inodes.push(root);
    while let Some((serial, dir)) = assembly.stack.pop() {
        assembly.directory(serial, dir, &places, findings);
    }
    assembly.tree.inodes.shrink_to_fit();
    Ok(assembly.tree)
}

fn places(findings: &[Findings], serials: u32) -> Vec<Place> {
    let mut places = vec![Place { worker: 0, listing: u32::MAX }; serials as usize];
    for (worker, f) in findings.iter().enumerate() {
        for (index, listing) in f.listings.iter().enumerate() {
            if let Some(place) = places.get_mut(listing.serial as usize) {
                *place = Place { worker: worker as u32, listing: index as u32 };
            }
        }
    }
    places
}

impl Assembly {
    fn directory(&mut self, serial: u32, dir: InodeId, places: &[Place], findings: &mut [Findings]) {
        let Some(place) = places.get(serial as usize) else { return };
        let worker = place.worker as usize;
        let Some(listing) = findings[worker].listings.get(place.listing as usize).copied() else { return };
        let index = self.tree.directories.len() as u32;
        let first = self.tree.entries.len() as u32;
        self.tree.directories.push(RawDirectory { first, count: listing.count as u32 });
        // Taken out to borrow the sets beside it; put back unless this was its last listing.
        let mut chunk = std::mem::take(&mut findings[worker].chunks[listing.chunk]);
        let oldest = self.stack.len();
        let directories = self.entries(dir, &listing, &mut chunk, worker, findings);
        self.stack[oldest..].reverse();
        let inode = &mut self.tree.inodes[dir.index()];
        inode.detail = index;
        inode.links += directories;
        chunk.listings_left -= 1;
        if chunk.listings_left > 0 {
            findings[worker].chunks[listing.chunk] = chunk;
        }
    }

    /// Adds the entries of one listing; returns the number of directories among them.
    fn entries(
        &mut self,
        dir: InodeId,
        listing: &Listing,
        chunk: &mut Chunk,
        worker: usize,
        findings: &[Findings],
    ) -> u32 {
        let range = listing.start.entry..listing.start.entry + listing.count;
        let mut link = listing.start.link;
        let mut directories = 0;
        let mut name = self.tree.names.len() as u32;
        let mut host_name = listing.start.name;
        for at in range {
            let name_len = u16::from(chunk.name_lengths[at]);
            let host_inode = chunk.inodes[at];
            let entry = self.tree.entries.len() as u32;
            let mut id = InodeId(self.tree.inodes.len() as u32);
            let mut new = true;
            if let Some(other) = chunk.links.get(link).filter(|link| link.entry == at) {
                link += 1;
                let key = (other.device, host_inode.source_ino);
                let first = *self.hard_links.entry(key).or_insert(id);
                // The host may reuse an inode number for another file during the walk.
                if first != id && self.tree.inodes[first.index()].file_type() == host_inode.file_type() {
                    self.tree.inodes[first.index()].links += 1;
                    (id, new) = (first, false);
                }
            }
            if new {
                directories += self.inode(host_inode, id, entry, chunk, worker, findings);
            }
            self.tree.entries.push(RawEntry { name, inode: id, parent: dir, name_len });
            name += u32::from(name_len);
            host_name += usize::from(name_len);
        }
        self.tree.names.extend_from_slice(&chunk.names[listing.start.name..host_name]);
        directories
    }

    /// Adds an inode with its details; returns 1 if it is a directory.
    fn inode(
        &mut self,
        mut inode: Inode,
        id: InodeId,
        entry: u32,
        chunk: &mut Chunk,
        worker: usize,
        findings: &[Findings],
    ) -> u32 {
        inode.entry = entry;
        inode.links = 1;
        if inode.xattrs != XattrSetId::NONE {
            inode.xattrs = self.xattrs(inode.xattrs, worker, findings);
        }
        let tree = &mut self.tree;
        let mut directories = 0;
        match inode.file_type() {
            FileType::Directory => {
                directories = 1;
                inode.links = 2;
                if inode.detail != Inode::NO_DETAIL {
                    self.stack.push((inode.detail, id));
                    inode.detail = Inode::NO_DETAIL;
                }
            }
            FileType::Symlink => {
                let start = tree.target_bytes.len() as u32;
                tree.target_bytes.extend_from_slice(chunk.target(inode.detail));
                inode.detail = tree.targets.len() as u32;
                tree.targets.push(start..tree.target_bytes.len() as u32);
            }
            FileType::Regular if inode.detail != Inode::NO_DETAIL => {
                let ranges = chunk.sparse.get_mut(inode.detail as usize).map(std::mem::take).unwrap_or_default();
                inode.detail = tree.sparse.len() as u32;
                tree.sparse.push(ranges);
            }
            _ => {}
        }
        tree.inodes.push(inode);
        directories
    }

    /// The tree's id of a worker's set. Ids are given in the order of the tree.
    fn xattrs(&mut self, set: XattrSetId, worker: usize, findings: &[Findings]) -> XattrSetId {
        let index = set.0 as usize;
        if let Some(id) = self.set_ids[worker][index] {
            return id;
        }
        let set = &findings[worker].xattr_sets[index];
        let id = if set.is_empty() {
            XattrSetId::NONE
        } else if let Some(id) = self.set_index.get(set) {
            *id
        } else {
            let id = XattrSetId(self.tree.xattr_sets.len() as u32);
            self.tree.xattr_sets.push(set.clone().into());
            self.set_index.insert(set.clone(), id);
            id
        };
        self.set_ids[worker][index] = Some(id);
        id
    }
}
