//! A file system of one file: a device as a raw image.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inarch_server::{Allocation, BlockDevice, Pending, StopHandle};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::file_system::{
    Attributes, Context, DirectoryEntry, Entry, FileSystem, HandleId, NodeId, Opened, SetAttributes, Statistics,
};
use crate::wire::open_flag;
use crate::wire::reply::DirectoryList;

const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const PERMISSIONS: u32 = 0o7777;

/// The part of open(2)'s flags that says whether to write (`O_ACCMODE`).
const ACCESS_MODE: u32 = 3;

/// lseek(2)'s `SEEK_DATA` and `SEEK_HOLE`.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// fallocate(2)'s modes.
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;

/// Nothing changes but by the kernel's own requests.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// Bytes that suit a read or write best.
const BEST_SIZE: u32 = 128 << 10;

/// Where the image is in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageName {
    /// It is what is mounted, on a file.
    Root,
    /// A directory is mounted, and this is its only entry.
    In(String),
}

/// The file system. Its file is there from the start; whoever wants to know its size, or what it holds, waits until the
/// device is there.
pub struct ImageFile<D> {
    device: Arc<Pending<D>>,
    stop: StopHandle,
    name: ImageName,
    state: Mutex<State>,
    /// Bytes that were not holes when the device was there.
    data: OnceLock<u64>,
}

/// What of the file's attributes can be set.
#[derive(Clone, Copy)]
struct State {
    permissions: u32,
    uid: u32,
    gid: u32,
    mtime: Duration,
}

impl<D: BlockDevice> ImageFile<D> {
    /// An image of `device` that belongs to this process's user, who alone has permission to read it and, unless it is
    /// `read_only`, to write it. Nobody waits for the device any more once `stop` was used, and the device was woken.
    pub fn new(device: Arc<Pending<D>>, name: ImageName, read_only: bool, stop: StopHandle) -> ImageFile<D> {
        let state = State {
            permissions: if read_only { 0o400 } else { 0o600 },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mtime: now(),
        };
        ImageFile { device, stop, name, state: Mutex::new(state), data: OnceLock::new() }
    }

    /// The device, once it is there.
    fn device(&self, context: &Context<'_>) -> Result<Arc<D>, Errno> {
        if !self.device.wait_unless(|| context.is_interrupted() || self.stop.is_stopped()) {
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
            uid: state.uid,
            gid: state.gid,
            size: device.content_size(),
            blocks: self.data.get_or_init(|| count_data(device)).div_ceil(512),
            block_size: BEST_SIZE,
            mtime: state.mtime,
            valid: FOR_EVER,
        }
    }

    fn directory_attributes(&self) -> Attributes {
        let state = self.state();
        Attributes {
            inode: NodeId::ROOT.0,
            mode: DIRECTORY | 0o755,
            links: 2,
            uid: state.uid,
            gid: state.gid,
            block_size: 4096,
            mtime: state.mtime,
            valid: FOR_EVER,
            ..Attributes::default()
        }
    }

    fn entry(&self, context: &Context<'_>) -> Result<Entry, Errno> {
        let attributes = self.image_attributes(&*self.device(context)?);
        Ok(Entry { node: self.image(), attributes, valid: FOR_EVER })
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

    fn set_attributes(&self, context: &Context<'_>, node: NodeId, set: &SetAttributes) -> Result<Attributes, Errno> {
        if node != self.image() {
            return Err(Errno::PERM);
        }
        let device = self.device(context)?;
        if set.size.is_some_and(|size| size != device.content_size()) {
            // A disk is as large as it is.
            return Err(Errno::PERM);
        }
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.permissions = set.mode.map_or(state.permissions, |mode| mode & PERMISSIONS);
            state.uid = set.uid.unwrap_or(state.uid);
            state.gid = set.gid.unwrap_or(state.gid);
            state.mtime = set.mtime.unwrap_or(state.mtime);
        }
        Ok(self.image_attributes(&device))
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<Opened, Errno> {
        self.check_image(node)?;
        let device = self.device(context)?;
        if device.read_only() && flags & ACCESS_MODE != 0 {
            return Err(Errno::ROFS);
        }
        let flags = open_flag::KEEP_CACHE | open_flag::PARALLEL_DIRECT_WRITES;
        Ok(Opened { handle: HandleId(0), flags })
    }

    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _handle: HandleId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        self.check_image(node)?;
        let device = self.device(context)?;
        let left = device.content_size().saturating_sub(offset);
        let length = left.min(out.len() as u64) as usize;
        let out = out.get_mut(..length).unwrap_or_default();
        device.read_at(offset, &[VolatileSlice::from(out)]).map_err(|error| errno(&error))?;
        Ok(length)
    }

    fn write(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _handle: HandleId,
        offset: u64,
        data: &[u8],
    ) -> Result<u32, Errno> {
        self.check_image(node)?;
        let device = self.device(context)?;
        let left = device.content_size().saturating_sub(offset);
        let length = left.min(data.len() as u64) as usize;
        if length == 0 && !data.is_empty() {
            return Err(Errno::NOSPC);
        }
        // Requests are written from the memory that they were read into, which nothing else changes meanwhile.
        let mut data = data.get(..length).unwrap_or_default().to_vec();
        device.write_at(offset, &[VolatileSlice::from(&mut data[..])]).map_err(|error| errno(&error))?;
        self.state.lock().unwrap_or_else(PoisonError::into_inner).mtime = now();
        Ok(length as u32)
    }

    fn fsync(&self, context: &Context<'_>, node: NodeId, _handle: HandleId) -> Result<(), Errno> {
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
            // What lies behind the end is a hole already.
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
            // There is a hole behind the end, and no data.
            (false, _) if wanted == Allocation::Hole => Ok(end),
            (false, _) => Err(Errno::NXIO),
        }
    }

    fn open_directory(&self, _context: &Context<'_>, node: NodeId) -> Result<Opened, Errno> {
        if node == self.image() { Err(Errno::NOTDIR) } else { Ok(Opened::default()) }
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _handle: HandleId,
        offset: u64,
        list: &mut DirectoryList<'_>,
    ) -> Result<(), Errno> {
        let ImageName::In(own) = &self.name else { return Err(Errno::NOTDIR) };
        if node != NodeId::ROOT {
            return Err(Errno::NOTDIR);
        }
        let root = NodeId::ROOT.0;
        let entries = [(root, DIRECTORY, "."), (root, DIRECTORY, ".."), (self.image().0, REGULAR, own)];
        for (next, (inode, mode, name)) in (1..).zip(entries).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let entry = if list.is_plus() && mode == REGULAR { Some(self.entry(context)?) } else { None };
            if !list.push(&DirectoryEntry { inode, next, mode, name: name.as_bytes(), entry }) {
                break;
            }
        }
        Ok(())
    }

    fn statistics(&self, context: &Context<'_>) -> Result<Statistics, Errno> {
        const BLOCK: u32 = 4096;
        let size = self.device(context)?.content_size();
        Ok(Statistics { block_size: BLOCK, blocks: size / u64::from(BLOCK), free_blocks: 0, files: 1 })
    }

    fn interrupted(&self) {
        self.device.wake();
    }
}

/// Bytes of a device that are not holes.
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

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
