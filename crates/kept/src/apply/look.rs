//! Looks at what the host has at each difference. Bytes decide what is equal, never a size and a time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;

use inarch_block::{Content, read_content};
use inarch_tree::{DataRange, FileType, Inode, InodeId, Xattr};
use rustix::fd::OwnedFd;
use rustix::fs::{SeekFrom, Stat, seek};
use rustix::io::Errno;

use super::host::{Host, Volume, file_type, is_as_scanned, mtime};
use super::make::Same;
use super::paths::{inside, is_beneath, joined, parent};
use super::progress::Progress;
use super::seen::Seen;
use super::sides::Sides;
use crate::OwnersBack;
use crate::same::data_of_either;

/// Bytes that are compared at once.
const PIECE: usize = 256 << 10;

/// What the host has at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// What was scanned. Not `strictly`: its attributes changed since, or it got or lost a name.
    Scanned {
        strictly: bool,
    },
    /// The guest's version.
    Guests,
    /// The guest's version with other attributes.
    GuestsContent,
    /// The guest's version; a part of it was lost when the machine went down.
    Torn,
    /// A directory where the guest has one, but not the one that was scanned.
    Directory,
    Other,
    /// What another name leads to: the host's directory ignores case and takes both names for one.
    Alias,
    Unknown(Errno),
}

/// What the host has of a file of the base that lends bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Lender {
    /// Whether its bytes can be read where the scan found them: nothing about it has changed.
    pub readable: bool,
    /// Its names that still lead to it.
    pub names: Vec<Vec<u8>>,
    /// Its attributes.
    pub stat: Option<Stat>,
}

/// What the host has.
#[derive(Default)]
pub(super) struct Facts {
    /// What is at the path of each difference.
    pub found: Vec<Found>,
    pub stats: Vec<Option<Stat>>,
    pub lenders: HashMap<InodeId, Lender>,
    /// Names in the guest at which the host already has a file that is also to come under other names.
    pub homes: HashSet<Vec<u8>>,
    /// The volumes of the directories that files come to or go from.
    pub volumes: HashMap<Vec<u8>, Volume>,
    /// Directories that are to go and have something in them that the scan did not see: its name.
    pub crowded: HashMap<usize, Vec<u8>>,
    /// New objects whose directory neither is on the host nor will be made.
    pub homeless: HashSet<usize>,
    /// Directories whose extended attributes both sides changed.
    pub contested: HashSet<usize>,
    /// Directories that both sides made, with other attributes.
    pub made_by_both: BTreeSet<usize>,
    /// As [`Progress::touched`], and up to date since leftovers were put in order.
    pub touched: HashMap<Vec<u8>, Seen>,
}

/// Looks at the host for one tree.
pub(super) struct Look<'l, 'a> {
    pub sides: &'l Sides<'a>,
    pub host: &'l mut Host,
    pub progress: &'l Progress,
    /// Differences whose old object has a temporary name, and its path.
    pub came_out: BTreeMap<usize, Vec<u8>>,
    /// Differences whose new object is whole under a temporary name, and its directory.
    pub ready: BTreeMap<usize, Vec<u8>>,
    /// Files that got another time when a leftover was removed or renamed: what they were, and what they are.
    pub moved_on: HashMap<Seen, Seen>,
    /// The directory whose names were read last, and these.
    listed: Option<(Vec<u8>, HashSet<Vec<u8>>)>,
    buffers: (Vec<u8>, Vec<u8>),
}

impl<'l, 'a> Look<'l, 'a> {
    pub fn new(sides: &'l Sides<'a>, host: &'l mut Host, progress: &'l Progress) -> Look<'l, 'a> {
        let (came_out, ready, moved_on, listed, buffers) = Default::default();
        Look { sides, host, progress, came_out, ready, moved_on, listed, buffers }
    }

    /// Looks at every difference that is `chosen`, and at the files that they borrow bytes of.
    pub fn all(&mut self, chosen: &[bool]) -> Facts {
        let mut facts = Facts::default();
        // The last directory that is not there, or only under another name. The same holds for everything in it.
        let mut absent: Option<(&[u8], Found)> = None;
        for (i, chosen) in chosen.iter().enumerate() {
            let path = self.sides.path(i);
            let within = absent.as_ref().filter(|(top, _)| is_beneath(path, top)).map(|(_, found)| found);
            let is_within = within.is_some();
            let (found, stat) = match (chosen, within) {
                (false, _) => (Found::Nothing, None),
                (true, Some(found)) => (found.clone(), None),
                (true, None) => self.one(i),
            };
            let is_absent = matches!(found, Found::Nothing | Found::Alias);
            if is_absent && *chosen && !is_within && self.sides.is_directory(i) {
                absent = Some((path, found.clone()));
            }
            if *chosen && self.sides.takes_directory(i) && stat.is_some_and(|stat| is_directory(&stat)) {
                facts.crowded.extend(self.stranger_in(i).map(|name| (i, name)));
            }
            if *chosen && matches!(found, Found::Scanned { .. }) && self.is_contested(i) {
                facts.contested.insert(i);
            }
            if *chosen && found == Found::Directory && stat.is_some_and(|stat| !self.has_attributes(i, &stat)) {
                facts.made_by_both.insert(i);
            }
            if *chosen && found == Found::Nothing && !self.has_directory(i) {
                facts.homeless.insert(i);
            }
            facts.found.push(found);
            facts.stats.push(stat);
        }
        for i in (0..chosen.len()).filter(|i| chosen.get(*i) == Some(&true)) {
            self.look_at_lenders(i, &mut facts);
            self.look_for_homes(i, chosen, &mut facts);
        }
        self.look_for_volumes(chosen, &mut facts);
        let touched = self.progress.touched.iter();
        facts.touched = touched.map(|(path, seen)| (path.clone(), self.moved_on_from(*seen))).collect();
        facts
    }

    /// Whether the directory that something comes to is there, or comes too.
    fn has_directory(&mut self, i: usize) -> bool {
        let comes = self.sides.above(i).is_some_and(|above| self.sides.brings_directory(above));
        let is_there = |host: &mut Host| {
            !matches!(host.parent(self.sides.path(i)), Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
        };
        comes || is_there(self.host)
    }

    /// Finds the volumes between which something may be linked.
    fn look_for_volumes(&mut self, chosen: &[bool], facts: &mut Facts) {
        let sides = self.sides;
        let links = |i: &usize| sides.origin(*i).is_some() || sides.new_inode(*i).is_some_and(|(_, is)| is.links() > 1);
        let come = (0..chosen.len()).filter(|i| chosen.get(*i) == Some(&true) && sides.brings(*i)).filter(links);
        let lenders = facts.lenders.values().flat_map(|lender| &lender.names);
        let names = come.map(|i| sides.path(i)).chain(facts.homes.iter().chain(lenders).map(Vec::as_slice));
        let directories: HashSet<Vec<u8>> = names.map(|name| parent(name).to_owned()).collect();
        for directory in directories {
            let volume = self.volume(&directory);
            facts.volumes.extend(volume.map(|volume| (directory, volume)));
        }
    }

    /// The volume of a directory, or of the one that it is to be made in.
    fn volume(&mut self, directory: &[u8]) -> Option<Volume> {
        let mut path = directory;
        loop {
            match self.host.parent(&inside(path)) {
                Ok((found, _)) => return found.volume().ok(),
                Err(_) if path.is_empty() => return None,
                Err(_) => path = parent(path),
            }
        }
    }

    pub fn one(&mut self, i: usize) -> (Found, Option<Stat>) {
        let stat = match self.host.stat(self.sides.path(i)) {
            Ok(Some(stat)) => stat,
            Ok(None) => return (Found::Nothing, None),
            Err(errno) => return (Found::Unknown(errno), None),
        };
        // What the scan saw has that very name.
        if self.sides.base.lookup(self.sides.path(i)).is_none() {
            match self.is_listed(self.sides.path(i)) {
                Ok(true) => {}
                Ok(false) => return (Found::Alias, Some(stat)),
                Err(errno) => return (Found::Unknown(errno), Some(stat)),
            }
        }
        let scanned = self.sides.old(i).filter(|(_, was)| is_as_scanned(&stat, was, false));
        let found = match scanned {
            Some((_, was)) => {
                let touched = self.progress.touched.get(self.sides.path(i)).map(|seen| self.moved_on_from(*seen));
                let is_ours = touched == Some(Seen::of(&stat));
                Found::Scanned { strictly: is_ours || is_as_scanned(&stat, was, true) }
            }
            None => self.not_scanned(i, &stat),
        };
        // What only got attributes, or was linked here, is still the same object.
        let is_guests = found == Found::Scanned { strictly: false }
            && !is_directory(&stat)
            && self.sides.new_inode(i).is_some_and(|(new, _)| self.sides.in_place(i) || self.is_moved_here(&stat, new))
            && self.has_attributes(i, &stat);
        let found = if is_guests { Found::Guests } else { found };
        (found, Some(stat))
    }

    /// What a file is since leftovers were put in order.
    fn moved_on_from(&self, seen: Seen) -> Seen {
        std::iter::successors(Some(seen), |seen| self.moved_on.get(seen).copied()).last().unwrap_or(seen)
    }

    /// Removes or renames a leftover by `change`, and returns whether that was done. The ctime of the file's other names changes too: we
    /// record it, so that it does not count as a change by the host.
    pub fn change(&mut self, path: &[u8], change: impl FnOnce(&mut Host) -> Result<(), Errno>) -> bool {
        // A dry run changes nothing.
        let is_real = !self.host.pretends();
        let held = is_real.then(|| {
            let (directory, name) = self.host.parent(path).ok()?;
            let object = directory.object(name).ok()??;
            Some((directory, object))
        });
        let is_done = change(self.host).is_ok();
        if let Some((directory, object)) = held.flatten()
            && let Ok(stat) = directory.stat_of(object.as_fd())
            && let (before, now) = (Seen::of(&object.stat), Seen::of(&stat))
            && before != now
        {
            self.moved_on.insert(before, now);
        }
        is_done
    }

    /// Whether the host lists a path under that very name: a directory that ignores case (vfat, CIFS, ext4's casefold)
    /// finds it under others as well.
    fn is_listed(&mut self, path: &[u8]) -> Result<bool, Errno> {
        let above = parent(path);
        let name = path.get(above.len()..).unwrap_or_default();
        let name = name.strip_prefix(b"/").unwrap_or(name);
        if self.listed.as_ref().is_none_or(|(listed, _)| listed != above) {
            self.listed = Some((above.to_owned(), self.host.names_in(above)?.into_iter().collect()));
        }
        Ok(self.listed.as_ref().is_some_and(|(_, names)| names.contains(name)))
    }

    fn not_scanned(&mut self, i: usize, stat: &Stat) -> Found {
        let Some((new, is)) = self.sides.new_inode(i) else { return Found::Other };
        if file_type(stat) != Some(is.file_type()) {
            return Found::Other;
        }
        if is.file_type() == FileType::Directory {
            return Found::Directory;
        }
        match self.compare(i, stat, (new, is)) {
            Found::GuestsContent if self.has_attributes(i, stat) => Found::Guests,
            found => found,
        }
    }

    /// Compares the content of two objects of one kind that are no directories.
    fn compare(&mut self, i: usize, stat: &Stat, (new, is): (InodeId, &Inode)) -> Found {
        let same = |same: bool| if same { Found::GuestsContent } else { Found::Other };
        if self.is_moved_here(stat, new) {
            return Found::GuestsContent;
        }
        match is.file_type() {
            FileType::Regular if self.progress.is_durable(self.sides.path(i), &Seen::of(stat)) => Found::GuestsContent,
            FileType::Regular => self.compare_bytes(i, stat, (new, is)),
            FileType::Symlink => {
                let target = self.host.seen(self.sides.path(i)).and_then(|(dir, name)| dir.read_link(&name));
                same(target.is_ok_and(|target| target == self.sides.guest.symlink_target(new)))
            }
            FileType::CharDevice | FileType::BlockDevice => {
                same((rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == is.device())
            }
            FileType::Directory | FileType::Fifo | FileType::Socket => Found::GuestsContent,
        }
    }

    /// Whether the host has here the file of the base that the guest gave this name, with the content that it has in
    /// the guest.
    pub fn is_moved_here(&mut self, stat: &Stat, new: InodeId) -> bool {
        let Some(origin) = self.sides.lineage.origin(new) else { return false };
        let was = self.sides.base.inode(origin);
        let is = self.sides.guest.inode(new);
        let has_its_time = mtime(stat) == was.mtime() || mtime(stat) == is.mtime();
        was.source_ino() == stat.st_ino
            && file_type(stat) == Some(was.file_type())
            && (was.file_type() != FileType::Regular || stat.st_size as u64 == was.size())
            && has_its_time
            && self.sides.is_unmodified(origin, new)
            && self.is_in_file_system_of(origin, stat)
    }

    /// Whether something of the host is in the file system that an inode of the base was scanned in. In another one, a
    /// mount or a subvolume, the same inode number is another file.
    fn is_in_file_system_of(&mut self, old: InodeId, stat: &Stat) -> bool {
        let mut path = self.sides.base.path(old);
        loop {
            match self.host.stat(&path) {
                Ok(Some(there)) => return there.st_dev == stat.st_dev,
                _ if path.is_empty() => return false,
                // What is gone was in the file system of its directory.
                _ => path.truncate(parent(&path).len()),
            }
        }
    }

    fn compare_bytes(&mut self, i: usize, stat: &Stat, (new, is): (InodeId, &Inode)) -> Found {
        let torn_is_ours = self.progress.may_be_torn(self.sides.path(i));
        let there = stat.st_size as u64;
        if there != is.size() && !(torn_is_ours && there < is.size()) {
            return Found::Other;
        }
        let opened = self.host.seen(self.sides.path(i)).and_then(|(directory, name)| directory.open_file(&name));
        let Ok(file) = opened else { return Found::Other };
        if torn_is_ours {
            // The page cache still has what the disk refused.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
        // The files that lend the content may have changed by the same apply. Its copy is the content then.
        let compared = match self.compare_with(&file, there, new) {
            Err(error) => match self.ready_file(i) {
                Some(copy) => self.compare_to(&Same(&copy), &file, there, new),
                None => Err(error),
            },
            compared => compared,
        };
        match compared {
            Ok((true, _)) if there == is.size() => Found::GuestsContent,
            Ok((_, true)) if torn_is_ours => Found::Torn,
            _ => Found::Other,
        }
    }

    /// The new object of a difference that is whole under a temporary name.
    fn ready_file(&mut self, i: usize) -> Option<OwnedFd> {
        let path = joined(self.ready.get(&i)?, &self.progress.aside(self.sides.path(i)));
        self.host.seen(&path).and_then(|(directory, name)| directory.open_file(&name)).ok()
    }

    /// Whether the first `size` bytes of a file are the guest's, and whether they would be if zeros had not replaced
    /// some.
    pub fn compare_with(&mut self, file: &OwnedFd, size: u64, new: InodeId) -> io::Result<(bool, bool)> {
        self.compare_to(self.sides.content, file, size, new)
    }

    /// The same, with the bytes of `content` instead of the guest's.
    fn compare_to(
        &mut self,
        content: &dyn Content,
        file: &OwnedFd,
        size: u64,
        new: InodeId,
    ) -> io::Result<(bool, bool)> {
        let hosts = data_of_file(file, size);
        let ranges = data_of_either(self.sides.guest.sparse_ranges(new), hosts.as_deref(), size);
        let (there, guests) = &mut self.buffers;
        there.resize(PIECE, 0);
        guests.resize(PIECE, 0);
        let mut same = true;
        let pieces = ranges.into_iter().flat_map(|range| {
            let starts = range.clone().step_by(PIECE);
            starts.map(move |at| (at, (range.end - at).min(PIECE as u64) as usize))
        });
        for (at, count) in pieces {
            let (there, guests) = (there.get_mut(..count), guests.get_mut(..count));
            let (Some(there), Some(guests)) = (there, guests) else { break };
            read_content(content, new, at, guests)?;
            let read = rustix::io::pread(file, &mut *there, at)?;
            let there = there.get(..read).unwrap_or_default();
            if read < count {
                return Ok((false, false));
            }
            if *there != *guests {
                same = false;
                if there.iter().zip(&*guests).any(|(there, guests)| *there != 0 && there != guests) {
                    return Ok((false, false));
                }
            }
        }
        Ok((same, true))
    }

    /// Whether the first `size` bytes of a file are those of the host's file that the guest renamed to `new`, or would
    /// be if zeros had not replaced some. That file cannot be read as a lender any more once its attributes changed.
    pub fn is_copy_of_moved(&mut self, file: &OwnedFd, size: u64, new: InodeId) -> bool {
        let Some(origin) = self.sides.lineage.origin(new).filter(|old| self.sides.is_unmodified(*old, new)) else {
            return false;
        };
        let was = self.sides.base.inode(origin);
        self.sides.names.of_base(self.sides.base, origin).iter().any(|name| {
            let there = self.host.stat(name).ok().flatten().is_some_and(|stat| is_as_scanned(&stat, was, false));
            let opened = self.host.seen(name).and_then(|(directory, name)| directory.open_file(&name));
            let Some(moved) = opened.ok().filter(|_| there) else { return false };
            self.compare_to(&Same(&moved), file, size, new).is_ok_and(|(_, torn)| torn)
        })
    }

    /// Whether something on the host has the guest's permissions, owner and extended attributes, as far as the guest
    /// changed them.
    pub fn has_attributes(&mut self, i: usize, stat: &Stat) -> bool {
        let Some((_, is)) = self.sides.new_inode(i) else { return false };
        let aspects = self.sides.differences.get(i).map(|difference| difference.aspects).unwrap_or_default();
        let added = self.sides.old(i).is_none();
        let same_mode = is.file_type() == FileType::Symlink || (stat.st_mode ^ is.mode()) & 0o7777 == 0;
        let owners = self.sides.owners;
        let was = self.was(i);
        let is_owner = |back: Option<u32>, id: u32, is_kept: bool| match back {
            Some(back) => back == id,
            None => is_kept || !self.tells_again(i),
        };
        let same_owner = is_owner(owners.uid(is.uid()), stat.st_uid, was.is_some_and(|was| was.uid() == is.uid()))
            && is_owner(owners.gid(is.gid()), stat.st_gid, was.is_some_and(|was| was.gid() == is.gid()));
        // Attributes that the guest did not change are the host's.
        let in_place = self.sides.in_place(i);
        let same_time = !in_place || !aspects.mtime || mtime(stat) == is.mtime();
        (same_mode || (in_place && !aspects.mode))
            && same_time
            && (same_owner || (!aspects.owner && !added))
            && (!(aspects.xattrs || added) || self.has_xattrs(i))
    }

    /// The file of the base that the guest's grew out of, or that it replaces.
    fn was(&self, i: usize) -> Option<&'l Inode> {
        let sides = self.sides;
        sides.origin(i).map(|origin| sides.base.inode(origin)).or(sides.old(i).map(|(_, was)| was))
    }

    /// Whether an interrupted apply may not have reported what of a difference has no place on the host: an owner, or
    /// an ACL that names one. Then it is set and reported once more.
    fn tells_again(&self, i: usize) -> bool {
        self.progress.had_begun(self.sides.path(i))
    }

    fn has_xattrs(&mut self, i: usize) -> bool {
        let sides = self.sides;
        let Some((_, is)) = sides.new_inode(i) else { return true };
        let Ok((directory, name)) = self.host.seen(sides.path(i)) else { return false };
        let wanted = sides.guest.xattrs(is.xattrs());
        let kept = self.was(i).map(|was| sides.base.xattrs(was.xattrs())).unwrap_or_default();
        let is_set = |xattr: &Xattr| {
            let mut expected = xattr.value.to_vec();
            if xattr.name.starts_with(b"system.posix_acl_") && !sides.owners.acl(&mut expected) {
                return kept.contains(xattr) || !self.tells_again(i);
            }
            directory.xattr(&name, &xattr.name).is_ok_and(|value| value.as_ref() == Some(&expected))
        };
        let had = sides.old(i).map(|(_, was)| sides.base.xattrs(was.xattrs())).unwrap_or_default();
        let mut gone = had.iter().filter(|xattr| wanted.iter().all(|other| other.name != xattr.name));
        wanted.iter().all(is_set) && gone.all(|xattr| directory.xattr(&name, &xattr.name) == Ok(None))
    }

    /// Whether the host changed an extended attribute of a directory that the guest changed otherwise.
    fn is_contested(&mut self, i: usize) -> bool {
        let sides = self.sides;
        let is_changed = sides.differences.get(i).is_some_and(|difference| difference.aspects.xattrs);
        let (Some((_, was)), Some((_, is))) = (sides.old(i), sides.new_inode(i)) else { return false };
        if !is_changed || !sides.in_place(i) || is.file_type() != FileType::Directory {
            return false;
        }
        let Ok((directory, name)) = self.host.seen(sides.path(i)) else { return false };
        let (had, has) = (sides.base.xattrs(was.xattrs()), sides.guest.xattrs(is.xattrs()));
        let value = |xattrs: &[Xattr], name: &[u8]| {
            let found = xattrs.iter().find(|xattr| *xattr.name == *name);
            found.map(|xattr| xattr.value.to_vec())
        };
        let is_others = |xattr: &&Xattr| {
            // An owner map may merge several owners, so the ACL that was scanned is unknown.
            if xattr.name.starts_with(b"system.posix_acl_") && *sides.owners != OwnersBack::default() {
                return false;
            }
            // What cannot be read cannot be set either.
            let Ok(there) = directory.xattr(&name, &xattr.name) else { return false };
            there != value(had, &xattr.name) && there != value(has, &xattr.name)
        };
        let removed_or_changed = had.iter().filter(|xattr| !has.contains(xattr));
        removed_or_changed.chain(has.iter().filter(|xattr| !had.contains(xattr))).any(|xattr| is_others(&xattr))
    }

    /// A name that the scan did not see in a directory that is to go.
    fn stranger_in(&mut self, i: usize) -> Option<Vec<u8>> {
        let (old, _) = self.sides.old(i)?;
        let path = self.sides.path(i);
        let known: HashSet<&[u8]> = self.sides.base.entries(old).map(|entry| entry.name).collect();
        let is_strange = |name: &Vec<u8>| !known.contains(&name[..]) && !self.progress.is_ours(name);
        self.host.names_in(path).ok()?.into_iter().find(is_strange)
    }

    fn look_at_lenders(&mut self, i: usize, facts: &mut Facts) {
        let mut lenders = match self.sides.new_inode(i) {
            Some((new, _)) if self.sides.brings(i) => self.sides.lenders(new),
            _ => Vec::new(),
        };
        lenders.extend(self.sides.origin(i).filter(|_| self.sides.brings(i)));
        lenders.extend(self.sides.old(i).filter(|_| self.sides.takes(i)).map(|(old, _)| old));
        let came_out: Vec<(InodeId, Vec<u8>)> =
            self.came_out.iter().filter_map(|(i, path)| Some((self.sides.old(*i)?.0, path.clone()))).collect();
        for old in lenders {
            if facts.lenders.contains_key(&old) {
                continue;
            }
            let was = self.sides.base.inode(old);
            let first = self.sides.base.path(old);
            let mut lender = Lender::default();
            let out = came_out.iter().filter(|(out, _)| *out == old).map(|(_, path)| path.clone());
            for name in self.sides.names.of_base(self.sides.base, old).into_iter().chain(out) {
                let Ok(Some(stat)) = self.host.stat(&name) else { continue };
                lender.readable |= name == first && is_as_scanned(&stat, was, true);
                if is_as_scanned(&stat, was, false) {
                    lender.stat = Some(stat);
                    lender.names.push(name);
                }
            }
            facts.lenders.insert(old, lender);
            for name in self.sides.quiet_borrowers(old) {
                if self.is_another_name_of(&name, old) || self.has_guests_bytes(&name) {
                    facts.homes.insert(name);
                }
            }
        }
    }

    /// Finds names at which the host already has a file that comes, because they are no differences.
    fn look_for_homes(&mut self, i: usize, chosen: &[bool], facts: &mut Facts) {
        let Some((new, is)) = self.sides.new_inode(i).filter(|_| self.sides.brings(i)) else { return };
        if is.links() < 2 {
            return;
        }
        for name in self.sides.names.of_guest(self.sides.guest, new) {
            if facts.homes.contains(&name) {
                continue;
            }
            if let Some(j) = self.sides.at(&name) {
                // An earlier apply may have been of this name alone.
                if chosen.get(j) == Some(&false) && self.one(j).0 == Found::Guests {
                    facts.homes.insert(name);
                }
                continue;
            }
            self.look_at_home(name, facts);
        }
    }

    /// Whether a path that is no difference still leads to a file of the base, so that the content stays there when
    /// another name goes. Changes of attributes do not matter here.
    fn is_another_name_of(&mut self, name: &[u8], old: InodeId) -> bool {
        let is_name = self.sides.base.lookup(name) == Some(old) && self.sides.guest.lookup(name).is_some();
        let was = self.sides.base.inode(old);
        is_name && matches!(self.host.stat(name), Ok(Some(stat)) if is_as_scanned(&stat, was, false))
    }

    /// Whether the host's file at a path that is no difference has the guest's content: it is strictly what was
    /// scanned, or has the same bytes.
    fn has_guests_bytes(&mut self, name: &[u8]) -> bool {
        let Ok(Some(stat)) = self.host.stat(name) else { return false };
        let Some(new) = self.sides.guest.lookup(name) else { return false };
        let was = self.sides.base.lookup(name).map(|id| self.sides.base.inode(id));
        // An apply that was interrupted may have given it another name, or taken one away.
        let has_names = |was: &Inode| was.links() > 1 || self.sides.guest.inode(new).links() > 1;
        if was.is_some_and(|was| is_as_scanned(&stat, was, !(self.progress.begun && has_names(was)))) {
            return true;
        }
        let size = self.sides.guest.inode(new).size();
        let opened = self.host.seen(name).and_then(|(directory, name)| directory.open_file(&name));
        let Ok(file) = opened else { return false };
        stat.st_size as u64 == size && self.compare_with(&file, size, new).is_ok_and(|(same, _)| same)
    }

    /// Adds a path that is no difference, if the host has there what was scanned: the guest has the same.
    fn look_at_home(&mut self, name: Vec<u8>, facts: &mut Facts) {
        let Some(was) = self.sides.base.lookup(&name).map(|id| self.sides.base.inode(id)) else { return };
        if let Ok(Some(stat)) = self.host.stat(&name)
            && is_as_scanned(&stat, was, false)
        {
            facts.homes.insert(name);
        }
    }
}

/// The ranges of a file of the host that have data, up to `size`. `None` if its file system does not say.
fn data_of_file(file: &OwnedFd, size: u64) -> Option<Vec<DataRange>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // A hole up to the end.
            Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        let end = seek(file, SeekFrom::Hole(start)).ok().filter(|end| *end > start)?;
        ranges.push(DataRange { offset: start, length: end - start });
        at = end;
    }
    Some(ranges)
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    file_type(stat) == Some(FileType::Directory)
}
