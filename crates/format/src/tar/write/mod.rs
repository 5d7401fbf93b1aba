//! Writes POSIX (PAX) archives, like `tar -C TREE --format=pax .` of GNU tar.
//!
//! Every name begins with `./`; directories end with a slash. An extended header has what a ustar header cannot hold:
//! nanoseconds, long or non-ASCII names, large sizes and owners, extended attributes (`SCHILY.xattr.`), and access
//! control lists as text (`SCHILY.acl.`), which GNU tar and libarchive restore. Sparse files are in GNU tar's format
//! 1.0. Access and change times, and names of owners, are left out: the same tree gives the same bytes everywhere.

mod member;

use std::collections::HashMap;
use std::sync::Arc;

use inarch_tree::{DataRange, FileType, InodeId, Tree};

use super::spec::{BLOCK, BLOCK_BYTES};
use crate::archive::{Archive, Members, Pieces, Queue};
use crate::notes::Notes;
use crate::walk::{Walk, refuse_options};
use crate::{Format, FormatError, ImageOptions, Layout, Piece, Planned};

/// Archives are padded to whole records of 20 blocks.
const RECORD: u64 = 20 * BLOCK_BYTES;

/// The format.
#[derive(Clone, Copy, Debug)]
pub struct Tar;

impl Format for Tar {
    fn name(&self) -> &'static str {
        "tar"
    }

    fn plan(&self, tree: &Arc<Tree>, options: &ImageOptions) -> Result<Planned, FormatError> {
        refuse_options("tar", options)?;
        let mut notes = Notes::default();
        if tree.inodes().any(|(_, inode)| inode.file_type() == FileType::Socket) {
            let mut walk = Walk::new(tree, b"");
            while let Some((path, inode)) = walk.next() {
                if tree.inode(inode).file_type() == FileType::Socket {
                    notes.add(path, "it is left out, as a tar has no sockets");
                }
            }
        }
        let stream = Archive::new(tree, |tree| Box::new(Pieces::<TarMembers<'_>>::new(tree)));
        Ok(Planned { layout: Layout::Stream(Box::new(stream)), notes: notes.into_lines() })
    }
}

struct TarMembers<'t> {
    tree: &'t Tree,
    /// The name at which an inode with several names has its content.
    first_names: HashMap<InodeId, Vec<u8>>,
}

impl<'t> Members<'t> for TarMembers<'t> {
    const PREFIX: &'static [u8] = b"./";

    fn new(tree: &'t Tree) -> TarMembers<'t> {
        TarMembers { tree, first_names: HashMap::new() }
    }

    fn root(&mut self, queue: &mut Queue) {
        queue.push(Piece::Bytes(member::header(self.tree, InodeId::ROOT, Self::PREFIX, None)));
    }

    fn member(&mut self, path: &[u8], inode: InodeId, queue: &mut Queue) {
        let mut path = path.to_owned();
        let (file_type, links) = (self.tree.inode(inode).file_type(), self.tree.inode(inode).links());
        match file_type {
            FileType::Socket => return,
            FileType::Directory => path.push(b'/'),
            _ if links > 1 => {
                if let Some(first) = self.first_names.get(&inode) {
                    let header = member::header(self.tree, inode, &path, Some(first));
                    queue.push(Piece::Bytes(header));
                    return;
                }
                self.first_names.insert(inode, path.clone());
            }
            _ => {}
        }
        let mut header = member::header(self.tree, inode, &path, None);
        if file_type != FileType::Regular {
            queue.push(Piece::Bytes(header));
            return;
        }
        let size = self.tree.inode(inode).size();
        let whole = [DataRange { offset: 0, length: size }];
        let ranges = match member::holes(self.tree, inode) {
            Some(ranges) => {
                header.extend(member::sparse_map(ranges, size));
                ranges
            }
            None => &whole,
        };
        queue.push(Piece::Bytes(header));
        for DataRange { offset, length } in ranges.iter().copied() {
            queue.push(Piece::File { inode, offset, length });
        }
        let stored: u64 = ranges.iter().map(|range| range.length).sum();
        queue.push(Piece::Zeros(stored.next_multiple_of(BLOCK as u64) - stored));
    }

    fn end(&mut self, queue: &mut Queue) {
        let end = (queue.made() + 2 * BLOCK_BYTES).next_multiple_of(RECORD);
        queue.push(Piece::Zeros(end - queue.made()));
    }
}
