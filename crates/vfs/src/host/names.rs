//! Looks up, creates, removes and renames names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FileType, Mode, RenameFlags, Statx, linkat, mkdirat, mknodat, renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::attributes::{identity, permissions};
use super::caller::make_as;
use super::reach::DescriptorName;
use super::table::Table;
use super::{Changes, HostDirectory, read, write};
use crate::{Context, Entry, NewNode, NodeId, check_name};

/// A descriptor of a file about to lose a name.
struct LastDescriptor {
    node: NodeId,
    descriptor: Arc<OwnedFd>,
}

impl LastDescriptor {
    /// Pins the descriptor if the node is still known and has no other name; otherwise returns it to be closed.
    fn keep(self, table: &mut Table) -> Option<Arc<OwnedFd>> {
        match table.index(self.node) {
            Ok(index) if table.node(index).is_ok_and(|node| !node.has_place()) => {
                table.pin(index, self.descriptor);
                None
            }
            _ => Some(self.descriptor),
        }
    }
}

impl HostDirectory {
    pub(super) fn look_up(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        check_name(name)?;
        let directory = self.directory(parent).map_err(|errno| match errno {
            // It is shown empty.
            Errno::ROFS => Errno::NOENT,
            errno => errno,
        })?;
        let entry = self.entry_there(context, parent, directory.as_fd(), name)?;
        if self.options.changes == Changes::Host {
            let table = read(&self.table);
            let parent = table.index(parent).and_then(|index| table.node(index));
            parent.into_iter().for_each(|parent| parent.ask(self.started.elapsed()));
        }
        Ok(entry)
    }

    /// Looks up a checked name.
    ///
    /// # Errors
    /// `ESTALE` if the name is new to the caller and the directory's permissions differ from those that its kernel
    /// decided by. A name that it already knows may be looked up again: an error would make the kernel drop the name,
    /// and any mount on it.
    fn entry_there(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        directory: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let renames = read(&self.table).renames;
        let stat_before = self.stat(directory, name)?;
        if self.may_be_misled(context) && !self.is_known(parent, name, &stat_before)? {
            self.require_told(context, parent, directory)?;
        }
        if let Some(entry) = self.entry(parent, name, &stat_before, Some(renames))? {
            return Ok(entry);
        }
        // Something was renamed meanwhile, so the name may belong to another node. Block renames for the second look.
        let _renamed = read(&self.renaming);
        let stat = self.stat(directory, name)?;
        self.entry(parent, name, &stat, None)?.ok_or(Errno::STALE)
    }

    fn is_known(&self, parent: NodeId, name: &[u8], stat: &Statx) -> Result<bool, Errno> {
        let table = read(&self.table);
        let known = table.known_at(table.index(parent)?, name);
        Ok(known.is_some_and(|node| node.identity == identity(stat)))
    }

    /// Counts a look-up of the file behind `stat`. Returns `None` if it is new and something was renamed since the
    /// count was `renames`.
    pub(super) fn entry(
        &self,
        parent: NodeId,
        name: &[u8],
        stat: &Statx,
        renames: Option<u64>,
    ) -> Result<Option<Entry>, Errno> {
        let found = self.found(stat);
        let known = {
            let table = read(&self.table);
            table.known(table.index(parent)?, name, &found)
        };
        let node = match known {
            Some(node) => node,
            None => {
                let mut table = write(&self.table);
                if renames.is_some_and(|renames| renames != table.renames) {
                    return Ok(None);
                }
                let parent = table.index(parent)?;
                table.found(Some((parent, name)), &found)?
            }
        };
        Ok(Some(self.entry_of(node, stat)))
    }

    pub(super) fn entry_of(&self, node: NodeId, stat: &Statx) -> Entry {
        let attributes = self.attributes_from(stat);
        // Node numbers are never reused, so the generation is constant.
        Entry { node, generation: 0, attributes, valid: self.options.valid() }
    }

    pub(super) fn look_up_parent(&self, node: NodeId) -> Result<Entry, Errno> {
        if node == NodeId::ROOT {
            return self.entry_by_number(node);
        }
        // Reaching the old parent, by its old place or anew, verifies it.
        self.stat_node(node, None)?;
        if !self.is_closed(node)? {
            self.directory(node)?;
        }
        let parent = {
            let table = read(&self.table);
            let place = table.places(table.index(node)?).next().map(|(parent, _)| table.number(parent));
            place.ok_or(Errno::NOENT)?
        };
        self.entry_by_number(parent)
    }

    /// Counts a look-up of a known node.
    fn entry_by_number(&self, node: NodeId) -> Result<Entry, Errno> {
        let stat = self.stat_node(node, None)?;
        let table = read(&self.table);
        let node = table.count_lookup(table.index(node)?)?;
        drop(table);
        Ok(self.entry_of(node, &stat))
    }

    pub(super) fn make_special(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        let kind = match new.mode & libc::S_IFMT {
            0 => FileType::RegularFile,
            kind => FileType::from_raw_mode(kind),
        };
        if matches!(kind, FileType::Directory | FileType::Symlink | FileType::Unknown) {
            return Err(Errno::INVAL);
        }
        self.require_no_device(kind.as_raw_mode(), new.device)?;
        self.make(context, parent, name, new.umask, |directory| {
            let mode = self.mode_for(context, directory, new)?;
            mknodat(directory, name, kind, mode, new.device)
        })
    }

    pub(super) fn make_subdirectory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        let mode = Mode::from_raw_mode(self.granted(libc::S_IFDIR, new.mode & 0o7777));
        self.make(context, parent, name, new.umask, |directory| mkdirat(directory, name, mode))
    }

    pub(super) fn make_link_to(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Errno> {
        // The target is never followed here, so any bytes will do.
        self.make(context, parent, name, 0, |directory| symlinkat(target, directory, name))
    }

    fn make(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        umask: u32,
        make: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<Entry, Errno> {
        check_name(name)?;
        let directory = self.directory(parent)?;
        self.require_told(context, parent, directory.as_fd())?;
        make_as(context, umask, self.for_others)?;
        make(directory.as_fd())?;
        // Permission to search the directory was checked together with permission to change it.
        self.entry_there(&Context::SERVER, parent, directory.as_fd(), name)
    }

    /// The permissions of a new file that is not a directory. Drops a set-group-ID bit for a group that the caller is
    /// not in (`mode_strip_sgid` of Linux's fs/inode.c, which does not know that the server acts for another user).
    pub(super) fn mode_for(
        &self,
        context: &Context<'_>,
        directory: BorrowedFd<'_>,
        new: &NewNode,
    ) -> Result<Mode, Errno> {
        let mut mode = self.granted(libc::S_IFREG, new.mode & 0o7777);
        let gives_group = libc::S_ISGID | libc::S_IXGRP;
        if mode & gives_group == gives_group && !context.is_root() {
            let stat = self.stat(directory, b"")?;
            let inherited = u32::from(stat.stx_mode) & libc::S_ISGID != 0;
            let is_member = stat.stx_gid == context.gid || Some(stat.stx_gid) == context.supplementary_group;
            if inherited && !is_member {
                mode &= !libc::S_ISGID;
            }
        }
        Ok(Mode::from_raw_mode(mode))
    }

    pub(super) fn add_name(
        &self,
        context: &Context<'_>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        check_name(name)?;
        let directory = self.directory(parent)?;
        let source = self.descriptor(node)?;
        self.require_told(context, parent, directory.as_fd())?;
        // The kernel also checks who may hard-link a file (fs.protected_hardlinks).
        self.require_told(context, node, source.as_fd())?;
        self.before_changing(source.as_fd())?;
        self.link_descriptor(&source, directory.as_fd(), name)?;
        let entry = self.entry_there(&Context::SERVER, parent, directory.as_fd(), name)?;
        // The number of files made without a name is not limited.
        let pinned = write(&self.table).unpin(entry.node);
        drop(pinned);
        Ok(entry)
    }

    fn link_descriptor(&self, source: &Arc<OwnedFd>, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        // Through /proc, because an empty path needs CAP_DAC_READ_SEARCH. It leads to the descriptor's own file.
        let source = DescriptorName::new(source.as_fd());
        linkat(&self.descriptors, source.as_bytes(), directory, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Opens a descriptor before a name is removed, for nodes that clients use without an open: files where those
    /// need no open, and directories, which can be somebody's working directory.
    fn before_removal(&self, parent: NodeId, name: &[u8]) -> Result<Option<LastDescriptor>, Errno> {
        let node = {
            let table = read(&self.table);
            let Some(index) = table.at(table.index(parent)?, name) else { return Ok(None) };
            let node = table.node(index)?;
            let may_be_used = match node.identity.kind {
                libc::S_IFREG => !self.opens_files(),
                libc::S_IFDIR => !node.is_closed,
                _ => false,
            };
            if !may_be_used {
                return Ok(None);
            }
            table.number(index)
        };
        // A client forgets nodes as it removes them, but another thread may process that a little later.
        let mut patience = 50;
        loop {
            let is_room = read(&self.table).pins() < self.most_pins;
            match if is_room { self.descriptor(node) } else { Err(Errno::NFILE) } {
                Ok(descriptor) => return Ok(Some(LastDescriptor { node, descriptor })),
                Err(Errno::NFILE) if patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(Errno::NFILE) => return Err(Errno::NFILE),
                // It is another file, which no client knows.
                Err(_) => return Ok(None),
            }
        }
    }

    /// Returns `ESTALE` unless the name still leads to the node that the client's kernel checked. This matters in
    /// sticky directories, and where a directory `moves` to another parent, which needs permission on the directory
    /// itself. There the client must know a node by that name: the kernel may have dropped the one it checked, because
    /// another thread of its found something else at the name. Root may do everything.
    fn require_known(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        directory: BorrowedFd<'_>,
        name: &[u8],
        moves: bool,
    ) -> Result<(), Errno> {
        if context.is_root() {
            return Ok(());
        }
        let known = {
            let table = read(&self.table);
            table.known_at(table.index(parent)?, name).map(|node| (node.identity, node.told_permissions()))
        };
        let is_misled = self.may_be_misled(context);
        let Some((known, told)) = known else {
            if is_misled && (moves || is_sticky(&self.stat(directory, b"")?)) {
                self.stat(directory, name)?;
                return Err(Errno::STALE);
            }
            return Ok(());
        };
        let stat = self.stat(directory, name)?;
        let is_told = !is_misled || told == permissions(&stat);
        if known == identity(&stat) && is_told { Ok(()) } else { Err(Errno::STALE) }
    }

    pub(super) fn remove_name(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), Errno> {
        check_name(name)?;
        let directory = self.directory(parent)?;
        self.require_told(context, parent, directory.as_fd())?;
        self.require_known(context, parent, directory.as_fd(), name, false)?;
        let last = self.before_removal(parent, name)?;
        unlinkat(&directory, name, if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() })?;
        let mut table = write(&self.table);
        // A client that forgot the directory meanwhile knows none of its names.
        let dropped = table.index(parent).map(|parent| table.remove_place(parent, name)).unwrap_or_default();
        let unused = last.and_then(|last| last.keep(&mut table));
        drop(table);
        drop((dropped, unused));
        Ok(())
    }

    pub(super) fn move_name(
        &self,
        context: &Context<'_>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        check_name(from.1)?;
        check_name(to.1)?;
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let (source, target) = (self.directory(from.0)?, self.directory(to.0)?);
        let last = if flags.contains(RenameFlags::EXCHANGE) { None } else { self.before_removal(to.0, to.1)? };
        let _renaming = write(&self.renaming);
        self.require_told(context, from.0, source.as_fd())?;
        if to.0 != from.0 {
            self.require_told(context, to.0, target.as_fd())?;
        }
        let moves = from.0 != to.0;
        self.require_known(context, from.0, source.as_fd(), from.1, moves)?;
        match self.require_known(context, to.0, target.as_fd(), to.1, moves && flags.contains(RenameFlags::EXCHANGE)) {
            // There is no target, or none any more.
            Err(Errno::NOENT) if !flags.contains(RenameFlags::EXCHANGE) => {}
            known => known?,
        }
        let believes_absent = self.may_be_misled(context) && !flags.contains(RenameFlags::EXCHANGE) && {
            let table = read(&self.table);
            table.known_at(table.index(to.0)?, to.1).is_none()
        };
        self.before_moving(source.as_fd(), from.1)?;
        if flags.contains(RenameFlags::EXCHANGE) {
            self.before_moving(target.as_fd(), to.1)?;
        }
        let rename = |flags| renameat_with(&source, from.1, &target, to.1, flags);
        // The client's kernel checked no right to replace what it does not know.
        match if believes_absent { rename(flags | RenameFlags::NOREPLACE) } else { rename(flags) } {
            Err(Errno::EXIST) if believes_absent && !flags.contains(RenameFlags::NOREPLACE) => {
                return Err(Errno::STALE);
            }
            // A file system that knows no flags.
            Err(Errno::INVAL) if believes_absent && flags.is_empty() => rename(flags)?,
            renamed => renamed?,
        }
        let mut table = write(&self.table);
        let dropped = match (table.index(from.0), table.index(to.0)) {
            (Ok(source), Ok(target)) => {
                let exchange = flags.contains(RenameFlags::EXCHANGE);
                table.rename((source, from.1), (target, to.1), exchange)
            }
            _ => Vec::new(),
        };
        let unused = last.and_then(|last| last.keep(&mut table));
        drop(table);
        drop((dropped, unused));
        Ok(())
    }
}

/// Whether only owners remove names from a directory.
fn is_sticky(directory: &Statx) -> bool {
    u32::from(directory.stx_mode) & libc::S_ISVTX != 0
}
