//! Lists directories.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, SeekFrom, openat};
use rustix::io::Errno;

use super::system_calls::read_entries;
use super::{Changes, HostDirectory, hold, read};
use crate::{Caching, Context, DirectoryEntry, DirectorySink, Entry, HandleId, NodeId, OpenHandle};

/// The buffer size for getdents64(2).
pub(super) const BUFFER: usize = 32 << 10;

/// The most directories being listed without having been opened.
const MAX_STREAMS: usize = 32;

/// A directory being listed.
#[derive(Debug)]
pub(super) struct Stream {
    descriptor: Arc<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    buffer: Vec<u8>,
    /// The undelivered part of the buffer, and the offset of its first entry.
    from: usize,
    offset: u64,
    /// Whether the listing found a subdirectory.
    leads_on: bool,
}

/// Streams of directories that were not opened, by directory.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: HashMap<NodeId, (u64, Arc<Stream>)>,
    /// Counts uses, for LRU.
    now: u64,
}

impl Streams {
    fn take(&mut self, node: NodeId) -> Option<Arc<Stream>> {
        self.streams.remove(&node).map(|(_, stream)| stream)
    }

    /// Stores a stream for the next request; returns the least recently used one if there are too many.
    fn put(&mut self, node: NodeId, stream: Arc<Stream>) -> Option<Arc<Stream>> {
        self.now += 1;
        let replaced = self.streams.insert(node, (self.now, stream));
        if self.streams.len() <= MAX_STREAMS {
            return replaced.map(|(_, stream)| stream);
        }
        let oldest = self.streams.iter().min_by_key(|(_, (used, _))| *used).map(|(node, _)| *node)?;
        self.take(oldest)
    }
}

/// An entry of getdents64(2).
pub(super) struct RawEntry<'b> {
    pub inode: u64,
    next: u64,
    kind: u8,
    pub name: &'b [u8],
    /// Of the whole entry.
    pub length: usize,
}

impl RawEntry<'_> {
    /// Parses the first entry of `bytes`: `struct linux_dirent64` of Linux's include/linux/dirent.h.
    pub fn parse(bytes: &[u8]) -> Option<RawEntry<'_>> {
        let (inode, rest) = bytes.split_first_chunk()?;
        let (next, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        let (kind, _) = rest.split_first()?;
        let name = bytes.get(..length)?.get(19..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        let (inode, next) = (u64::from_ne_bytes(*inode), u64::from_ne_bytes(*next));
        Some(RawEntry { inode, next, kind: *kind, name, length })
    }

    /// The type as mode bits: `DT_*` values are those bits.
    pub fn mode(&self) -> u32 {
        u32::from(self.kind) << 12
    }

    pub fn is_dots(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

impl HostDirectory {
    fn stream_of(&self, node: NodeId) -> Result<Stream, Errno> {
        let directory = self.directory(node)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = Arc::new(self.with_room(|| openat(&directory, ".", flags, Mode::empty()))?);
        Ok(Stream { descriptor, state: Mutex::default() })
    }

    pub(super) fn open_stream(&self, context: &Context<'_>, node: NodeId) -> Result<OpenHandle, Errno> {
        // A kernel that knows of all changes keeps its cached listing and needs no request to reuse it.
        let is_closed = self.is_closed(node)?;
        if self.options.changes != Changes::Host {
            if !is_closed {
                self.directory(node)?;
            }
            if !self.tells_again() {
                return Err(Errno::NOSYS);
            }
            let table = read(&self.table);
            let caching = match table.opened(table.index(node)?) {
                Some(true) => Caching::Fresh,
                Some(false) => Caching::Keep,
                None => return Err(Errno::NOSYS),
            };
            return Ok(OpenHandle { handle: HandleId::default(), caching, parallel_direct_writes: false });
        }
        if is_closed {
            let caching = self.options.caching();
            return Ok(OpenHandle { handle: HandleId::default(), caching, parallel_direct_writes: false });
        }
        let stream = self.stream_of(node)?;
        self.require_told(context, node, stream.descriptor.as_fd())?;
        let caching = self.listing_at_open(node, stream.descriptor.as_fd());
        let handle = self.insert_stream(node, stream.descriptor.clone(), stream)?;
        Ok(OpenHandle { handle, caching, parallel_direct_writes: false })
    }

    pub(super) fn list(
        &self,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        if self.is_closed(node)? {
            return self.list_nothing(node, offset, sink);
        }
        if let Ok(file) = self.file(node, handle) {
            let stream = file.stream.ok_or(Errno::NOTDIR)?;
            return self.list_from(node, &stream, offset, sink);
        }
        if self.options.changes == Changes::Host {
            return Err(Errno::BADF);
        }
        let waiting = hold(&self.streams).take(node);
        let stream = match waiting {
            Some(stream) => stream,
            None => Arc::new(self.stream_of(node)?),
        };
        self.list_from(node, &stream, offset, sink)?;
        // Also at the end, because a client asks once more there.
        let replaced = hold(&self.streams).put(node, stream);
        drop(replaced);
        Ok(())
    }

    fn list_from(&self, node: NodeId, stream: &Stream, offset: u64, sink: &mut dyn DirectorySink) -> Result<(), Errno> {
        let mut state = hold(&stream.state);
        let state = &mut *state;
        if state.offset != offset {
            if i64::try_from(offset).is_err() {
                return Err(Errno::INVAL);
            }
            rustix::fs::seek(&stream.descriptor, SeekFrom::Start(offset))?;
            *state = State { offset, ..State::default() };
        }
        loop {
            if state.from >= state.buffer.len() {
                state.from = 0;
                read_entries(stream.descriptor.as_fd(), &mut state.buffer, BUFFER)?;
                if state.buffer.is_empty() {
                    self.listed(node);
                    return Ok(());
                }
            }
            let rest = state.buffer.get(state.from..).unwrap_or_default();
            let entry = RawEntry::parse(rest).ok_or(Errno::IO)?;
            if !self.push(node, stream, &entry, sink) {
                return Ok(());
            }
            if sink.wants_entries() {
                self.lists_attributes.store(true, Ordering::Relaxed);
                self.tell_of_walk(stream, &mut state.leads_on, &entry);
            }
            state.from += entry.length;
            state.offset = entry.next;
        }
    }

    /// Adds an entry to the sink, unless it is gone; returns false if there is no room.
    fn push(&self, node: NodeId, stream: &Stream, raw: &RawEntry<'_>, sink: &mut dyn DirectorySink) -> bool {
        if !sink.has_room(raw.name.len()) {
            return false;
        }
        let entry = if raw.is_dots() || !sink.wants_entries() {
            None
        } else {
            match self.entry_listed(node, stream, raw.name) {
                Err(Errno::NOENT) => return true,
                // The name exists, even if its attributes cannot be read.
                result => result.unwrap_or(None),
            }
        };
        let (inode, mode) = match &entry {
            Some(entry) => (entry.attributes.inode, entry.attributes.mode & libc::S_IFMT),
            None => (raw.inode, raw.mode()),
        };
        let pushed = sink.push(&DirectoryEntry { inode, next: raw.next, mode, name: raw.name, entry });
        if let Some(entry) = entry.filter(|_| !pushed) {
            drop(super::write(&self.table).forget(entry.node, 1));
        }
        pushed
    }

    /// Reports to the prefetcher when a client seems to walk the tree.
    fn tell_of_walk(&self, stream: &Stream, leads_on: &mut bool, entry: &RawEntry<'_>) {
        if entry.name == b"." {
            self.ahead.listed(entry.inode);
        } else if entry.mode() == libc::S_IFDIR && !entry.is_dots() && !*leads_on {
            *leads_on = true;
            self.ahead.offer(&stream.descriptor);
        }
    }

    fn listed(&self, node: NodeId) {
        if self.tells_again() {
            let table = read(&self.table);
            let _ = table.index(node).map(|index| table.listed(index));
        }
    }

    fn entry_listed(&self, node: NodeId, stream: &Stream, name: &[u8]) -> Result<Option<Entry>, Errno> {
        let renames = {
            let table = read(&self.table);
            // A client that is the only one to change the tree still has this name and its attributes cached, unless
            // it has read or written the file.
            match table.is_known(table.index(node)?, name) {
                Some(false) if self.options.changes != Changes::Host => return Ok(None),
                // The client need not ask for these attributes.
                Some(true) => table.credit.saved(),
                _ => {}
            }
            table.renames
        };
        let stat = self.stat(stream.descriptor.as_fd(), name)?;
        // If something is being renamed, the entry is listed without its node; a look-up will find it.
        self.entry(node, name, &stat, Some(renames))
    }
}
