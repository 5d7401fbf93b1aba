//! Finds out which differences can only be applied together.
//!
//! A difference that *requires* another one is applied with it or not at all:
//!
//! - A difference that removes a name of a file requires everything that the file lends bytes to: its new name, and
//!   other files that have some of its blocks.
//! - A difference that gives a file attributes or one more name requires everything else that the file lends bytes to.
//! - A file that comes under a new name requires that the old name goes.
//! - What comes into a new directory requires the directory. A directory that goes requires that everything in it goes.
//!
//! A difference that *accompanies* another one is chosen with it, but does not wait for it:
//!
//! - The old and the new name of a directory.
//! - All differences that remove names of one file or give it attributes. The first of them changes the file's times,
//!   after which nobody could tell that from a change of the host's.
//!
//! Renames in chains and cycles follow from this: `mv f1 z; mv f2 f1; mv f3 f2` is one group.

use std::collections::HashMap;

use inarch_tree::InodeId;

use super::sides::Sides;

/// The graph. Its nodes are the differences, by their places, and behind them one for each file that ties several.
pub(super) struct Ties {
    requires: Vec<Vec<u32>>,
    /// What else comes with a difference that was asked for: the two names of a directory, and those of a file.
    accompanies: Vec<Vec<u32>>,
    differences: usize,
}

/// What goes and comes because of one file of the base.
#[derive(Default)]
struct OfFile {
    takes: Vec<u32>,
    /// What gives it attributes or another name.
    touches: Vec<u32>,
    /// What comes and is the file itself.
    moved: Vec<u32>,
    /// What comes and has bytes of it.
    borrowers: Vec<u32>,
    /// What takes a name of it or gives it attributes, if it has several names.
    changes: Vec<u32>,
}

impl Ties {
    pub fn new(sides: &Sides<'_>) -> Ties {
        let differences = sides.differences.len();
        let mut ties =
            Ties { requires: vec![Vec::new(); differences], accompanies: vec![Vec::new(); differences], differences };
        ties.tie_directories(sides);
        for of in files(sides).into_values() {
            ties.tie(of);
        }
        ties
    }

    fn tie(&mut self, of: OfFile) {
        let changes: Vec<u32> = of.takes.iter().chain(&of.touches).copied().collect();
        if !of.borrowers.is_empty() && !changes.is_empty() {
            let all = self.node(of.borrowers);
            changes.into_iter().for_each(|one| self.require(one, all));
        }
        if !of.moved.is_empty() && !of.takes.is_empty() {
            let together: Vec<u32> = of.takes.iter().chain(&of.moved).copied().collect();
            let node = self.node(together.clone());
            together.into_iter().for_each(|one| self.require(one, node));
        }
        // Each brings the next one, and the last the first.
        for (one, next) in of.changes.iter().zip(of.changes.iter().cycle().skip(1)).filter(|(one, next)| one != next) {
            self.accompany(*one, *next);
        }
    }

    fn tie_directories(&mut self, sides: &Sides<'_>) {
        let mut goes: HashMap<InodeId, u32> = HashMap::new();
        for i in 0..self.differences {
            if sides.takes_directory(i)
                && let Some((old, _)) = sides.old(i)
            {
                goes.insert(old, i as u32);
            }
            let Some(above) = sides.above(i) else { continue };
            if sides.brings_directory(above) && sides.new_inode(i).is_some() {
                self.require(i as u32, above as u32);
            }
            if sides.takes_directory(above) && sides.old(i).is_some() {
                self.require(above as u32, i as u32);
            }
        }
        for i in (0..self.differences).filter(|i| sides.brings_directory(*i)) {
            let Some(from) = sides.origin(i).and_then(|old| goes.get(&old).copied()) else { continue };
            self.accompany(i as u32, from);
            self.accompany(from, i as u32);
        }
    }

    fn node(&mut self, requires: Vec<u32>) -> u32 {
        self.requires.push(requires);
        (self.requires.len() - 1) as u32
    }

    fn require(&mut self, one: u32, other: u32) {
        if let Some(list) = self.requires.get_mut(one as usize) {
            list.push(other);
        }
    }

    fn accompany(&mut self, one: u32, other: u32) {
        if let Some(list) = self.accompanies.get_mut(one as usize) {
            list.push(other);
        }
    }

    /// Everything that is to be applied for `asked` to be applied, those included.
    pub fn with_required(&self, asked: &[bool]) -> Vec<bool> {
        let mut chosen = vec![false; self.requires.len()];
        let mut todo: Vec<usize> = (0..self.differences).filter(|i| asked.get(*i) == Some(&true)).collect();
        while let Some(i) = todo.pop() {
            let Some(one) = chosen.get_mut(i).filter(|one| !**one) else { continue };
            *one = true;
            let others = self.requires.get(i).into_iter().chain(self.accompanies.get(i)).flatten();
            todo.extend(others.map(|other| *other as usize));
        }
        chosen.truncate(self.differences);
        chosen
    }

    /// For each difference that cannot be applied because it requires one of `refused`: that one. What `is_done` needs
    /// nothing any more.
    pub fn held(&self, refused: &[usize], is_done: &dyn Fn(usize) -> bool) -> Vec<Option<usize>> {
        let mut required_by: Vec<Vec<u32>> = vec![Vec::new(); self.requires.len()];
        for (i, list) in self.requires.iter().enumerate() {
            for other in list {
                if let Some(by) = required_by.get_mut(*other as usize) {
                    by.push(i as u32);
                }
            }
        }
        let mut held: Vec<Option<usize>> = vec![None; self.requires.len()];
        let mut todo: Vec<(usize, usize)> = refused.iter().map(|i| (*i, *i)).collect();
        while let Some((i, why)) = todo.pop() {
            let Some(one) = held.get_mut(i).filter(|one| one.is_none()) else { continue };
            if i < self.differences && is_done(i) {
                continue;
            }
            *one = Some(why);
            todo.extend(required_by.get(i).into_iter().flatten().map(|by| (*by as usize, why)));
        }
        held.truncate(self.differences);
        held
    }
}

/// What goes and comes, by file of the base.
fn files(sides: &Sides<'_>) -> HashMap<InodeId, OfFile> {
    let mut files: HashMap<InodeId, OfFile> = HashMap::new();
    let mut lenders: HashMap<InodeId, Vec<InodeId>> = HashMap::new();
    for i in 0..sides.differences.len() {
        if let Some((old, _)) = sides.old(i).filter(|_| sides.takes(i)) {
            files.entry(old).or_default().takes.push(i as u32);
        }
        if let Some((old, was)) = sides.old(i).filter(|_| sides.takes(i) || sides.in_place(i) && !sides.is_directory(i))
            && was.links() > 1
        {
            files.entry(old).or_default().changes.push(i as u32);
        }
        if let Some(old) = sides.touches(i) {
            files.entry(old).or_default().touches.push(i as u32);
        }
        let Some((new, _)) = sides.new_inode(i).filter(|_| sides.brings(i)) else { continue };
        if let Some(origin) = sides.origin(i) {
            files.entry(origin).or_default().moved.push(i as u32);
        }
        for lender in lenders.entry(new).or_insert_with(|| sides.lenders(new)) {
            files.entry(*lender).or_default().borrowers.push(i as u32);
        }
    }
    files
}
