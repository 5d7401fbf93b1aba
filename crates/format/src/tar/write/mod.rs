//! Writing archives: POSIX (PAX) ones, as `tar -C TREE --format=pax .` of GNU tar makes them.
//!
//! Every name begins with `./`, directories end with a slash. What a ustar header cannot hold is in an extended header:
//! nanoseconds, long or foreign names, large sizes and owners, extended attributes (`SCHILY.xattr.`), and access lists
//! as text (`SCHILY.acl.`), as GNU tar and libarchive restore them. Sparse files are in GNU tar's format 1.0. Access and
//! change times, and names of owners, are left out: the same tree gives the same bytes everywhere.

mod member;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use inarch_tree::{DataRange, FileType, InodeId, Tree};

use super::spec::{BLOCK, BLOCK_BYTES};
use crate::notes::Notes;
use crate::walk::{Walk, refuse_options};
use crate::{Format, FormatError, ImageOptions, Layout, Piece, Planned, Stream};

/// Archives are written in whole records of 20 blocks.
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
        let length = Pieces::new(tree).map(|piece| piece.length()).sum();
        let stream = Archive { tree: Arc::clone(tree), length };
        Ok(Planned { layout: Layout::Stream(Box::new(stream)), notes: notes.into_lines() })
    }
}

struct Archive {
    tree: Arc<Tree>,
    length: u64,
}

impl Stream for Archive {
    fn length(&self) -> u64 {
        self.length
    }

    fn pieces(&self) -> Box<dyn Iterator<Item = Piece> + Send + '_> {
        Box::new(Pieces::new(&self.tree))
    }
}

/// Where in the archive the pieces are.
enum Stage {
    Root,
    Members,
    Done,
}

struct Pieces<'t> {
    tree: &'t Tree,
    walk: Walk<'t>,
    stage: Stage,
    /// The name under which an inode of several has its content.
    first_names: HashMap<InodeId, Vec<u8>>,
    ready: VecDeque<Piece>,
    /// Bytes of all pieces that were made.
    made: u64,
}

impl<'t> Pieces<'t> {
    fn new(tree: &'t Tree) -> Pieces<'t> {
        let (first_names, ready) = (HashMap::new(), VecDeque::new());
        Pieces { tree, walk: Walk::new(tree, b"./"), stage: Stage::Root, first_names, ready, made: 0 }
    }

    fn push(&mut self, piece: Piece) {
        let length = piece.length();
        if length > 0 {
            self.made += length;
            self.ready.push_back(piece);
        }
    }

    /// Makes the pieces of the next member, or of the archive's end.
    fn advance(&mut self) {
        match self.stage {
            Stage::Root => {
                self.stage = Stage::Members;
                let header = member::header(self.tree, InodeId::ROOT, b"./", None);
                self.push(Piece::Bytes(header));
            }
            Stage::Members => match self.walk.next() {
                Some((path, inode)) => {
                    let path = path.to_owned();
                    self.member(path, inode);
                }
                None => {
                    self.stage = Stage::Done;
                    let end = (self.made + 2 * BLOCK_BYTES).next_multiple_of(RECORD);
                    self.push(Piece::Zeros(end - self.made));
                }
            },
            Stage::Done => {}
        }
    }

    fn member(&mut self, mut path: Vec<u8>, inode: InodeId) {
        let (file_type, links) = (self.tree.inode(inode).file_type(), self.tree.inode(inode).links());
        match file_type {
            FileType::Socket => return,
            FileType::Directory => path.push(b'/'),
            _ if links > 1 => {
                if let Some(first) = self.first_names.get(&inode) {
                    let header = member::header(self.tree, inode, &path, Some(first));
                    self.push(Piece::Bytes(header));
                    return;
                }
                self.first_names.insert(inode, path.clone());
            }
            _ => {}
        }
        let mut header = member::header(self.tree, inode, &path, None);
        if file_type != FileType::Regular {
            self.push(Piece::Bytes(header));
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
        self.push(Piece::Bytes(header));
        for DataRange { offset, length } in ranges.iter().copied() {
            self.push(Piece::File { inode, offset, length });
        }
        let stored: u64 = ranges.iter().map(|range| range.length).sum();
        self.push(Piece::Zeros(stored.next_multiple_of(BLOCK as u64) - stored));
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        while self.ready.is_empty() && !matches!(self.stage, Stage::Done) {
            self.advance();
        }
        self.ready.pop_front()
    }
}
