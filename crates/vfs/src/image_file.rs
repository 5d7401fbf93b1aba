//! Serves a device as one raw image file.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inarch_block::{Allocation, BlockDevice, Pending};
use inarch_tree::Timestamp;
use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use vm_memory::VolatileSlice;

use crate::{
    Attributes, Caching, Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, NodeId, OpenHandle,
    SetAttributes, SetTime, Statistics, WriteKind, not_supported,
};

const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const PERMISSIONS: u32 = 0o7777;

/// lseek(2)'s `SEEK_DATA` and `SEEK_HOLE`.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// fallocate(2)'s modes.
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;

/// Attributes never expire: only requests of this kernel change them.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// The preferred I/O size in bytes (`st_blksize`).
const BEST_SIZE: u32 = 128 << 10;

/// Where the image appears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageName {
    /// The mount point is a file, and the image is mounted on it.
    Root,
    /// The mount point is a directory, and the image is its only entry, with this name.
    In(String),
}

/// A file system with one file. The file exists from the start; requests for its size or content wait until the
/// device is ready.
pub struct ImageFile<D> {
    device: Arc<Pending<D>>,
    has_ended: Box<dyn Fn() -> bool + Send + Sync>,
    name: ImageName,
    state: Mutex<State>,
    /// Bytes of data, holes excluded, when the device became ready.
    data: OnceLock<u64>,
}

/// The attributes that a client can set.
#[derive(Clone, Copy)]
struct State {
    permissions: u32,
    uid: u32,
    gid: u32,
    mtime: Timestamp,
}

impl<D: BlockDevice> ImageFile<D> {
    /// An image of `device`. It belongs to this process's user, and only that user may read it or, unless
    /// `read_only`, write it.
    ///
    /// Requests stop waiting for the device once `has_ended` returns true and the device was woken.
    pub fn new(
        device: Arc<Pending<D>>,
        name: ImageName,
        read_only: bool,
        has_ended: impl Fn() -> bool + Send + Sync + 'static,
    ) -> ImageFile<D> {
        let state = State {
            permissions: if read_only { 0o400 } else { 0o600 },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mtime: now(),
        };
        ImageFile { device, has_ended: Box::new(has_ended), name, state: Mutex::new(state), data: OnceLock::new() }
    }

    /// Waits for the device.
    fn device(&self, context: &Context<'_>) -> Result<Arc<D>, Errno> {
        if !self.device.wait_unless(|| context.is_interrupted() || (self.has_ended)()) {
            return Err(if context.is_interrupted() { Errno::INTR } else { Errno::IO });
        }
        self.device.wait().map_err(|_| Errno::IO)
    }

    /// The image's node.
    fn image(&self) -> NodeId {
        match self.name {
            ImageName::Root => NodeId::ROOT,
            ImageName::In(_) => NodeId(NodeId::ROOT.0 + 1),
        }
    }

    /// Fails if `node` is not the image.
    fn check_image(&self, node: NodeId) -> Result<(), Errno> {
        if node == self.image() { Ok(()) } else { Err(Errno::ISDIR) }
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn image_attributes(&self, device: &D) -> Attributes {
        let state = self.state();
        Attributes {
            inode: self.image().0,
            mode: REGULAR | state.permissions,
            links: 1,
            size: device.content_size(),
            blocks: self.data.get_or_init(|| count_data(device)).div_ceil(512),
            block_size: BEST_SIZE,
            ..self.common_attributes(&state)
        }
    }

    fn directory_attributes(&self) -> Attributes {
        let state = self.state();
        Attributes { inode: NodeId::ROOT.0, mode: DIRECTORY | 0o755, links: 2, ..self.common_attributes(&state) }
    }

    /// The attributes that the image and its directory share.
    fn common_attributes(&self, state: &State) -> Attributes {
        Attributes {
            inode: NodeId::ROOT.0,
            mode: 0,
            links: 1,
            uid: state.uid,
            gid: state.gid,
            device: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            atime: state.mtime,
            mtime: state.mtime,
            ctime: state.mtime,
            birth: None,
            version: 0,
            is_submount: false,
            valid: FOR_EVER,
        }
    }

    fn entry(&self, context: &Context<'_>) -> Result<Entry, Errno> {
        let attributes = self.image_attributes(&*self.device(context)?);
        Ok(Entry { node: self.image(), generation: 0, attributes, valid: FOR_EVER })
    }
}

impl<D: BlockDevice> FileSystem for ImageFile<D> {
    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        match &self.name {
            ImageName::In(own) if parent == NodeId::ROOT && own.as_bytes() == name => self.entry(context),
            _ => Err(Errno::NOENT),
        }
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId, _handle: Option<HandleId>) -> Result<Attributes, Errno> {
        if node == self.image() {
            Ok(self.image_attributes(&*self.device(context)?))
        } else {
            Ok(self.directory_attributes())
        }
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
        context: &Context<'_>,
        node: NodeId,
        _handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        if node != self.image() {
            return Err(Errno::PERM);
        }
        let device = self.device(context)?;
        if set.size.is_some_and(|size| size != device.content_size()) {
            // A disk cannot change its size.
            return Err(Errno::PERM);
        }
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.permissions = set.mode.map_or(state.permissions, |mode| mode & PERMISSIONS);
            state.uid = set.uid.unwrap_or(state.uid);
            state.gid = set.gid.unwrap_or(state.gid);
            state.mtime = match set.mtime {
                Some(SetTime::Now) => now(),
                Some(SetTime::To(time)) => time,
                None => state.mtime,
            };
        }
        Ok(self.image_attributes(&device))
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        self.check_image(node)?;
        let device = self.device(context)?;
        let flags = OFlags::from_bits_retain(flags);
        if device.read_only() && flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
            return Err(Errno::ROFS);
        }
        if flags.contains(OFlags::TRUNC) {
            // A disk cannot change its size.
            return Err(Errno::PERM);
        }
        Ok(OpenHandle { handle: HandleId::default(), caching: Caching::Keep, parallel_direct_writes: true })
    }

    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        self.check_image(node)?;
        let device = self.device(context)?;
        let (out, length) = cut(out, device.content_size().saturating_sub(offset));
        if length > 0 {
            device.read_at(offset, &out).map_err(|error| errno(&error))?;
        }
        Ok(length)
    }

    fn write(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        _kind: WriteKind,
    ) -> Result<usize, Errno> {
        self.check_image(node)?;
        let device = self.device(context)?;
        let (within, length) = cut(data, device.content_size().saturating_sub(offset));
        if length == 0 {
            return if data.is_empty() { Ok(0) } else { Err(Errno::NOSPC) };
        }
        device.write_at(offset, &within).map_err(|error| errno(&error))?;
        self.state.lock().unwrap_or_else(PoisonError::into_inner).mtime = now();
        Ok(length)
    }

    fn fsync(&self, context: &Context<'_>, node: NodeId, _handle: HandleId, _data_only: bool) -> Result<(), Errno> {
        self.check_image(node)?;
        self.device(context)?.flush().map_err(|error| errno(&error))
    }

    fn fallocate(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _handle: HandleId,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<(), Errno> {
        self.check_image(node)?;
        let device = self.device(context)?;
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        let within = end.min(device.content_size()).saturating_sub(offset);
        let done = match mode {
            // Everything past the end is a hole already.
            mode if mode == PUNCH_HOLE | KEEP_SIZE => device.discard(offset.min(end - within), within),
            mode if mode & !KEEP_SIZE == ZERO_RANGE && within == length => device.write_zeroes(offset, length, false),
            _ => return Err(Errno::OPNOTSUPP),
        };
        done.map_err(|error| errno(&error))
    }

    fn seek(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _handle: HandleId,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        self.check_image(node)?;
        let device = self.device(context)?;
        let end = device.content_size();
        if offset >= end {
            return Err(Errno::NXIO);
        }
        let wanted = match whence {
            SEEK_DATA => Allocation::Data,
            SEEK_HOLE => Allocation::Hole,
            _ => return Err(Errno::INVAL),
        };
        let (here, length) = device.allocation(offset, end - offset);
        match (here == wanted, offset.saturating_add(length)) {
            (true, _) => Ok(offset),
            (false, next) if next < end => Ok(next),
            // Past the last data there is only a hole.
            (false, _) if wanted == Allocation::Hole => Ok(end),
            (false, _) => Err(Errno::NXIO),
        }
    }

    fn open_directory(&self, _context: &Context<'_>, node: NodeId) -> Result<OpenHandle, Errno> {
        if node == self.image() { Err(Errno::NOTDIR) } else { Ok(OpenHandle::default()) }
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let ImageName::In(own) = &self.name else { return Err(Errno::NOTDIR) };
        if node != NodeId::ROOT {
            return Err(Errno::NOTDIR);
        }
        let root = NodeId::ROOT.0;
        let entries = [(root, DIRECTORY, "."), (root, DIRECTORY, ".."), (self.image().0, REGULAR, own)];
        for (next, (inode, mode, name)) in (1..).zip(entries).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let entry = if sink.wants_entries() && mode == REGULAR { Some(self.entry(context)?) } else { None };
            if !sink.push(&DirectoryEntry { inode, next, mode, name: name.as_bytes(), entry }) {
                break;
            }
        }
        Ok(())
    }

    fn statistics(&self, context: &Context<'_>, _node: NodeId) -> Result<Statistics, Errno> {
        const BLOCK: u32 = 4096;
        let size = self.device(context)?.content_size();
        let blocks = size / u64::from(BLOCK);
        Ok(Statistics { block_size: BLOCK, blocks, files: 1, name_max: 255, ..Statistics::default() })
    }

    // The file always exists under its one name, cannot have extended attributes, and needs nothing on close.
    not_supported! {
        absence_valid, is_contested, parent, forget, disconnected, read_link, make_node, make_directory, make_symlink, link, unlink,
        remove_directory, rename, create, create_unnamed, copy_range, flush, sync, release, release_directory, get_xattr,
        list_xattrs, set_xattr, remove_xattr, test_lock, set_lock, host_file
    }

    fn interrupted(&self) {
        self.device.wake();
    }
}

/// The bytes of a device that are data, not holes.
fn count_data(device: &impl BlockDevice) -> u64 {
    let end = device.content_size();
    let (mut offset, mut data) = (0, 0);
    while offset < end {
        let (allocation, length) = device.allocation(offset, end - offset);
        data += if allocation == Allocation::Data { length } else { 0 };
        offset = offset.saturating_add(length.max(1));
    }
    data
}

/// The first `length` bytes of `slices`, and their number.
fn cut<'a>(slices: &[VolatileSlice<'a>], length: u64) -> (SmallVec<[VolatileSlice<'a>; 16]>, usize) {
    let mut left = usize::try_from(length).unwrap_or(usize::MAX);
    let parts = slices.iter().map_while(|slice| {
        let count = left.min(slice.len());
        left -= count;
        slice.subslice(0, count).ok().filter(|part| !part.is_empty())
    });
    let parts: SmallVec<[VolatileSlice<'a>; 16]> = parts.collect();
    let total = parts.iter().map(|part| part.len()).sum();
    (parts, total)
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
