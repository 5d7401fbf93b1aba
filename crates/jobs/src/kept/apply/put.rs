//! Putting what the guest has in its place on the host, and taking away what it has no more.

use inarch_tree::compare::{Aspects, Difference, Lineage};
use inarch_tree::{FileType, InodeId};
use rustix::fs::{AtFlags, Stat, linkat};
use rustix::io::Errno;

use super::attributes::{Target, Wanted, set_attributes};
use super::check::{has_content_of, is_torn};
use super::host::{Directory, file_type, is_as_scanned};
use super::make::{MakeError, host, make_file, make_other};
use super::steps::{Applier, Step};

impl<'a> Applier<'a, '_> {
    /// A name of ours in a directory, for what becomes `id` of the guest.
    fn temporary(&self, kind: &str, id: InodeId) -> Vec<u8> {
        format!(".inarch-{kind}-{}-{}", self.task.token, id.0).into_bytes()
    }

    /// Whether only attributes differ, and can be set without a change to any other name.
    pub fn is_in_place(&self, step: &Difference) -> bool {
        let (Some(old), Some(new)) = (step.old, step.new) else { return false };
        let (base, guest) = (&self.task.tree.disk.base, &self.task.tree.disk.guest);
        if step.aspects.beyond_attributes() {
            return false;
        }
        // Another name of the host's file may lead to another file in the guest.
        let is_alone = |name: &Vec<u8>| guest.lookup(name).is_none_or(|id| id == new);
        guest.inode(new).file_type() == FileType::Directory
            || base.inode(old).links() == 1
            || self.task.names.of_base(base, old).iter().all(is_alone)
    }

    /// The inode of the base that becomes `new`, where its bytes, or some, are still those of the base.
    fn source(&self, new: InodeId) -> Option<InodeId> {
        let disk = &self.task.tree.disk;
        disk.origin(new).filter(|_| disk.guest.inode(new).file_type() != FileType::Directory)
    }

    /// Step 3: what loses its name to something else before it gets its new one is kept under a name of ours.
    pub fn put_aside(&mut self, step: &Step<'_>) -> Result<bool, MakeError> {
        let step = step.difference;
        let Some((new, origin)) = step.new.and_then(|new| Some((new, self.source(new)?))) else { return Ok(false) };
        let taken = |name: &&Vec<u8>| {
            let difference = self.task.by_path.get(&name[..]);
            difference.is_some_and(|difference| difference.new.is_some_and(|id| id != new))
        };
        let names = self.task.names.of_base(&self.task.tree.disk.base, origin);
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
        let guest = &self.task.tree.disk.guest;
        let Some((stat, new)) = there.zip(step.new) else { return Ok(false) };
        Ok(has_content_of(self.host, self.task.tree, step, &stat, guest.inode(new)))
    }

    /// Step 4: puts what the guest has at a path.
    pub fn put(&mut self, step: &Step<'_>) -> Result<bool, MakeError> {
        let (step, absent) = (step.difference, step.absent);
        let Some(new) = step.new else { return Ok(false) };
        let guest = &self.task.tree.disk.guest;
        let is_directory = guest.inode(new).file_type() == FileType::Directory;
        let (directory, name) = self.host.parent(&step.path).map_err(host("reach"))?;
        if absent && self.put_new_file(new, &directory, name)? {
            return Ok(true);
        }
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
            set_attributes(Target::Named(&directory, name), false, &wanted, &mut self.outcome.lost)?;
            return Ok(true);
        }
        self.put_whole(step, new, (&directory, name), there.as_ref())?;
        Ok(true)
    }

    /// Makes a regular file that has one name and comes from nothing, where nothing was a moment ago. `false` if it is
    /// another file, or something is there.
    fn put_new_file(&mut self, new: InodeId, directory: &Directory, name: &[u8]) -> Result<bool, MakeError> {
        let disk = &self.task.tree.disk;
        let inode = disk.guest.inode(new);
        if inode.file_type() != FileType::Regular || inode.links() > 1 || disk.origin(new).is_some() {
            return Ok(false);
        }
        let wanted = self.wanted_as(new, None, None);
        let lost = self.outcome.lost.clone();
        match make_file(directory, name, &*disk.content, &wanted, (&mut self.outcome.lost, &mut self.buffer)) {
            Err(MakeError::Host(_, Errno::EXIST)) => {
                self.outcome.lost = lost;
                Ok(false)
            }
            made => made.map(|()| true),
        }
    }

    fn put_directory(
        &mut self,
        step: &Difference,
        (directory, name): (&Directory, &[u8]),
        there: Option<&Stat>,
    ) -> Result<bool, MakeError> {
        let wanted = self.wanted(step, None);
        let Some(_) = there else {
            make_other(directory, name, &wanted, &mut self.outcome.lost)?;
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
        make_other(directory, &temporary, &wanted, &mut self.outcome.lost)?;
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
        let is_done = there.is_some_and(|stat| {
            has_content_of(self.host, self.task.tree, step, stat, self.task.tree.disk.guest.inode(new))
        });
        if is_done {
            if let Some((place, aside)) = &aside {
                place.remove(aside).map_err(host("remove"))?;
            }
            directory.remove(&self.temporary("new", new)).map_err(host("remove"))?;
            let wanted = self.wanted(step, there);
            set_attributes(Target::Named(directory, name), false, &wanted, &mut self.outcome.lost)?;
            self.anchor(new, step);
            return Ok(());
        }
        let (place, temporary) = match (aside, there) {
            (Some(aside), _) => aside,
            (None, None) => {
                self.make_as(directory, name, new, step.old)?;
                self.anchor(new, step);
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
        self.anchor(new, step);
        Ok(())
    }

    /// Remembers where other names of `new` may be linked to.
    fn anchor(&mut self, new: InodeId, step: &Difference) {
        if self.task.tree.disk.guest.inode(new).links() > 1 {
            self.anchors.entry(new).or_insert_with(|| step.path.clone());
        }
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
        let base = &self.task.tree.disk.base;
        let guest = &self.task.tree.disk.guest;
        let expected = |stat: &Stat| {
            step.old.is_some_and(|old| is_as_scanned(stat, base.inode(old), false))
                || step.new.is_some_and(|new| is_torn(stat, guest.inode(new)))
        };
        if !self.task.force && came_out.as_ref().is_some_and(|stat| !expected(stat)) {
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
        for name in self.task.names.of_base(&self.task.tree.disk.base, origin) {
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
                return set_attributes(Target::Named(directory, name), false, &wanted, &mut self.outcome.lost);
            }
        }
        let wanted = self.wanted_as(new, old, there.as_ref());
        match self.task.tree.disk.guest.inode(new).file_type() {
            FileType::Regular => make_file(
                directory,
                name,
                &*self.task.tree.disk.content,
                &wanted,
                (&mut self.outcome.lost, &mut self.buffer),
            ),
            _ => make_other(directory, name, &wanted, &mut self.outcome.lost),
        }
    }

    /// Where on the host the very file is that the guest has under another name, if its content is the same there and
    /// no name of it stays with something else.
    fn unchanged_on_host(&mut self, new: InodeId) -> Option<Vec<u8>> {
        let disk = &self.task.tree.disk;
        let origin = self.source(new)?;
        if Aspects::between((&disk.base, origin), (&disk.guest, new), disk).beyond_attributes() {
            return None;
        }
        let names = self.task.names.of_base(&disk.base, origin);
        let shared = names.iter().any(|name| {
            let id = disk.guest.lookup(name);
            // Equal and not listed as different, or replaced: either way the host's file is not this one's alone.
            id.is_some_and(|id| id != new) && !self.task.by_path.contains_key(&name[..])
        });
        if shared {
            return None;
        }
        self.on_host(origin).map(|(name, _)| name)
    }

    /// Where on the host an inode of the base still is as it was scanned, and its attributes there.
    fn on_host(&mut self, old: InodeId) -> Option<(Vec<u8>, Stat)> {
        let base = &self.task.tree.disk.base;
        self.task.names.of_base(base, old).into_iter().find_map(|name| {
            let there = self.host.parent(&name).and_then(|(directory, name)| directory.stat(name));
            let stat = there.ok().flatten().filter(|stat| is_as_scanned(stat, base.inode(old), false));
            stat.map(|stat| (name, stat))
        })
    }

    fn link(&mut self, from: &[u8], directory: &Directory, name: &[u8]) -> Result<(), Errno> {
        let (source, source_name) = self.host.parent(from)?;
        linkat(source.as_fd(), source_name, directory.as_fd(), name, AtFlags::empty())
    }

    pub fn wanted(&self, step: &Difference, there: Option<&Stat>) -> Wanted<'a> {
        self.wanted_as(step.new.unwrap_or(InodeId::ROOT), step.old, there)
    }

    /// What `new` is to be on the host, where it was `old` in the base and `there` on the host. An owner that the guest
    /// did not change stays the host's.
    fn wanted_as(&self, new: InodeId, old: Option<InodeId>, there: Option<&Stat>) -> Wanted<'a> {
        let disk = &self.task.tree.disk;
        let (is, back) = (disk.guest.inode(new), &self.task.tree.tree.owners);
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
    pub fn take_away(&mut self, step: &Step<'_>) -> Result<bool, MakeError> {
        let step = step.difference;
        let disk = &self.task.tree.disk;
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
                if !self.task.force && !is_as_scanned(&stat, disk.base.inode(old), false) {
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
}
