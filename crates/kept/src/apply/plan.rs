//! Puts the steps of an apply in order. This is a pure function of the decisions, and does not look at the host.
//!
//! 1. *Make* directories, then whole files: each under its final name if that is free, otherwise under a temporary name
//!    beside it. Content is copied before anything is linked, because a link changes a file's times, and then its bytes
//!    are no longer known to be those of the scan.
//! 2. *Sync*, if something was made of bytes in a file that is to go or to be linked.
//! 3. *Exchange* the names of what was made and of what it replaces. What came out keeps the temporary name.
//! 4. *Drop* what came out and *remove* what goes, the deepest first, but only if everything that it lends bytes to is
//!    in its place.
//! 5. *Set attributes* of what stayed where it was, and of directories.
//!
//! Everything is made before anything is removed, so renames may form chains and cycles.

use std::collections::{BTreeMap, HashMap, HashSet};

use inarch_tree::{FileType, Inode, InodeId};

use super::decide::{Decision, Verdict};
use super::host::Volume;
use super::look::Found;
use super::paths::parent;

/// How the new object of a difference, if it is no directory, is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It is made; the content of a regular file is copied.
    New,
    /// It is a link to a file of the host, at this path.
    Link(Vec<u8>),
    /// It is a link to the new object of another difference.
    SameAs(usize),
    /// An earlier apply has made it.
    Ready,
}

/// A step, for the difference with this place in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Make a directory in its place.
    Directory(usize),
    /// Make anything else.
    Make(usize, How),
    /// Make a regular file and put it in its place at once: no other step depends on it.
    MakeAndPlace(usize),
    /// Sync the new objects of these differences.
    Sync(Vec<usize>),
    /// Exchange the names of the new object and the old one.
    Exchange(usize),
    /// Give the new object its name, which is free.
    Enter(usize),
    /// Remove what an exchange took out.
    Drop(usize),
    /// Remove a file.
    Remove(usize),
    /// Remove a directory, which is empty at this step.
    RemoveDirectory(usize),
    /// Set attributes.
    Attributes(usize),
}

/// A plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub verdicts: Vec<Verdict>,
    pub steps: Vec<Step>,
    /// The directory in which the new object of a difference is made under a temporary name.
    pub asides: HashMap<usize, Vec<u8>>,
    /// For each difference that removes a file: the differences that must be in place before, one of each group.
    pub needs: HashMap<usize, Vec<Vec<usize>>>,
    /// For each difference that gives a file attributes or another name: those that must be made before, one of each
    /// group.
    pub lends: HashMap<usize, Vec<Vec<usize>>>,
}

/// For each difference the directory, if any, that replaces a file and that it is in: it can only be made after the
/// exchange.
fn late(decision: &Decision<'_, '_>, verdicts: &[Verdict]) -> Vec<Option<usize>> {
    let sides = decision.sides;
    let mut late: Vec<Option<usize>> = vec![None; verdicts.len()];
    for i in 0..verdicts.len() {
        let inherited = sides.above(i).and_then(|above| late.get(above).copied().flatten());
        let is_wanted = verdicts.get(i) == Some(&Verdict::Wanted) && sides.brings_directory(i);
        let replaces = is_wanted && decision.facts.found.get(i) != Some(&Found::Nothing);
        if let Some(one) = late.get_mut(i) {
            *one = inherited.or(replaces.then_some(i));
        }
    }
    late
}

impl Plan {
    /// The plan that follows from a decision. `came_out`: what an earlier apply has exchanged.
    pub fn new(decision: &Decision<'_, '_>, verdicts: Vec<Verdict>, came_out: &BTreeMap<usize, Vec<u8>>) -> Plan {
        let sides = decision.sides;
        let late = late(decision, &verdicts);
        let mut plan = Plan { verdicts, ..Plan::default() };
        let wanted: Vec<usize> =
            (0..plan.verdicts.len()).filter(|i| plan.verdicts.get(*i) == Some(&Verdict::Wanted)).collect();
        let brought: Vec<usize> = wanted.iter().copied().filter(|i| sides.brings(*i)).collect();
        plan.find_needs(decision);
        plan.find_asides(decision, &wanted, &late);
        let (mut copies, mut links, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        let hows = hows(decision, &brought);
        let before_links = copies_of_what_is_linked(decision, &hows);
        for (i, how) in hows {
            match how {
                How::New if plan.stands_alone(decision, i) && !plan.is_late(i, &late) => {
                    alone.push(Step::MakeAndPlace(i))
                }
                How::New | How::Ready => copies.push(Step::Make(i, how)),
                How::Link(_) | How::SameAs(_) => links.push(Step::Make(i, how)),
            }
        }
        let is_alone: HashSet<usize> =
            alone.iter().filter_map(|step| if let Step::MakeAndPlace(i) = step { Some(*i) } else { None }).collect();
        let directories = wanted.iter().filter(|i| sides.brings_directory(**i) && !plan.is_late(**i, &late));
        let directories: Vec<Step> = directories.map(|i| Step::Directory(*i)).collect();
        let sync = (!before_links.is_empty()).then_some(Step::Sync(before_links));
        plan.steps.extend(directories.into_iter().chain(alone).chain(copies).chain(sync).chain(links));
        plan.place(decision, &wanted, &is_alone, came_out, &late);
        plan
    }

    fn is_late(&self, i: usize, late: &[Option<usize>]) -> bool {
        late.get(i).copied().flatten().is_some()
    }

    fn find_asides(&mut self, decision: &Decision<'_, '_>, wanted: &[usize], late: &[Option<usize>]) {
        let sides = decision.sides;
        for i in wanted.iter().copied() {
            let there = decision.facts.found.get(i) != Some(&Found::Nothing);
            let root = late.get(i).copied().flatten();
            let comes_late = root.is_some() && (sides.brings(i) || root == Some(i));
            if let Some(directory) = decision.ready.get(&i) {
                self.asides.insert(i, directory.clone());
            } else if comes_late || (there && sides.brings(i)) {
                self.asides.insert(i, parent(sides.path(root.unwrap_or(i))).to_owned());
            }
        }
    }

    fn find_needs(&mut self, decision: &Decision<'_, '_>) {
        let sides = decision.sides;
        let mut arrivals: HashMap<InodeId, Vec<usize>> = HashMap::new();
        let mut moved: HashMap<InodeId, Vec<InodeId>> = HashMap::new();
        for i in (0..self.verdicts.len()).filter(|i| sides.brings(*i)) {
            let Some((new, _)) = sides.new_inode(i) else { continue };
            arrivals.entry(new).or_default().push(i);
            if let Some(origin) = sides.origin(i) {
                moved.entry(origin).or_default().push(new);
            }
        }
        for i in (0..self.verdicts.len()).filter(|i| sides.takes(*i)) {
            let Some((old, _)) = sides.old(i) else { continue };
            let mut news: Vec<InodeId> = sides.borrowers(old).to_vec();
            news.extend(moved.get(&old).into_iter().flatten());
            news.sort_unstable();
            news.dedup();
            let groups: Vec<Vec<usize>> = news.iter().filter_map(|new| arrivals.get(new).cloned()).collect();
            if !groups.is_empty() {
                self.needs.insert(i, groups);
            }
        }
        for i in 0..self.verdicts.len() {
            let (Some(old), Some((new, _))) = (sides.touches(i), sides.new_inode(i)) else { continue };
            // A file that is linked from where the host has it is not read.
            let is_read =
                |other: &InodeId| arrivals.get(other).is_none_or(|all| all.iter().any(|i| decision.link(*i).is_none()));
            let others = sides.borrowers(old).iter().filter(|other| **other != new && is_read(other));
            let groups = others.filter_map(|other| arrivals.get(other).cloned());
            self.lends.insert(i, groups.collect());
        }
    }

    fn place(
        &mut self,
        decision: &Decision<'_, '_>,
        wanted: &[usize],
        is_alone: &HashSet<usize>,
        came_out: &BTreeMap<usize, Vec<u8>>,
        late: &[Option<usize>],
    ) {
        let sides = decision.sides;
        let is_there = |i: usize| decision.facts.found.get(i) != Some(&Found::Nothing);
        let (mut exchanges, mut drops, mut removals, mut attributes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for i in wanted.iter().copied().filter(|i| !is_alone.contains(i)) {
            // A directory that has gone already may have a torn file in its place.
            let is_torn = decision.facts.found.get(i) == Some(&Found::Torn);
            let takes_directory = sides.takes_directory(i) && is_there(i) && !is_torn;
            let root = late.get(i).copied().flatten();
            let is_aside = self.asides.contains_key(&i) && root.is_none() && !takes_directory;
            if is_aside && !is_there(i) {
                exchanges.push(Step::Enter(i));
            } else if root == Some(i) || is_aside {
                exchanges.push(Step::Exchange(i));
                drops.push(Step::Drop(i));
            } else if root.is_some() && sides.brings(i) {
                exchanges.push(Step::Enter(i));
            } else if root.is_some() {
                exchanges.push(Step::Directory(i));
            } else if takes_directory {
                removals.push(Step::RemoveDirectory(i));
            } else if sides.new_inode(i).is_none() && is_there(i) {
                removals.push(Step::Remove(i));
            }
        }
        let is_placed = |i: &&usize| matches!(self.verdicts.get(**i), Some(Verdict::Done | Verdict::Attributes));
        drops.extend(came_out.keys().filter(is_placed).copied().map(Step::Drop));
        for i in (0..self.verdicts.len()).filter(|i| self.verdicts.get(*i) == Some(&Verdict::Attributes)) {
            attributes.push(Step::Attributes(i));
        }
        // The deepest first; what comes into the place of a directory comes when that has gone.
        removals.reverse();
        let mut last = Vec::new();
        for step in removals {
            let enters = if let Step::RemoveDirectory(i) = step { sides.brings(i).then_some(i) } else { None };
            last.push(step);
            last.extend(enters.map(Step::Enter));
        }
        self.sync_what_borrows(exchanges.iter().chain(&drops).chain(&last).chain(&attributes).cloned().collect());
        self.steps.extend(exchanges.into_iter().chain(drops).chain(last).chain(attributes));
    }
}

impl Plan {
    /// Plans a sync, if `takes` remove what lends bytes.
    fn sync_what_borrows(&mut self, takes: Vec<Step>) {
        let taken = takes.iter().filter_map(|step| match step {
            Step::Exchange(i) | Step::Drop(i) | Step::Remove(i) => self.needs.get(i),
            Step::Attributes(i) => self.lends.get(i),
            _ => None,
        });
        let mut borrowers: Vec<usize> = taken.flatten().flatten().copied().collect();
        borrowers.sort_unstable();
        borrowers.dedup();
        if !borrowers.is_empty() {
            self.steps.push(Step::Sync(borrowers));
        }
    }

    /// Whether the new object of a difference is a regular file with one name that borrows nothing and replaces what
    /// nothing else needs.
    fn stands_alone(&self, decision: &Decision<'_, '_>, i: usize) -> bool {
        let sides = decision.sides;
        let Some((new, is)) = sides.new_inode(i) else { return false };
        let is_plain = |inode: &Inode| inode.file_type() == FileType::Regular && inode.links() == 1;
        is_plain(is)
            && sides.origin(i).is_none()
            && sides.lenders(new).is_empty()
            && sides.old(i).is_none_or(|(_, was)| is_plain(was))
            && !self.needs.contains_key(&i)
            && !sides.takes_directory(i)
    }
}

/// How each new object is made.
fn hows(decision: &Decision<'_, '_>, brought: &[usize]) -> Vec<(usize, How)> {
    let ready = decision.ready;
    let sides = decision.sides;
    // Names in different volumes are different files.
    let group = |new: InodeId, i: usize| (new, decision.volume(parent(sides.path(i))));
    let mut first: HashMap<(InodeId, Option<Volume>), usize> = HashMap::new();
    let mut hows = Vec::new();
    // What is ready is what others can be linked to.
    for i in brought.iter().copied().filter(|i| ready.contains_key(i)) {
        if let Some((new, _)) = sides.new_inode(i) {
            first.entry(group(new, i)).or_insert(i);
            hows.push((i, How::Ready));
        }
    }
    for i in brought.iter().copied().filter(|i| !ready.contains_key(i)) {
        let Some((new, is)) = sides.new_inode(i) else { continue };
        let how = match decision.link(i) {
            Some(name) => How::Link(name),
            None if is.links() > 1 => match first.get(&group(new, i)) {
                Some(first) => How::SameAs(*first),
                None => {
                    first.insert(group(new, i), i);
                    How::New
                }
            },
            None => How::New,
        };
        hows.push((i, how));
    }
    hows
}

/// Copies with bytes of a file that is linked. A link changes the file's times, so that after a crash nobody could
/// compare the copy with it.
fn copies_of_what_is_linked(decision: &Decision<'_, '_>, hows: &[(usize, How)]) -> Vec<usize> {
    let sides = decision.sides;
    let linked =
        hows.iter().filter_map(|(_, how)| if let How::Link(name) = how { sides.base.lookup(name) } else { None });
    let borrowers: HashSet<InodeId> = linked.flat_map(|old| sides.borrowers(old)).copied().collect();
    let is_copy = |(i, how): &&(usize, How)| {
        *how == How::New && sides.new_inode(*i).is_some_and(|(new, _)| borrowers.contains(&new))
    };
    hows.iter().filter(is_copy).map(|(i, _)| *i).collect()
}
