//! What a fid can be open as: a file, a directory, or an extended attribute.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inarch_vfs::{HandleId, LockOwner};
use rustix::io::Errno;

use super::place::{Export, Place};
use inarch_vfs::Slot;

/// A fid's use.
pub enum Use {
    /// `Tlopen` or `Tlcreate` of a file.
    File(OpenFile),
    /// `Tlopen` of a directory.
    Directory(OpenDirectory),
    /// `Txattrwalk`: an attribute's value, or the list of names.
    Value(XattrBytes),
    /// `Txattrcreate`: a value that is being written.
    NewValue(NewXattr),
}

/// Bytes that an open file takes, including the file system's part.
const OPEN_BYTES: usize = size_of::<Use>() + 256;

/// Bytes that a lock owner takes: twice its size, because lists grow by doubling.
const OWNER_BYTES: usize = 2 * size_of::<LockOwner>();

/// The most processes that may have locks through one open file.
const MOST_OWNERS: usize = 1024;

/// An open file; released after its last use.
pub struct OpenFile {
    export: Arc<Export>,
    /// What is open: the fid may refer to something else before the last request ends.
    pub place: Arc<Place>,
    /// The file system's handle; `None` if it needs no opening.
    handle: Option<HandleId>,
    /// Whether it may be read.
    pub readable: bool,
    /// Whether it may be written.
    pub writable: bool,
    owners: Mutex<Vec<LockOwner>>,
    /// The handle's slot.
    _slot: Option<Slot>,
}

/// The file system's handle and the slot that it takes.
pub type Handle = (HandleId, Slot);

impl OpenFile {
    /// Takes ownership of a handle.
    pub fn new(
        export: &Arc<Export>,
        place: &Arc<Place>,
        handle: Option<Handle>,
        readable: bool,
        writable: bool,
    ) -> OpenFile {
        export.take(OPEN_BYTES);
        let (export, place) = (Arc::clone(export), Arc::clone(place));
        let (handle, _slot) = handle.unzip();
        OpenFile { export, place, handle, readable, writable, owners: Mutex::default(), _slot }
    }

    /// The handle that requests use.
    pub fn handle(&self) -> HandleId {
        self.handle.unwrap_or_default()
    }

    /// Records that `owner` may have locks through this file, to release them with it; `ENOLCK` if there are too many
    /// owners.
    pub fn note_owner(&self, owner: LockOwner) -> Result<(), Errno> {
        let mut owners = self.owners();
        if !owners.contains(&owner) {
            if owners.len() >= MOST_OWNERS {
                return Err(Errno::NOLCK);
            }
            self.export.check_room().map_err(|_| Errno::NOLCK)?;
            self.export.take(OWNER_BYTES);
            owners.push(owner);
        }
        Ok(())
    }

    fn owners(&self) -> MutexGuard<'_, Vec<LockOwner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the locks that were taken through this file.
    pub fn unlock_all(&self) {
        let owners = std::mem::take(&mut *self.owners());
        for owner in &owners {
            self.export.end_locks(self.place.node, self.handle(), *owner);
        }
        self.export.give_back(owners.len() * OWNER_BYTES);
        if !owners.is_empty() {
            self.export.changes().changed();
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.unlock_all();
        self.export.give_back(OPEN_BYTES);
        if let Some(handle) = self.handle {
            self.export.file_system().release(self.place.node, handle, None);
        }
    }
}

/// An open directory; released after its last use.
pub struct OpenDirectory {
    export: Arc<Export>,
    /// What is open.
    pub place: Arc<Place>,
    handle: Option<HandleId>,
    /// The handle's slot.
    _slot: Option<Slot>,
}

impl OpenDirectory {
    /// Takes ownership of a handle.
    pub fn new(export: &Arc<Export>, place: &Arc<Place>, handle: Option<Handle>) -> OpenDirectory {
        let (handle, _slot) = handle.unzip();
        OpenDirectory { export: Arc::clone(export), place: Arc::clone(place), handle, _slot }
    }

    /// The handle that requests use.
    pub fn handle(&self) -> HandleId {
        self.handle.unwrap_or_default()
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        if let Some(handle) = self.handle {
            self.export.file_system().release_directory(self.place.node, handle);
        }
    }
}

/// The memory that a connection's extended attributes take.
pub struct XattrMemory {
    used: AtomicUsize,
    most: usize,
}

impl XattrMemory {
    /// Nothing yet, and never more than `most` bytes.
    pub fn new(most: usize) -> Arc<XattrMemory> {
        Arc::new(XattrMemory { used: AtomicUsize::new(0), most })
    }

    fn take(self: &Arc<XattrMemory>, bytes: usize) -> Result<Share, Errno> {
        // Includes the fid's own cost; otherwise empty values would be free.
        let bytes = bytes.saturating_add(size_of::<Use>());
        let share = Share { memory: Arc::clone(self), bytes };
        if self.used.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes) > self.most {
            return Err(Errno::NOBUFS);
        }
        Ok(share)
    }
}

/// A part of the memory, given back on drop.
struct Share {
    memory: Arc<XattrMemory>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A value that was read once and is returned in parts: it does not change in between.
pub struct XattrBytes {
    bytes: Box<[u8]>,
    _share: Share,
}

impl XattrBytes {
    /// A value; `ENOBUFS` if the connection has too many.
    pub fn new(memory: &Arc<XattrMemory>, bytes: Vec<u8>) -> Result<XattrBytes, Errno> {
        let _share = memory.take(bytes.len())?;
        Ok(XattrBytes { bytes: bytes.into(), _share })
    }

    /// Its bytes from `offset` on.
    pub fn from(&self, offset: u64) -> &[u8] {
        usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..)).unwrap_or_default()
    }
}

/// A value that arrives in parts and is set when the fid is clunked.
pub struct NewXattr {
    /// The attribute's name.
    pub name: Box<[u8]>,
    /// Flags of setxattr(2).
    pub flags: u32,
    size: usize,
    written: Mutex<Vec<u8>>,
    _share: Share,
}

/// The longest value that Linux accepts (`XATTR_SIZE_MAX`).
const LONGEST_VALUE: u64 = 65536;

impl NewXattr {
    /// A value of `size` bytes, none of which has arrived. `E2BIG` above 64 KiB, `ENOBUFS` if the connection has too
    /// many.
    pub fn new(memory: &Arc<XattrMemory>, name: &[u8], flags: u32, size: u64) -> Result<NewXattr, Errno> {
        if size > LONGEST_VALUE {
            return Err(Errno::TOOBIG);
        }
        let size = size as usize;
        Ok(NewXattr { name: name.into(), flags, size, written: Mutex::default(), _share: memory.take(size)? })
    }

    /// Adds the next bytes; `EINVAL` if they leave a gap or exceed the announced size.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if offset != written.len() as u64 || data.len() > self.size - written.len() {
            return Err(Errno::INVAL);
        }
        written.extend_from_slice(data);
        Ok(())
    }

    /// The value, if it is complete.
    pub fn value(&self) -> Option<Vec<u8>> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        (written.len() == self.size).then(|| written.clone())
    }
}
