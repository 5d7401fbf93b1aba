//! [`Worker`]: executes single steps on the host.

use std::collections::{HashMap, HashSet};

use inarch_block::Content;
use inarch_tree::compare::Aspects;
use inarch_tree::{FileType, Inode, InodeId};
use rustix::fs::Stat;
use rustix::io::Errno;

use super::attributes::{Changed, Lost, Target, Wanted, set_attributes};
use super::decide::Verdict;
use super::error::{MakeError, host};
use super::host::Object;
use super::host::{Directory, Host, file_type, is_as_scanned};
use super::look::{Facts, Found};
use super::make::{Same, make_file, make_other};
use super::paths::{inside, parent};
use super::plan::{How, Plan};
use super::progress::Progress;
use super::seen::{Identity, Seen, is_same};
use super::sides::Sides;

/// What every thread that applies the differences of one tree shares.
pub(super) struct Task<'t, 'a> {
    pub sides: &'t Sides<'a>,
    pub facts: &'t Facts,
    pub plan: &'t Plan,
    pub progress: &'t Progress,
}

/// Executes steps in one thread.
pub(super) struct Worker<'w, 'a> {
    pub task: &'w Task<'w, 'a>,
    pub host: &'w mut Host,
    /// The buffer for copies.
    pub buffer: Vec<u8>,
    pub lost: Lost,
    /// Inode numbers of objects whose ctime this apply changed.
    pub touched: HashSet<u64>,
    /// New objects, as far as a later step needs them: nothing else is linked, removed or changed in their stead.
    pub made_as: HashMap<usize, Identity>,
    /// Objects that got another name and still get attributes, as they were found: their content must stay.
    pub brought_as: HashMap<usize, Stat>,
    /// Objects with several names, as they are since this apply set their attributes.
    set_as: HashMap<Identity, Seen>,
    /// New objects that an exchange put in their place.
    placed_as: HashMap<usize, Seen>,
}

impl<'w, 'a> Worker<'w, 'a> {
    pub fn new(task: &'w Task<'w, 'a>, host: &'w mut Host) -> Worker<'w, 'a> {
        let (buffer, lost, touched, made_as) = Default::default();
        let (brought_as, set_as, placed_as) = Default::default();
        Worker { task, host, buffer, lost, touched, made_as, brought_as, set_as, placed_as }
    }

    fn path(&self, i: usize) -> &'a [u8] {
        self.task.sides.path(i)
    }

    fn final_place(&mut self, i: usize) -> Result<(Directory, Vec<u8>), MakeError> {
        let (directory, name) = self.host.parent(self.path(i)).map_err(host("reach"))?;
        Ok((directory, name.to_owned()))
    }

    /// The directory and the temporary name of a difference.
    pub fn aside(&mut self, i: usize) -> Result<(Directory, Vec<u8>), MakeError> {
        let task = self.task;
        self.aside_in(i, task.plan.asides.get(&i).map_or_else(|| parent(task.sides.path(i)), Vec::as_slice))
    }

    fn aside_in(&mut self, i: usize, above: &[u8]) -> Result<(Directory, Vec<u8>), MakeError> {
        let (directory, _) = self.host.parent(&inside(above)).map_err(host("reach"))?;
        Ok((directory, self.task.progress.aside(self.path(i))))
    }

    /// The directory and the name under which a new object is made.
    pub fn made_at(&mut self, i: usize) -> Result<(Directory, Vec<u8>), MakeError> {
        if self.task.plan.asides.contains_key(&i) { self.aside(i) } else { self.final_place(i) }
    }

    pub fn directory(&mut self, i: usize) -> Result<(), MakeError> {
        let (directory, name) = self.final_place(i)?;
        self.make_new(i, &directory, &name)
    }

    /// Makes the new object of a difference.
    pub fn make(&mut self, i: usize, how: &How) -> Result<(), MakeError> {
        let (directory, name) = self.made_at(i)?;
        match how {
            How::Ready => {}
            How::New => self.make_new(i, &directory, &name)?,
            How::Link(from) => {
                let (source, object) = self.home(i, from)?;
                self.link(i, (&source, &object), (&directory, &name))?;
            }
            How::SameAs(first) => {
                let (source, source_name) = self.made_at(*first)?;
                let object = source.object(&source_name).map_err(host("look at"))?.ok_or(MakeError::Changed)?;
                if !self.is_made(*first, &object.stat) {
                    return Err(MakeError::Changed);
                }
                self.link(i, (&source, &object), (&directory, &name))?;
            }
        }
        Ok(())
    }

    /// The object at `from`, if it is still what was seen there.
    fn home(&mut self, i: usize, from: &[u8]) -> Result<(Directory, Object), MakeError> {
        let sides = self.task.sides;
        let (directory, name) = self.host.parent(from).map_err(host("reach"))?;
        let object = directory.object(name).map_err(host("look at"))?.ok_or(MakeError::Changed)?;
        let seen = sides.at(from).and_then(|j| self.task.facts.stats.get(j)).copied().flatten();
        let is_scanned = |old| is_as_scanned(&object.stat, sides.base.inode(old), false);
        let is_expected = match (seen, sides.base.lookup(from)) {
            (Some(seen), _) => is_same(&object.stat, &seen),
            (None, Some(old)) => is_scanned(old),
            // What an exchange took out before.
            (None, None) => sides.origin(i).is_some_and(is_scanned),
        };
        if is_expected { Ok((directory, object)) } else { Err(MakeError::Changed) }
    }

    fn link(
        &mut self,
        i: usize,
        (source, object): (&Directory, &Object),
        (directory, name): (&Directory, &[u8]),
    ) -> Result<(), MakeError> {
        match source.link(object, directory, name) {
            // Different file systems, no links on this one, or too many of them.
            Err(Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP) => {
                self.copy(i, (source, object), directory, name)
            }
            result => {
                self.touched.insert(object.stat.st_ino);
                result.map_err(host("link"))?;
                self.made_as.insert(i, Identity::of(&object.stat));
                self.brought_as.insert(i, object.stat);
                Ok(())
            }
        }
    }

    /// Copies a file of the host that cannot be linked. An earlier link may have changed its times, so that its content
    /// cannot be read as that of the scan.
    fn copy(
        &mut self,
        i: usize,
        (source, object): (&Directory, &Object),
        directory: &Directory,
        name: &[u8],
    ) -> Result<(), MakeError> {
        if file_type(&object.stat) != Some(FileType::Regular) {
            return self.make_new(i, directory, name);
        }
        source.call().map_err(host("read"))?;
        let file = match object.open() {
            Ok(file) => file,
            // The guest's disk may have the content of a file that this user may not read on the host.
            Err(Errno::ACCESS) => return self.make_new(i, directory, name),
            Err(errno) => return Err(host("read")(errno)),
        };
        let made = self.make_from(i, directory, name, &Same(&file))?;
        source.call().map_err(host("look at"))?;
        let is = source.stat_of(object.as_fd()).map_err(host("look at"))?;
        if Seen::of(&is) == Seen::of(&object.stat) {
            return Ok(());
        }
        let gone = self.task.progress.gone(self.path(i));
        directory.remove_seen(name, &gone, |stat| made == Some(Identity::of(stat)))?;
        Err(MakeError::Changed)
    }

    fn make_new(&mut self, i: usize, directory: &Directory, name: &[u8]) -> Result<(), MakeError> {
        self.make_from(i, directory, name, self.task.sides.content).map(drop)
    }

    fn make_from(
        &mut self,
        i: usize,
        directory: &Directory,
        name: &[u8],
        content: &dyn Content,
    ) -> Result<Option<Identity>, MakeError> {
        let task = self.task;
        let Some((new, is)) = task.sides.new_inode(i) else { return Ok(None) };
        let wanted = self.wanted(i, new, is);
        let made = match is.file_type() {
            FileType::Regular => {
                let part = task.progress.part(self.path(i));
                make_file(directory, name, &part, content, &wanted, (&mut self.lost, &mut self.buffer))?
            }
            _ => {
                let gone = task.progress.gone(self.path(i));
                make_other(directory, (name, &gone), &wanted, &mut self.lost)?
            }
        };
        // No later step needs a file with one name that is in its place.
        let is_alone = is.file_type() != FileType::Directory && is.links() <= 1 && task.sides.origin(i).is_none();
        if !is_alone || task.plan.asides.contains_key(&i) {
            self.made_as.insert(i, made);
        }
        Ok(Some(made))
    }

    /// Makes a file and puts it in its place.
    pub fn make_and_place(&mut self, i: usize) -> Result<(), MakeError> {
        self.make(i, &How::New)?;
        if !self.task.plan.asides.contains_key(&i) {
            return Ok(());
        }
        let placed = self.exchange(i).and_then(|()| match self.drop_out(i) {
            Err(MakeError::Host(_, errno)) => Err(MakeError::NotDropped(errno)),
            result => result,
        });
        if matches!(placed, Err(MakeError::NotDropped(_))) {
            return placed;
        }
        if placed.is_err() {
            // The first error is the one that counts.
            let _ = self.forget_aside(i, None);
        }
        placed
    }

    /// Exchanges the names of the new object and the old one, if that is still what was seen there.
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
        let away = self.task.progress.away(self.path(i));
        // Its ctime changes, whatever comes of it.
        let seen = self.task.facts.stats.get(i).copied().flatten();
        self.touched.extend(seen.map(|stat| stat.st_ino));
        let made = place.stat(aside).map_err(host("look at"))?.filter(|stat| self.is_made(i, stat));
        self.placed_as.insert(i, Seen::of(&made.ok_or(MakeError::Changed)?));
        place.exchange(aside, directory, name, &away).map_err(host("replace"))?;
        let came_out = place.stat(aside);
        if let Ok(Some(stat)) = &came_out
            && self.is_seen(i, stat)
        {
            self.host.forget(self.path(i));
            return Ok(());
        }
        place.exchange(aside, directory, name, &away).map_err(host("put back"))?;
        match place.stat(aside) {
            // Something else came in the moment of the exchange.
            Ok(Some(stat)) if !self.is_made(i, &stat) => Err(MakeError::Kept(aside.to_owned())),
            _ => Err(came_out.map_or_else(host("look at"), |_| MakeError::Changed)),
        }
    }

    /// Takes an exchange back, if the new object is still in its place.
    pub fn exchange_back(&mut self, i: usize) -> Result<(), MakeError> {
        let (place, aside) = self.aside(i)?;
        let (directory, name) = self.final_place(i)?;
        let stat = directory.stat(&name).map_err(host("look at"))?;
        let seen = self.task.facts.stats.get(i).copied().flatten().map(|stat| Seen::of(&stat));
        let placed = self.placed_as.get(&i).copied().or(seen);
        if !stat.is_some_and(|stat| placed.is_some_and(|placed| Seen::of(&stat).is_still(&placed))) {
            return Err(MakeError::Changed);
        }
        let away = self.task.progress.away(self.path(i));
        place.exchange(&aside, &directory, &name, &away).map_err(host("put back"))?;
        match place.stat(&aside) {
            // Something else came in the moment of the exchange: it is put back.
            Ok(Some(stat)) if !placed.is_some_and(|placed| Seen::of(&stat).is_still(&placed)) => {
                place.exchange(&aside, &directory, &name, &away).map_err(host("put back"))?;
                Err(MakeError::Changed)
            }
            // It is the new object, which an earlier apply may have made.
            Ok(Some(stat)) => {
                self.made_as.entry(i).or_insert(Identity::of(&stat));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Gives the new object its name.
    pub fn enter(&mut self, i: usize) -> Result<(), MakeError> {
        let (place, aside) = self.aside(i)?;
        let (directory, name) = self.final_place(i)?;
        place.rename_new(&aside, &directory, &name).map_err(host("name"))
    }

    /// Removes what an exchange took out, if it did not change since: another program may still write to it through an
    /// open descriptor.
    pub fn drop_out(&mut self, i: usize) -> Result<(), MakeError> {
        let (place, aside) = self.aside(i)?;
        let stat = place.stat(&aside).map_err(host("look at"))?;
        if !self.is_out_still(i, stat.as_ref()) {
            return Err(MakeError::Changed);
        }
        self.remove_at(&place, &aside, stat)
    }

    /// Whether what an exchange took out, now or in an earlier apply, is unchanged or gone.
    pub fn is_out(&mut self, i: usize) -> Result<bool, MakeError> {
        let (place, aside) = self.aside(i)?;
        let stat = place.stat(&aside).map_err(host("look at"))?;
        Ok(self.is_out_still(i, stat.as_ref()))
    }

    pub fn is_out_still(&self, i: usize, stat: Option<&Stat>) -> bool {
        let old = self.task.sides.old(i);
        let is_old = |stat: &Stat| old.is_some_and(|(_, was)| is_as_scanned(stat, was, false));
        // An earlier apply with force was to replace it.
        let forced = self.task.progress.forced.get(self.path(i));
        let is_forced = |stat: &Stat| forced.is_some_and(|seen| Seen::of(stat).is_still(seen));
        stat.is_none_or(|stat| self.is_seen(i, stat) || is_old(stat) || is_forced(stat))
    }

    /// Whether the new object of a difference is a file with another name: its removal loses nothing.
    pub fn has_other_name(&mut self, i: usize, above: Option<&Vec<u8>>) -> bool {
        let place = match above {
            Some(above) => self.aside_in(i, above),
            None => self.aside(i),
        };
        let stat = place.ok().and_then(|(place, aside)| place.stat(&aside).ok()).flatten();
        stat.is_some_and(|stat| stat.st_nlink > 1 && !super::look::is_directory(&stat))
    }

    /// Removes a new object that is not in its place.
    pub fn forget_aside(&mut self, i: usize, above: Option<&Vec<u8>>) -> Result<(), MakeError> {
        let (place, aside) = match above {
            Some(above) => self.aside_in(i, above)?,
            None => self.aside(i)?,
        };
        // A link to what is in the place: the guest has the same file there.
        let there = self.final_place(i).and_then(|(directory, name)| directory.stat(&name).map_err(host("look at")));
        let is_there = |stat: &Stat| matches!(&there, Ok(Some(there)) if (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino) && stat.st_nlink > 1);
        // Never the old object, or one that came from elsewhere. What was seen in the place of a difference that is
        // done is the new object.
        let was_placed = matches!(self.task.plan.verdicts.get(i), Some(Verdict::Done | Verdict::Attributes));
        let is_ours = |stat: &Stat| (was_placed || !self.is_seen(i, stat) || is_there(stat)) && self.is_made(i, stat);
        if !place.stat(&aside).map_err(host("look at"))?.as_ref().is_none_or(is_ours) {
            return Err(MakeError::Changed);
        }
        place.remove(&aside).map_err(host("remove"))
    }

    /// Removes a file, if it is still what was seen there.
    pub fn remove(&mut self, i: usize) -> Result<(), MakeError> {
        let (directory, name) = self.final_place(i)?;
        let stat = self.check(i, directory.stat(&name).map_err(host("look at"))?)?;
        // Its ctime changes, whatever comes of it.
        self.touched.insert(stat.st_ino);
        let gone = self.task.progress.gone(self.path(i));
        directory.remove_seen(&name, &gone, |is| is_same(is, &stat))
    }

    fn remove_at(&mut self, directory: &Directory, name: &[u8], stat: Option<Stat>) -> Result<(), MakeError> {
        directory.remove(name).map_err(host("remove"))?;
        // The ctime of its other names changes.
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

    /// Returns what is at a path, if it is what was seen there, on which the plan relies.
    fn check(&self, i: usize, stat: Option<Stat>) -> Result<Stat, MakeError> {
        let seen = self.task.facts.stats.get(i).copied().flatten();
        let (Some(seen), Some(is)) = (seen, stat) else { return Err(MakeError::Changed) };
        let unchanged = is_same(&is, &seen) && (Seen::of(&is) == Seen::of(&seen) || self.touched.contains(&is.st_ino));
        if unchanged { Ok(is) } else { Err(MakeError::Changed) }
    }

    /// Whether something is the new object of a difference.
    pub fn is_made(&self, i: usize, stat: &Stat) -> bool {
        self.made_as.get(&i) == Some(&Identity::of(stat))
    }

    fn is_seen(&self, i: usize, stat: &Stat) -> bool {
        let seen = self.task.facts.stats.get(i).copied().flatten();
        seen.is_some_and(|seen| Seen::of(stat).is_still(&Seen::of(&seen)))
    }

    /// Sets attributes of what is in its place. Of an object that was there, and is not `made` anew, only those that
    /// the guest changed.
    pub fn attributes(&mut self, i: usize, made: bool) -> Result<(), MakeError> {
        let sides = self.task.sides;
        let Some((new, is)) = sides.new_inode(i) else { return Ok(()) };
        let (directory, name) = self.final_place(i)?;
        let object = directory.object(&name).map_err(host("look at"))?.ok_or(MakeError::Changed)?;
        if file_type(&object.stat) != Some(is.file_type()) || !self.is_as_left(i, &object.stat) {
            return Err(MakeError::Changed);
        }
        let wanted = self.wanted(i, new, is);
        let was_there = if sides.is_directory(i) { sides.was_directory(i) } else { !made };
        let changed = match sides.old(i).filter(|_| was_there && sides.in_place(i)) {
            Some((_, was)) => Changed {
                aspects: sides.differences.get(i).map(|difference| difference.aspects).unwrap_or_default(),
                had: sides.base.xattrs(was.xattrs()),
            },
            None => Changed::ALL,
        };
        if !sides.is_directory(i) {
            // The ctime of its other names changes.
            self.touched.insert(object.stat.st_ino);
        }
        let inherits = sides.is_directory(i) && !was_there && directory.gives_acl;
        let target = Target::Held(object.as_fd(), &directory, &object.stat);
        let set = set_attributes(target, inherits, changed, &wanted, &mut self.lost);
        if object.stat.st_nlink > 1 && !sides.is_directory(i) {
            let now = directory.stat_of(object.as_fd()).map_err(host("look at"))?;
            self.set_as.insert(Identity::of(&now), Seen::of(&now));
        }
        set.map(drop)
    }

    /// Whether the object that is to get attributes is the one that was made, linked or seen for it, and changed only
    /// by this apply.
    fn is_as_left(&self, i: usize, stat: &Stat) -> bool {
        let seen = self.task.facts.stats.get(i).copied().flatten();
        let brought = self.brought_as.get(&i).copied();
        if brought.is_none() && self.made_as.contains_key(&i) {
            return self.is_made(i, stat);
        }
        if super::look::is_directory(stat) {
            let rights = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid);
            return seen.is_some_and(|seen| Identity::of(&seen) == Identity::of(stat) && rights(&seen) == rights(stat));
        }
        let Some(known) = brought.or(seen) else { return false };
        let last = self.set_as.get(&Identity::of(stat)).copied().unwrap_or(Seen::of(&known));
        let is = Seen::of(stat);
        let is_touched = brought.is_some() || self.touched.contains(&is.ino);
        Identity::of(&known) == Identity::of(stat) && (is == last || (is_touched && is.is_still(&last)))
    }

    /// Sets the time of a directory in which something was done to the guest's.
    pub fn directory_time(&mut self, path: &[u8]) -> Result<(), MakeError> {
        let sides = self.task.sides;
        let Some(new) = sides.guest.lookup(path) else { return Ok(()) };
        let is = sides.guest.inode(new);
        if is.file_type() != FileType::Directory {
            return Ok(());
        }
        let (directory, _) = self.host.parent(&inside(path)).map_err(host("reach"))?;
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
        let stat = directory.stat_of(directory.as_fd()).map_err(host("look at"))?;
        let target = Target::Held(directory.as_fd(), &directory, &stat);
        set_attributes(target, false, time, &wanted, &mut self.lost).map(drop)
    }

    /// What the host is to have for a difference. An owner that the guest did not change stays the host's.
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
        // What an earlier apply has put there stays as that left it.
        let is_placed = facts.found.get(i) == Some(&Found::GuestsContent);
        let placed = facts.stats.get(i).copied().flatten().filter(|_| is_placed);
        let own = kept.map(|(stat, _)| stat).or(placed).map_or_else(
            || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            |stat| (stat.st_uid, stat.st_gid),
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
