//! Executes a plan. Each step may be the last one before a crash, and each call may fail: what fails is reported, and
//! the rest goes on.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;

use rustix::fs::Stat;
use rustix::io::Errno;

use super::attributes::Lost;
use super::crew;
use super::decide::Verdict;
use super::error::MakeError;
use super::host::Host;
use super::leftovers::Leftovers;
use super::look::Found;
use super::paths::{is_beneath, parent};
use super::plan::{How, Step};
use super::progress::Durable;
use super::seen::{Identity, Seen};
use super::sides::Sides;
use super::worker::{Task, Worker};

/// The most files that are synced one by one. For more the whole file system is.
const SYNCED_ONE_BY_ONE: usize = 32;

/// Records files that are durable on the host.
pub(super) type Remember<'r> = dyn FnMut(Vec<(Vec<u8>, Durable)>) -> io::Result<()> + 'r;

/// What was done, what was not, and why.
#[derive(Default)]
pub(super) struct Outcome {
    /// Differences that are applied.
    pub done: BTreeSet<usize>,
    pub conflicts: Vec<(Vec<u8>, String)>,
    pub failures: Vec<(Vec<u8>, String)>,
    pub lost: Lost,
    /// Files that stay as they were scanned, except for the time that a link gave them, by path.
    pub touched: HashMap<Vec<u8>, Seen>,
    /// A sync failed. The kernel reports a failed write once, so a later sync proves nothing.
    pub in_doubt: bool,
    /// Attributes of something that is in its place could not be set, for a reason that may pass.
    pub unfinished: bool,
    /// What stays under temporary names, by path, with its identity if nobody needs it any more.
    pub beside: HashMap<Vec<u8>, Option<Seen>>,
}

/// Executes the plan of one tree.
pub(super) struct Executor<'e, 'a> {
    pub(super) worker: Worker<'e, 'a>,
    /// Differences whose object is whole, in its place or beside it.
    pub(super) made: HashSet<usize>,
    /// Differences whose object is in its place.
    pub(super) placed: HashSet<usize>,
    /// Differences whose old object has the temporary name.
    pub(super) exchanged: BTreeSet<usize>,
    /// Differences whose old object is back in its place, and whose new one has the temporary name.
    pub(super) taken_back: BTreeSet<usize>,
    pub(super) failed: HashSet<usize>,
    /// Why nothing that lends bytes may be removed.
    pub(super) not_synced: Option<String>,
    /// Temporary names that the user is told of.
    pub(super) told: HashSet<Vec<u8>>,
    pub(super) outcome: Outcome,
}

/// Executes a plan: what fails is reported, and the rest goes on.
pub(super) fn execute(
    task: &Task<'_, '_>,
    host: &mut Host,
    leftovers: &Leftovers,
    remember: &mut Remember<'_>,
) -> Outcome {
    let is_placed = |i: &usize| matches!(task.plan.verdicts.get(*i), Some(Verdict::Done | Verdict::Attributes));
    let placed: HashSet<usize> = (0..task.plan.verdicts.len()).filter(is_placed).collect();
    let mut executor = Executor {
        worker: Worker::new(task, host),
        made: placed.clone(),
        placed,
        exchanged: BTreeSet::new(),
        taken_back: BTreeSet::new(),
        failed: HashSet::new(),
        not_synced: None,
        told: HashSet::new(),
        outcome: Outcome::default(),
    };
    executor.worker.touched.extend(linked_before(task));
    let ready = &leftovers.ready_as;
    executor.worker.made_as.extend(ready.iter().map(|(i, stat)| (*i, Identity::of(stat))));
    executor.worker.brought_as.extend(ready);
    executor.all(leftovers, remember);
    executor.outcome.in_doubt = executor.not_synced.is_some();
    executor.outcome.lost = std::mem::take(&mut executor.worker.lost);
    executor.outcome
}

pub(super) fn name_shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Inode numbers of what an interrupted apply may have given names or attributes.
fn linked_before(task: &Task<'_, '_>) -> Vec<u64> {
    if !task.progress.begun {
        return Vec::new();
    }
    task.facts.stats.iter().flatten().map(|stat| stat.st_ino).collect()
}

impl<'a> Executor<'_, 'a> {
    pub(super) fn sides(&self) -> &Sides<'a> {
        self.worker.task.sides
    }

    fn all(&mut self, leftovers: &Leftovers, remember: &mut Remember<'_>) {
        let task = self.worker.task;
        self.exchanged.extend(leftovers.came_out.keys().filter(|i| self.placed.contains(i)));
        let steps = &task.plan.steps;
        let is_copy = |step: &Step| matches!(step, Step::MakeAndPlace(_) | Step::Make(_, How::New));
        let is_drop = |step: &Step| matches!(step, Step::Drop(_));
        let mut at = 0;
        while let Some(step) = steps.get(at) {
            if is_copy(step) {
                let count = steps.iter().skip(at).take_while(|step| is_copy(step)).count();
                self.copy_all(steps.get(at..at + count).unwrap_or_default());
                at += count;
                continue;
            }
            if is_drop(step) && !at.checked_sub(1).and_then(|last| steps.get(last)).is_some_and(is_drop) {
                self.put_back();
            }
            self.step(step, remember);
            at += 1;
        }
        self.finish_directories();
        self.forget_asides(leftovers);
        self.note_beside(leftovers);
        self.note_touched();
    }

    /// Notes files that were to go, did not, and were linked by this apply or an earlier one, so that the next apply
    /// knows them again.
    fn note_touched(&mut self) {
        let task = self.worker.task;
        let gets_attributes = |i: &usize| task.sides.in_place(*i) && !task.sides.is_directory(*i);
        let is_left = |i: &usize| match gets_attributes(i) {
            true => !self.outcome.done.contains(i),
            false => task.sides.takes(*i) && !self.placed.contains(i),
        };
        let left: Vec<usize> = (0..task.plan.verdicts.len()).filter(is_left).collect();
        for i in left {
            let path = task.sides.path(i);
            // A file that changed since then does not match it.
            let mut touched = task.facts.touched.get(path).copied();
            let there = self.worker.host.parent(path).and_then(|(directory, name)| directory.stat(name));
            if let Ok(Some(stat)) = there
                && let Some(seen) = task.facts.stats.get(i).copied().flatten()
                && Seen::of(&stat).is_still(&Seen::of(&seen))
                && self.worker.touched.contains(&stat.st_ino)
                // What is a conflict stays one.
                && task.plan.verdicts.get(i).is_some_and(Verdict::is_wanted)
            {
                touched = Some(Seen::of(&stat));
            }
            self.outcome.touched.extend(touched.map(|seen| (path.to_owned(), seen)));
        }
    }

    fn step(&mut self, step: &Step, remember: &mut Remember<'_>) {
        match step {
            Step::Sync(made) => self.sync(made, remember),
            Step::Directory(i) => {
                if self.has_directory(*i) {
                    let done = self.worker.directory(*i);
                    self.note_placed(*i, done);
                }
            }
            Step::Make(i, how) => {
                let first_is_there = if let How::SameAs(first) = how { self.made.contains(first) } else { true };
                let may_touch = !matches!(how, How::Link(_)) || self.may_touch(*i);
                if first_is_there && may_touch && self.has_directory(*i) {
                    let made = self.worker.make(*i, how);
                    self.note_made(*i, made);
                }
            }
            Step::MakeAndPlace(_) => {}
            Step::Exchange(i) => self.exchange(*i),
            Step::Enter(i) => {
                if self.made.contains(i) && self.has_directory(*i) && !self.failed.contains(i) {
                    let entered = self.worker.enter(*i);
                    self.note_placed(*i, entered);
                }
            }
            Step::Drop(i) => {
                if self.exchanged.contains(i) && self.may_take(*i) {
                    let dropped = self.worker.drop_out(*i);
                    if self.note(*i, dropped) {
                        self.exchanged.remove(i);
                    }
                }
            }
            Step::Remove(i) => {
                if self.may_take(*i) {
                    let removed = self.worker.remove(*i);
                    self.note_placed(*i, removed);
                }
            }
            Step::RemoveDirectory(i) => {
                let path = self.sides().path(*i).to_owned();
                if !self
                    .failed
                    .iter()
                    .any(|j| self.sides().path(*j) != path && is_beneath(self.sides().path(*j), &path))
                {
                    let removed = self.worker.remove_directory(*i);
                    if self.note(*i, removed) && self.sides().new_inode(*i).is_none() {
                        self.placed.insert(*i);
                        self.outcome.done.insert(*i);
                    }
                } else {
                    self.failed.insert(*i);
                }
            }
            Step::Attributes(i) => {
                if !self.sides().is_directory(*i) && self.may_touch(*i) {
                    let made = self.worker.task.progress.had_begun(self.sides().path(*i));
                    let set = self.worker.attributes(*i, made);
                    if self.note(*i, set) {
                        self.outcome.done.insert(*i);
                    }
                }
            }
        }
    }

    /// Whether the directory of a difference is there.
    fn has_directory(&mut self, i: usize) -> bool {
        let above = self.sides().above(i).filter(|above| self.sides().brings_directory(*above));
        let is_aside = self.worker.task.plan.asides.contains_key(&i) && !self.made.contains(&i);
        let has = is_aside || above.is_none_or(|above| self.placed.contains(&above));
        if !has {
            // The report names the directory.
            self.failed.insert(i);
        }
        has
    }

    fn copy_all(&mut self, steps: &[Step]) {
        let mut fit = Vec::new();
        for step in steps {
            let (Step::MakeAndPlace(i) | Step::Make(i, _)) = step else { continue };
            if self.has_directory(*i) {
                fit.push((*i, matches!(step, Step::MakeAndPlace(_))));
            }
        }
        for (i, at_once, made) in crew::make_all(&mut self.worker, &fit) {
            if at_once {
                self.note_placed(i, made);
            } else {
                self.note_made(i, made);
            }
        }
    }

    /// Whether a file may get attributes or another name: everything else that has bytes of it is made and on the disk.
    fn may_touch(&mut self, i: usize) -> bool {
        let Some(groups) = self.worker.task.plan.lends.get(&i) else { return true };
        if let Some(reason) = &self.not_synced {
            let reason = format!("left alone: {reason}");
            self.fail(i, reason);
            return false;
        }
        let are_made = groups.iter().all(|group| group.iter().any(|one| self.made.contains(one)));
        if !are_made {
            self.fail(i, "left alone: something has bytes of it, and could not be made".to_owned());
        }
        are_made
    }

    fn exchange(&mut self, i: usize) {
        let is_made = self.made.contains(&i) || self.sides().is_directory(i);
        if !is_made || self.failed.contains(&i) || !self.is_synced(i) {
            return;
        }
        let needs = self.worker.task.plan.needs.get(&i).into_iter().flatten();
        if !needs.into_iter().all(|group| group.iter().any(|one| self.made.contains(one))) {
            self.fail(i, "left alone: something has bytes of it, and could not be made".to_owned());
            return;
        }
        let exchanged = self.worker.exchange(i);
        if self.note_placed(i, exchanged) {
            self.exchanged.insert(i);
        }
    }

    /// Whether everything that borrowed bytes of a file is on the disk. Reports it if not.
    fn is_synced(&mut self, i: usize) -> bool {
        match &self.not_synced {
            Some(reason) if self.worker.task.plan.needs.contains_key(&i) => {
                let reason = format!("left alone: {reason}");
                self.fail(i, reason);
                false
            }
            _ => true,
        }
    }

    /// A difference that borrows bytes of a file and is not in its place.
    pub(super) fn missing(&self, i: usize) -> Option<usize> {
        self.missing_beside(i, &mut HashSet::new())
    }

    fn missing_beside(&self, i: usize, seen: &mut HashSet<usize>) -> Option<usize> {
        let groups = self.worker.task.plan.needs.get(&i)?;
        let mut is_there = |one: &usize| self.placed.contains(one) || self.waits(*one, seen);
        groups.iter().find(|group| !group.iter().any(&mut is_there))?.first().copied()
    }

    /// Whether the object of a difference waits beside a directory that it replaces, until that is empty. It waits in
    /// vain if anything in the directory stays. `seen` are the differences that are being asked about.
    fn waits(&self, i: usize, seen: &mut HashSet<usize>) -> bool {
        let sides = self.sides();
        if !sides.takes_directory(i) || !self.made.contains(&i) || self.failed.contains(&i) {
            return false;
        }
        if !seen.insert(i) {
            return true;
        }
        let mut inside = (i + 1..sides.differences.len()).take_while(|j| is_beneath(sides.path(*j), sides.path(i)));
        inside.all(|j| match self.worker.task.plan.verdicts.get(j) {
            Some(Verdict::Wanted) => !self.failed.contains(&j) && self.missing_beside(j, seen).is_none(),
            Some(Verdict::Done | Verdict::Attributes) | None => true,
            Some(Verdict::Refused(_) | Verdict::Held(_) | Verdict::Left) => {
                self.worker.task.facts.found.get(j) == Some(&Found::Nothing)
            }
        })
    }

    /// Whether a file that lent bytes to what was made for `i` was removed, now or before, or cannot be read any more.
    pub(super) fn lender_is_gone(&self, i: usize) -> bool {
        let task = self.worker.task;
        let needs = &task.plan.needs;
        let lenders = task.sides.new_inode(i).map(|(new, _)| task.sides.lenders(new)).unwrap_or_default();
        // A file whose times this apply changed looks like one that somebody else changed: nobody reads it any more.
        let lends = |stat: &Stat| !self.worker.touched.contains(&stat.st_ino);
        let is_there = |old| {
            let lender = task.facts.lenders.get(old).filter(|lender| lender.readable);
            lender.is_some_and(|lender| lender.stat.as_ref().is_none_or(lends))
        };
        if !lenders.iter().all(is_there) {
            return true;
        }
        self.outcome
            .done
            .iter()
            .any(|j| needs.get(j).is_some_and(|groups| groups.iter().flatten().any(|one| *one == i)))
    }

    fn may_take(&mut self, i: usize) -> bool {
        if !self.is_synced(i) {
            return false;
        }
        let Some(missing) = self.missing(i) else { return true };
        let path = self.sides().host_path(self.sides().path(missing));
        self.fail(i, format!("left alone: {path} has bytes of it, and is not in its place"));
        false
    }

    /// Puts back what lends bytes to something that is not in its place, and what another program has written to since.
    fn put_back(&mut self) {
        let changed: HashSet<usize> = self.exchanged.clone().into_iter().filter(|i| self.has_changed(*i)).collect();
        while let Some(i) = self.exchanged.iter().copied().find(|i| changed.contains(i) || self.missing(*i).is_some()) {
            self.exchanged.remove(&i);
            let why = match changed.contains(&i) {
                true => "it changed meanwhile",
                false => "something has bytes of it, and is not in its place",
            };
            let back =
                if self.sides().is_directory(i) { Err(MakeError::Changed) } else { self.worker.exchange_back(i) };
            match back {
                Ok(()) => {
                    self.taken_back.insert(i);
                    self.placed.remove(&i);
                    self.outcome.done.remove(&i);
                    self.fail(i, format!("left alone: {why}"));
                }
                Err(MakeError::Changed) => {
                    let name = self.tell_aside(i);
                    self.fail(i, format!("what was there is kept beside it as {name}: {why}"));
                }
                Err(error) => drop(self.note(i, Err(error))),
            }
        }
    }

    /// Whether what an exchange took out was changed since.
    fn has_changed(&mut self, i: usize) -> bool {
        matches!(self.worker.is_out(i), Ok(false))
    }

    /// Syncs what was made, and records it as durable.
    fn sync(&mut self, made: &[usize], remember: &mut Remember<'_>) {
        // See [`Outcome::in_doubt`].
        if self.not_synced.is_some() {
            return;
        }
        let there: Vec<usize> = made.iter().copied().filter(|i| self.made.contains(i)).collect();
        if let Err(reason) = self.try_sync(&there, remember) {
            self.worker.host.calls.sync_failed();
            self.not_synced = Some(reason);
        }
    }

    fn try_sync(&mut self, there: &[usize], remember: &mut Remember<'_>) -> Result<(), String> {
        let fail = |errno: Errno| format!("what was made of it may not be on the disk: {}", io::Error::from(errno));
        let (mut durable, mut other_names) = (BTreeMap::new(), BTreeMap::new());
        let mut places = Vec::new();
        for i in there {
            let place = match self.placed.contains(i) {
                true => self.worker.host.parent(self.sides().path(*i)).map(|(dir, name)| (dir, name.to_owned())),
                false => self.worker.made_at(*i).map_err(|_| Errno::IO),
            };
            let (directory, name) = place.map_err(fail)?;
            let stat = directory.stat(&name).map_err(fail)?.ok_or_else(|| fail(Errno::NOENT))?;
            let sides = self.sides();
            if let Some((new, _)) = sides.new_inode(*i).filter(|(new, _)| !sides.lenders(*new).is_empty()) {
                let made = Durable::of(&Seen::of(&stat));
                // Its other names will lead to the same file.
                let others = sides.names.of_guest(sides.guest, new);
                other_names.extend(others.into_iter().map(|name| (name, made)));
                durable.insert(sides.path(*i).to_owned(), made);
            }
            places.push((directory, name));
        }
        if places.len() <= SYNCED_ONE_BY_ONE {
            places.iter().try_for_each(|(directory, name)| directory.sync_file(name)).map_err(fail)?;
        } else {
            let task = self.worker.task;
            self.worker.host.sync(there.iter().map(|i| task.sides.path(*i))).map_err(fail)?;
        }
        // Where nothing can be linked each name has its own file.
        other_names.append(&mut durable);
        remember(other_names.into_iter().collect())
            .map_err(|error| format!("it cannot be noted that what was made of it is on the disk: {error}"))
    }

    fn note_made(&mut self, i: usize, made: Result<(), MakeError>) {
        if !self.note(i, made) {
            return;
        }
        self.made.insert(i);
        if !self.worker.task.plan.asides.contains_key(&i) {
            self.placed.insert(i);
            self.outcome.done.insert(i);
        }
    }

    fn note_placed(&mut self, i: usize, placed: Result<(), MakeError>) -> bool {
        let is_out = matches!(placed, Err(MakeError::NotDropped(_)));
        let is_placed = self.note(i, placed) || is_out;
        if is_placed {
            self.made.insert(i);
            self.placed.insert(i);
            self.outcome.done.insert(i);
        }
        is_placed
    }

    /// What is in its place without all its attributes is not applied.
    fn note_attributes(&mut self, i: usize, set: Result<(), MakeError>) {
        let passes = [Errno::DQUOT, Errno::IO, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOSPC];
        self.outcome.unfinished |= matches!(set, Err(MakeError::Host(_, errno)) if passes.contains(&errno));
        match self.note(i, set) {
            true => self.outcome.done.insert(i),
            false => self.outcome.done.remove(&i),
        };
    }

    fn note(&mut self, i: usize, result: Result<(), MakeError>) -> bool {
        let Err(error) = result else { return true };
        let path = self.sides().path(i).to_owned();
        if self.failed.insert(i) {
            match error {
                MakeError::Changed => {
                    self.outcome.conflicts.push((path, "it changed on the host meanwhile".to_owned()));
                }
                MakeError::Host(_, Errno::EXIST) => {
                    self.outcome.conflicts.push((path, "something else came there meanwhile".to_owned()));
                }
                MakeError::Kept(name) => {
                    let reason = format!("what came there meanwhile is kept beside it as {}", name_shown(&name));
                    self.told.insert(name);
                    self.outcome.conflicts.push((path, reason));
                }
                MakeError::NotDropped(errno) => {
                    let reason = format!("cannot remove what it replaced: {}", io::Error::from(errno));
                    self.outcome.failures.push((path, reason));
                }
                MakeError::Host(action, errno) => {
                    let reason = format!("cannot {action} it: {}", io::Error::from(errno));
                    self.outcome.failures.push((path, reason));
                }
                MakeError::Read => {
                    let reason = "its content cannot be read: the host's file that it was made from changed";
                    self.outcome.failures.push((path, reason.to_owned()));
                }
            }
        }
        false
    }

    fn fail(&mut self, i: usize, reason: String) {
        if self.failed.insert(i) {
            self.outcome.failures.push((self.sides().path(i).to_owned(), reason));
        }
    }

    /// Sets attributes of files that got another name, and of directories, the deepest first. Directories in which
    /// something was done get their times.
    fn finish_directories(&mut self) {
        let task = self.worker.task;
        let linked = task.plan.steps.iter().filter_map(|step| match step {
            Step::Make(i, How::Link(_) | How::Ready) => Some(*i),
            _ => None,
        });
        for i in linked {
            if self.placed.contains(&i) && !self.failed.contains(&i) {
                let set = self.worker.attributes(i, true);
                self.note_attributes(i, set);
            }
        }
        let sides = task.sides;
        let wants = |i: &usize| {
            let is_directory = sides.is_directory(*i) && !self.failed.contains(i);
            is_directory && (self.outcome.done.contains(i) || task.plan.verdicts.get(*i) == Some(&Verdict::Attributes))
        };
        let mut directories: HashMap<&[u8], Option<usize>> =
            self.outcome.done.iter().map(|i| (parent(sides.path(*i)), None)).collect();
        directories.extend((0..sides.differences.len()).filter(wants).map(|i| (sides.path(i), Some(i))));
        let mut directories: Vec<_> = directories.into_iter().collect();
        directories.sort_by(|a, b| b.0.cmp(a.0));
        for (path, i) in directories {
            match i {
                Some(i) => {
                    let set = self.worker.attributes(i, false);
                    self.note_attributes(i, set);
                }
                // The time of a directory that is no difference does not matter to anybody.
                None => drop(self.worker.directory_time(path)),
            }
        }
    }
}
