//! Answers to the kernel.

use std::time::Duration;

use zerocopy::IntoBytes;

use super::structs::{Attr, AttrOut, Dirent, EntryOut, OpenOut, OutHeader, StatFsOut};
use crate::file_system::{Attributes, DirectoryEntry, Entry, Opened, Statistics};

/// The header of an answer with so many bytes behind it.
pub fn success(unique: u64, length: usize) -> OutHeader {
    // An answer is at most as long as the buffer that was asked for, which is counted in 32 bits.
    let len = u32::try_from(size_of::<OutHeader>().saturating_add(length)).unwrap_or(u32::MAX);
    OutHeader { len, error: 0, unique }
}

/// An answer that is an error.
pub fn error(unique: u64, errno: rustix::io::Errno) -> OutHeader {
    OutHeader { len: size_of::<OutHeader>() as u32, error: -errno.raw_os_error(), unique }
}

/// The answer to `GETATTR` and `SETATTR`.
pub fn attributes(attributes: &Attributes) -> AttrOut {
    let (attr_valid, attr_valid_nsec) = seconds(attributes.valid);
    AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attr(attributes) }
}

/// The answer to `LOOKUP`.
pub fn entry(entry: &Entry) -> EntryOut {
    let (entry_valid, entry_valid_nsec) = seconds(entry.valid);
    let (attr_valid, attr_valid_nsec) = seconds(entry.attributes.valid);
    EntryOut {
        nodeid: entry.node.0,
        generation: 0,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr(&entry.attributes),
    }
}

/// The answer to `OPEN` and `OPENDIR`.
pub fn opened(opened: &Opened) -> OpenOut {
    OpenOut { fh: opened.handle.0, open_flags: opened.flags, padding: 0 }
}

/// The answer to `STATFS`.
pub fn statistics(statistics: &Statistics) -> StatFsOut {
    StatFsOut {
        blocks: statistics.blocks,
        bfree: statistics.free_blocks,
        bavail: statistics.free_blocks,
        files: statistics.files,
        ffree: 0,
        bsize: statistics.block_size,
        namelen: 255,
        frsize: statistics.block_size,
        ..StatFsOut::default()
    }
}

fn attr(attributes: &Attributes) -> Attr {
    let (mtime, mtimensec) = seconds(attributes.mtime);
    Attr {
        ino: attributes.inode,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: mtime,
        mtime,
        ctime: mtime,
        atimensec: mtimensec,
        mtimensec,
        ctimensec: mtimensec,
        mode: attributes.mode,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: 0,
        blksize: attributes.block_size,
        flags: 0,
    }
}

fn seconds(duration: Duration) -> (u64, u32) {
    (duration.as_secs(), duration.subsec_nanos())
}

/// Takes the entries of a directory until the kernel's buffer is full.
pub struct DirectoryList<'b> {
    buffer: &'b mut Vec<u8>,
    /// Bytes that the kernel takes.
    limit: usize,
    /// Whether entries have their attributes with them (`READDIRPLUS`).
    plus: bool,
}

impl<'b> DirectoryList<'b> {
    /// An empty list in `buffer`.
    pub fn new(buffer: &'b mut Vec<u8>, limit: usize, plus: bool) -> DirectoryList<'b> {
        buffer.clear();
        DirectoryList { buffer, limit, plus }
    }

    /// Whether entries must have their attributes with them.
    pub fn is_plus(&self) -> bool {
        self.plus
    }

    /// Adds an entry; false if there is no room for it, nor for any further one.
    pub fn push(&mut self, directory_entry: &DirectoryEntry<'_>) -> bool {
        let name = directory_entry.name;
        let dirent = Dirent {
            ino: directory_entry.inode,
            off: directory_entry.next,
            namelen: name.len() as u32,
            // As in struct dirent: the file type bits of a mode, shifted.
            kind: (directory_entry.mode >> 12) & 0xf,
        };
        let plus = if self.plus { size_of::<EntryOut>() } else { 0 };
        let length = (plus + size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.buffer.len().saturating_add(length) > self.limit {
            return false;
        }
        let end = self.buffer.len() + length;
        if self.plus {
            // A node number of 0 means that there is no lookup with it.
            let out = directory_entry.entry.as_ref().map(entry).unwrap_or_default();
            self.buffer.extend_from_slice(out.as_bytes());
        }
        self.buffer.extend_from_slice(dirent.as_bytes());
        self.buffer.extend_from_slice(name);
        self.buffer.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_never_cut() {
        let entry = DirectoryEntry { inode: 2, next: 1, mode: 0o100600, name: b"disk.raw2", entry: None };
        let mut buffer = Vec::new();
        let mut list = DirectoryList::new(&mut buffer, 100, false);
        assert!(list.push(&entry) && list.push(&entry));
        assert!(!list.push(&entry));
        assert_eq!(buffer.len(), 2 * 40);
        assert_eq!(buffer[16..24], [9, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(buffer[24..40], *b"disk.raw2\0\0\0\0\0\0\0");
        let mut list = DirectoryList::new(&mut buffer, 168, true);
        assert!(list.push(&entry) && !list.push(&entry));
        assert_eq!(buffer.len(), 168);
    }
}
