//! Turns a tree into an archive stream: a header for the root, members in the order of [`Walk`], and an end, for any
//! format.

use std::collections::VecDeque;
use std::sync::Arc;

use inarch_tree::{InodeId, Tree};

use crate::walk::Walk;
use crate::{Piece, Stream};

/// How a format writes names: called for the root, for each name below it, and for the end.
pub(crate) trait Members<'t>: Send + Sized {
    /// The prefix of all paths.
    const PREFIX: &'static [u8];

    /// Called before the first member of `tree`.
    fn new(tree: &'t Tree) -> Self;

    /// Queues the root's pieces.
    fn root(&mut self, queue: &mut Queue);

    /// Queues the pieces of one name, if it has any.
    fn member(&mut self, path: &[u8], inode: InodeId, queue: &mut Queue);

    /// Queues the pieces of the end.
    fn end(&mut self, queue: &mut Queue);
}

/// Pieces that were made but not yet taken.
#[derive(Default)]
pub(crate) struct Queue {
    ready: VecDeque<Piece>,
    made: u64,
}

impl Queue {
    /// Adds a piece, unless it is empty.
    pub(crate) fn push(&mut self, piece: Piece) {
        let length = piece.length();
        if length > 0 {
            self.made += length;
            self.ready.push_back(piece);
        }
    }

    /// Bytes of all pieces that were added so far.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }
}

/// The position in the archive.
enum Stage {
    Root,
    Members,
    Done,
}

/// The pieces of an archive of a tree.
pub(crate) struct Pieces<'t, M> {
    walk: Walk<'t>,
    members: M,
    stage: Stage,
    queue: Queue,
}

impl<'t, M: Members<'t>> Pieces<'t, M> {
    /// From the archive's first byte.
    pub(crate) fn new(tree: &'t Tree) -> Pieces<'t, M> {
        let walk = Walk::new(tree, M::PREFIX);
        Pieces { walk, members: M::new(tree), stage: Stage::Root, queue: Queue::default() }
    }
}

impl<'t, M: Members<'t>> Iterator for Pieces<'t, M> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        while self.queue.ready.is_empty() {
            match self.stage {
                Stage::Root => {
                    self.stage = Stage::Members;
                    self.members.root(&mut self.queue);
                }
                Stage::Members => match self.walk.next() {
                    Some((path, inode)) => self.members.member(path, inode, &mut self.queue),
                    None => {
                        self.stage = Stage::Done;
                        self.members.end(&mut self.queue);
                    }
                },
                Stage::Done => return None,
            }
        }
        self.queue.ready.pop_front()
    }
}

/// The pieces of a tree, in one format.
type PiecesOf = for<'t> fn(&'t Tree) -> Box<dyn Iterator<Item = Piece> + Send + 't>;

/// A planned archive.
pub(crate) struct Archive {
    tree: Arc<Tree>,
    pieces: PiecesOf,
    length: u64,
}

impl Archive {
    /// Plans the archive of a tree: all of its pieces are made once, to know its length.
    pub(crate) fn new(tree: &Arc<Tree>, pieces: PiecesOf) -> Archive {
        let length = pieces(tree).map(|piece| piece.length()).sum();
        Archive { tree: Arc::clone(tree), pieces, length }
    }
}

impl Stream for Archive {
    fn length(&self) -> u64 {
        self.length
    }

    fn pieces(&self) -> Box<dyn Iterator<Item = Piece> + Send + '_> {
        (self.pieces)(&self.tree)
    }
}
