//! Cleans up at the end of an execution: removes what was made and did not come to its place, and notes what stays
//! under temporary names.

use std::collections::{BTreeSet, HashSet};
use std::io;

use rustix::fs::Stat;
use rustix::io::Errno;

use super::error::MakeError;
use super::execute::{Executor, name_shown};
use super::leftovers::{Leftovers, NamesOfOurs, UNREAD, names_of_ours};
use super::paths::{joined, parent};
use super::progress::OursKind;
use super::seen::Seen;

/// Why a leftover is told.
const STAYS: &str = "it stays under this temporary name; the next apply puts it in order, or tells more of it";

impl Executor<'_, '_> {
    /// The temporary name of a difference, for the report.
    pub(super) fn tell_aside(&mut self, i: usize) -> String {
        let name = self.worker.task.progress.aside(self.sides().path(i));
        let shown = name_shown(&name);
        self.told.insert(name);
        shown
    }

    /// Notes what stays under temporary names, for the next apply, and tells what is not told yet. If nothing failed,
    /// nothing stays.
    pub(super) fn note_beside(&mut self, leftovers: &Leftovers) {
        let task = self.worker.task;
        let known: HashSet<&Vec<u8>> = leftovers.strange(&task.plan.verdicts).map(|(path, _)| path).collect();
        if known.is_empty() && self.outcome.conflicts.is_empty() && self.outcome.failures.is_empty() {
            return;
        }
        let NamesOfOurs { found, unread } = names_of_ours(task.sides, task.progress, self.worker.host);
        let mut listed: BTreeSet<Vec<u8>> = found.into_iter().map(|(path, _)| path).collect();
        listed.extend(known.iter().map(|path| (*path).clone()));
        for path in listed {
            let is_told = known.contains(&path);
            if self.note_name(&path, is_told).is_err() && !is_told {
                self.outcome.failures.push((path, STAYS.to_owned()));
            }
        }
        // In a directory that cannot be listed each name that may be there is looked up. If that fails too, it is noted
        // anyway.
        for above in unread {
            let names = self.names_that_may_be_in(&above, leftovers);
            let looks: Vec<_> = names.iter().map(|path| self.note_name(path, known.contains(path))).collect();
            if looks.iter().any(Result::is_err) {
                self.outcome.failures.push((above, UNREAD.to_owned()));
            }
        }
    }

    /// Notes what has a temporary name, and reports it unless it was reported. If it cannot be looked at, its name is
    /// noted.
    fn note_name(&mut self, path: &[u8], is_told: bool) -> Result<(), Errno> {
        let task = self.worker.task;
        let name = path.get(parent(path).len()..).unwrap_or_default();
        let name = name.strip_prefix(b"/").unwrap_or(name);
        // Directories that cannot be listed are reported too, and have no temporary name.
        let Some(ours) = task.progress.ours(name) else { return Ok(()) };
        let stat = match self.worker.host.stat(path) {
            Ok(Some(stat)) => stat,
            Ok(None) => return Ok(()),
            Err(errno) => {
                self.outcome.beside.insert(path.to_owned(), None);
                return Err(errno);
            }
        };
        let i = task.sides.marked(ours.mark);
        let is_useless = i.is_some_and(|i| match ours.kind {
            OursKind::Part => true,
            OursKind::Aside => self.placed.contains(&i) && self.is_useless(i, &stat),
            OursKind::Away | OursKind::Gone => false,
        });
        let was_useless = task.progress.beside.get(path) == Some(&Some(Seen::of(&stat)));
        if !is_told && !self.told.contains(name) {
            self.outcome.failures.push((path.to_owned(), STAYS.to_owned()));
        }
        self.outcome.beside.insert(path.to_owned(), (is_useless || was_useless).then(|| Seen::of(&stat)));
        Ok(())
    }

    /// The temporary names that may be in use in a directory: those of earlier applies, and those that this one has not
    /// freed for certain.
    fn names_that_may_be_in(&self, above: &[u8], leftovers: &Leftovers) -> BTreeSet<Vec<u8>> {
        let task = self.worker.task;
        let plan = task.plan;
        let may_stay = |i: &usize| {
            let waits = self.made.contains(i) && !self.placed.contains(i);
            let is_old = leftovers.ready.contains_key(i) || leftovers.came_out.contains_key(i);
            waits || is_old || self.failed.contains(i) || self.exchanged.contains(i) || self.taken_back.contains(i)
        };
        let is_in = |i: &usize| {
            let path = task.sides.path(*i);
            let places = [plan.asides.get(i), leftovers.ready.get(i)];
            parent(path) == above || places.into_iter().flatten().any(|place| place == above)
        };
        let mut paths: BTreeSet<Vec<u8>> =
            task.progress.beside.keys().filter(|path| parent(path) == above).cloned().collect();
        for i in (0..plan.verdicts.len()).filter(may_stay).filter(is_in) {
            paths.extend(task.progress.names(task.sides.path(i)).map(|name| joined(above, &name)));
        }
        paths
    }

    /// Whether nobody needs what has the temporary name of a difference, because the difference is in its place.
    fn is_useless(&self, i: usize, stat: &Stat) -> bool {
        let lends = self.missing(i).is_some() || self.not_synced.is_some();
        self.worker.is_made(i, stat) || (!lends && self.worker.is_out_still(i, Some(stat)))
    }

    /// Removes what was made and is not in its place, if it can be made again: everything that it was made of is still
    /// there. Otherwise it stays, and is reported.
    pub(super) fn forget_asides(&mut self, leftovers: &Leftovers) {
        let task = self.worker.task;
        let made = task.plan.asides.keys().chain(leftovers.ready.keys()).chain(&self.taken_back);
        let mut asides: Vec<usize> = made.copied().collect();
        asides.sort_unstable();
        asides.dedup();
        for i in asides {
            let is_left = leftovers.ready.contains_key(&i) || self.made.contains(&i);
            let came_from_there = task.plan.asides.contains_key(&i) && self.placed.contains(&i);
            if !is_left || came_from_there {
                continue;
            }
            let above = leftovers.ready.get(&i);
            let is_last = !self.placed.contains(&i) && self.lender_is_gone(i) && !self.worker.has_other_name(i, above);
            if is_last {
                let name = self.tell_aside(i);
                let reason = format!("it is kept beside its place as {name}");
                self.outcome.failures.push((task.sides.path(i).to_owned(), reason));
                continue;
            }
            if let Err(error) = self.worker.forget_aside(i, above) {
                let name = self.tell_aside(i);
                let why = match error {
                    MakeError::Host(action, errno) => format!("cannot {action} it: {}", io::Error::from(errno)),
                    MakeError::Changed | MakeError::Read | MakeError::Kept(_) | MakeError::NotDropped(_) => {
                        "it is not what was made for it".to_owned()
                    }
                };
                self.failed.insert(i);
                self.outcome.failures.push((task.sides.path(i).to_owned(), format!("{name} stays beside it: {why}")));
            }
        }
    }
}
