//! The steps of an apply, each of which may be the last before a crash and the first after it.

use std::collections::{BTreeSet, HashMap};
use std::io;

use inarch_tree::compare::{Aspects, Difference, Lineage};
use inarch_tree::{FileType, InodeId};
use rustix::fs::{AtFlags, Stat, linkat};
use rustix::io::Errno;

use super::check::{Check, Verdict, has_content_of};
use super::host::{Directory, Host, file_type, is_as_scanned};
use super::links::Names;
use super::make::{Lost, MakeError, Target, Wanted, host, make_file, make_other, set_attributes};
use super::{ApplyReport, host_path};
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

/// Applies the differences of one tree.
pub(super) struct Applier<'a> {
    tree: &'a TreeDiff,
    host: &'a mut Host,
    steps: Vec<&'a Difference>,
    by_path: HashMap<&'a [u8], &'a Difference>,
    names: Names,
    token: &'a str,
    force: bool,
    /// Where on the host an inode of the guest with several names is already.
    anchors: HashMap<InodeId, Vec<u8>>,
    /// Directories in which something was done.
    touched: BTreeSet<Vec<u8>>,
    lost: Lost,
    report: &'a mut ApplyReport,
}

impl<'a> Applier<'a> {
    pub fn new(
        tree: &'a TreeDiff,
        host: &'a mut Host,
        check: Check<'a>,
        token: &'a str,
        force: bool,
        report: &'a mut ApplyReport,
    ) -> Applier<'a> {
        let by_path = tree.differences.iter().map(|difference| (&difference.path[..], difference)).collect();
        let names = Names::new(tree);
        let steps = check.wanted().collect();
        let mut applier = Applier {
            tree,
            host,
            steps,
            by_path,
            names,
            token,
            force,
            anchors: HashMap::new(),
            touched: BTreeSet::new(),
            lost: Lost::default(),
            report,
        };
        applier.find_anchors(&check);
        applier
    }

    /// Files of the guest that are on the host already, under names to link others to.
    fn find_anchors(&mut self, check: &Check<'_>) {
        let done: BTreeSet<&[u8]> = self
            .tree
            .differences
            .iter()
            .zip(&check.verdicts)
            .filter(|(_, verdict)| **verdict == Verdict::Done)
            .map(|(difference, _)| &difference.path[..])
            .collect();
        let guest = &self.tree.disk.guest;
        for id in self.steps.iter().filter_map(|step| step.new).filter(|id| guest.inode(*id).links() > 1) {
            if guest.inode(id).file_type() == FileType::Directory || self.anchors.contains_key(&id) {
                continue;
            }
            let names = self.names.of_guest(guest, id);
            let is_there = |name: &&Vec<u8>| match self.by_path.get(&name[..]) {
                None => true,
                Some(difference) => done.contains(&name[..]) || self.is_in_place(difference),
            };
            if let Some(name) = names.iter().find(is_there) {
                self.anchors.insert(id, name.clone());
            }
        }
    }

    /// Runs every step; what fails is reported, and the others go on.
    pub fn run(mut self) {
        let steps = self.steps.clone();
        for step in steps.iter().filter(|step| step.new.is_some()) {
            self.attempt(step, Applier::put_aside);
        }
        for step in steps.iter().filter(|step| step.new.is_some()) {
            self.attempt(step, Applier::put);
        }
        for step in steps.iter().rev().filter(|step| step.old.is_some()) {
            self.attempt(step, Applier::take_away);
        }
        self.finish_directories(&steps);
        let owners = self.lost.owners;
        if owners > 0 {
            self.report.notes.push(format!("the owners of {owners} files could not be set, for want of privilege"));
        }
        let xattrs = self.lost.xattrs;
        if xattrs > 0 {
            let line = format!("{xattrs} extended attributes could not be set, for want of privilege or support");
            self.report.notes.push(line);
        }
    }

    fn attempt(&mut self, step: &Difference, action: fn(&mut Applier<'a>, &Difference) -> Result<bool, MakeError>) {
        let path = host_path(self.tree, &step.path);
        let failed = |reason: String| (path.clone(), reason);
        if self.report.failures.iter().any(|(failure, _)| *failure == path) {
            return;
        }
        match action(self, step) {
            Ok(true) => {
                let above = step.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                self.touched.insert(step.path[..above].to_owned());
                self.report.done.push((verb(step), path));
            }
            Ok(false) => {}
            Err(MakeError::Host(action, Errno::EXIST)) => {
                self.report.conflicts.push(failed(format!("cannot {action} it: something else came there meanwhile")));
            }
            Err(MakeError::Host(action, errno)) => {
                self.report.failures.push(failed(format!("cannot {action} it: {}", io::Error::from(errno))));
            }
            Err(MakeError::Read) => self
                .report
                .failures
                .push(failed("its content cannot be read: the host's file that it was made from changed".to_owned())),
        }
    }

    /// A name of ours in a directory, for what becomes `id` of the guest.
    fn temporary(&self, kind: &str, id: InodeId) -> Vec<u8> {
        format!(".inarch-{kind}-{}-{}", self.token, id.0).into_bytes()
    }

    /// Whether only attributes differ, and can be set without a change to any other name.
    fn is_in_place(&self, step: &Difference) -> bool {
        let (Some(old), Some(new)) = (step.old, step.new) else { return false };
        let (base, guest) = (&self.tree.disk.base, &self.tree.disk.guest);
        if step.aspects.beyond_attributes() {
            return false;
        }
        // Another name of the host's file may lead to another file in the guest.
        let is_alone = |name: &Vec<u8>| guest.lookup(name).is_none_or(|id| id == new);
        guest.inode(new).file_type() == FileType::Directory
            || base.inode(old).links() == 1
            || self.names.of_base(base, old).iter().all(is_alone)
    }

    /// The inode of the base that becomes `new`, where its bytes, or some, are still those of the base.
    fn source(&self, new: InodeId) -> Option<InodeId> {
        let disk = &self.tree.disk;
        disk.origin(new).filter(|_| disk.guest.inode(new).file_type() != FileType::Directory)
    }

    /// Step 3: what loses its name to something else before it gets its new one is kept under a name of ours.
    fn put_aside(&mut self, step: &Difference) -> Result<bool, MakeError> {
        let Some((new, origin)) = step.new.and_then(|new| Some((new, self.source(new)?))) else { return Ok(false) };
        let taken = |name: &&Vec<u8>| {
            let difference = self.by_path.get(&name[..]);
            difference.is_some_and(|difference| difference.new.is_some_and(|id| id != new))
        };
        let names = self.names.of_base(&self.tree.disk.base, origin);
        let Some(name) = names.iter().find(taken) else { return Ok(false) };
        if self.is_in_place(step) || self.anchors.contains_key(&new) || self.is_there_already(step)? {
            return Ok(false);
        }
        let aside = self.temporary("aside", new);
        let (directory, _) = self.host.parent(name).map_err(host("reach"))?;
        if directory.stat(&aside).map_err(host("look at"))?.is_none() {
            self.make_as(&directory, &aside, new, step.old)?;
        }
        Ok(false)
    }

    /// Whether the host has the guest's content there.
    fn is_there_already(&mut self, step: &Difference) -> Result<bool, MakeError> {
        let there = match self.host.parent(&step.path).and_then(|(directory, name)| directory.stat(name)) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            there => there.map_err(host("look at"))?,
        };
        let guest = &self.tree.disk.guest;
        let Some((stat, new)) = there.zip(step.new) else { return Ok(false) };
        Ok(has_content_of(self.host, self.tree, step, &stat, guest.inode(new)))
    }

    /// Step 4: puts what the guest has at a path.
    fn put(&mut self, step: &Difference) -> Result<bool, MakeError> {
        let Some(new) = step.new else { return Ok(false) };
        let guest = &self.tree.disk.guest;
        let is_directory = guest.inode(new).file_type() == FileType::Directory;
        let (directory, name) = self.host.parent(&step.path).map_err(host("reach"))?;
        let there = directory.stat(name).map_err(host("look at"))?;
        let is_there_directory = there.as_ref().is_some_and(|stat| file_type(stat) == Some(FileType::Directory));
        if is_directory {
            // Its attributes come last.
            return if is_there_directory {
                Ok(false)
            } else {
                self.put_directory(step, (&directory, name), there.as_ref())
            };
        }
        if is_there_directory {
            // What is in it goes first.
            return Ok(false);
        }
        if self.is_in_place(step) {
            let wanted = self.wanted(step, there.as_ref());
            set_attributes(Target::Itself(&directory.path_to(name)), false, &wanted, &mut self.lost)?;
            return Ok(true);
        }
        self.put_whole(step, new, (&directory, name), there.as_ref())?;
        Ok(true)
    }

    fn put_directory(
        &mut self,
        step: &Difference,
        (directory, name): (&Directory, &[u8]),
        there: Option<&Stat>,
    ) -> Result<bool, MakeError> {
        let wanted = self.wanted(step, None);
        let Some(_) = there else {
            make_other(directory, name, &wanted, &mut self.lost)?;
            return Ok(true);
        };
        // A file is there: both change places.
        let temporary = self.temporary("new", wanted.inode);
        match directory.stat(&temporary).map_err(host("look at"))? {
            Some(stat) if file_type(&stat) != Some(FileType::Directory) => {
                directory.remove(&temporary).map_err(host("remove"))?
            }
            Some(_) => directory.remove_directory(&temporary).map_err(host("remove"))?,
            None => {}
        }
        make_other(directory, &temporary, &wanted, &mut self.lost)?;
        directory.exchange(&temporary, directory, name).map_err(host("replace"))?;
        directory.remove(&temporary).map_err(host("remove"))?;
        self.host.forget(&step.path);
        Ok(true)
    }

    /// Puts a whole object that is no directory at a path, where nothing is or something that it replaces in one step.
    fn put_whole(
        &mut self,
        step: &Difference,
        new: InodeId,
        (directory, name): (&Directory, &[u8]),
        there: Option<&Stat>,
    ) -> Result<(), MakeError> {
        let aside = self.find_aside(new)?;
        let is_done =
            there.is_some_and(|stat| has_content_of(self.host, self.tree, step, stat, self.tree.disk.guest.inode(new)));
        if is_done {
            if let Some((place, aside)) = &aside {
                place.remove(aside).map_err(host("remove"))?;
            }
            directory.remove(&self.temporary("new", new)).map_err(host("remove"))?;
            let wanted = self.wanted(step, there);
            set_attributes(Target::Itself(&directory.path_to(name)), false, &wanted, &mut self.lost)?;
            self.anchors.entry(new).or_insert_with(|| step.path.clone());
            return Ok(());
        }
        let (place, temporary) = match (aside, there) {
            (Some(aside), _) => aside,
            (None, None) => {
                self.make_as(directory, name, new, step.old)?;
                self.anchors.entry(new).or_insert_with(|| step.path.clone());
                return Ok(());
            }
            (None, Some(_)) => {
                let temporary = self.temporary("new", new);
                directory.remove(&temporary).map_err(host("remove"))?;
                self.make_as(directory, &temporary, new, step.old)?;
                (directory.clone(), temporary)
            }
        };
        match there {
            None => place.rename_new(&temporary, directory, name).map_err(host("name"))?,
            Some(_) => self.replace(step, (&place, &temporary), (directory, name))?,
        }
        self.anchors.entry(new).or_insert_with(|| step.path.clone());
        Ok(())
    }

    /// Puts what has a name of ours into the place of something else, unless that is not what was scanned.
    fn replace(
        &self,
        step: &Difference,
        (place, temporary): (&Directory, &[u8]),
        (directory, name): (&Directory, &[u8]),
    ) -> Result<(), MakeError> {
        match place.exchange(temporary, directory, name) {
            // A file system that cannot exchange.
            Err(Errno::INVAL) => return place.rename_over(temporary, directory, name).map_err(host("replace")),
            result => result.map_err(host("replace"))?,
        }
        let came_out = place.stat(temporary).map_err(host("look at"))?;
        let base = &self.tree.disk.base;
        let expected = |stat: &Stat| match step.old {
            Some(old) => is_as_scanned(stat, base.inode(old), false),
            None => false,
        };
        if !self.force && came_out.as_ref().is_some_and(|stat| !expected(stat)) {
            place.exchange(temporary, directory, name).map_err(host("put back"))?;
            place.remove(temporary).map_err(host("remove"))?;
            return Err(MakeError::Host("replace", Errno::EXIST));
        }
        place.remove(temporary).map_err(host("remove"))
    }

    /// Where an inode of the guest was put aside, if it was.
    fn find_aside(&mut self, new: InodeId) -> Result<Option<(Directory, Vec<u8>)>, MakeError> {
        let Some(origin) = self.source(new) else { return Ok(None) };
        let aside = self.temporary("aside", new);
        for name in self.names.of_base(&self.tree.disk.base, origin) {
            let Ok((directory, _)) = self.host.parent(&name) else { continue };
            if directory.stat(&aside).map_err(host("look at"))?.is_some() {
                return Ok(Some((directory, aside)));
            }
        }
        Ok(None)
    }

    /// Makes an object of the guest, in the place of `old`, under a name that nothing has: a link to where it is on the
    /// host already, or new.
    fn make_as(
        &mut self,
        directory: &Directory,
        name: &[u8],
        new: InodeId,
        old: Option<InodeId>,
    ) -> Result<(), MakeError> {
        let old = self.source(new).or(old);
        let there = old.and_then(|id| self.on_host(id)).map(|(_, stat)| stat);
        if let Some(anchor) = self.anchors.get(&new).cloned()
            && self.link(&anchor, directory, name).is_ok()
        {
            return Ok(());
        }
        if let Some(from) = self.unchanged_on_host(new) {
            let linked = self.link(&from, directory, name);
            if linked.is_ok() {
                let wanted = self.wanted_as(new, old, there.as_ref());
                return set_attributes(Target::Itself(&directory.path_to(name)), false, &wanted, &mut self.lost);
            }
        }
        let wanted = self.wanted_as(new, old, there.as_ref());
        match self.tree.disk.guest.inode(new).file_type() {
            FileType::Regular => make_file(directory, name, &*self.tree.disk.content, &wanted, &mut self.lost),
            _ => make_other(directory, name, &wanted, &mut self.lost),
        }
    }

    /// Where on the host the very file is that the guest has under another name, if its content is the same there and
    /// no name of it stays with something else.
    fn unchanged_on_host(&mut self, new: InodeId) -> Option<Vec<u8>> {
        let disk = &self.tree.disk;
        let origin = self.source(new)?;
        if Aspects::between((&disk.base, origin), (&disk.guest, new), disk).beyond_attributes() {
            return None;
        }
        let names = self.names.of_base(&disk.base, origin);
        let shared = names.iter().any(|name| {
            let id = disk.guest.lookup(name);
            // Equal and not listed as different, or replaced: either way the host's file is not this one's alone.
            id.is_some_and(|id| id != new) && !self.by_path.contains_key(&name[..])
        });
        if shared {
            return None;
        }
        self.on_host(origin).map(|(name, _)| name)
    }

    /// Where on the host an inode of the base still is as it was scanned, and its attributes there.
    fn on_host(&mut self, old: InodeId) -> Option<(Vec<u8>, Stat)> {
        let base = &self.tree.disk.base;
        self.names.of_base(base, old).into_iter().find_map(|name| {
            let there = self.host.parent(&name).and_then(|(directory, name)| directory.stat(name));
            let stat = there.ok().flatten().filter(|stat| is_as_scanned(stat, base.inode(old), false));
            stat.map(|stat| (name, stat))
        })
    }

    fn link(&mut self, from: &[u8], directory: &Directory, name: &[u8]) -> Result<(), Errno> {
        let (source, source_name) = self.host.parent(from)?;
        linkat(source.as_fd(), source_name, directory.as_fd(), name, AtFlags::empty())
    }

    fn wanted(&self, step: &Difference, there: Option<&Stat>) -> Wanted<'a> {
        self.wanted_as(step.new.unwrap_or(InodeId::ROOT), step.old, there)
    }

    /// What `new` is to be on the host, where it was `old` in the base and `there` on the host. An owner that the guest
    /// did not change stays the host's.
    fn wanted_as(&self, new: InodeId, old: Option<InodeId>, there: Option<&Stat>) -> Wanted<'a> {
        let disk = &self.tree.disk;
        let (is, back) = (disk.guest.inode(new), &self.tree.tree.owners);
        let was = old.or_else(|| disk.origin(new)).map(|id| disk.base.inode(id));
        let kept = there.zip(was);
        let uid =
            kept.filter(|(_, was)| was.uid() == is.uid()).map_or_else(|| back.uid(is.uid()), |(stat, _)| stat.st_uid);
        let gid =
            kept.filter(|(_, was)| was.gid() == is.gid()).map_or_else(|| back.gid(is.gid()), |(stat, _)| stat.st_gid);
        let has = |name: &[u8]| disk.guest.xattrs(is.xattrs()).iter().any(|xattr| *xattr.name == *name);
        let had = was.map(|was| disk.base.xattrs(was.xattrs())).unwrap_or_default();
        let unwanted = had.iter().filter(|xattr| !has(&xattr.name)).map(|xattr| xattr.name.clone()).collect();
        Wanted { tree: &disk.guest, inode: new, uid, gid, back, unwanted }
    }

    /// Step 5: removes what is gone, and a directory where something else is to be.
    fn take_away(&mut self, step: &Difference) -> Result<bool, MakeError> {
        let disk = &self.tree.disk;
        let (directory, name) = match self.host.parent(&step.path) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            reached => reached.map_err(host("reach"))?,
        };
        let Some(stat) = directory.stat(name).map_err(host("look at"))? else { return Ok(false) };
        let is_directory = file_type(&stat) == Some(FileType::Directory);
        match step.new {
            None if is_directory => {
                directory.remove_directory(name).map_err(host("remove"))?;
                self.host.forget(&step.path);
            }
            None => {
                let Some(old) = step.old else { return Ok(false) };
                if !self.force && !is_as_scanned(&stat, disk.base.inode(old), false) {
                    return Err(MakeError::Host("remove", Errno::EXIST));
                }
                directory.remove(name).map_err(host("remove"))?;
            }
            Some(new) if is_directory && disk.guest.inode(new).file_type() != FileType::Directory => {
                directory.remove_directory(name).map_err(host("remove"))?;
                self.host.forget(&step.path);
                self.put_whole(step, new, (&directory, name), None)?;
            }
            Some(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Directories that are new or have other attributes get them, the deepest first; those in which something was
    /// done get their times.
    fn finish_directories(&mut self, steps: &[&'a Difference]) {
        let guest = &self.tree.disk.guest;
        let is_directory = |id: InodeId| guest.inode(id).file_type() == FileType::Directory;
        let mut directories: Vec<(&[u8], Option<&Difference>)> = steps
            .iter()
            .filter(|step| step.new.is_some_and(is_directory))
            .map(|step| (&step.path[..], Some(*step)))
            .collect();
        let touched = std::mem::take(&mut self.touched);
        directories
            .extend(touched.iter().filter(|path| !self.by_path.contains_key(&path[..])).map(|path| (&path[..], None)));
        directories.sort_by(|a, b| b.0.cmp(a.0));
        for (path, step) in directories {
            let Some(new) = guest.lookup(path).filter(|id| is_directory(*id)) else { continue };
            let old = self.tree.disk.base.lookup(path);
            let same = Difference { path: path.to_owned(), old, new: Some(new), aspects: Aspects::default() };
            let failed = self.set_directory(step.unwrap_or(&same));
            if let (Err(MakeError::Host(action, errno)), Some(_)) = (failed, step) {
                let reason = format!("cannot {action} it: {}", io::Error::from(errno));
                self.report.failures.push((host_path(self.tree, path), reason));
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
        set_attributes(Target::Itself(&directory.path_to(name)), inherits, &wanted, &mut self.lost)
    }
}
