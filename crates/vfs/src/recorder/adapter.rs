//! The adapter: passes each request on and queues its result.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::queue::{Done, Message, Place};
use super::{AccessKind, Identity, RecordLevel, Recording};
use crate::{
    Attributes, Caching, Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, LockOwner, NewNode,
    NodeId, OPEN_TO_EXECUTE, OpenHandle, SetAttributes, SetTime, Statistics, WriteKind, hold, passes_on,
};

/// The table of open files is split into parts, each with its own lock.
const SHARDS: usize = 16;

/// See the [module](super).
pub struct Recorder {
    below: Arc<dyn FileSystem>,
    recording: Recording,
    process_of: Box<dyn Fn(u32, AccessKind) -> u32 + Send + Sync>,
    /// What was recorded already of each open file, or, with the default handle, of files that need no open.
    told: [Mutex<HashMap<(NodeId, HandleId), Told>>; SHARDS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    read: bool,
    written: bool,
    copied: bool,
}

/// Passes on names only: the recorded caller looks up none of them.
struct NamesOnly<'s> {
    above: &'s mut dyn DirectorySink,
    /// Those that the caller got, each followed by a slash. As long as the answer to the caller, at most.
    taken: Option<Vec<u8>>,
}

impl DirectorySink for NamesOnly<'_> {
    fn wants_entries(&self) -> bool {
        false
    }

    fn has_room(&self, name: usize) -> bool {
        self.above.has_room(name)
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        let is_taken = self.above.push(entry);
        if let Some(taken) = self.taken.as_mut().filter(|_| is_taken && !matches!(entry.name, b"." | b"..")) {
            taken.extend_from_slice(entry.name);
            taken.push(b'/');
        }
        is_taken
    }
}

/// The accesses that an open counts as.
fn kinds_of_open(flags: u32) -> &'static [AccessKind] {
    match (flags & libc::O_ACCMODE as u32) as i32 {
        libc::O_RDONLY if flags & OPEN_TO_EXECUTE != 0 => &[AccessKind::OpenRead, AccessKind::Execute],
        libc::O_RDONLY => &[AccessKind::OpenRead],
        libc::O_WRONLY => &[AccessKind::OpenWrite],
        _ => &[AccessKind::OpenRead, AccessKind::OpenWrite],
    }
}

fn truncates(flags: u32) -> bool {
    flags & libc::O_TRUNC as u32 != 0
}

/// The accesses that a change of attributes counts as.
fn kinds_of_change(set: &SetAttributes) -> &'static [AccessKind] {
    // A new length comes with a new mtime.
    let others = set.mode.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || set.atime.is_some()
        || matches!(set.mtime, Some(SetTime::To(_)));
    match (set.size.is_some(), others) {
        (false, _) => &[AccessKind::SetAttributes],
        (true, false) => &[AccessKind::Truncate],
        (true, true) => &[AccessKind::Truncate, AccessKind::SetAttributes],
    }
}

/// Turns `ENOSYS` into `EOPNOTSUPP`: a client treats both alike, but keeps asking after the latter.
fn asked_again<T>(outcome: Result<T, Errno>) -> Result<T, Errno> {
    outcome.map_err(|errno| if errno == Errno::NOSYS { Errno::OPNOTSUPP } else { errno })
}

fn done(kind: AccessKind, place: Place) -> Done {
    Done { kind, place, to: None, detail: None, identity: None, error: None, process: 0, is_silent: false, node: None }
}

impl Recorder {
    /// Records in `recording` what is done to `below`. `process_of` maps a thread, as numbered in a [`Context`], to
    /// its process for the record, where known, while the caller waits. It is also told the access.
    pub fn new(
        below: Arc<dyn FileSystem>,
        recording: Recording,
        process_of: impl Fn(u32, AccessKind) -> u32 + Send + Sync + 'static,
    ) -> Recorder {
        Recorder { below, recording, process_of: Box::new(process_of), told: Default::default() }
    }

    fn tells_processes(&self) -> bool {
        self.recording.level == RecordLevel::Process
    }

    /// Whether clients must ask each time.
    fn is_asked_each_time(&self) -> bool {
        self.tells_processes() || self.recording.is_preparing()
    }

    /// The file system below, unless the recording has failed.
    fn below(&self) -> Result<&dyn FileSystem, Errno> {
        if self.recording.queue.has_failed() { Err(Errno::IO) } else { Ok(&*self.below) }
    }

    fn push(&self, context: &Context<'_>, mut done: Done) {
        done.is_silent = self.recording.is_preparing();
        if self.tells_processes() && !done.is_silent {
            done.process = (self.process_of)(context.pid, done.kind);
        }
        self.recording.queue.push(Message::Done(done));
    }

    /// Records a success or failure.
    fn tell<T>(&self, context: &Context<'_>, done: Done, outcome: &Result<T, Errno>) {
        self.push(context, Done { error: outcome.as_ref().err().copied(), ..done });
    }

    /// The same for a request that gives the client a node.
    fn tell_entry(&self, context: &Context<'_>, done: Done, outcome: Result<Entry, Errno>) -> Result<Entry, Errno> {
        let entry = outcome.as_ref().ok();
        let (node, identity) = (entry.map(|entry| entry.node), entry.map(|entry| (&entry.attributes).into()));
        self.tell(context, Done { node, identity, ..done }, &outcome);
        outcome.map(|entry| self.kept_entry(entry))
    }

    fn tell_open(&self, context: &Context<'_>, node: NodeId, flags: u32, outcome: Result<Option<Identity>, Errno>) {
        let identity = outcome.ok().flatten();
        let found = identity.filter(|_| !truncates(flags));
        // The old content is gone before anything is read.
        if truncates(flags) && outcome.is_ok() {
            self.push(context, Done { identity, ..done(AccessKind::Truncate, Place::Node(node)) });
        }
        for kind in kinds_of_open(flags) {
            self.tell(context, Done { identity: found, ..done(*kind, Place::Node(node)) }, &outcome);
        }
    }

    /// Records a first or failed read or write.
    fn tell_data<T>(
        &self,
        context: &Context<'_>,
        (node, handle): (NodeId, HandleId),
        kind: AccessKind,
        outcome: &Result<T, Errno>,
    ) {
        if outcome.is_err() || self.is_first(node, handle, kind) {
            self.tell(context, done(kind, Place::Node(node)), outcome);
        }
    }

    fn is_first(&self, node: NodeId, handle: HandleId, kind: AccessKind) -> bool {
        let mut told = hold(self.told(node));
        let told = told.entry((node, handle)).or_default();
        let told = match kind {
            AccessKind::Read => &mut told.read,
            AccessKind::Write => &mut told.written,
            _ => &mut told.copied,
        };
        !std::mem::replace(told, true)
    }

    fn told(&self, node: NodeId) -> &Mutex<HashMap<(NodeId, HandleId), Told>> {
        &self.told[node.0 as usize % SHARDS]
    }

    /// The TTLs that a client may use.
    fn kept(&self, attributes: Attributes) -> Attributes {
        if self.is_asked_each_time() { Attributes { valid: Duration::ZERO, ..attributes } } else { attributes }
    }

    fn kept_entry(&self, entry: Entry) -> Entry {
        let attributes = self.kept(entry.attributes);
        let valid = if self.is_asked_each_time() { Duration::ZERO } else { entry.valid };
        Entry { attributes, valid, ..entry }
    }

    /// The same for an open file. Even where files need no open, the client gets a handle, because after `ENOSYS` it
    /// would not ask again.
    fn kept_open(&self, opened: Result<OpenHandle, Errno>, kept: Caching) -> Result<OpenHandle, Errno> {
        match opened {
            Ok(opened) if self.tells_processes() && opened.caching != Caching::Direct => {
                Ok(OpenHandle { caching: kept, ..opened })
            }
            Err(Errno::NOSYS) => {
                let caching = if self.tells_processes() { kept } else { Caching::Keep };
                Ok(OpenHandle { caching, ..OpenHandle::default() })
            }
            opened => opened,
        }
    }
}

impl FileSystem for Recorder {
    // Neither reads nor changes anything.
    passes_on! { below: flush, fsync, sync, test_lock, set_lock, interrupted }

    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let found = self.below()?.lookup(context, parent, name);
        let place = Place::name(parent, name);
        match &found {
            Ok(_) => self.tell_entry(context, done(AccessKind::Found, place), found),
            Err(Errno::NOENT) => {
                self.push(context, done(AccessKind::Absent, place));
                found
            }
            Err(_) => self.tell_entry(context, done(AccessKind::LookUp, place), found),
        }
    }

    fn absence_valid(&self, parent: NodeId) -> Duration {
        if self.is_asked_each_time() { Duration::ZERO } else { self.below.absence_valid(parent) }
    }

    fn is_contested(&self, node: NodeId) -> bool {
        self.below.is_contested(node)
    }

    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        // The client looked up no name.
        let entry = self.below()?.parent(context, node)?;
        self.recording.queue.push(Message::Counted(entry.node));
        Ok(self.kept_entry(entry))
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        // The number may be reused as soon as the node is forgotten.
        self.recording.queue.push(Message::Forgot(node, lookups));
        hold(self.told(node)).remove(&(node, HandleId::default()));
        self.below.forget(node, lookups);
    }

    fn disconnected(&self) {
        self.recording.queue.push(Message::Disconnected);
        self.told.iter().for_each(|told| hold(told).clear());
        self.below.disconnected();
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        let attributes = self.below()?.attributes(context, node, handle);
        let identity = attributes.as_ref().ok().map(Identity::from);
        self.tell(context, Done { identity, ..done(AccessKind::Attributes, Place::Node(node)) }, &attributes);
        attributes.map(|attributes| self.kept(attributes))
    }

    fn peek_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<Attributes, Errno> {
        // An adapter above asks for its own reasons, not for the client.
        self.below()?.peek_attributes(context, node, handle)
    }

    fn set_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        let attributes = self.below()?.set_attributes(context, node, handle, set);
        let identity = attributes.as_ref().ok().map(Identity::from);
        for kind in kinds_of_change(set) {
            self.tell(context, Done { identity, ..done(*kind, Place::Node(node)) }, &attributes);
        }
        attributes.map(|attributes| self.kept(attributes))
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        let target = self.below()?.read_link(context, node);
        let detail = target.as_ref().ok().map(|target| target[..].into());
        self.tell(context, Done { detail, ..done(AccessKind::ReadLink, Place::Node(node)) }, &target);
        target
    }

    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        let made = self.below()?.make_node(context, parent, name, new);
        self.tell_entry(context, done(AccessKind::Create, Place::name(parent, name)), made)
    }

    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        let made = self.below()?.make_directory(context, parent, name, new);
        self.tell_entry(context, done(AccessKind::Create, Place::name(parent, name)), made)
    }

    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        let made = self.below()?.make_symlink(context, parent, name, target);
        let detail = Some(target.into());
        self.tell_entry(context, Done { detail, ..done(AccessKind::Create, Place::name(parent, name)) }, made)
    }

    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let linked = self.below()?.link(context, node, parent, name);
        let to = Some(Place::name(parent, name));
        self.tell_entry(context, Done { to, ..done(AccessKind::Link, Place::Node(node)) }, linked)
    }

    fn unlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let removed = self.below()?.unlink(context, parent, name);
        self.tell(context, done(AccessKind::Remove, Place::name(parent, name)), &removed);
        removed
    }

    fn remove_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let removed = self.below()?.remove_directory(context, parent, name);
        self.tell(context, done(AccessKind::Remove, Place::name(parent, name)), &removed);
        removed
    }

    fn rename(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let renamed = self.below()?.rename(context, parent, name, new_parent, new_name, flags);
        let is_exchange = flags & RenameFlags::EXCHANGE.bits() != 0;
        let kind = if is_exchange { AccessKind::Exchange } else { AccessKind::Rename };
        let to = Some(Place::name(new_parent, new_name));
        self.tell(context, Done { to, ..done(kind, Place::name(parent, name)) }, &renamed);
        renamed
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        let below = self.below()?;
        // Cached content is dropped, so that the read is seen.
        let opened = self.kept_open(below.open(context, node, flags), Caching::Fresh);
        let identity = opened.map(|opened| {
            let handle = Some(opened.handle).filter(|handle| *handle != HandleId::default());
            if handle.is_none() {
                hold(self.told(node)).remove(&(node, HandleId::default()));
            }
            below.peek_attributes(context, node, handle).ok().as_ref().map(Identity::from)
        });
        self.tell_open(context, node, flags, identity);
        opened
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let created = self.below()?.create(context, parent, name, new, flags);
        let entry = created.map(|(entry, _)| entry);
        let entry = self.tell_entry(context, done(AccessKind::Create, Place::name(parent, name)), entry)?;
        // There was nothing to truncate.
        self.tell_open(context, entry.node, flags & !(libc::O_TRUNC as u32), Ok(Some((&entry.attributes).into())));
        created.map(|(_, opened)| (entry, opened))
    }

    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let created = self.below()?.create_unnamed(context, parent, new, flags);
        let entry = created.map(|(entry, _)| entry);
        let entry = self.tell_entry(context, done(AccessKind::CreateUnnamed, Place::Node(parent)), entry)?;
        self.tell_open(context, entry.node, flags & !(libc::O_TRUNC as u32), Ok(Some((&entry.attributes).into())));
        created.map(|(_, opened)| (entry, opened))
    }

    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        let count = self.below()?.read(context, node, handle, offset, out);
        self.tell_data(context, (node, handle), AccessKind::Read, &count);
        count
    }

    fn write(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        kind: WriteKind,
    ) -> Result<usize, Errno> {
        let count = self.below()?.write(context, node, handle, offset, data, kind);
        self.tell_data(context, (node, handle), AccessKind::Write, &count);
        count
    }

    fn copy_range(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        let count = self.below()?.copy_range(context, from, to, length);
        let is_first = [from, to].map(|(node, handle, _)| self.is_first(node, handle, AccessKind::Copy));
        if count.is_err() || is_first.contains(&true) {
            let copy = done(AccessKind::Copy, Place::Node(from.0));
            self.tell(context, Done { to: Some(Place::Node(to.0)), ..copy }, &count);
        }
        count
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
        let allocated = asked_again(self.below()?.fallocate(context, node, handle, mode, offset, length));
        self.tell(context, done(AccessKind::Allocate, Place::Node(node)), &allocated);
        allocated
    }

    fn seek(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        let found = self.below()?.seek(context, node, handle, offset, whence);
        // Reaching the end counts as a success.
        let told = if found == Err(Errno::NXIO) { Ok(offset) } else { found };
        self.tell_data(context, (node, handle), AccessKind::Read, &told);
        found
    }

    fn release(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>) {
        hold(self.told(node)).remove(&(node, handle));
        // The file system below may have opened nothing.
        if handle != HandleId::default() {
            self.below.release(node, handle, owner);
        }
    }

    fn open_directory(&self, context: &Context<'_>, node: NodeId) -> Result<OpenHandle, Errno> {
        let opened = self.kept_open(self.below()?.open_directory(context, node), Caching::Direct);
        if opened.is_err() {
            self.tell(context, done(AccessKind::List, Place::Node(node)), &opened);
        }
        opened
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let below = self.below()?;
        // What is created meanwhile may be missing from the listing.
        let before = (offset == 0).then(|| below.peek_attributes(context, node, None));
        let mut names = NamesOnly { above: sink, taken: self.recording.names.then(Vec::new) };
        let read = below.read_directory(context, node, handle, offset, &mut names);
        let taken = names.taken.filter(|taken| read.is_ok() && !taken.is_empty());
        if read.is_err() || offset == 0 {
            let identity = before.and_then(Result::ok).as_ref().map(Identity::from);
            self.tell(context, Done { identity, ..done(AccessKind::List, Place::Node(node)) }, &read);
        }
        if let Some(taken) = taken {
            self.recording.queue.push(Message::Listed(node, taken.into()));
        }
        read
    }

    fn release_directory(&self, node: NodeId, handle: HandleId) {
        if handle != HandleId::default() {
            self.below.release_directory(node, handle);
        }
    }

    fn get_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let value = asked_again(self.below()?.get_xattr(context, node, name));
        let detail = Some(name.into());
        self.tell(context, Done { detail, ..done(AccessKind::GetXattr, Place::Node(node)) }, &value);
        value
    }

    fn list_xattrs(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        let names = asked_again(self.below()?.list_xattrs(context, node));
        self.tell(context, done(AccessKind::ListXattrs, Place::Node(node)), &names);
        names
    }

    fn set_xattr(
        &self,
        context: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_set_group_id: bool,
    ) -> Result<(), Errno> {
        let set = asked_again(self.below()?.set_xattr(context, node, name, value, flags, kill_set_group_id));
        let detail = Some(name.into());
        self.tell(context, Done { detail, ..done(AccessKind::SetXattr, Place::Node(node)) }, &set);
        set
    }

    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        let removed = asked_again(self.below()?.remove_xattr(context, node, name));
        let detail = Some(name.into());
        self.tell(context, Done { detail, ..done(AccessKind::RemoveXattr, Place::Node(node)) }, &removed);
        removed
    }

    fn statistics(&self, context: &Context<'_>, node: NodeId) -> Result<Statistics, Errno> {
        let statistics = self.below()?.statistics(context, node);
        self.tell(context, done(AccessKind::Statistics, Place::Node(node)), &statistics);
        statistics
    }

    fn host_file(&self, node: NodeId, handle: HandleId) -> Option<Arc<OwnedFd>> {
        if self.tells_processes() { None } else { self.below.host_file(node, handle) }
    }
}
