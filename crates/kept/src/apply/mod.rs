//! `apply`: brings what the guest of a kept run changed into the host's tree.
//!
//! A *difference* is a path at which the guest's tree is not what the scan of the host's tree found. An apply works on
//! differences:
//!
//! 1. *Look* ([`look`]): what does the host have at each difference? Bytes are compared; size and time decide nothing.
//! 2. *Choose* ([`ties`]): some differences can only be applied together. Those that were asked for bring the others
//!    along.
//! 3. *Decide* ([`decide`]) and *plan* ([`plan`]): both are functions of the facts and look at nothing. The plan is a
//!    list of steps; `-n` prints it.
//! 4. The record notes that an apply has begun, and which paths it leaves alone.
//! 5. *Execute* ([`execute`](mod@execute), [`worker`]): everything is made before anything is removed. A file that
//!    lends bytes to others is removed only when these are on the disk and in place. Other programs may change a path
//!    at any moment. So what is linked or gets attributes is checked and changed through one descriptor ([`host::Object`]),
//!    and what is removed is checked under a temporary name ([`removal`]).
//! 6. The record notes that the apply has ended. If nothing is left to be applied, the next command of the run begins
//!    with the host's tree as it is ([`super::spent`]).
//!
//! A *temporary name* (`.inarch-...`) holds what is not yet, or no longer, in its place. After a crash the same command
//! looks again. A path that has the guest's version is done. What has a temporary name is used, removed or put back
//! ([`leftovers`]). What the disk lost is made again from the kept run.

mod attributes;
mod beside;
mod calls;
mod cleanup;
mod crew;
mod decide;
mod done;
mod error;
mod execute;
mod host;
mod leftovers;
mod links;
mod look;
mod make;
mod paths;
mod plan;
mod progress;
#[cfg(test)]
mod property_tests;
mod removal;
mod seen;
mod sides;
#[cfg(test)]
mod staged_tests;
#[cfg(test)]
mod tests;
mod ties;
mod unended;
mod worker;
#[cfg(test)]
mod world;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use inarch_tree::InodeId;
use inarch_tree::compare::Difference;
use serde::Serialize;

use super::bytes::Bytes;
use super::clock::{boot, now};
use super::diff::{LOST, RunDiff, TreeDiff};
use super::record::{Applied, Applying, BesideFile, DurableFile, Made, Record, TouchedFile};
use super::{KeptRun, KeptTree, Store};
use crate::KeptError;
use beside::Elsewhere;
#[cfg(test)]
pub(super) use calls::{Calls, Faults};
use decide::{Decision, Verdict};
pub use done::Done;
use done::done;
use execute::{Outcome, execute};
use host::Host;
use leftovers::Leftovers;
use look::{Facts, Found, Look};
use paths::{is_beneath, parent};
use plan::Plan;
use progress::{Durable, Progress};
use seen::Seen;
use sides::{Parts, Sides};
use ties::Ties;
use unended::{UNENDED, Unended};
use worker::Task;

/// What to apply.
#[derive(Clone, Debug)]
pub struct ApplyRequest {
    /// The kept run.
    pub name: String,
    /// Absolute paths in the guest: these and what is below them; everything if there are none.
    pub paths: Vec<PathBuf>,
    /// Replace and remove what changed on the host too.
    pub force: bool,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What came of an apply.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ApplyReport {
    /// What was done, or would be.
    pub done: Vec<Done>,
    /// The number of paths at which the host already had the guest's version.
    pub already: u64,
    /// Conflicts: paths of the host that were left alone, and why.
    pub conflicts: Vec<(String, String)>,
    /// The number of conflicts that `force` cannot settle: the run's version was partly in the host's old file, which
    /// changed.
    pub beyond_force: u64,
    /// Paths that could not be done, and why.
    pub failures: Vec<(String, String)>,
    /// Owners and extended attributes that could not be set, for want of privilege or support: a line for each kind.
    pub lost: Vec<String>,
    /// What else the user should know, a line each.
    pub notes: Vec<String>,
    /// Whether the run is spent: its next command begins with the host's tree as it is.
    pub complete: bool,
}

impl ApplyReport {
    /// Whether everything that was asked for was done.
    pub fn is_whole(&self) -> bool {
        self.conflicts.is_empty() && self.failures.is_empty() && self.lost.is_empty()
    }
}

/// Applies what the guest of a kept run changed.
///
/// # Errors
/// Nothing could be applied at all. What cannot be done to single paths is in the report.
pub fn apply(request: &ApplyRequest) -> Result<ApplyReport, KeptError> {
    apply_to(&mut Store::of_user()?.open(&request.name)?, request)
}

/// As [`apply`], for a run that is open.
pub(super) fn apply_to(run: &mut KeptRun, request: &ApplyRequest) -> Result<ApplyReport, KeptError> {
    let Some(mut record) = run.record.clone() else {
        return Err(KeptError::NoRecord(request.name.clone()));
    };
    let boot = boot()?;
    if let Some(applied) = record.applied.as_ref().filter(|applied| applied.boot == boot) {
        if applied.is_on_same_mounts(&record.trees) {
            return Ok(ApplyReport { complete: true, ..ApplyReport::default() });
        }
        record = record.in_doubt();
    }
    let diff = RunDiff::of(run, &record)?;
    let mut report = ApplyReport { notes: diff.notes(), ..ApplyReport::default() };
    check_paths(request, &diff)?;
    let gone = diff.left_out();
    if let (Some((path, _)), Some(_)) = (gone.first(), &record.applying) {
        return Err(KeptError::GoneMeanwhile { path: path.clone() });
    }
    if request.paths.is_empty() {
        report.failures.extend(gone);
    }
    let token = token(&record);
    let mut works = Vec::new();
    for tree in diff.trees() {
        let progress = progress(run, &record, tree, &boot, &token);
        works.push(Work::new(tree, progress, request)?);
    }
    for work in &mut works {
        work.plan(request, &mut report);
    }
    let unended = Unended::find(&record, &works);
    let elsewhere = Elsewhere::find(&record, &works, &mut report);
    if request.dry_run {
        return Ok(report);
    }
    let mut beside = elsewhere.clear(&record, &mut report);
    begin(run, record, request, (&works, unended.as_ref()), (token, boot))?;
    let mut touched: Vec<TouchedFile> = Vec::new();
    for work in &mut works {
        let ordinal = work.tree.tree.ordinal;
        let outcome = work.execute(&mut |durable| remember(run, ordinal, durable));
        touched.extend(work.touched(&outcome.touched));
        beside.extend(outcome.beside.iter().map(|(path, seen)| BesideFile::new(ordinal, path, seen.as_ref())));
        work.applied.extend(&outcome.done);
        work.in_doubt = outcome.in_doubt;
        work.unfinished = outcome.unfinished;
        work.tell(outcome, &mut report);
    }
    end(run, request, (&mut works, touched, beside), unended, &mut report)?;
    Ok(report)
}

/// The apply of one tree.
struct Work<'a> {
    tree: &'a TreeDiff,
    sides: Sides<'a>,
    host: Host,
    progress: Progress,
    chosen: Vec<bool>,
    facts: Facts,
    leftovers: Leftovers,
    plan: Plan,
    /// Differences that are applied now.
    applied: HashSet<usize>,
    /// Whether a sync failed.
    in_doubt: bool,
    /// See [`Outcome::unfinished`].
    unfinished: bool,
}

impl<'a> Work<'a> {
    fn new(tree: &'a TreeDiff, progress: Progress, request: &ApplyRequest) -> Result<Work<'a>, KeptError> {
        let sides = sides(tree);
        let asked: Vec<bool> = tree
            .differences
            .iter()
            .map(|difference| {
                let path = tree.in_guest(&difference.path);
                request.paths.is_empty() || request.paths.iter().any(|top| path.starts_with(top))
            })
            .collect();
        let asked = with_directories(&sides, asked);
        let chosen = Ties::new(&sides).with_required(&asked);
        let mut host = open(tree)?;
        #[cfg(test)]
        {
            host.calls.faults = super::staged::faults();
        }
        if request.dry_run {
            host.pretend();
        }
        let (facts, leftovers, plan, applied, in_doubt, unfinished) = Default::default();
        Ok(Work { tree, sides, host, progress, chosen, facts, leftovers, plan, applied, in_doubt, unfinished })
    }

    /// Looks at the host, decides and plans.
    fn plan(&mut self, request: &ApplyRequest, report: &mut ApplyReport) {
        let (facts, leftovers, plan) =
            plan_tree(&self.sides, &mut self.host, &self.progress, &self.chosen, request.force);
        for (i, verdict) in plan.verdicts.iter().enumerate() {
            if *verdict == Verdict::Done {
                report.already += 1;
                self.applied.insert(i);
            }
            if let Some(reason) = self.refusal(i, &plan.verdicts) {
                report.beyond_force += u64::from(reason.ends_with(LOST));
                report.conflicts.push((self.sides.host_path(self.sides.path(i)), reason));
            }
        }
        report.notes.extend(self.made_by_both(&facts, &plan.verdicts));
        if request.dry_run {
            let wanted = plan.verdicts.iter().enumerate().filter(|(_, verdict)| verdict.is_wanted());
            report.done.extend(self.told(wanted.map(|(i, _)| i).collect()));
        }
        for (path, reason) in leftovers.strange(&plan.verdicts) {
            report.failures.push((self.sides.host_path(path), reason.to_owned()));
        }
        (self.facts, self.leftovers, self.plan) = (facts, leftovers, plan);
    }

    /// A line about directories that the host made, too, and that keep its attributes.
    fn made_by_both(&self, facts: &Facts, verdicts: &[Verdict]) -> Option<String> {
        let is_kept = |i: &&usize| verdicts.get(**i) == Some(&Verdict::Done);
        let mut kept = facts.made_by_both.iter().filter(is_kept);
        let first = self.sides.host_path(self.sides.path(*kept.next()?));
        let others = match kept.count() {
            0 => "it keeps its owner".to_owned(),
            1 => "it and another such directory keep their owners".to_owned(),
            count => format!("it and {count} other such directories keep their owners"),
        };
        Some(format!("{first}: this machine made it, too; {others}, permissions and extended attributes"))
    }

    /// The tree, and the directories of it that an apply of everything writes to.
    fn written(&self) -> (&KeptTree, HashSet<&[u8]>) {
        (&self.tree.tree, self.tree.differences.iter().map(|difference| parent(&difference.path)).collect())
    }

    /// Why a path is left alone, unless that follows from another path in the report.
    fn refusal(&self, i: usize, verdicts: &[Verdict]) -> Option<String> {
        match verdicts.get(i)? {
            Verdict::Refused(reason) => Some(reason.clone()),
            Verdict::Held(why) => {
                let above = self.sides.above(i).filter(|above| self.sides.brings_directory(*above));
                let is_left = |above| matches!(verdicts.get(above), Some(Verdict::Refused(_) | Verdict::Held(_)));
                if above.is_some_and(is_left) || self.sides.takes_directory(i) {
                    return None;
                }
                let path = self.sides.host_path(self.sides.path(*why));
                Some(format!("it goes together with {path}, which is left alone"))
            }
            _ => None,
        }
    }

    fn execute(&mut self, remember: &mut execute::Remember<'_>) -> Outcome {
        let (sides, facts, plan, progress) = (&self.sides, &self.facts, &self.plan, &self.progress);
        let task = Task { sides, facts, plan, progress };
        execute(&task, &mut self.host, &self.leftovers, remember)
    }

    /// Syncs what was applied.
    fn sync(&mut self) -> Result<(), KeptError> {
        let written = self.applied.iter().map(|i| self.sides.path(*i));
        self.host.sync(written).map_err(|errno| not_durable(self.tree.tree.source(), errno.into()))
    }

    /// The differences that are still to be applied, with the directories that they are in. A directory that is still
    /// to go keeps all that goes with it: the base has what was removed from it, and a layer removes only a directory
    /// that it empties.
    fn rest(&self) -> Vec<Difference> {
        let mut going: Option<&[u8]> = None;
        let goes_with_another = |(i, difference): (usize, &'a Difference)| {
            if going.is_none_or(|top| !is_beneath(&difference.path, top)) {
                let goes = self.sides.takes_directory(i) && !self.applied.contains(&i);
                going = goes.then_some(&difference.path);
            }
            going.is_some()
        };
        let differences = &self.tree.differences;
        let going: Vec<bool> = differences.iter().enumerate().map(goes_with_another).collect();
        let mut rest: Vec<Difference> = Vec::new();
        for (i, difference) in differences.iter().enumerate().rev() {
            let holds_one = rest.last().is_some_and(|last| is_beneath(&last.path, &difference.path));
            if !self.applied.contains(&i) || holds_one || going.get(i) == Some(&true) {
                rest.push(difference.clone());
            }
        }
        rest.reverse();
        rest
    }

    /// Differences, in the words of `diff`.
    fn told(&self, which: HashSet<usize>) -> Vec<Done> {
        done(&self.tree.differences, &self.tree.changes, &which, &|path| self.sides.host_path(path))
    }

    fn tell(&self, outcome: Outcome, report: &mut ApplyReport) {
        let path = |path: &[u8]| self.sides.host_path(path);
        report.done.extend(self.told(outcome.done.iter().copied().collect()));
        let told = |mut list: Vec<(Vec<u8>, String)>| {
            list.sort();
            list.into_iter().map(|(at, reason)| (path(&at), reason)).collect::<Vec<_>>()
        };
        report.conflicts.extend(told(outcome.conflicts));
        report.failures.extend(told(outcome.failures));
        if outcome.in_doubt {
            let reason = "what was applied may not be on the disk: apply it again, which brings what is not";
            report.failures.push((path(b""), reason.to_owned()));
        }
        report.lost.extend(outcome.lost.lines());
    }

    /// Files whose times an apply changed, for the record.
    fn touched<'t>(&self, touched: &'t HashMap<Vec<u8>, Seen>) -> impl Iterator<Item = TouchedFile> + use<'t> {
        let ordinal = self.tree.tree.ordinal;
        touched.iter().map(move |(path, seen)| TouchedFile::new(ordinal, path, seen))
    }

    /// Files of the host that force is to replace, for the record.
    fn forced(&self, force: bool) -> Vec<TouchedFile> {
        let forced = forced(&self.sides, &self.facts, &self.plan.verdicts, &self.progress, force);
        forced.iter().map(|(path, seen)| TouchedFile::new(self.tree.tree.ordinal, path, seen)).collect()
    }

    /// Paths in the guest that are to be applied.
    fn asked(&self) -> impl Iterator<Item = PathBuf> {
        let chosen = (0..self.chosen.len()).filter(|i| self.chosen.get(*i) == Some(&true));
        chosen.map(|i| self.tree.in_guest(self.sides.path(i)))
    }

    /// Paths in the guest that are left alone, or that somebody else made.
    fn left(&self) -> impl Iterator<Item = PathBuf> {
        left_alone(&self.sides, &self.plan.verdicts).map(|i| self.tree.in_guest(self.sides.path(i)))
    }
}

/// Differences that are left alone, and directories that somebody else made.
fn left_alone<'v>(sides: &'v Sides<'_>, verdicts: &'v [Verdict]) -> impl Iterator<Item = usize> + 'v {
    (0..verdicts.len()).filter(|i| match verdicts.get(*i) {
        Some(Verdict::Refused(_) | Verdict::Held(_)) => true,
        Some(Verdict::Done) => sides.is_directory(*i),
        _ => false,
    })
}

/// What the host has at the paths where force is to replace it, or where an unfinished apply with force was to.
fn forced(
    sides: &Sides<'_>,
    facts: &Facts,
    verdicts: &[Verdict],
    progress: &Progress,
    force: bool,
) -> HashMap<Vec<u8>, Seen> {
    let mut forced = progress.forced.clone();
    let comes = |i: &usize| sides.brings(*i) || sides.brings_directory(*i);
    let is_replaced = |i: &usize| verdicts.get(*i) == Some(&Verdict::Wanted) && comes(i);
    for i in (0..verdicts.len()).filter(|_| force).filter(is_replaced) {
        let is_scanned = matches!(facts.found.get(i), Some(Found::Scanned { .. }));
        let there = facts.stats.get(i).copied().flatten().filter(|_| !is_scanned);
        forced.extend(there.map(|stat| (sides.path(i).to_owned(), Seen::of(&stat))));
    }
    forced
}

fn sides(tree: &TreeDiff) -> Sides<'_> {
    let disk = &tree.disk;
    Sides::new(Parts {
        trees: (&disk.base, &disk.guest),
        content: &*disk.content,
        lineage: disk,
        owners: &tree.tree.owners,
        differences: &tree.differences,
        overlapping: disk.overlapping(),
        lost: disk.conflicting().into_iter().filter(|path| disk.is_lost(path)).map(<[u8]>::to_vec).collect(),
        conflicting: disk.conflicting().into_iter().map(<[u8]>::to_vec).collect(),
        source: tree.tree.source(),
        destination: tree.tree.destination(),
    })
}

/// Adds the new directories that the chosen differences are in.
fn with_directories(sides: &Sides<'_>, mut asked: Vec<bool>) -> Vec<bool> {
    for i in (0..asked.len()).rev() {
        if asked.get(i) == Some(&true)
            && sides.new_inode(i).is_some()
            && let Some(above) = sides.above(i).filter(|above| sides.brings_directory(*above))
            && let Some(above) = asked.get_mut(above)
        {
            *above = true;
        }
    }
    asked
}

/// Puts leftovers in order, looks at the host, and makes the plan. A host that [pretends](Host::pretend) is not changed.
fn plan_tree(
    sides: &Sides<'_>,
    host: &mut Host,
    progress: &Progress,
    chosen: &[bool],
    force: bool,
) -> (Facts, Leftovers, Plan) {
    let mut look = Look::new(sides, host, progress);
    let leftovers = Leftovers::settled(&mut look);
    (look.came_out, look.ready) = (leftovers.came_out.clone(), leftovers.ready.clone());
    let facts = look.all(chosen);
    let blocked = leftovers.blocked(progress, sides);
    let decision = Decision { sides, facts: &facts, progress, force, ready: &leftovers.ready, blocked: &blocked };
    let verdicts = decision.all(chosen, &Ties::new(sides));
    let plan = Plan::new(&decision, verdicts, &leftovers.came_out);
    (facts, leftovers, plan)
}

/// A part of every temporary name, which no other run uses.
fn token(record: &Record) -> String {
    let unique = || {
        let nanoseconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        format!("{:x}-{:x}", std::process::id(), nanoseconds.map_or(0, |since| since.as_nanos()))
    };
    let earlier = record.made.as_ref().map(|made| made.token.clone());
    earlier.or_else(|| record.applying.as_ref().map(|applying| applying.token.clone())).unwrap_or_else(unique)
}

/// What is known of earlier applies to one of the trees.
fn progress(run: &KeptRun, record: &Record, tree: &TreeDiff, boot: &str, token: &str) -> Progress {
    let inside = |list: &[Bytes]| -> HashSet<Vec<u8>> {
        let destination = tree.tree.destination();
        let within = |path: PathBuf| Some(path.strip_prefix(&destination).ok()?.as_os_str().as_bytes().to_owned());
        list.iter().filter_map(|path| within(path.to_path())).collect()
    };
    let applying = record.applying.as_ref();
    let made = record.made.as_ref();
    let ended = record.applied.as_ref().map(|applied| &applied.boot);
    let began = made.filter(|_| applying.is_some()).map(|made| &made.boot);
    let durable = made.filter(|made| made.overlays.get(&tree.tree.ordinal) == Some(&stamp(run, tree.tree.ordinal)));
    Progress {
        token: token.to_owned(),
        is_old: made.is_some() || applying.is_some(),
        begun: applying.is_some() || ended.is_some(),
        restarted: ended.or(began).is_some_and(|then| then != boot),
        left: applying.map(|applying| inside(&applying.conflicts)).unwrap_or_default(),
        chosen: applying.filter(|applying| !applying.paths.is_empty()).map(|applying| inside(&applying.paths)),
        touched: made
            .into_iter()
            .flat_map(|made| &made.touched)
            .filter_map(|file| file.of(tree.tree.ordinal))
            .collect(),
        forced: applying
            .into_iter()
            .flat_map(|applying| &applying.forced)
            .filter_map(|file| file.of(tree.tree.ordinal))
            .collect(),
        beside: made.into_iter().flat_map(|made| &made.beside).filter_map(|file| file.of(tree.tree.ordinal)).collect(),
        durable: durable
            .into_iter()
            .flat_map(|made| &made.durable)
            .filter_map(|file| file.of(tree.tree.ordinal))
            .collect(),
    }
}

/// Identifies what is kept of a disk; differs after the guest has written again.
fn stamp(run: &KeptRun, ordinal: u8) -> String {
    run.files(ordinal).stamp()
}

/// Records that an apply has begun.
fn begin(
    run: &mut KeptRun,
    record: Record,
    request: &ApplyRequest,
    (works, unended): (&[Work<'_>], Option<&Unended>),
    (token, boot): (String, String),
) -> Result<(), KeptError> {
    let bytes = |paths: Vec<PathBuf>| paths.iter().map(|path| Bytes::path(path)).collect();
    let chosen: Vec<PathBuf> = works.iter().flat_map(Work::asked).collect();
    let paths = if request.paths.is_empty() { Vec::new() } else { bytes(chosen.clone()) };
    let mut applying = Applying {
        token: token.clone(),
        conflicts: bytes(works.iter().flat_map(Work::left).collect()),
        paths,
        forced: works.iter().flat_map(|work| work.forced(request.force)).collect(),
    };
    if let Some(unended) = unended {
        unended.join(&mut applying, &chosen.into_iter().collect());
    }
    // As long as no apply has ended, torn files may be from before the last start of the machine.
    let unended = record.made.as_ref().filter(|_| record.applying.is_some() || record.applied.is_some());
    let boot = unended.map_or(boot, |made| made.boot.clone());
    // What is known of trees that are gone stays known.
    let of_others = |ordinal: u8| works.iter().all(|work| work.tree.tree.ordinal != ordinal);
    let before = record.made.clone().unwrap_or_default();
    let mut durable: Vec<DurableFile> = before.durable.into_iter().filter(|file| of_others(file.ordinal)).collect();
    for work in works {
        durable.extend(
            work.progress.durable.iter().map(|(path, file)| DurableFile::new(work.tree.tree.ordinal, path, file)),
        );
    }
    let mut overlays: HashMap<u8, String> =
        before.overlays.into_iter().filter(|(ordinal, _)| of_others(*ordinal)).collect();
    overlays.extend(works.iter().map(|work| (work.tree.tree.ordinal, stamp(run, work.tree.tree.ordinal))));
    let mut touched: Vec<TouchedFile> = before.touched.into_iter().filter(|file| of_others(file.ordinal)).collect();
    touched.extend(works.iter().flat_map(|work| work.touched(&work.facts.touched)));
    let made = Made { token, boot, overlays, durable, touched, beside: before.beside };
    run.save(Record { applying: Some(applying), applied: None, made: Some(made), ..record })
}

/// Records files that are durable on the host.
fn remember(run: &mut KeptRun, ordinal: u8, files: Vec<(Vec<u8>, Durable)>) -> io::Result<()> {
    let Some(mut record) = run.record.clone().filter(|_| !files.is_empty()) else { return Ok(()) };
    if let Some(made) = &mut record.made {
        let paths: HashSet<&Vec<u8>> = files.iter().map(|(path, _)| path).collect();
        made.durable.retain(|file| file.of(ordinal).is_none_or(|(path, _)| !paths.contains(&path)));
        made.durable.extend(files.iter().map(|(path, file)| DurableFile::new(ordinal, path, file)));
    }
    run.save(record).map_err(|error| io::Error::other(error.to_string()))
}

fn end(
    run: &mut KeptRun,
    request: &ApplyRequest,
    (works, touched, beside): (&mut [Work<'_>], Vec<TouchedFile>, Vec<BesideFile>),
    unended: Option<Unended>,
    report: &mut ApplyReport,
) -> Result<(), KeptError> {
    report.complete = request.paths.is_empty() && report.is_whole();
    let in_part = !report.complete && works.iter().any(|work| !work.applied.is_empty());
    let Some(mut record) = run.record.clone() else { return Ok(()) };
    if let Some(made) = &mut record.made {
        made.touched.retain(|file| works.iter().all(|work| work.tree.tree.ordinal != file.ordinal));
        made.touched.extend(touched);
        made.beside = beside;
    }
    if works.iter().any(|work| work.in_doubt) {
        return run.save(Record { used: now(), ..record.in_doubt() });
    }
    // The attributes are nowhere but in the run. The apply goes on when it is asked for again.
    if works.iter().any(|work| work.unfinished) {
        return run.save(Record { used: now(), ..record });
    }
    if in_part {
        // What stays is known before anything of the run goes.
        run.save(record.clone())?;
        // After an apply in part nobody looks for files that a power loss tore.
        if let Err(error) = works.iter_mut().try_for_each(Work::sync) {
            run.save(record.in_doubt())?;
            return Err(error);
        }
        // What is durable on the host is no change of the run any more. Until then the apply has not ended: nobody could
        // tell what it did from what the host changed.
        for work in works.iter().filter(|work| !work.applied.is_empty()) {
            work.tree.disk.keep_only(&work.rest())?;
        }
    }
    let applied = report.complete.then(|| Applied::now(works.iter().map(Work::written))).transpose()?;
    let applying = unended.zip(record.applying.take()).map(|(unended, applying)| unended.left_by(applying));
    if applying.is_some() {
        report.notes.push(UNENDED.to_owned());
    }
    run.save(Record { applying, applied, used: now(), ..record })
}

/// The first path of the host at which not everything is as it was applied. Attributes of directories are not compared.
pub(super) fn first_missing(run: &KeptRun, record: &Record, diff: &RunDiff) -> Result<Option<String>, KeptError> {
    let everything = ApplyRequest { name: String::new(), paths: Vec::new(), force: false, dry_run: true };
    if let Some((gone, _)) = diff.left_out().into_iter().next() {
        return Ok(Some(gone));
    }
    for tree in diff.trees() {
        let progress = progress(run, record, tree, &boot()?, &token(record));
        let mut work = Work::new(tree, progress, &everything)?;
        work.plan(&everything, &mut ApplyReport::default());
        let is_applied = |(i, verdict): (usize, &Verdict)| {
            *verdict == Verdict::Done || (*verdict == Verdict::Attributes && work.sides.is_directory(i))
        };
        if let Some(i) = work.plan.verdicts.iter().enumerate().position(|one| !is_applied(one)) {
            return Ok(Some(work.sides.host_path(work.sides.path(i))));
        }
    }
    Ok(None)
}

/// Syncs the file systems of a tree: `written` are paths in them.
pub(super) fn make_durable<'p>(tree: &KeptTree, written: impl Iterator<Item = &'p [u8]>) -> Result<(), KeptError> {
    let source = tree.source();
    let synced = source.canonicalize().and_then(|there| Ok(Host::open(&there, tree.cross)?.sync(written)?));
    match synced {
        // A path that is gone needs no sync.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
        synced => synced.map_err(|error| not_durable(source, error)),
    }
}

fn not_durable(source: PathBuf, error: io::Error) -> KeptError {
    KeptError::path(&source, "cannot make what was applied durable", error)
}

/// Opens the host's tree, if it is the one that was scanned.
fn open(tree: &TreeDiff) -> Result<Host, KeptError> {
    let source = tree.tree.source();
    let failed = |errno: rustix::io::Errno| KeptError::path(&source, "cannot open the tree", io::Error::from(errno));
    let host = Host::open(&source, tree.tree.cross).map_err(failed)?;
    if !host.is_root(tree.disk.base.inode(InodeId::ROOT), tree.tree.volume).map_err(failed)? {
        return Err(KeptError::OtherDirectory { tree: source });
    }
    Ok(host)
}

/// Refuses a path that names nothing that changed: it may be misspelt.
fn check_paths(request: &ApplyRequest, diff: &RunDiff) -> Result<(), KeptError> {
    let is_named = |path: &Path| {
        diff.trees()
            .iter()
            .any(|tree| tree.differences.iter().any(|difference| tree.in_guest(&difference.path).starts_with(path)))
    };
    request.paths.iter().try_for_each(|path| diff.refuse_gone(path))?;
    match request.paths.iter().find(|path| !is_named(path)) {
        Some(path) => Err(KeptError::NothingToApply { path: path.clone(), name: request.name.clone() }),
        None => Ok(()),
    }
}
