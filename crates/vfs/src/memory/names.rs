//! Creates, removes and renames names.

use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::acl::Acl;
use super::inode::{Directory, INODE_SPACE, Inode, Inodes, Kind, NAME_SPACE};
use super::{MemoryFiles, write};
use crate::xattr_names::{ACCESS_ACL, DEFAULT_ACL};
use crate::{Context, Entry, NewNode, NodeId, check_name};

/// The most names of one file.
const MAX_LINKS: u32 = 1 << 16;

impl MemoryFiles {
    /// Creates a node, with or without a name.
    pub(super) fn make(
        &self,
        context: &Context<'_>,
        place: (NodeId, Option<&[u8]>),
        new: &NewNode,
        kind: impl FnOnce(u32) -> Kind,
        space: u64,
    ) -> Result<Entry, Errno> {
        let name = place.1.unwrap_or_default();
        if place.1.is_some() {
            check_name(name)?;
        }
        let mut inodes = write(&self.inodes);
        let parent = inodes.index(place.0)?;
        let directory = inodes.at(parent)?;
        if directory.directory()?.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        if directory.links == 0 {
            return Err(Errno::NOENT);
        }
        let kind = kind(parent);
        let inode = new_inode(context, directory, new, kind)?;
        let named = place.1.map_or(0, |name| NAME_SPACE + name.len() as u64);
        let space = INODE_SPACE + named + space + xattr_space(&inode);
        self.space.take(space)?;
        let is_directory = inode.is_directory();
        let index = inodes.insert(inode).inspect_err(|_| self.space.give_back(space))?;
        if place.1.is_some() {
            inodes.at_mut(parent)?.directory_mut()?.insert(name, index);
            inodes.at_mut(index)?.links = if is_directory { 2 } else { 1 };
            if is_directory {
                inodes.at_mut(parent)?.links += 1;
            }
        }
        self.entry(&mut inodes, index)
    }

    pub(super) fn add_name(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        check_name(name)?;
        let mut inodes = write(&self.inodes);
        let (index, parent) = (inodes.index(node)?, inodes.index(parent)?);
        let directory = inodes.at(parent)?;
        if directory.directory()?.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        if directory.links == 0 {
            return Err(Errno::NOENT);
        }
        let inode = inodes.at(index)?;
        match inode.links {
            _ if inode.is_directory() => return Err(Errno::PERM),
            MAX_LINKS.. => return Err(Errno::MLINK),
            _ => {}
        }
        self.space.take(NAME_SPACE + name.len() as u64)?;
        inodes.at_mut(parent)?.directory_mut()?.insert(name, index);
        let inode = inodes.at_mut(index)?;
        inode.links += 1;
        inode.touch(false);
        self.entry(&mut inodes, index)
    }

    pub(super) fn remove_name(&self, parent: NodeId, name: &[u8], directory: bool) -> Result<(), Errno> {
        check_name(name)?;
        let mut inodes = write(&self.inodes);
        let parent = inodes.index(parent)?;
        let index = inodes.at(parent)?.directory()?.get(name).ok_or(Errno::NOENT)?;
        match (directory, inodes.at(index)?.directory()) {
            (true, Ok(names)) if !names.is_empty() => return Err(Errno::NOTEMPTY),
            (true, Err(errno)) => return Err(errno),
            (false, Ok(_)) => return Err(Errno::ISDIR),
            _ => {}
        }
        inodes.at_mut(parent)?.directory_mut()?.remove(name);
        self.space.give_back(NAME_SPACE + name.len() as u64);
        self.unlink(&mut inodes, parent, index)
    }

    /// An inode lost a name in `parent`.
    fn unlink(&self, inodes: &mut Inodes, parent: u32, index: u32) -> Result<(), Errno> {
        let inode = inodes.at_mut(index)?;
        inode.touch(false);
        if inode.is_directory() {
            inode.links = 0;
            inodes.at_mut(parent)?.links -= 1;
        } else {
            inode.links = inode.links.saturating_sub(1);
        }
        self.collect(inodes, index);
        Ok(())
    }

    pub(super) fn move_name(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), flags: u32) -> Result<(), Errno> {
        check_name(from.1)?;
        check_name(to.1)?;
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let whiteout = flags.contains(RenameFlags::WHITEOUT);
        if exchange && whiteout {
            return Err(Errno::INVAL);
        }
        let mut inodes = write(&self.inodes);
        let (source, target) = (inodes.index(from.0)?, inodes.index(to.0)?);
        let moved = inodes.at(source)?.directory()?.get(from.1).ok_or(Errno::NOENT)?;
        let other = inodes.at(target)?.directory()?.get(to.1);
        if inodes.at(target)?.links == 0 {
            return Err(Errno::NOENT);
        }
        match other {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EXIST),
            None if exchange => return Err(Errno::NOENT),
            Some(other) if other == moved => return Ok(()),
            Some(other) if !exchange => require_replaceable(&inodes, moved, other)?,
            _ => {}
        }
        forbid_loop(&inodes, moved, target)?;
        if let Some(other) = other.filter(|_| exchange) {
            forbid_loop(&inodes, other, source)?;
        }
        let new_name = if other.is_none() { NAME_SPACE + to.1.len() as u64 } else { 0 };
        let space = new_name + if whiteout { INODE_SPACE } else { 0 };
        self.space.take(space)?;
        let whiteout = match whiteout {
            true => Some(inodes.insert(new_whiteout()).inspect_err(|_| self.space.give_back(space))?),
            false => None,
        };
        inodes.at_mut(target)?.directory_mut()?.insert(to.1, moved);
        match (other.filter(|_| exchange), whiteout) {
            (Some(other), _) => {
                inodes.at_mut(source)?.directory_mut()?.insert(from.1, other);
                settle(&mut inodes, other, target, source)?;
            }
            // The whiteout takes the old name.
            (None, Some(whiteout)) => inodes.at_mut(source)?.directory_mut()?.insert(from.1, whiteout),
            (None, None) => {
                inodes.at_mut(source)?.directory_mut()?.remove(from.1);
                self.space.give_back(NAME_SPACE + from.1.len() as u64);
            }
        }
        settle(&mut inodes, moved, source, target)?;
        match other.filter(|_| !exchange) {
            Some(other) => self.unlink(&mut inodes, target, other),
            None => Ok(()),
        }
    }
}

/// Updates an inode that moved to another directory.
fn settle(inodes: &mut Inodes, index: u32, from: u32, to: u32) -> Result<(), Errno> {
    let inode = inodes.at_mut(index)?;
    inode.touch(false);
    if let Kind::Directory(directory) = &mut inode.kind {
        directory.parent = to;
        inodes.at_mut(from)?.links -= 1;
        inodes.at_mut(to)?.links += 1;
    }
    Ok(())
}

/// Refuses to move a directory into itself or below.
fn forbid_loop(inodes: &Inodes, moved: u32, target: u32) -> Result<(), Errno> {
    if !inodes.at(moved)?.is_directory() {
        return Ok(());
    }
    let mut at = target;
    loop {
        if at == moved {
            return Err(Errno::INVAL);
        }
        let above = inodes.at(at)?.directory()?.parent;
        if above == at {
            return Ok(());
        }
        at = above;
    }
}

/// Whether rename(2) lets `moved` take the place of `other`.
fn require_replaceable(inodes: &Inodes, moved: u32, other: u32) -> Result<(), Errno> {
    match (inodes.at(moved)?.is_directory(), inodes.at(other)?.directory()) {
        (true, Err(_)) => Err(Errno::NOTDIR),
        (false, Ok(_)) => Err(Errno::ISDIR),
        (true, Ok(names)) if !names.is_empty() => Err(Errno::NOTEMPTY),
        _ => Ok(()),
    }
}

/// A new inode in a directory, which inherits the group and default ACL where the directory says so.
fn new_inode(context: &Context<'_>, directory: &Inode, new: &NewNode, kind: Kind) -> Result<Inode, Errno> {
    let is_directory = matches!(kind, Kind::Directory(_));
    let inherits = directory.mode & libc::S_ISGID != 0;
    let gid = if inherits { directory.gid } else { context.gid };
    let mut mode = new.mode;
    if inherits && is_directory {
        mode |= libc::S_ISGID;
    } else if inherits && mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP {
        // Dropped if the caller is not in the group (`mode_strip_sgid` of Linux's fs/inode.c).
        let is_member = context.is_root() || gid == context.gid || Some(gid) == context.supplementary_group;
        mode = if is_member { mode } else { mode & !libc::S_ISGID };
    }
    let default = directory.xattrs.get(DEFAULT_ACL).filter(|_| mode & libc::S_IFMT != libc::S_IFLNK);
    let Some(default) = default.cloned() else {
        let mode = if mode & libc::S_IFMT == libc::S_IFLNK { mode } else { mode & !(new.umask & 0o777) };
        return Ok(Inode { device: new.device, ..Inode::new(mode, (context.uid, gid), kind) });
    };
    let mut list = Acl::parse(&default)?;
    list.restrict(mode);
    mode = mode & !0o777 | list.mode();
    let mut inode = Inode { device: new.device, ..Inode::new(mode, (context.uid, gid), kind) };
    if !list.is_minimal() {
        inode.xattrs.insert(ACCESS_ACL.into(), list.value().into());
    }
    if is_directory {
        inode.xattrs.insert(DEFAULT_ACL.into(), default);
    }
    Ok(inode)
}

/// The whiteout that renameat2(2) with `RENAME_WHITEOUT` leaves.
fn new_whiteout() -> Inode {
    Inode { links: 1, ..Inode::new(libc::S_IFCHR, (0, 0), Kind::Special) }
}

/// The memory of an inode's extended attributes.
pub(super) fn xattr_space(inode: &Inode) -> u64 {
    inode.xattrs.iter().map(|(name, value)| NAME_SPACE + (name.len() + value.len()) as u64).sum()
}

/// A directory without names, for [`MemoryFiles::make`].
pub(super) fn empty_directory(parent: u32) -> Kind {
    Kind::Directory(Directory::new(parent))
}

/// A file without content, for [`MemoryFiles::make`].
pub(super) fn empty_file(_: u32) -> Kind {
    Kind::File(Arc::default())
}
