//! Open files: reading, writing and all other requests with a handle.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom, fdatasync, fsync, openat};
use rustix::io::Errno;
use smallvec::SmallVec;
use vm_memory::VolatileSlice;

use super::caller::make_as;
use super::directories::Stream;
use super::locks::Holder;
use super::system_calls;
use super::{HostDirectory, read, write};
use crate::slab::Slab;
use crate::{Context, Entry, HandleId, LockOwner, NewNode, NodeId, OpenHandle, WriteKind, check_name};

/// An open file or directory.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    pub node: NodeId,
    pub descriptor: Arc<OwnedFd>,
    /// Whether it is open for writing.
    pub writable: bool,
    /// Whether every write goes to the file's end.
    append: bool,
    /// A directory's position in its listing.
    pub stream: Option<Arc<Stream>>,
}

/// The open files of one node.
#[derive(Debug, Default)]
struct OfNode {
    /// Their places, and descriptors.
    files: SmallVec<[(u32, Arc<OwnedFd>); 1]>,
    /// Whether passthrough has one of the descriptors, so that writes bypass this file system.
    shared: bool,
}

/// All that is open.
#[derive(Debug)]
pub(super) struct OpenFiles {
    files: Slab<OpenFile>,
    /// By node, in the order of opening.
    by_node: HashMap<NodeId, OfNode>,
    count: usize,
    limit: usize,
}

impl OpenFiles {
    /// At most `limit` open files.
    pub fn new(limit: usize) -> OpenFiles {
        OpenFiles { files: Slab::new(), by_node: HashMap::new(), count: 0, limit: limit.max(1) }
    }

    /// A descriptor of one of a node's open files.
    pub fn descriptor_of(&self, node: NodeId) -> Option<Arc<OwnedFd>> {
        self.by_node.get(&node)?.files.first().map(|(_, descriptor)| descriptor.clone())
    }

    /// Whether the node's content may be written through passthrough.
    fn is_shared(&self, node: NodeId) -> bool {
        self.by_node.get(&node).is_some_and(|open| open.shared)
    }

    /// Records that it may, until all of the node's files are closed.
    fn set_shared(&mut self, node: NodeId) {
        if let Some(open) = self.by_node.get_mut(&node) {
            open.shared = true;
        }
    }

    fn get(&self, node: NodeId, handle: HandleId) -> Result<&OpenFile, Errno> {
        let file = self.files.place(handle.0).and_then(|place| self.files.get(place));
        file.filter(|file| file.node == node).ok_or(Errno::BADF)
    }

    fn insert(&mut self, file: OpenFile) -> Result<HandleId, Errno> {
        if self.count >= self.limit {
            return Err(Errno::NFILE);
        }
        let (node, descriptor) = (file.node, file.descriptor.clone());
        let place = self.files.insert(file).ok_or(Errno::NFILE)?;
        self.count += 1;
        self.by_node.entry(node).or_default().files.push((place, descriptor));
        Ok(HandleId(self.files.number(place)))
    }

    /// Removes all of them.
    pub fn clear(&mut self) -> Vec<OpenFile> {
        self.by_node.clear();
        self.count = 0;
        self.files.occupied().into_iter().filter_map(|place| self.files.remove(place)).collect()
    }

    fn remove(&mut self, node: NodeId, handle: HandleId) -> Option<OpenFile> {
        self.get(node, handle).ok()?;
        let place = self.files.place(handle.0)?;
        let file = self.files.remove(place)?;
        self.count -= 1;
        if let Some(open) = self.by_node.get_mut(&node) {
            open.files.retain(|(other, _)| *other != place);
            if open.files.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some(file)
    }
}

/// The flags of open(2) that a client may choose.
const CHOSEN: OFlags = OFlags::TRUNC.union(OFlags::SYNC).union(OFlags::DSYNC).union(OFlags::NOATIME);

impl HostDirectory {
    pub(super) fn file(&self, node: NodeId, handle: HandleId) -> Result<OpenFile, Errno> {
        read(&self.open).get(node, handle).cloned()
    }

    /// The open file, or, where files need no open, a descriptor to read from.
    fn readable(&self, node: NodeId, handle: HandleId) -> Result<Arc<OwnedFd>, Errno> {
        match read(&self.open).get(node, handle) {
            Ok(file) if file.stream.is_none() => return Ok(file.descriptor.clone()),
            Ok(_) => return Err(Errno::ISDIR),
            Err(errno) if self.opens_files() => return Err(errno),
            Err(_) => {}
        }
        self.readable_unopened(node)
    }

    /// A descriptor to read from, for a file that needs no open.
    pub(super) fn readable_unopened(&self, node: NodeId) -> Result<Arc<OwnedFd>, Errno> {
        let kept = {
            let table = read(&self.table);
            let index = table.index(node)?;
            if table.node(index)?.identity.kind != libc::S_IFREG {
                return Err(Errno::INVAL);
            }
            table.descriptor(index).cloned()
        };
        // A cached descriptor may be `O_PATH`.
        if let Some(kept) = kept
            && !rustix::fs::fcntl_getfl(&kept)?.contains(OFlags::PATH)
        {
            return Ok(kept);
        }
        let descriptor = self.descriptor(node)?;
        let file = self.open_again(descriptor.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?;
        let index = read(&self.table).index(node)?;
        Ok(self.keep(index, file))
    }

    /// The open file, or, where files need no open, a descriptor to write to. The latter is not cached: a file open
    /// for writing cannot be executed.
    fn for_writing(&self, node: NodeId, handle: HandleId) -> Result<Arc<OwnedFd>, Errno> {
        match self.file(node, handle) {
            Err(_) if !self.opens_files() => {
                self.writable()?;
                self.require_regular(node)?;
                let descriptor = self.descriptor(node)?;
                self.open_again(descriptor.as_fd(), OFlags::RDWR | OFlags::NONBLOCK).map(Arc::new)
            }
            Ok(file) if !file.writable => Err(Errno::BADF),
            file => Ok(file?.descriptor),
        }
    }

    /// The same for requests that change content without saying which bits to clear: clears what a write by the
    /// caller would.
    fn for_changing(&self, context: &Context<'_>, node: NodeId, handle: HandleId) -> Result<Arc<OwnedFd>, Errno> {
        let file = self.for_writing(node, handle)?;
        self.before_writing(file.as_fd(), !context.is_root())?;
        Ok(file)
    }

    /// The type of a node, which never changes.
    pub(super) fn kind(&self, node: NodeId) -> Result<u32, Errno> {
        let table = read(&self.table);
        Ok(table.node(table.index(node)?)?.identity.kind)
    }

    /// Returns an error unless the node is a regular file.
    pub(super) fn require_regular(&self, node: NodeId) -> Result<(), Errno> {
        match self.kind(node)? {
            libc::S_IFREG => Ok(()),
            libc::S_IFDIR => Err(Errno::ISDIR),
            libc::S_IFLNK => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }

    /// Converts a client's open flags to the host's.
    fn flags(&self, flags: u32) -> Result<OFlags, Errno> {
        let asked = OFlags::from_bits_retain(flags);
        let mut mode = match asked & OFlags::RWMODE {
            OFlags::RDONLY => OFlags::RDONLY,
            OFlags::WRONLY if self.options.writeback => OFlags::RDWR,
            OFlags::WRONLY => OFlags::WRONLY,
            OFlags::RDWR => OFlags::RDWR,
            _ => return Err(Errno::INVAL),
        };
        if asked.contains(OFlags::TRUNC) && mode == OFlags::RDONLY {
            mode = OFlags::RDWR;
        }
        if mode != OFlags::RDONLY {
            self.writable()?;
        }
        // No O_DIRECT, because our buffers are not aligned. No O_APPEND: see `write_file`.
        Ok(mode | (asked & CHOSEN) | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY)
    }

    fn opened(&self, node: NodeId, descriptor: OwnedFd, asked: u32, flags: OFlags) -> Result<OpenHandle, Errno> {
        let caching = self.caching_at_open(node, descriptor.as_fd());
        let file = OpenFile {
            node,
            descriptor: Arc::new(descriptor),
            writable: flags & OFlags::RWMODE != OFlags::RDONLY,
            append: asked & libc::O_APPEND as u32 != 0,
            stream: None,
        };
        let handle = write(&self.open).insert(file)?;
        Ok(OpenHandle { handle, caching, parallel_direct_writes: true })
    }

    /// The answer to an open, where files need no open.
    fn unopened(&self) -> OpenHandle {
        let caching = self.options.caching();
        OpenHandle { handle: HandleId::default(), caching, parallel_direct_writes: true }
    }

    pub(super) fn open_file(&self, context: &Context<'_>, node: NodeId, asked: u32) -> Result<OpenHandle, Errno> {
        self.require_regular(node)?;
        if !self.opens_files() {
            self.flags(asked)?;
            return Err(Errno::NOSYS);
        }
        let flags = self.flags(asked)?;
        let descriptor = self.descriptor(node)?;
        self.require_told(context, node, descriptor.as_fd())?;
        let is_writable = flags & OFlags::RWMODE != OFlags::RDONLY;
        // Passthrough writes are not seen here: the host may have given the file set-ID bits or capabilities since.
        if flags.contains(OFlags::TRUNC) || is_writable && read(&self.open).is_shared(node) {
            self.before_writing(descriptor.as_fd(), false)?;
        }
        // The name in /proc is a magic symbolic link, so NOFOLLOW must go.
        let file = self.open_again(descriptor.as_fd(), flags.difference(OFlags::NOFOLLOW) | OFlags::NONBLOCK)?;
        self.opened(node, file, asked, flags)
    }

    pub(super) fn create_file(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        asked: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        check_name(name)?;
        let flags = self.flags(asked)?;
        let directory = self.directory(parent)?;
        self.require_told(context, parent, directory.as_fd())?;
        let mode = self.mode_for(context, directory.as_fd(), new)?;
        make_as(context, new.umask, self.for_others)?;
        // Only a new file is opened: an existing one may be anything and belong to anybody.
        let created = self.with_room(|| openat(&directory, name, flags | OFlags::CREATE | OFlags::EXCL, mode))?;
        self.register(Some((parent, name)), created, asked, flags)
    }

    pub(super) fn create_nameless_file(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        asked: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let flags = self.flags(asked)?;
        let directory = self.directory(parent)?;
        self.require_told(context, parent, directory.as_fd())?;
        let mode = self.mode_for(context, directory.as_fd(), new)?;
        make_as(context, new.umask, self.for_others)?;
        // O_EXCL prevents that it ever gets a name.
        let unnamed =
            flags.difference(OFlags::NOFOLLOW) | OFlags::TMPFILE | (OFlags::from_bits_retain(asked) & OFlags::EXCL);
        let file = self.with_room(|| openat(&directory, ".", unnamed, mode))?;
        self.register(None, file, asked, flags)
    }

    /// Registers a new file as an open node.
    fn register(
        &self,
        place: Option<(NodeId, &[u8])>,
        file: OwnedFd,
        asked: u32,
        flags: OFlags,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let stat = self.stat(file.as_fd(), b"")?;
        let found = self.found(&stat);
        let node = {
            let mut table = write(&self.table);
            let place = place.map(|(parent, name)| table.index(parent).map(|parent| (parent, name))).transpose()?;
            table.found(place, &found)?
        };
        let opened = if self.opens_files() {
            self.opened(node, file, asked, flags)
        } else {
            if place.is_none() {
                let pinned = Arc::new(self.open_again(file.as_fd(), OFlags::PATH)?);
                let index = read(&self.table).index(node)?;
                write(&self.table).pin(index, pinned);
            }
            Ok(self.unopened())
        };
        if opened.is_err() {
            drop(write(&self.table).forget(node, 1));
        }
        Ok((self.entry_of(node, &stat), opened?))
    }

    pub(super) fn read_file(
        &self,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        let file = self.readable(node, handle)?;
        let whole = length(out);
        let mut done = 0;
        while done < whole {
            let at = offset.checked_add(done as u64).ok_or(Errno::INVAL)?;
            match system_calls::read(file.as_fd(), out, done, at) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    pub(super) fn write_file(
        &self,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        kind: WriteKind,
    ) -> Result<usize, Errno> {
        let file = self.for_writing(node, handle)?;
        self.before_writing(file.as_fd(), kind.kill_privileges)?;
        // A write from a client's cache has its final offset.
        let append = !kind.cached && self.file(node, handle).is_ok_and(|file| file.append);
        let whole = length(data);
        let mut done = 0;
        while done < whole {
            let at = offset.checked_add(done as u64).ok_or(Errno::FBIG)?;
            match system_calls::write(file.as_fd(), data, done, at, append) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    pub(super) fn copy_between_files(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        let (source, target) = (self.readable(from.0, from.1)?, self.for_changing(context, to.0, to.1)?);
        let (mut read_at, mut write_at) = (from.2, to.2);
        // Limits the time of one request; a client asks again.
        let length = usize::try_from(length.min(1 << 30)).unwrap_or(0);
        let copied = rustix::fs::copy_file_range(source, Some(&mut read_at), &target, Some(&mut write_at), length)?;
        Ok(copied as u64)
    }

    pub(super) fn close_descriptor(
        &self,
        node: NodeId,
        handle: HandleId,
        owner: Option<LockOwner>,
    ) -> Result<(), Errno> {
        if !self.options.locks {
            return Err(Errno::NOSYS);
        }
        if self.opens_files() {
            self.file(node, handle)?;
        }
        if let Some(owner) = owner {
            self.locks.end(node, Holder::Owner(owner));
        }
        Ok(())
    }

    pub(super) fn make_durable(&self, node: NodeId, handle: HandleId, data_only: bool) -> Result<(), Errno> {
        let sync = |file: BorrowedFd<'_>| if data_only { fdatasync(file) } else { fsync(file) };
        match self.file(node, handle) {
            Ok(file) => sync(file.descriptor.as_fd()),
            Err(_) if !self.opens_files() && self.require_regular(node).is_ok() => {
                sync(self.readable_unopened(node)?.as_fd())
            }
            // Nothing in it was changed.
            Err(_) if self.is_closed(node)? => Ok(()),
            // The directory was listed without being opened.
            Err(_) => {
                let directory = self.directory(node)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = self.with_room(|| openat(&directory, ".", flags, Mode::empty()))?;
                sync(directory.as_fd())
            }
        }
    }

    pub(super) fn allocate(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<(), Errno> {
        let file = self.for_changing(context, node, handle)?;
        let mode = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
        rustix::fs::fallocate(&file, mode, offset, length)
    }

    pub(super) fn find_data_or_hole(
        &self,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        let file = self.readable(node, handle)?;
        if i64::try_from(offset).is_err() {
            return Err(Errno::NXIO);
        }
        let to = match i32::try_from(whence) {
            Ok(libc::SEEK_DATA) => SeekFrom::Data(offset),
            Ok(libc::SEEK_HOLE) => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        rustix::fs::seek(file, to)
    }

    pub(super) fn close_file(&self, node: NodeId, handle: HandleId) {
        let file = write(&self.open).remove(node, handle);
        // Closed once no lock is held.
        drop(file);
    }

    pub(super) fn shared_file(&self, node: NodeId, handle: HandleId) -> Option<Arc<OwnedFd>> {
        if !self.opens_files() {
            // Opened for this request.
            let writable = if self.options.read_only { Err(Errno::ROFS) } else { self.for_writing(node, handle) };
            return writable.or_else(|_| self.readable(node, handle)).ok();
        }
        let (file, shared) = {
            let open = read(&self.open);
            let file = open.get(node, handle).ok().filter(|file| file.stream.is_none())?;
            (file.clone(), open.descriptor_of(node)?)
        };
        let stat = self.stat(file.descriptor.as_fd(), b"").ok()?;
        let is_worth_it = file.writable || stat.stx_size >= self.options.host_files_from;
        if !is_worth_it || self.loses_power(file.descriptor.as_fd(), stat.stx_mode.into()) {
            return None;
        }
        write(&self.open).set_shared(node);
        Some(shared)
    }

    /// Registers the stream of an opened directory.
    pub(super) fn insert_stream(
        &self,
        node: NodeId,
        descriptor: Arc<OwnedFd>,
        stream: Stream,
    ) -> Result<HandleId, Errno> {
        let file = OpenFile { node, descriptor, writable: false, append: false, stream: Some(Arc::new(stream)) };
        write(&self.open).insert(file)
    }
}

fn length(slices: &[VolatileSlice<'_>]) -> usize {
    slices.iter().map(VolatileSlice::len).sum()
}
