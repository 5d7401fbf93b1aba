//! What is done on the host for one difference.

use std::collections::{HashMap, HashSet};

use inarch_block::Content;
use inarch_tree::compare::Aspects;
use inarch_tree::{FileType, Inode, InodeId};
use rustix::fs::Stat;
use rustix::io::Errno;

use super::attributes::{Changed, Lost, Target, Wanted, set_attributes};
use super::host::{Directory, Host, file_type, is_as_scanned};
use super::look::{Facts, Found, Seen};
use super::make::{MakeError, Same, host, make_file, make_other};
use super::plan::{How, Plan};
use super::progress::Progress;
use super::sides::{Sides, parent};

/// What every thread that applies the differences of one tree knows.
pub(super) struct Task<'t, 'a> {
    pub sides: &'t Sides<'a>,
    pub facts: &'t Facts,
    pub plan: &'t Plan,
    pub progress: &'t Progress,
}

/// Works on the host, in one thread.
pub(super) struct Worker<'w, 'a> {
    pub task: &'w Task<'w, 'a>,
    pub host: &'w mut Host,
    /// What is copied goes through it.
    pub buffer: Vec<u8>,
    pub lost: Lost,
    /// Objects that got other names or attributes by our doing: their times of a change of attributes are ours.
    pub touched: HashSet<u64>,
    /// Inode numbers of what was made under names of ours.
    pub made_as: HashMap<usize, u64>,
    /// What was put in its place by an exchange.
    placed_as: HashMap<usize, Seen>,
}

impl<'w, 'a> Worker<'w, 'a> {
    pub fn new(task: &'w Task<'w, 'a>, host: &'w mut Host) -> Worker<'w, 'a> {
        let (buffer, lost, touched, made_as, placed_as) = Default::default();
        Worker { task, host, buffer, lost, touched, made_as, placed_as }
    }

    fn path(&self, i: usize) -> &'a [u8] {
        self.task.sides.path(i)
    }

    fn final_place(&mut self, i: usize) -> Result<(Directory, Vec<u8>), MakeError> {
        let (directory, name) = self.host.parent(self.path(i)).map_err(host("reach"))?;
        Ok((directory, name.to_owned()))
    }

    /// The directory and the name of ours that a difference has.
    pub fn aside(&mut self, i: usize) -> Result<(Directory, Vec<u8>), MakeError> {
        let task = self.task;
        self.aside_in(i, task.plan.asides.get(&i).map_or_else(|| parent(task.sides.path(i)), Vec::as_slice))
    }

    fn aside_in(&mut self, i: usize, above: &[u8]) -> Result<(Directory, Vec<u8>), MakeError> {
        let inside = if above.is_empty() { b".".to_vec() } else { [above, b"/."].concat() };
        let (directory, _) = self.host.parent(&inside).map_err(host("reach"))?;
        Ok((directory, self.task.progress.aside(i)))
    }

    /// Where something is made.
    pub fn made_at(&mut self, i: usize) -> Result<(Directory, Vec<u8>), MakeError> {
        if self.task.plan.asides.contains_key(&i) { self.aside(i) } else { self.final_place(i) }
    }

    pub fn directory(&mut self, i: usize) -> Result<(), MakeError> {
        let (directory, name) = self.final_place(i)?;
        self.make_new(i, &directory, &name)
    }

    /// Makes what comes for a difference.
    pub fn make(&mut self, i: usize, how: &How) -> Result<(), MakeError> {
        let (directory, name) = self.made_at(i)?;
        match how {
            How::Ready => {}
            How::New => self.make_new(i, &directory, &name)?,
            How::Link(from) => {
                self.check_home(i, from)?;
                let from = from.clone();
                let (source, source_name) = self.host.parent(&from).map_err(host("reach"))?;
                self.link(i, (&source, source_name), (&directory, &name))?;
            }
            How::SameAs(first) => {
                let (source, source_name) = self.made_at(*first)?;
                self.link(i, (&source, &source_name), (&directory, &name))?;
            }
        }
        match self.task.plan.asides.contains_key(&i) {
            true => self.know_aside(i, None),
            false => Ok(()),
        }
    }

    /// Takes note of what has a name of ours, and was made for a difference: nothing else is removed under that name.
    pub fn know_aside(&mut self, i: usize, above: Option<&Vec<u8>>) -> Result<(), MakeError> {
        let (place, aside) = match above {
            Some(above) => self.aside_in(i, above)?,
            None => self.aside(i)?,
        };
        let stat = place.stat(&aside).map_err(host("look at"))?;
        self.made_as.extend(stat.map(|stat| (i, stat.st_ino)));
        Ok(())
    }

    /// Whether the host still has at `from` what it had when it was looked at.
    fn check_home(&mut self, i: usize, from: &[u8]) -> Result<(), MakeError> {
        let sides = self.task.sides;
        let (directory, name) = self.host.parent(from).map_err(host("reach"))?;
        let stat = directory.stat(name).map_err(host("look at"))?.ok_or(MakeError::Changed)?;
        let seen = sides.at(from).and_then(|j| self.task.facts.stats.get(j)).copied().flatten();
        let is_expected = match (seen, sides.base.lookup(from)) {
            (Some(seen), _) => Seen::of(&stat).is_still(&Seen::of(&seen)),
            (None, Some(old)) => is_as_scanned(&stat, sides.base.inode(old), false),
            // What an exchange took out before.
            (None, None) => sides.origin(i).is_some_and(|old| is_as_scanned(&stat, sides.base.inode(old), false)),
        };
        if is_expected { Ok(()) } else { Err(MakeError::Changed) }
    }

    fn link(
        &mut self,
        i: usize,
        (source, from): (&Directory, &[u8]),
        (directory, name): (&Directory, &[u8]),
    ) -> Result<(), MakeError> {
        let seen = source.stat(from).map_err(host("look at"))?;
        match source.link(from, directory, name) {
            // Not between these file systems, not on this one, or not so many.
            Err(Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP) => {
                self.copy(i, (source, from, seen), directory, name)
            }
            result => {
                self.touched.extend(seen.map(|stat| stat.st_ino));
                result.map_err(host("link"))
            }
        }
    }

    /// Copies what cannot be linked from where the host has it. A link that was made before has changed that file's times: then its
    /// bytes are not to be had as those of the scan.
    fn copy(
        &mut self,
        i: usize,
        (source, from, seen): (&Directory, &[u8], Option<Stat>),
        directory: &Directory,
        name: &[u8],
    ) -> Result<(), MakeError> {
        let is_file = seen.is_some_and(|stat| file_type(&stat) == Some(FileType::Regular));
        let Some(seen) = seen.filter(|_| is_file) else { return self.make_new(i, directory, name) };
        let file = match source.open_file(from) {
            Ok(file) => file,
            // What another user may not read the guest's disk may have.
            Err(Errno::ACCESS) => return self.make_new(i, directory, name),
            Err(errno) => return Err(host("read")(errno)),
        };
        self.make_from(i, directory, name, &Same(&file))?;
        let is = source.stat(from).map_err(host("look at"))?;
        if is.is_some_and(|is| Seen::of(&is) == Seen::of(&seen)) {
            return Ok(());
        }
        directory.remove(name).map_err(host("remove"))?;
        Err(MakeError::Changed)
    }

    fn make_new(&mut self, i: usize, directory: &Directory, name: &[u8]) -> Result<(), MakeError> {
        self.make_from(i, directory, name, self.task.sides.content)
    }

    fn make_from(
        &mut self,
        i: usize,
        directory: &Directory,
        name: &[u8],
        content: &dyn Content,
    ) -> Result<(), MakeError> {
        let Some((new, is)) = self.task.sides.new_inode(i) else { return Ok(()) };
        let wanted = self.wanted(i, new, is);
        let part = self.task.progress.part(i);
        match is.file_type() {
            FileType::Regular => {
                make_file(directory, name, &part, content, &wanted, (&mut self.lost, &mut self.buffer))
            }
            _ => make_other(directory, name, &wanted, &mut self.lost),
        }
    }

    /// Makes a file and puts it in its place.
    pub fn make_and_place(&mut self, i: usize) -> Result<(), MakeError> {
        self.make(i, &How::New)?;
        if !self.task.plan.asides.contains_key(&i) {
            return Ok(());
        }
        let placed = self.exchange(i).and_then(|()| self.drop_out(i));
        if placed.is_err() {
            // The first error is the one that counts.
            let _ = self.forget_aside(i, None);
        }
        placed
    }

    /// Lets what was made and what it replaces change names, if that is still what was seen there.
    pub fn exchange(&mut self, i: usize) -> Result<(), MakeError> {
        let (place, aside) = self.aside(i)?;
        let (directory, name) = self.final_place(i)?;
        if !self.task.sides.is_directory(i) {
            return self.exchange_names(i, (&place, &aside), (&directory, &name));
        }
        self.make_new(i, &place, &aside)?;
        let exchanged = self.exchange_names(i, (&place, &aside), (&directory, &name));
        if exchanged.is_err() {
            // The first error is the one that counts.
            let _ = place.remove_directory(&aside);
        }
        exchanged
    }

    fn exchange_names(
        &mut self,
        i: usize,
        (place, aside): (&Directory, &[u8]),
        (directory, name): (&Directory, &[u8]),
    ) -> Result<(), MakeError> {
        self.check(i, directory.stat(name).map_err(host("look at"))?)?;
        let away = self.task.progress.away(i);
        // Its other names lead to something that has changed by this, whatever comes of it.
        let seen = self.task.facts.stats.get(i).copied().flatten();
        self.touched.extend(seen.map(|stat| stat.st_ino));
        let made = place.stat(aside).map_err(host("look at"))?;
        self.placed_as.extend(made.map(|stat| (i, Seen::of(&stat))));
        place.exchange(aside, directory, name, &away).map_err(host("replace"))?;
        let came_out = place.stat(aside);
        if let Ok(Some(stat)) = &came_out
            && self.is_seen(i, stat)
        {
            self.host.forget(self.path(i));
            return Ok(());
        }
        place.exchange(aside, directory, name, &away).map_err(host("put back"))?;
        Err(came_out.map_or_else(host("look at"), |_| MakeError::Changed))
    }

    /// Puts what an exchange took out back, and what was made under its name of ours, if that is still in its place.
    pub fn exchange_back(&mut self, i: usize) -> Result<(), MakeError> {
        let (place, aside) = self.aside(i)?;
        let (directory, name) = self.final_place(i)?;
        let stat = directory.stat(&name).map_err(host("look at"))?;
        let seen = self.task.facts.stats.get(i).copied().flatten().map(|stat| Seen::of(&stat));
        let placed = self.placed_as.get(&i).copied().or(seen);
        if !stat.is_some_and(|stat| placed.is_some_and(|placed| Seen::of(&stat).is_still(&placed))) {
            return Err(MakeError::Changed);
        }
        place.exchange(&aside, &directory, &name, &self.task.progress.away(i)).map_err(host("put back"))
    }

    /// Gives what was made its name.
    pub fn enter(&mut self, i: usize) -> Result<(), MakeError> {
        let (place, aside) = self.aside(i)?;
        let (directory, name) = self.final_place(i)?;
        place.rename_new(&aside, &directory, &name).map_err(host("name"))
    }

    /// Removes what an exchange took out if it did not change since: another program may still write to it through an open descriptor.
    pub fn drop_out(&mut self, i: usize) -> Result<(), MakeError> {
        let (place, aside) = self.aside(i)?;
        let stat = place.stat(&aside).map_err(host("look at"))?;
        if !self.is_out_still(i, stat.as_ref()) {
            return Err(MakeError::Changed);
        }
        self.remove_at(&place, &aside, stat)
    }

    /// Whether what an exchange took out, now or in an earlier apply, is still what it was, or is gone.
    pub fn is_out(&mut self, i: usize) -> Result<bool, MakeError> {
        let (place, aside) = self.aside(i)?;
        let stat = place.stat(&aside).map_err(host("look at"))?;
        Ok(self.is_out_still(i, stat.as_ref()))
    }

    fn is_out_still(&self, i: usize, stat: Option<&Stat>) -> bool {
        let old = self.task.sides.old(i);
        let is_old = |stat: &Stat| old.is_some_and(|(_, was)| is_as_scanned(stat, was, false));
        stat.is_none_or(|stat| self.is_seen(i, stat) || is_old(stat))
    }

    /// Whether what was made for a difference is a file that has another name still: to remove this one loses nothing.
    pub fn has_other_name(&mut self, i: usize, above: Option<&Vec<u8>>) -> bool {
        let place = match above {
            Some(above) => self.aside_in(i, above),
            None => self.aside(i),
        };
        let stat = place.ok().and_then(|(place, aside)| place.stat(&aside).ok()).flatten();
        stat.is_some_and(|stat| stat.st_nlink > 1 && !super::look::is_directory(&stat))
    }

    /// Removes what was made and is not in its place.
    pub fn forget_aside(&mut self, i: usize, above: Option<&Vec<u8>>) -> Result<(), MakeError> {
        let (place, aside) = match above {
            Some(above) => self.aside_in(i, above)?,
            None => self.aside(i)?,
        };
        // Another name of what is in the place is a link that was made: the guest has the same file there.
        let there = self.final_place(i).and_then(|(directory, name)| directory.stat(&name).map_err(host("look at")));
        let is_there = |stat: &Stat| matches!(&there, Ok(Some(there)) if (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino) && stat.st_nlink > 1);
        // Never what was exchanged for it, or came there from elsewhere.
        let is_ours =
            |stat: &Stat| (!self.is_seen(i, stat) || is_there(stat)) && self.made_as.get(&i) == Some(&stat.st_ino);
        if !place.stat(&aside).map_err(host("look at"))?.as_ref().is_none_or(is_ours) {
            return Err(MakeError::Changed);
        }
        place.remove(&aside).map_err(host("remove"))
    }

    /// Removes a file, if it is still what was seen there.
    pub fn remove(&mut self, i: usize) -> Result<(), MakeError> {
        let (directory, name) = self.final_place(i)?;
        let stat = directory.stat(&name).map_err(host("look at"))?;
        self.check(i, stat)?;
        self.remove_at(&directory, &name, stat)
    }

    fn remove_at(&mut self, directory: &Directory, name: &[u8], stat: Option<Stat>) -> Result<(), MakeError> {
        directory.remove(name).map_err(host("remove"))?;
        // Its other names lead to something that has changed by this.
        self.touched.extend(stat.map(|stat| stat.st_ino));
        Ok(())
    }

    pub fn remove_directory(&mut self, i: usize) -> Result<(), MakeError> {
        let (directory, name) = self.final_place(i)?;
        match directory.remove_directory(&name) {
            Err(Errno::NOENT) => {}
            result => result.map_err(host("remove"))?,
        }
        self.host.forget(self.path(i));
        Ok(())
    }

    /// Sees to it that what is at a path is what was seen there, which the plan follows from.
    fn check(&self, i: usize, stat: Option<Stat>) -> Result<(), MakeError> {
        let seen = self.task.facts.stats.get(i).copied().flatten().map(|stat| Seen::of(&stat));
        let (Some(seen), Some(is)) = (seen, stat.map(|stat| Seen::of(&stat))) else { return Err(MakeError::Changed) };
        let unchanged = is == seen || (is.is_still(&seen) && self.touched.contains(&is.ino));
        if unchanged { Ok(()) } else { Err(MakeError::Changed) }
    }

    fn is_seen(&self, i: usize, stat: &Stat) -> bool {
        let seen = self.task.facts.stats.get(i).copied().flatten();
        seen.is_some_and(|seen| Seen::of(stat).is_still(&Seen::of(&seen)))
    }

    /// Sets the attributes of what is in its place: of what was there, and was not `made` anew, those which the guest changed.
    pub fn attributes(&mut self, i: usize, made: bool) -> Result<(), MakeError> {
        let sides = self.task.sides;
        let Some((new, is)) = sides.new_inode(i) else { return Ok(()) };
        let (directory, name) = self.final_place(i)?;
        let wanted = self.wanted(i, new, is);
        let target = Target::Named(&directory, &name);
        let was_there = if sides.is_directory(i) { sides.was_directory(i) } else { !made };
        let changed = match sides.old(i).filter(|_| was_there && sides.in_place(i)) {
            Some((_, was)) => Changed {
                aspects: sides.differences.get(i).map(|difference| difference.aspects).unwrap_or_default(),
                had: sides.base.xattrs(was.xattrs()),
            },
            None => Changed::ALL,
        };
        if !sides.is_directory(i) {
            let stat = directory.stat(&name).map_err(host("look at"))?;
            if !made {
                self.check(i, stat)?;
            }
            // Its other names lead to something that has changed by this.
            self.touched.extend(stat.map(|stat| stat.st_ino));
        }
        let inherits = sides.is_directory(i) && !was_there && directory.gives_acl;
        set_attributes(target, inherits, changed, &wanted, &mut self.lost)
    }

    /// Sets the time of a directory in which something was done, as the guest has it.
    pub fn directory_time(&mut self, path: &[u8]) -> Result<(), MakeError> {
        let sides = self.task.sides;
        let Some(new) = sides.guest.lookup(path) else { return Ok(()) };
        let is = sides.guest.inode(new);
        if is.file_type() != FileType::Directory {
            return Ok(());
        }
        let (directory, name) = self.host.parent(path).map_err(host("reach"))?;
        let wanted = Wanted {
            tree: sides.guest,
            inode: new,
            uid: 0,
            gid: 0,
            is_foreign: false,
            back: sides.owners,
            unwanted: Vec::new(),
        };
        let time = Changed { aspects: Aspects { mtime: true, ..Aspects::default() }, had: &[] };
        set_attributes(Target::Named(&directory, name), false, time, &wanted, &mut self.lost)
    }

    /// What is to be on the host for a difference. An owner that the guest did not change stays the host's.
    fn wanted(&self, i: usize, new: InodeId, is: &Inode) -> Wanted<'a> {
        let sides = self.task.sides;
        let facts = self.task.facts;
        let lent = sides.origin(i).and_then(|origin| {
            let stat = facts.lenders.get(&origin)?.stat?;
            Some((stat, sides.base.inode(origin)))
        });
        let scanned = matches!(facts.found.get(i), Some(Found::Scanned { .. }));
        let in_place = scanned.then(|| facts.stats.get(i).copied().flatten().zip(sides.old(i).map(|(_, was)| was)));
        let kept = lent.or(in_place.flatten());
        let uid = match kept.filter(|(_, was)| was.uid() == is.uid()) {
            Some((stat, _)) => Some(stat.st_uid),
            None => sides.owners.uid(is.uid()),
        };
        let gid = match kept.filter(|(_, was)| was.gid() == is.gid()) {
            Some((stat, _)) => Some(stat.st_gid),
            None => sides.owners.gid(is.gid()),
        };
        let own = kept.map_or_else(
            || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            |(stat, _)| (stat.st_uid, stat.st_gid),
        );
        let has = |name: &[u8]| sides.guest.xattrs(is.xattrs()).iter().any(|xattr| *xattr.name == *name);
        let was = sides.origin(i).map(|origin| sides.base.inode(origin)).or(sides.old(i).map(|(_, was)| was));
        let had = was.map(|was| sides.base.xattrs(was.xattrs())).unwrap_or_default();
        let unwanted = had.iter().filter(|xattr| !has(&xattr.name)).map(|xattr| xattr.name.clone()).collect();
        Wanted {
            tree: sides.guest,
            inode: new,
            uid: uid.unwrap_or(own.0),
            gid: gid.unwrap_or(own.1),
            is_foreign: uid.is_none() || gid.is_none(),
            back: sides.owners,
            unwanted,
        }
    }
}
