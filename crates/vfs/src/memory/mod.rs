//! A file system in this process's memory, limited to a number of bytes.
//!
//! Nothing of it remains on a disk, even if the process is killed. It behaves like the host's file systems: removed
//! files stay usable while open, groups and default ACLs are inherited, and permission bits and ACLs agree. The
//! client's kernel checks permissions.

mod acl;
mod content;
mod inode;
mod names;
mod space;
#[cfg(test)]
mod tests;
mod xattrs;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::slab::Slab;
use crate::xattr_names::ACCESS_ACL;
use crate::{
    Attributes, Caching, Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, LockOwner, NewNode,
    NodeId, OpenHandle, SetAttributes, SetTime, Statistics, WriteKind, check_name, not_supported,
};
use acl::Acl;
use content::{Content, end_of};
use inode::{DOTS, INODE_SPACE, Inode, Inodes, Kind, NAME_SPACE, ROOT, now};
use space::Space;

/// Nobody else changes it.
const VALID: Duration = Duration::from_secs(24 * 60 * 60);

const BLOCK_SIZE: u32 = 4096;

/// Files that may be open at a time.
const MOST_OPEN: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct MemoryFiles {
    inodes: RwLock<Inodes>,
    open: Mutex<Slab<OpenFile>>,
    /// Whether files are opened before they are used.
    opens_files: bool,
    space: Space,
}

#[derive(Clone, Copy, Debug)]
struct OpenFile {
    node: NodeId,
    writable: bool,
    /// Whether every write appends.
    append: bool,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryFiles {
    /// An empty directory of the calling user, with room for so many bytes of content, names and attributes.
    pub fn new(bytes: u64) -> MemoryFiles {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let root = Inode::new(libc::S_IFDIR | 0o755, owner, names::empty_directory(ROOT));
        let inodes = RwLock::new(Inodes::new(root));
        MemoryFiles { inodes, open: Mutex::default(), opens_files: true, space: Space::new(bytes) }
    }

    /// For clients that read and write files without opening them.
    pub fn without_opening(self) -> MemoryFiles {
        MemoryFiles { opens_files: false, ..self }
    }

    fn files(&self) -> MutexGuard<'_, Slab<OpenFile>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes_of(&self, inodes: &Inodes, index: u32) -> Result<Attributes, Errno> {
        let inode = inodes.at(index)?;
        let (size, stored) = match &inode.kind {
            Kind::File(content) => {
                let content = read(content);
                (content.size(), content.stored())
            }
            Kind::Symlink(target) => (target.len() as u64, 0),
            Kind::Directory(_) | Kind::Special => (0, 0),
        };
        Ok(Attributes {
            inode: inodes.number(index).0,
            mode: inode.mode,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            device: inode.device,
            size,
            blocks: stored.div_ceil(512),
            block_size: BLOCK_SIZE,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            birth: Some(inode.birth),
            version: 0,
            is_submount: false,
            valid: VALID,
        })
    }

    /// Counts a look-up of an inode.
    fn entry(&self, inodes: &mut Inodes, index: u32) -> Result<Entry, Errno> {
        inodes.at_mut(index)?.lookups += 1;
        let attributes = self.attributes_of(inodes, index)?;
        Ok(Entry { node: inodes.number(index), generation: 0, attributes, valid: VALID })
    }

    /// Removes an inode without names, look-ups and open handles.
    fn collect(&self, inodes: &mut Inodes, index: u32) {
        let Some(inode) = inodes.collect(index) else { return };
        let content = match &inode.kind {
            Kind::File(content) => read(content).used(),
            Kind::Symlink(target) => target.len() as u64,
            Kind::Directory(_) | Kind::Special => 0,
        };
        self.space.give_back(INODE_SPACE + content + names::xattr_space(&inode));
    }

    fn file(&self, node: NodeId, handle: HandleId) -> Result<OpenFile, Errno> {
        let file = {
            let open = self.files();
            open.place(handle.0).and_then(|place| open.get(place)).filter(|file| file.node == node).copied()
        };
        match file {
            None if !self.opens_files => self.content(node).map(|_| OpenFile { node, writable: true, append: false }),
            file => file.ok_or(Errno::BADF),
        }
    }

    fn content(&self, node: NodeId) -> Result<Arc<RwLock<Content>>, Errno> {
        read(&self.inodes).get(node)?.content().cloned()
    }

    fn writable(&self, node: NodeId, handle: HandleId) -> Result<(OpenFile, Arc<RwLock<Content>>), Errno> {
        let file = self.file(node, handle)?;
        if file.writable { Ok((file, self.content(node)?)) } else { Err(Errno::BADF) }
    }

    fn opened(&self, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        let mode = flags & libc::O_ACCMODE as u32;
        let append = flags & libc::O_APPEND as u32 != 0;
        if !self.opens_files {
            return Ok(OpenHandle { caching: Caching::Keep, ..OpenHandle::default() });
        }
        let file = OpenFile { node, writable: mode != libc::O_RDONLY as u32, append };
        let mut inodes = write(&self.inodes);
        let mut open = self.files();
        if open.len() >= MOST_OPEN {
            return Err(Errno::NFILE);
        }
        inodes.get_mut(node)?.opened += 1;
        let place = open.insert(file).ok_or(Errno::NFILE)?;
        Ok(OpenHandle { handle: HandleId(open.number(place)), caching: Caching::Keep, parallel_direct_writes: false })
    }

    /// Updates times after a change of content; with `kill`, clears privileges.
    fn changed(&self, node: NodeId, kill: bool) -> Result<(), Errno> {
        let mut inodes = write(&self.inodes);
        let inode = inodes.get_mut(node)?;
        inode.touch(true);
        if kill {
            self.kill_privileges(inode);
        }
        Ok(())
    }

    /// Clears what an unprivileged change clears.
    fn kill_privileges(&self, inode: &mut Inode) {
        if let Some(value) = inode.xattrs.remove(&b"security.capability"[..]) {
            self.space.give_back(NAME_SPACE + (b"security.capability".len() + value.len()) as u64);
        }
        if !inode.is_directory() {
            inode.mode &= !libc::S_ISUID;
            if inode.mode & libc::S_IXGRP != 0 {
                inode.mode &= !libc::S_ISGID;
            }
        }
    }

    fn change_attributes(&self, inodes: &mut Inodes, index: u32, set: &SetAttributes) -> Result<(), Errno> {
        if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
            return Err(Errno::INVAL);
        }
        let inode = inodes.at_mut(index)?;
        if let Some(size) = set.size {
            write(inode.content()?).set_size(&self.space, size)?;
        }
        inode.touch(set.size.is_some());
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        if let Some(mode) = set.mode {
            inode.mode = inode.mode & libc::S_IFMT | mode & 0o7777;
            if let Some(value) = inode.xattrs.get_mut(ACCESS_ACL) {
                let mut list = Acl::parse(value)?;
                list.set_mode(mode);
                *value = list.value().into();
            }
        }
        if set.kill_privileges {
            self.kill_privileges(inode);
        }
        let time = |time: SetTime| match time {
            SetTime::Now => now(),
            SetTime::To(time) => time,
        };
        inode.atime = set.atime.map_or(inode.atime, time);
        inode.mtime = set.mtime.map_or(inode.mtime, time);
        Ok(())
    }
}

impl FileSystem for MemoryFiles {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        check_name(name)?;
        let mut inodes = write(&self.inodes);
        let found = inodes.get(parent)?.directory()?.get(name).ok_or(Errno::NOENT)?;
        self.entry(&mut inodes, found)
    }

    fn absence_valid(&self, _: NodeId) -> Duration {
        VALID
    }

    fn is_contested(&self, _: NodeId) -> bool {
        false
    }

    fn parent(&self, _: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        let mut inodes = write(&self.inodes);
        let parent = inodes.get(node)?.directory()?.parent;
        self.entry(&mut inodes, parent)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let mut inodes = write(&self.inodes);
        let Some(index) = inodes.index(node).ok().filter(|index| *index != ROOT) else { return };
        if let Ok(inode) = inodes.at_mut(index) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
        }
        self.collect(&mut inodes, index);
    }

    fn disconnected(&self) {
        let mut inodes = write(&self.inodes);
        let mut open = self.files();
        for place in open.occupied() {
            open.remove(place);
        }
        for index in inodes.all() {
            if let Ok(inode) = inodes.at_mut(index) {
                (inode.opened, inode.lookups) = (0, u64::from(index == ROOT));
            }
            self.collect(&mut inodes, index);
        }
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId, _: Option<HandleId>) -> Result<Attributes, Errno> {
        let inodes = read(&self.inodes);
        self.attributes_of(&inodes, inodes.index(node)?)
    }

    fn peek_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<Attributes, Errno> {
        self.attributes(context, node, handle)
    }

    fn set_attributes(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        let mut inodes = write(&self.inodes);
        let index = inodes.index(node)?;
        self.change_attributes(&mut inodes, index, set)?;
        self.attributes_of(&inodes, index)
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        match &read(&self.inodes).get(node)?.kind {
            Kind::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Errno::INVAL),
        }
    }

    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        match new.mode & libc::S_IFMT {
            0 | libc::S_IFREG => {
                let new = NewNode { mode: libc::S_IFREG | new.mode & 0o7777, device: 0, ..*new };
                self.make(context, (parent, Some(name)), &new, names::empty_file, 0)
            }
            libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR | libc::S_IFBLK => {
                self.make(context, (parent, Some(name)), new, |_| Kind::Special, 0)
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        let new = NewNode { mode: libc::S_IFDIR | new.mode & 0o7777, device: 0, ..*new };
        self.make(context, (parent, Some(name)), &new, names::empty_directory, 0)
    }

    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        let new = NewNode { mode: libc::S_IFLNK | 0o777, umask: 0, device: 0 };
        let kind = |_| Kind::Symlink(target.into());
        self.make(context, (parent, Some(name)), &new, kind, target.len() as u64)
    }

    fn link(&self, _: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.add_name(node, parent, name)
    }

    fn unlink(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.remove_name(parent, name, false)
    }

    fn remove_directory(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.remove_name(parent, name, true)
    }

    fn rename(
        &self,
        _: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.move_name((parent, name), (new_parent, new_name), flags)
    }

    fn open(&self, _: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        let content = self.content(node)?;
        if flags & libc::O_TRUNC as u32 != 0 {
            write(&content).set_size(&self.space, 0)?;
            self.changed(node, false)?;
        }
        self.opened(node, flags)
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let new = NewNode { mode: libc::S_IFREG | new.mode & 0o7777, device: 0, ..*new };
        let entry = self.make(context, (parent, Some(name)), &new, names::empty_file, 0)?;
        let opened = self.opened(entry.node, flags).inspect_err(|_| self.forget(entry.node, 1))?;
        Ok((entry, opened))
    }

    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let new = NewNode { mode: libc::S_IFREG | new.mode & 0o7777, device: 0, ..*new };
        let entry = self.make(context, (parent, None), &new, names::empty_file, 0)?;
        let opened = self.opened(entry.node, flags).inspect_err(|_| self.forget(entry.node, 1))?;
        Ok((entry, opened))
    }

    fn read(
        &self,
        _: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        self.file(node, handle)?;
        let content = self.content(node)?;
        let content = read(&content);
        Ok(content.read(offset, out))
    }

    fn write(
        &self,
        _: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        kind: WriteKind,
    ) -> Result<usize, Errno> {
        let (file, content) = self.writable(node, handle)?;
        let written = {
            let mut content = write(&content);
            // A write from a client's cache has its final offset.
            let offset = if file.append && !kind.cached { content.size() } else { offset };
            content.write(&self.space, offset, data)?
        };
        self.changed(node, kind.kill_privileges)?;
        Ok(written)
    }

    fn fsync(&self, _: &Context<'_>, node: NodeId, _: HandleId, _: bool) -> Result<(), Errno> {
        // Nothing to sync: it lives as long as the process.
        read(&self.inodes).get(node).map(drop)
    }

    fn sync(&self, _: &Context<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn fallocate(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<(), Errno> {
        const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
        const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        let (_, content) = self.writable(node, handle)?;
        let end = end_of(offset, length)?;
        if length == 0 {
            return Err(Errno::INVAL);
        }
        {
            let mut content = write(&content);
            match mode & !KEEP_SIZE {
                PUNCH_HOLE if mode & KEEP_SIZE != 0 => content.punch(&self.space, offset, end),
                ZERO_RANGE => content.punch(&self.space, offset, end),
                0 => {
                    // Bytes past the end are not allocated here.
                    let until = if mode & KEEP_SIZE != 0 { end.min(content.size()) } else { end };
                    content.allocate(&self.space, offset, until)?;
                }
                _ => return Err(Errno::OPNOTSUPP),
            }
            if mode & KEEP_SIZE == 0 && end > content.size() {
                content.set_size(&self.space, end)?;
            }
        }
        self.changed(node, !context.is_root())
    }

    fn seek(&self, _: &Context<'_>, node: NodeId, handle: HandleId, offset: u64, whence: u32) -> Result<u64, Errno> {
        self.file(node, handle)?;
        let content = self.content(node)?;
        let content = read(&content);
        match i32::try_from(whence) {
            Ok(libc::SEEK_DATA) => content.seek(offset, true),
            Ok(libc::SEEK_HOLE) => content.seek(offset, false),
            _ => Err(Errno::INVAL),
        }
    }

    fn release(&self, node: NodeId, handle: HandleId, _: Option<LockOwner>) {
        if self.file(node, handle).is_err() {
            return;
        }
        let mut inodes = write(&self.inodes);
        let removed = {
            let mut open = self.files();
            open.place(handle.0).and_then(|place| open.remove(place))
        };
        let Some(index) = removed.and_then(|file| inodes.index(file.node).ok()) else { return };
        if let Ok(inode) = inodes.at_mut(index) {
            inode.opened = inode.opened.saturating_sub(1);
        }
        self.collect(&mut inodes, index);
    }

    fn open_directory(&self, _: &Context<'_>, node: NodeId) -> Result<OpenHandle, Errno> {
        read(&self.inodes).get(node)?.directory()?;
        Err(Errno::NOSYS)
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let (own, parent) = {
            let inodes = read(&self.inodes);
            (inodes.index(node)?, inodes.get(node)?.directory()?.parent)
        };
        let numbers = [own, parent].map(|index| read(&self.inodes).number(index).0);
        for (place, (name, inode)) in (0..DOTS).zip([(&b"."[..], numbers[0]), (b"..", numbers[1])]) {
            let entry = DirectoryEntry { inode, next: place + 1, mode: libc::S_IFDIR, name, entry: None };
            if place >= offset && !sink.push(&entry) {
                return Ok(());
            }
        }
        let mut place = offset.max(DOTS);
        loop {
            let (at, name, inode, mode) = {
                let inodes = read(&self.inodes);
                let Some((at, name, index)) = inodes.get(node)?.directory()?.from(place).next() else { return Ok(()) };
                (at, Box::<[u8]>::from(name), inodes.number(index).0, inodes.at(index)?.mode & libc::S_IFMT)
            };
            if !sink.has_room(name.len()) {
                return Ok(());
            }
            place = at + 1;
            let entry = match sink.wants_entries().then(|| self.lookup(context, node, &name)) {
                Some(Err(Errno::NOENT)) => continue,
                Some(entry) => Some(entry?),
                None => None,
            };
            if !sink.push(&DirectoryEntry { inode, next: place, mode, name: &name, entry }) {
                if let Some(entry) = entry {
                    self.forget(entry.node, 1);
                }
                return Ok(());
            }
        }
    }

    fn get_xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.xattr_value(node, name)
    }

    fn list_xattrs(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.xattr_names(node)
    }

    fn set_xattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_set_group_id: bool,
    ) -> Result<(), Errno> {
        self.change_xattr(node, name, value, flags, kill_set_group_id)
    }

    fn remove_xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.delete_xattr(node, name)
    }

    // Clients keep their own locks and copy by reading and writing; there is no host file for passthrough.
    not_supported! { copy_range, flush, release_directory, test_lock, set_lock, host_file, interrupted }

    fn statistics(&self, _: &Context<'_>, _: NodeId) -> Result<Statistics, Errno> {
        let block = u64::from(BLOCK_SIZE);
        let (all, free) = (self.space.limit() / block, self.space.free() / block);
        Ok(Statistics {
            block_size: BLOCK_SIZE,
            blocks: all,
            free_blocks: free,
            available_blocks: free,
            files: self.space.limit() / INODE_SPACE,
            free_files: self.space.free() / INODE_SPACE,
            name_max: 255,
        })
    }
}
