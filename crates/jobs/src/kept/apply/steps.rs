//! The steps of an apply, each of which may be the last before a crash and the first after it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use inarch_tree::compare::{Aspects, Difference, Lineage};
use inarch_tree::{FileType, InodeId};
use rustix::io::Errno;

use super::attributes::{Lost, Target, set_attributes};
use super::check::{Check, Verdict};
use super::host::{Host, file_type};
use super::links::Names;
use super::make::{MakeError, host};
use super::{ApplyReport, crew, host_path};
use crate::kept::diff::TreeDiff;

/// What is done about a difference, in a word.
pub(super) fn verb(difference: &Difference) -> &'static str {
    match (difference.old, difference.new) {
        (None, _) => "add",
        (_, None) => "remove",
        _ if difference.aspects.beyond_attributes() => "change",
        _ => "attributes",
    }
}

/// What every thread that applies the differences of one tree knows.
pub(super) struct Task<'a> {
    pub tree: &'a TreeDiff,
    pub by_path: HashMap<&'a [u8], &'a Difference>,
    pub names: Names,
    pub token: &'a str,
    pub force: bool,
}

/// A difference that is to be applied.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub difference: &'a Difference,
    /// Whether the host has nothing there.
    pub absent: bool,
}

/// What was done, and what was not.
#[derive(Default)]
pub(super) struct Outcome {
    done: Vec<(&'static str, Vec<u8>)>,
    conflicts: Vec<(Vec<u8>, String)>,
    failures: Vec<(Vec<u8>, String)>,
    /// The paths of conflicts and failures: nothing more is done there.
    failed: HashSet<Vec<u8>>,
    /// Directories in which something was done.
    touched: BTreeSet<Vec<u8>>,
    pub lost: Lost,
}

/// Applies differences of one tree, in one thread.
pub(super) struct Applier<'a, 'h> {
    pub task: &'a Task<'a>,
    pub host: &'h mut Host,
    /// Where on the host an inode of the guest with several names is already.
    pub anchors: HashMap<InodeId, Vec<u8>>,
    /// What is copied goes through it.
    pub buffer: Vec<u8>,
    pub outcome: Outcome,
}

/// Applies what `check` found fit to be applied; what fails is reported, and the rest goes on.
pub(super) fn apply_tree(check: &Check<'_>, host: &mut Host, token: &str, force: bool, report: &mut ApplyReport) {
    let task = Task::new(check.tree, token, force);
    let steps: Vec<Step<'_>> = check.wanted().map(|(difference, absent)| Step { difference, absent }).collect();
    let (alone, entangled): (Vec<Step<'_>>, Vec<Step<'_>>) =
        steps.iter().filter(|step| step.difference.new.is_some()).partition(|step| task.stands_alone(step.difference));
    let mut applier = Applier::new(&task, host);
    applier.find_anchors(check, &entangled);
    for step in &entangled {
        applier.attempt(step, Applier::put_aside);
    }
    for step in &entangled {
        applier.attempt(step, Applier::put);
    }
    crew::put_all(&mut applier, &alone);
    for step in steps.iter().rev().filter(|step| step.difference.old.is_some()) {
        applier.attempt(step, Applier::take_away);
    }
    applier.finish_directories(&steps);
    applier.outcome.tell(check.tree, report);
}

impl<'a> Task<'a> {
    fn new(tree: &'a TreeDiff, token: &'a str, force: bool) -> Task<'a> {
        let by_path = tree.differences.iter().map(|difference| (&difference.path[..], difference)).collect();
        Task { tree, by_path, names: Names::new(tree), token, force }
    }

    /// Whether a step makes or changes one file, and no other step has to do with that file, before or after: such
    /// steps may be taken in any order, by any thread, once their directories are there.
    fn stands_alone(&self, difference: &Difference) -> bool {
        let (base, guest) = (&self.tree.disk.base, &self.tree.disk.guest);
        let is_single = |inode: &inarch_tree::Inode| inode.file_type() == FileType::Regular && inode.links() == 1;
        let was_single = difference.old.is_none_or(|id| is_single(base.inode(id)));
        let came_from = |id: InodeId| self.tree.disk.origin(id).is_none_or(|origin| Some(origin) == difference.old);
        was_single && difference.new.is_some_and(|id| is_single(guest.inode(id)) && came_from(id))
    }
}

impl Outcome {
    /// Takes in what another thread did.
    pub fn join(&mut self, other: Outcome) {
        self.done.extend(other.done);
        self.conflicts.extend(other.conflicts);
        self.failures.extend(other.failures);
        self.failed.extend(other.failed);
        self.touched.extend(other.touched);
        self.lost.owners += other.lost.owners;
        self.lost.xattrs += other.lost.xattrs;
    }

    fn fail(&mut self, path: &[u8], error: &MakeError) {
        let list = if let MakeError::Host(_, Errno::EXIST) = error { &mut self.conflicts } else { &mut self.failures };
        let reason = match error {
            MakeError::Host(action, Errno::EXIST) => {
                format!("cannot {action} it: something else came there meanwhile")
            }
            MakeError::Host(action, errno) => format!("cannot {action} it: {}", io::Error::from(*errno)),
            MakeError::Read => "its content cannot be read: the host's file that it was made from changed".to_owned(),
        };
        list.push((path.to_owned(), reason));
        self.failed.insert(path.to_owned());
    }

    fn did(&mut self, difference: &Difference) {
        let path = &difference.path[..];
        let above = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        if !self.touched.contains(above) {
            self.touched.insert(above.to_owned());
        }
        self.done.push((verb(difference), path.to_owned()));
    }

    /// Tells it of the paths of `tree`, in their order.
    fn tell(mut self, tree: &TreeDiff, report: &mut ApplyReport) {
        self.done.sort_by(|a, b| a.1.cmp(&b.1));
        report.done.extend(self.done.iter().map(|(verb, path)| (*verb, host_path(tree, path))));
        let told = |mut list: Vec<(Vec<u8>, String)>| {
            list.sort();
            list.into_iter().map(|(path, reason)| (host_path(tree, &path), reason)).collect::<Vec<_>>()
        };
        report.conflicts.extend(told(self.conflicts));
        report.failures.extend(told(self.failures));
        let Lost { owners, xattrs } = self.lost;
        if owners > 0 {
            report.lost.push(format!("the owners of {owners} files could not be set, for want of privilege"));
        }
        if xattrs > 0 {
            let line = format!("{xattrs} extended attributes could not be set, for want of privilege or support");
            report.lost.push(line);
        }
    }
}

impl<'a, 'h> Applier<'a, 'h> {
    pub fn new(task: &'a Task<'a>, host: &'h mut Host) -> Applier<'a, 'h> {
        Applier { task, host, anchors: HashMap::new(), buffer: Vec::new(), outcome: Outcome::default() }
    }

    /// Files of the guest that are on the host already, under names to link others to.
    fn find_anchors(&mut self, check: &Check<'_>, steps: &[Step<'_>]) {
        let task = self.task;
        let done: BTreeSet<&[u8]> = task
            .tree
            .differences
            .iter()
            .zip(&check.verdicts)
            .filter(|(_, verdict)| **verdict == Verdict::Done)
            .map(|(difference, _)| &difference.path[..])
            .collect();
        let guest = &task.tree.disk.guest;
        for id in steps.iter().filter_map(|step| step.difference.new).filter(|id| guest.inode(*id).links() > 1) {
            if guest.inode(id).file_type() == FileType::Directory || self.anchors.contains_key(&id) {
                continue;
            }
            let names = task.names.of_guest(guest, id);
            let is_there = |name: &&Vec<u8>| match task.by_path.get(&name[..]) {
                None => true,
                Some(difference) => done.contains(&name[..]) || self.is_in_place(difference),
            };
            if let Some(name) = names.iter().find(is_there) {
                self.anchors.insert(id, name.clone());
            }
        }
    }

    /// Takes a step, unless one for the same path has failed.
    pub fn attempt(&mut self, step: &Step<'_>, action: fn(&mut Self, &Step<'_>) -> Result<bool, MakeError>) {
        let path = &step.difference.path[..];
        if !self.outcome.failed.is_empty() && self.outcome.failed.contains(path) {
            return;
        }
        match action(self, step) {
            Ok(true) => self.outcome.did(step.difference),
            Ok(false) => {}
            Err(error) => self.outcome.fail(path, &error),
        }
    }

    /// Directories that are new or have other attributes get them, the deepest first; those in which something was
    /// done get their times.
    fn finish_directories(&mut self, steps: &[Step<'_>]) {
        let tree = self.task.tree;
        let guest = &tree.disk.guest;
        let is_directory = |id: InodeId| guest.inode(id).file_type() == FileType::Directory;
        let mut directories: Vec<(&[u8], Option<&Difference>)> = steps
            .iter()
            .map(|step| step.difference)
            .filter(|difference| difference.new.is_some_and(is_directory))
            .map(|difference| (&difference.path[..], Some(difference)))
            .collect();
        let touched = std::mem::take(&mut self.outcome.touched);
        directories.extend(
            touched.iter().filter(|path| !self.task.by_path.contains_key(&path[..])).map(|path| (&path[..], None)),
        );
        directories.sort_by(|a, b| b.0.cmp(a.0));
        for (path, step) in directories {
            let Some(new) = guest.lookup(path).filter(|id| is_directory(*id)) else { continue };
            let old = tree.disk.base.lookup(path);
            let same = Difference { path: path.to_owned(), old, new: Some(new), aspects: Aspects::default() };
            let failed = self.set_directory(step.unwrap_or(&same));
            if let (Err(error), Some(_)) = (failed, step) {
                self.outcome.fail(path, &error);
            }
        }
    }

    fn set_directory(&mut self, step: &Difference) -> Result<(), MakeError> {
        let (directory, name) = self.host.parent(&step.path).map_err(host("reach"))?;
        let Some(stat) = directory.stat(name).map_err(host("look at"))? else { return Ok(()) };
        if file_type(&stat) != Some(FileType::Directory) {
            return Ok(());
        }
        let is_new = step.old.is_none();
        // A new directory is whose this process is until its owner is set.
        let wanted = self.wanted(step, Some(&stat).filter(|_| !is_new));
        let inherits = is_new && directory.gives_acl;
        set_attributes(Target::Named(&directory, name), inherits, &wanted, &mut self.outcome.lost)
    }
}
