//! Finds what earlier applies left under temporary names, because they were killed or a call failed, and puts it in
//! order.
//!
//! A temporary name gives its kind and the path that it is for ([`Ours`]). With what the host has at that path, this says what the leftover
//! is: a new object, a replaced one, or unknown. Only an unknown one stays, and is reported.

use std::collections::{BTreeMap, HashMap, HashSet};

use inarch_tree::FileType;
use rustix::fs::Stat;
use rustix::io::Errno;

use super::decide::Verdict;
use super::host::{Host, file_type, is_as_scanned};
use super::look::{Found, Look};
use super::paths::{joined, parent};
use super::progress::{Ours, OursKind, Progress};
use super::seen::Seen;
use super::sides::Sides;

/// The leftovers of a tree.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// Differences whose old object has a temporary name, and its path.
    pub came_out: BTreeMap<usize, Vec<u8>>,
    /// Differences whose new object is whole and durable under a temporary name, and the directory of that name.
    pub ready: BTreeMap<usize, Vec<u8>>,
    /// The new objects of those.
    pub ready_as: HashMap<usize, Stat>,
    /// Paths of what nobody needs: it has been replaced, or can be made again.
    useless: Vec<Vec<u8>>,
    /// Files that an exchange in several steps took from their place: differences, and paths.
    away: Vec<(usize, Vec<u8>)>,
    /// Files that were about to be removed from their place, which is free: differences, and paths.
    gone: Vec<(usize, Vec<u8>)>,
    /// Paths of what nobody knows.
    strange: Vec<Vec<u8>>,
    /// Paths that cannot be looked at, and directories that cannot be looked through.
    unread: Vec<Vec<u8>>,
}

/// Why a leftover stays.
pub(super) const UNKNOWN: &str = "an earlier apply left it, and it is not known what it is; move it away";
const TAKEN_OUT: &str = "an earlier apply took it out of its place; it goes when the path that it had there is applied";
pub(super) const USELESS: &str = "an earlier apply left it, and it cannot be removed";
const AWAY: &str = "an earlier apply left it, and it cannot be put back into its place; move it there";
pub(super) const UNREAD: &str = "what an earlier apply left there cannot be looked at";

/// How often leftovers are put in order and looked for again. A file that was `away` may turn out to be one that
/// `came_out`, and what replaced that one may be torn since.
const ROUNDS: usize = 4;

impl Leftovers {
    /// Finds all leftovers, and puts in order those that can be.
    pub fn settled(look: &mut Look<'_, '_>) -> Leftovers {
        for _ in 0..ROUNDS {
            let found = Leftovers::find(look);
            if !found.settle(look) {
                return found;
            }
        }
        Leftovers::find(look)
    }

    fn find(look: &mut Look<'_, '_>) -> Leftovers {
        let mut left = Leftovers::default();
        if !look.progress.token.is_empty() && look.progress.is_old {
            let NamesOfOurs { found, unread } = names_of_ours(look.sides, look.progress, look.host);
            left.unread = unread;
            for (path, ours) in found {
                left.sort(look, path, ours);
            }
        }
        left
    }

    /// The paths of leftovers that stay, and why: nobody knows what they are, they could not be put in order, or what
    /// they were taken out for is not in its place or not asked for.
    pub fn strange<'l>(&'l self, verdicts: &'l [Verdict]) -> impl Iterator<Item = (&'l Vec<u8>, &'static str)> {
        let why = |i: &usize| match verdicts.get(*i) {
            Some(Verdict::Done | Verdict::Attributes) => None,
            Some(Verdict::Left) => Some(TAKEN_OUT),
            _ => Some(UNKNOWN),
        };
        let stuck = self.came_out.iter().filter_map(move |(i, path)| Some((path, why(i)?)));
        let away = self.away.iter().chain(&self.gone).map(|(_, path)| path);
        let unknown = self.strange.iter().map(|path| (path, UNKNOWN)).chain(stuck);
        let unread = self.unread.iter().map(|path| (path, UNREAD));
        unknown
            .chain(self.useless.iter().map(|path| (path, USELESS)))
            .chain(away.map(|path| (path, AWAY)))
            .chain(unread)
    }

    /// Differences whose temporary name is in use by something that stays, so that nothing can be made under it.
    pub fn blocked(&self, progress: &Progress, sides: &Sides<'_>) -> HashSet<usize> {
        let marked = |path: &Vec<u8>| {
            let name = path.get(parent(path).len()..).unwrap_or_default();
            let ours = progress.ours(name.strip_prefix(b"/").unwrap_or(name))?;
            sides.marked(ours.mark).filter(|_| ours.kind == OursKind::Aside)
        };
        self.strange.iter().chain(&self.useless).filter_map(marked).chain(self.came_out.keys().copied()).collect()
    }

    fn sort(&mut self, look: &mut Look<'_, '_>, path: Vec<u8>, ours: Ours) {
        let stat = match look.host.stat(&path) {
            Ok(Some(stat)) => stat,
            Ok(None) => return,
            Err(_) => return self.unread.push(path),
        };
        let Some(i) = look.sides.marked(ours.mark) else {
            // Its path is no difference any more: it was applied.
            let is_useless = look.progress.beside.get(&path) == Some(&Some(Seen::of(&stat)));
            return if is_useless { &mut self.useless } else { &mut self.strange }.push(path);
        };
        match ours.kind {
            OursKind::Part => self.useless.push(path),
            OursKind::Away => self.away.push((i, path)),
            OursKind::Aside if is_what_came_out(look, i, &stat) => drop(self.came_out.insert(i, path)),
            OursKind::Aside if is_ready(look, i, &stat) => {
                self.ready.insert(i, parent(&path).to_owned());
                self.ready_as.insert(i, stat);
            }
            OursKind::Aside if is_ours(look, i, &path, &stat) => self.useless.push(path),
            OursKind::Gone if matches!(look.host.stat(look.sides.path(i)), Ok(None)) => self.gone.push((i, path)),
            OursKind::Aside | OursKind::Gone => self.strange.push(path),
        }
    }

    /// Puts leftovers in order, and returns whether anything changed. What fails is found again.
    ///
    /// - What nobody needs is removed.
    /// - An exchange that was interrupted is ended, or taken back if the new object was torn since.
    /// - A file that was about to be removed is put back: it may be another one, which somebody put there.
    fn settle(&self, look: &mut Look<'_, '_>) -> bool {
        let mut is_changed = false;
        for path in &self.useless {
            is_changed |= look.change(path, |host| host.remove(path));
        }
        for (i, path) in &self.away {
            let place = look.sides.path(*i);
            let aside = joined(parent(path), &look.progress.aside(place));
            let back = match look.host.stat(place) {
                Ok(None) => place,
                _ => &aside,
            };
            is_changed |= look.change(path, |host| host.rename(path, back));
        }
        for (i, path) in &self.gone {
            let place = look.sides.path(*i);
            is_changed |= look.change(path, |host| host.rename(path, place));
        }
        for (i, path) in &self.came_out {
            if look.one(*i).0 == Found::Torn {
                let place = look.sides.path(*i);
                let away = look.progress.away(place);
                is_changed |= look.change(path, |host| host.swap(path, place, &away));
            }
        }
        is_changed
    }
}

/// What is in the directories in which temporary names may be.
pub(super) struct NamesOfOurs {
    /// The paths that end in a temporary name, and what the name says.
    pub found: Vec<(Vec<u8>, Ours)>,
    /// The directories that cannot be read.
    pub unread: Vec<Vec<u8>>,
}

/// Looks for temporary names in every directory in which one may be.
pub(super) fn names_of_ours(sides: &Sides<'_>, progress: &Progress, host: &mut Host) -> NamesOfOurs {
    let changes =
        |i: &usize| sides.takes(*i) || sides.brings(*i) || sides.takes_directory(*i) || sides.brings_directory(*i);
    let differences = (0..sides.differences.len()).filter(changes).map(|i| sides.path(i));
    let mut directories: Vec<&[u8]> =
        differences.chain(progress.beside.keys().map(Vec::as_slice)).map(parent).collect();
    directories.sort_unstable();
    directories.dedup();
    let (mut found, mut unread) = (Vec::new(), Vec::new());
    for above in directories {
        let names = match host.names_in(above) {
            Ok(names) => names,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(_) => {
                unread.push(above.to_owned());
                continue;
            }
        };
        found.extend(names.iter().filter_map(|name| Some((joined(above, name), progress.ours(name)?))));
    }
    NamesOfOurs { found, unread }
}

/// Whether a leftover is the old object of a difference, which is not in its place any more: the one that was scanned,
/// or that force was to replace.
fn is_what_came_out(look: &mut Look<'_, '_>, i: usize, stat: &Stat) -> bool {
    let path = look.sides.path(i);
    let is_there = matches!(look.host.stat(path), Ok(Some(there)) if there.st_ino == stat.st_ino);
    let is_old = look.sides.old(i).is_some_and(|(_, was)| is_as_scanned(stat, was, false));
    let is_forced = look.progress.forced.get(path).is_some_and(|seen| Seen::of(stat).is_still(seen));
    !is_there && (is_old || is_forced)
}

/// Whether a leftover is the new object of a difference, and known to be whole.
fn is_ready(look: &mut Look<'_, '_>, i: usize, stat: &Stat) -> bool {
    let Some((new, _)) = look.sides.new_inode(i).filter(|_| look.sides.brings(i)) else { return false };
    look.progress.is_durable(look.sides.path(i), &Seen::of(stat)) || look.is_moved_here(stat, new)
}

/// Whether a leftover is a new object that an earlier apply made for a difference, whole or not: the guest has all that
/// is in it.
fn is_ours(look: &mut Look<'_, '_>, i: usize, path: &[u8], stat: &Stat) -> bool {
    let Some((new, is)) = look.sides.new_inode(i) else { return false };
    if file_type(stat) != Some(is.file_type()) {
        return false;
    }
    let Ok((directory, name)) = look.host.seen(path) else { return false };
    match is.file_type() {
        FileType::Regular => {
            let Ok(file) = directory.open_file(&name) else { return false };
            let size = stat.st_size as u64;
            let is_guests = |look: &mut Look<'_, '_>| look.compare_with(&file, size, new).is_ok_and(|(_, torn)| torn);
            size <= is.size() && (is_guests(look) || look.is_copy_of_moved(&file, size, new))
        }
        FileType::Symlink => {
            directory.read_link(&name).is_ok_and(|target| target == look.sides.guest.symlink_target(new))
        }
        FileType::Directory => directory.names_of(&name).is_ok_and(|names| names.is_empty()),
        _ => true,
    }
}
