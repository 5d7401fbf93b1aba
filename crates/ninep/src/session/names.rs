//! Makes, links, removes and renames files.

use std::sync::Arc;

use inarch_vfs::{Context, Entry, NewNode, check_name};
use rustix::io::Errno;

use super::access::{self, EXECUTE, WRITE};
use super::fids::Fid;
use super::place::{DIRECTORY, Place, TYPE_MASK};
use super::walk::{group_of, is_xattr};
use super::{Call, Session, attributes};
use crate::wire::{Qid, Reply, unlink};

impl Session<'_> {
    /// The fid's directory; `ENOTDIR` if it is not a directory.
    fn directory(&self, fid: u32) -> Result<Fid, Errno> {
        let fid = self.fids.get(fid)?;
        if is_xattr(&fid) {
            return Err(Errno::BADF);
        }
        if fid.place.is_directory() { Ok(fid) } else { Err(Errno::NOTDIR) }
    }

    /// Fails unless the caller may add names to the directory.
    pub(super) fn check_makes(&self, context: &Context<'_>, directory: &Place) -> Result<(), Errno> {
        if !directory.is_directory() {
            return Err(Errno::NOTDIR);
        }
        if context.uid == 0 {
            return Ok(());
        }
        let attributes = self.file_system().attributes(context, directory.node, None)?;
        access::check(context.uid, &attributes, WRITE | EXECUTE)
    }

    /// Fails unless the caller may remove the name. Returns the entry that was checked, which the caller must forget.
    /// Until then the file system knows what the name led to, and removes nothing else by it.
    fn check_removes(
        &self,
        context: &Context<'_>,
        directory: &Arc<Place>,
        name: &[u8],
    ) -> Result<Option<Entry>, Errno> {
        if context.uid == 0 {
            return Ok(None);
        }
        let attributes = self.file_system().attributes(context, directory.node, None)?;
        access::check(context.uid, &attributes, WRITE | EXECUTE)?;
        let entry = self.file_system().lookup(context, directory.node, name)?;
        if !access::may_remove_any(context.uid, &attributes) {
            let checked = access::check_owner(context.uid, &entry.attributes);
            checked.inspect_err(|_| self.forget_checked(Some(entry)))?;
        }
        Ok(Some(entry))
    }

    fn forget_checked(&self, checked: Option<Entry>) {
        if let Some(entry) = checked {
            self.file_system().forget(entry.node, 1);
        }
    }

    /// The qid of a new node; the client walks to it if it wants a fid.
    fn made(&self, entry: &Entry) -> Qid {
        self.file_system().forget(entry.node, 1);
        attributes::qid(&entry.attributes)
    }

    /// Makes something in a directory as the fid's user, with group `gid`.
    fn make(
        &self,
        call: &Call<'_>,
        directory: u32,
        name: &[u8],
        gid: u32,
        make: impl FnOnce(&Context<'_>, &Place) -> Result<Entry, Errno>,
    ) -> Result<Qid, Errno> {
        let fid = self.directory(directory)?;
        check_name(name)?;
        call.context(fid.uid, gid, |context| {
            self.check_makes(context, &fid.place)?;
            Ok(self.made(&make(context, &fid.place)?))
        })
    }

    /// `Tsymlink`.
    pub(super) fn symlink(
        &self,
        call: &Call<'_>,
        directory: u32,
        name: &[u8],
        target: &[u8],
        gid: u32,
    ) -> Result<Reply<'static>, Errno> {
        if target.is_empty() || target.contains(&0) {
            return Err(if target.is_empty() { Errno::NOENT } else { Errno::INVAL });
        }
        let qid = self.make(call, directory, name, gid, |context, parent| {
            self.file_system().make_symlink(context, parent.node, name, target)
        })?;
        Ok(Reply::Symlink { qid })
    }

    /// `Tmknod`.
    pub(super) fn mknod(
        &self,
        call: &Call<'_>,
        directory: u32,
        name: &[u8],
        mode: u32,
        (major, minor): (u32, u32),
        gid: u32,
    ) -> Result<Reply<'static>, Errno> {
        if matches!(mode & TYPE_MASK, DIRECTORY) {
            return Err(Errno::PERM);
        }
        let new = NewNode { mode, umask: 0, device: rustix::fs::makedev(major, minor) };
        let qid = self.make(call, directory, name, gid, |context, parent| {
            let is_device = matches!(mode & TYPE_MASK, 0o020_000 | 0o060_000);
            if is_device && context.uid != 0 {
                return Err(Errno::PERM);
            }
            self.file_system().make_node(context, parent.node, name, &new)
        })?;
        Ok(Reply::Mknod { qid })
    }

    /// `Tmkdir`.
    pub(super) fn mkdir(
        &self,
        call: &Call<'_>,
        directory: u32,
        name: &[u8],
        mode: u32,
        gid: u32,
    ) -> Result<Reply<'static>, Errno> {
        let new = NewNode { mode: mode & 0o7777 | DIRECTORY, umask: 0, device: 0 };
        let qid = self.make(call, directory, name, gid, |context, parent| {
            self.file_system().make_directory(context, parent.node, name, &new)
        })?;
        Ok(Reply::Mkdir { qid })
    }

    /// `Tlink`.
    pub(super) fn link(&self, call: &Call<'_>, directory: u32, fid: u32, name: &[u8]) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(fid)?;
        if is_xattr(&fid) {
            return Err(Errno::BADF);
        }
        if fid.place.is_directory() {
            return Err(Errno::PERM);
        }
        self.make(call, directory, name, group_of(fid.uid), |context, parent| {
            if context.uid != 0 {
                let attributes = self.file_system().attributes(context, fid.place.node, None)?;
                access::check_link(context.uid, &attributes)?;
            }
            self.file_system().link(context, fid.place.node, parent.node, name)
        })?;
        Ok(Reply::Link)
    }

    /// `Tunlinkat`.
    pub(super) fn unlinkat(
        &self,
        call: &Call<'_>,
        directory: u32,
        name: &[u8],
        flags: u32,
    ) -> Result<Reply<'static>, Errno> {
        let fid = self.directory(directory)?;
        if flags & !unlink::REMOVE_DIRECTORY != 0 {
            return Err(Errno::INVAL);
        }
        self.remove_name(call, &fid.place, fid.uid, name, flags & unlink::REMOVE_DIRECTORY != 0)?;
        Ok(Reply::Unlinkat)
    }

    fn remove_name(
        &self,
        call: &Call<'_>,
        directory: &Arc<Place>,
        uid: u32,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), Errno> {
        check_name(name)?;
        call.context(uid, group_of(uid), |context| {
            let checked = self.check_removes(context, directory, name)?;
            let removed = match is_directory {
                true => self.file_system().remove_directory(context, directory.node, name),
                false => self.file_system().unlink(context, directory.node, name),
            };
            self.forget_checked(checked);
            removed
        })
    }

    /// The directory and name of a fid's node, if they are still valid.
    fn name_of<'f>(&self, call: &Call<'_>, fid: &'f Fid) -> Result<(&'f Arc<Place>, &'f [u8]), Errno> {
        let place = &fid.place;
        // The name of the root is unknown, and so is that of a node reached by `..`.
        let parent = place.parent.as_ref().ok_or(Errno::BUSY)?;
        call.context(fid.uid, group_of(fid.uid), |context| {
            let entry = self.file_system().lookup(context, parent.node, &place.name)?;
            self.file_system().forget(entry.node, 1);
            if entry.node == place.node { Ok((parent, &*place.name)) } else { Err(Errno::STALE) }
        })
    }

    /// `Tremove`: the fid ends, whatever the reply is.
    pub(super) fn remove(&self, call: &Call<'_>, fid: u32) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.remove(fid)?;
        if is_xattr(&fid) {
            return Err(Errno::BADF);
        }
        let (directory, name) = self.name_of(call, &fid)?;
        self.remove_name(call, directory, fid.uid, name, fid.place.is_directory())?;
        Ok(Reply::Remove)
    }

    /// `Trename`: the fid stays, with its new name.
    pub(super) fn rename(
        &self,
        call: &Call<'_>,
        number: u32,
        directory: u32,
        name: &[u8],
    ) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(number)?;
        let to = self.directory(directory)?;
        if is_xattr(&fid) {
            return Err(Errno::BADF);
        }
        let from = self.name_of(call, &fid)?;
        self.move_name(call, fid.uid, from, (&to.place, name))?;
        let moved =
            call.context(fid.uid, group_of(fid.uid), |context| self.file_system().lookup(context, to.place.node, name));
        if let Ok(entry) = moved {
            let place = Place::new(&self.export, entry.node, entry.attributes.mode, Some(&to.place), name);
            if place.node == fid.place.node {
                // If another request has changed the fid meanwhile, that change stands.
                let _ = self.fids.replace(number, &fid, Fid { place, ..fid.clone() });
            }
        }
        Ok(Reply::Rename)
    }

    /// `Trenameat`.
    pub(super) fn renameat(
        &self,
        call: &Call<'_>,
        (old_directory, old_name): (u32, &[u8]),
        (new_directory, new_name): (u32, &[u8]),
    ) -> Result<Reply<'static>, Errno> {
        let (from, to) = (self.directory(old_directory)?, self.directory(new_directory)?);
        self.move_name(call, from.uid, (&from.place, old_name), (&to.place, new_name))?;
        Ok(Reply::Renameat)
    }

    fn move_name(
        &self,
        call: &Call<'_>,
        uid: u32,
        (from, old_name): (&Arc<Place>, &[u8]),
        (to, new_name): (&Arc<Place>, &[u8]),
    ) -> Result<(), Errno> {
        check_name(old_name)?;
        check_name(new_name)?;
        call.context(uid, group_of(uid), |context| {
            let moved = self.check_removes(context, from, old_name)?;
            let may_move = match &moved {
                Some(entry) if from.node != to.node => access::check_move(context.uid, &entry.attributes),
                _ => Ok(()),
            };
            let may_make = may_move.and_then(|()| self.check_makes(context, to));
            let replaced = may_make.and_then(|()| match self.check_removes(context, to, new_name) {
                // There is nothing to replace.
                Err(Errno::NOENT) => Ok(None),
                checked => checked,
            });
            let renamed = replaced.and_then(|replaced| {
                let renamed = self.file_system().rename(context, from.node, old_name, to.node, new_name, 0);
                self.forget_checked(replaced);
                renamed
            });
            self.forget_checked(moved);
            renamed
        })
    }
}
