//! What an earlier apply left under names of ours: killed in between, or failed.

use std::collections::{BTreeMap, HashMap};

use inarch_tree::FileType;
use rustix::fs::Stat;
use rustix::io::Errno;

use super::decide::Verdict;
use super::host::{file_type, is_as_scanned};
use super::look::{Found, Look, Seen};
use super::progress::Ours;
use super::sides::parent;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// Differences of which what was replaced has a name of ours still, and its path: the guest's is in its place.
    pub came_out: BTreeMap<usize, Vec<u8>>,
    /// Differences of which what is to come is made, whole, and on the disk; and the directory that it is in.
    pub ready: BTreeMap<usize, Vec<u8>>,
    /// What those are that are ready.
    pub ready_as: HashMap<usize, Stat>,
    /// Directories and names in them of what is to be made again.
    useless: Vec<(Vec<u8>, Vec<u8>)>,
    /// Files that are away from their place.
    away: Vec<(Vec<u8>, usize)>,
    /// Files that were about to be removed from their place, which is free: differences, and paths.
    gone: Vec<(usize, Vec<u8>)>,
    /// What nobody knows: paths of the tree.
    strange: Vec<Vec<u8>>,
}

impl Leftovers {
    /// Looks for them, in every directory in which something may have been made.
    pub fn find(look: &mut Look<'_, '_>) -> Leftovers {
        let mut left = Leftovers::default();
        if look.progress.token.is_empty() || !look.progress.is_old {
            return left;
        }
        let sides = look.sides;
        let changes =
            |i: &usize| sides.takes(*i) || sides.brings(*i) || sides.takes_directory(*i) || sides.brings_directory(*i);
        let mut directories: Vec<&[u8]> =
            (0..sides.differences.len()).filter(changes).map(|i| parent(sides.path(i))).collect();
        directories.sort_unstable();
        directories.dedup();
        for above in directories {
            let inside = if above.is_empty() { b".".to_vec() } else { [above, b"/."].concat() };
            let names = look.host.parent(&inside).and_then(|(directory, _)| directory.names());
            for name in names.unwrap_or_default() {
                if let Some((ours, i)) = look.progress.ours(&name) {
                    left.sort(look, above, (name, ours, i));
                }
            }
        }
        left
    }

    /// The path of a file that was about to be removed, and is there under a name of ours.
    pub fn about_to_go(&self) -> Option<&[u8]> {
        self.gone.first().map(|(_, path)| &path[..])
    }

    /// Paths of what stays as nobody knows what it is, or what it was taken out for is not in its place.
    pub fn strange<'l>(&'l self, verdicts: &'l [Verdict]) -> impl Iterator<Item = &'l Vec<u8>> {
        let is_over = |i: &usize| matches!(verdicts.get(*i), Some(Verdict::Done | Verdict::Attributes));
        let stuck = self.came_out.iter().filter(move |(i, _)| !is_over(i)).map(|(_, path)| path);
        self.strange.iter().chain(stuck)
    }

    fn sort(&mut self, look: &mut Look<'_, '_>, above: &[u8], (name, ours, i): (Vec<u8>, Ours, usize)) {
        let path = if above.is_empty() { name.clone() } else { [above, &name].join(&b'/') };
        let Ok((directory, _)) = look.host.parent(&path) else { return };
        let Ok(Some(stat)) = directory.stat(&name) else { return };
        match ours {
            Ours::Part => self.useless.push((above.to_owned(), name)),
            Ours::Away => self.away.push((above.to_owned(), i)),
            Ours::Aside if self.is_what_came_out(look, i, &stat) => drop(self.came_out.insert(i, path)),
            Ours::Aside if is_ready(look, i, &stat) => {
                self.ready.insert(i, above.to_owned());
                self.ready_as.insert(i, stat);
            }
            Ours::Aside if is_ours(look, i, &path, &stat) => self.useless.push((above.to_owned(), name)),
            Ours::Gone if is_free(look, i, &name) => self.gone.push((i, path)),
            Ours::Aside | Ours::Gone => self.strange.push(path),
        }
    }

    /// Whether something is the file that was at the path of a difference, and is there no more.
    fn is_what_came_out(&self, look: &mut Look<'_, '_>, i: usize, stat: &Stat) -> bool {
        let Some((_, was)) = look.sides.old(i) else { return false };
        let there = look.host.parent(look.sides.path(i)).and_then(|(directory, name)| directory.stat(name));
        let is_there = matches!(there, Ok(Some(there)) if there.st_ino == stat.st_ino);
        !is_there && is_as_scanned(stat, was, false)
    }

    /// Takes away what is of no use any more, ends exchanges that were interrupted, and takes back those for something that
    /// was torn since. What was about to be removed is put back: it may be another file, which somebody put there. Whether
    /// that was all, or it is to be looked again.
    pub fn settle(&mut self, look: &mut Look<'_, '_>) -> bool {
        for (above, name) in &self.useless {
            let inside = if above.is_empty() { b".".to_vec() } else { [above, &b"/."[..]].concat() };
            let Ok((directory, _)) = look.host.parent(&inside) else { continue };
            // What cannot be removed is in the way later, and named then.
            if directory.remove(name).is_err() {
                let _ = directory.remove_directory(name);
            }
        }
        for (above, i) in &self.away {
            let inside = if above.is_empty() { b".".to_vec() } else { [above, &b"/."[..]].concat() };
            let Ok((place, _)) = look.host.parent(&inside) else { continue };
            let Ok((directory, name)) = look.host.parent(look.sides.path(*i)) else { continue };
            let away = look.progress.away(*i);
            let back = match directory.stat(name) {
                Ok(None) => place.rename_new(&away, &directory, name),
                _ => place.rename_new(&away, &place, &look.progress.aside(*i)),
            };
            // It stays under our name, and is found the next time.
            let _ = back;
        }
        let mut is_all = self.away.is_empty() && self.gone.is_empty();
        for (i, path) in std::mem::take(&mut self.gone) {
            if put_back(look, i, &path).is_err() {
                self.strange.push(path);
            }
        }
        for (i, path) in &self.came_out {
            if look.one(*i).0 != Found::Torn {
                continue;
            }
            is_all = false;
            let Ok((place, aside)) = look.host.parent(path) else { continue };
            let Ok((directory, name)) = look.host.parent(look.sides.path(*i)) else { continue };
            let _ = place.exchange(aside, &directory, name, &look.progress.away(*i));
        }
        is_all
    }
}

/// Whether nothing has the path that a name of ours for a file that was about to be removed tells.
fn is_free(look: &mut Look<'_, '_>, i: usize, gone: &[u8]) -> bool {
    let path = look.sides.path(i);
    let there = look.host.parent(path).and_then(|(directory, name)| directory.stat(name));
    look.progress.gone(i, path) == gone && matches!(there, Ok(None))
}

fn put_back(look: &mut Look<'_, '_>, i: usize, gone: &[u8]) -> Result<(), Errno> {
    let (place, from) = look.host.parent(gone)?;
    let (directory, name) = look.host.parent(look.sides.path(i))?;
    place.rename_new(from, &directory, name)
}

/// Whether something is what is to come for a difference, and known to be whole.
fn is_ready(look: &mut Look<'_, '_>, i: usize, stat: &Stat) -> bool {
    let Some((new, _)) = look.sides.new_inode(i).filter(|_| look.sides.brings(i)) else { return false };
    look.progress.is_durable(look.sides.path(i), &Seen::of(stat)) || look.is_moved_here(stat, new)
}

/// Whether something is what an earlier apply made for a difference, whole or not: it has nothing that the guest has not.
fn is_ours(look: &mut Look<'_, '_>, i: usize, path: &[u8], stat: &Stat) -> bool {
    let Some((new, is)) = look.sides.new_inode(i) else { return false };
    if file_type(stat) != Some(is.file_type()) {
        return false;
    }
    let Ok((directory, name)) = look.host.parent(path) else { return false };
    match is.file_type() {
        FileType::Regular => {
            let Ok(file) = directory.open_file(name) else { return false };
            let size = stat.st_size as u64;
            size <= is.size() && look.compare_with(&file, size, new).is_ok_and(|(_, torn)| torn)
        }
        FileType::Symlink => {
            directory.read_link(name).is_ok_and(|target| target == look.sides.guest.symlink_target(new))
        }
        FileType::Directory => directory.names_of(name).is_ok_and(|names| names.is_empty()),
        _ => true,
    }
}
