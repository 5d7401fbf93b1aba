//! [`TimedFiles`]: an adapter that adds up the time of the requests to each file, and knows the files' paths.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::passing::PassingOn;
use crate::paths::Paths;
use crate::{
    Context, DirectorySink, Entry, FileSystem, HandleId, LockOwner, NewNode, NodeId, OpenHandle, WriteKind, hold,
    passes_on,
};

/// The most files that are remembered after every client has forgotten them. Beyond it, the half that took the least time is dropped.
const REMEMBERED: usize = 1 << 13;

/// The most bytes of a path that are remembered; of a longer path, the end.
const LONGEST_PATH: usize = 4096;

/// What the requests to one file took: to open, read, write, copy, allocate, flush and close it, and to bring it to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTime {
    /// Its path, relative to the root: where it was when a client last knew it.
    pub path: Vec<u8>,
    /// How many requests there were.
    pub requests: u64,
    /// Bytes that were read, written or copied into it.
    pub bytes: u64,
    /// The total time of these requests in the file system.
    pub time: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    requests: u64,
    bytes: u64,
    time: Duration,
}

impl Spent {
    fn add(&mut self, more: Spent) {
        self.requests += more.requests;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.time += more.time;
    }
}

/// The files of all file systems that share measures.
#[derive(Debug, Default)]
pub(super) struct FileTimes {
    known: Mutex<Vec<Weak<Mutex<Known>>>>,
    forgotten: Mutex<HashMap<Vec<u8>, Spent>>,
}

/// The files that the clients of one file system know.
#[derive(Debug, Default)]
struct Known {
    paths: Paths,
    spent: HashMap<NodeId, Spent>,
}

impl Known {
    /// Its path, or the end of it.
    fn path(&self, node: NodeId) -> Vec<u8> {
        let mut path = self.paths.path(node).bytes;
        path.drain(..path.len().saturating_sub(LONGEST_PATH));
        path
    }
}

impl FileTimes {
    /// The files that took the most time, `count` at most.
    pub fn slowest(&self, count: usize) -> Vec<FileTime> {
        let mut all = hold(&self.forgotten).clone();
        for known in hold(&self.known).iter().filter_map(Weak::upgrade) {
            let known = hold(&known);
            // Builds the paths of those nodes only that can be among the slowest.
            let mut nodes: Vec<_> = known.spent.iter().map(|(node, spent)| (spent.time, *node)).collect();
            nodes.sort_unstable();
            for (_, node) in nodes.iter().rev().take(count) {
                if let Some(spent) = known.spent.get(node) {
                    all.entry(known.path(*node)).or_default().add(*spent);
                }
            }
        }
        let file = |(path, Spent { requests, bytes, time })| FileTime { path, requests, bytes, time };
        let mut files: Vec<_> = all.into_iter().map(file).collect();
        files.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.path.cmp(&b.path)));
        files.truncate(count);
        files
    }

    fn add_forgotten(&self, path: Vec<u8>, spent: Spent) {
        let mut forgotten = hold(&self.forgotten);
        forgotten.entry(path).or_default().add(spent);
        if forgotten.len() > REMEMBERED {
            let mut times: Vec<_> = forgotten.values().map(|spent| spent.time).collect();
            let (_, middle, _) = times.select_nth_unstable(REMEMBERED / 2);
            let least = *middle;
            forgotten.retain(|_, spent| spent.time > least);
        }
    }
}

/// An adapter that measures what the requests to each file take.
pub(super) struct TimedFiles {
    below: Arc<dyn FileSystem>,
    times: Arc<FileTimes>,
    known: Arc<Mutex<Known>>,
}

impl TimedFiles {
    pub fn new(below: Arc<dyn FileSystem>, times: Arc<FileTimes>) -> TimedFiles {
        let known = Arc::default();
        let mut all = hold(&times.known);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&known));
        drop(all);
        TimedFiles { below, times, known }
    }

    fn timed<T>(
        &self,
        node: NodeId,
        ask: impl FnOnce() -> Result<T, Errno>,
        bytes: impl FnOnce(&T) -> u64,
    ) -> Result<T, Errno> {
        let began = Instant::now();
        let outcome = ask();
        let time = began.elapsed();
        let bytes = outcome.as_ref().map_or(0, bytes);
        let mut known = hold(&self.known);
        // A client may send any node number.
        if known.paths.knows(node) {
            known.spent.entry(node).or_default().add(Spent { requests: 1, bytes, time });
        }
        drop(known);
        outcome
    }

    /// Notes where a client found a node.
    fn found(&self, parent: NodeId, name: &[u8], outcome: Result<Entry, Errno>) -> Result<Entry, Errno> {
        if let Ok(entry) = &outcome {
            hold(&self.known).paths.found(entry.node, parent, name);
        }
        outcome
    }

    /// Notes that a name is gone.
    fn removed(&self, parent: NodeId, name: &[u8], outcome: Result<(), Errno>) -> Result<(), Errno> {
        if outcome.is_ok() {
            hold(&self.known).paths.removed(parent, name);
        }
        outcome
    }

    /// Every client has forgotten every node: stores what was spent on them by path.
    fn forget_all(&self) {
        let known = std::mem::take(&mut *hold(&self.known));
        known.spent.iter().for_each(|(node, spent)| self.times.add_forgotten(known.path(*node), *spent));
    }
}

impl Drop for TimedFiles {
    fn drop(&mut self) {
        self.forget_all();
    }
}

impl FileSystem for TimedFiles {
    passes_on! { below:
        absence_valid, attributes, peek_attributes, is_contested, set_attributes, read_link, sync, seek, release, open_directory, release_directory, get_xattr,
        list_xattrs, set_xattr, remove_xattr, test_lock, set_lock, statistics, host_file, interrupted
    }

    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.found(parent, name, self.below.lookup(context, parent, name))
    }

    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        let entry = self.below.parent(context, node)?;
        hold(&self.known).paths.counted(entry.node);
        Ok(entry)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        // The number may be reused as soon as the node is forgotten.
        let mut known = hold(&self.known);
        let path = known.spent.contains_key(&node).then(|| known.path(node));
        known.paths.forget(node, lookups);
        if let Some(path) = path.filter(|_| !known.paths.knows(node))
            && let Some(spent) = known.spent.remove(&node)
        {
            drop(known);
            self.times.add_forgotten(path, spent);
        } else {
            drop(known);
        }
        self.below.forget(node, lookups);
    }

    fn disconnected(&self) {
        self.forget_all();
        self.below.disconnected();
    }

    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        self.found(parent, name, self.below.make_node(context, parent, name, new))
    }

    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        self.found(parent, name, self.below.make_directory(context, parent, name, new))
    }

    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        self.found(parent, name, self.below.make_symlink(context, parent, name, target))
    }

    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.found(parent, name, self.below.link(context, node, parent, name))
    }

    fn unlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.removed(parent, name, self.below.unlink(context, parent, name))
    }

    fn remove_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.removed(parent, name, self.below.remove_directory(context, parent, name))
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
        self.below.rename(context, parent, name, new_parent, new_name, flags)?;
        let is_exchange = flags & RenameFlags::EXCHANGE.bits() != 0;
        hold(&self.known).paths.renamed((parent, name), (new_parent, new_name), is_exchange);
        Ok(())
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        self.timed(node, || self.below.open(context, node, flags), |_| 0)
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let created = self.below.create(context, parent, name, new, flags)?;
        hold(&self.known).paths.found(created.0.node, parent, name);
        Ok(created)
    }

    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let created = self.below.create_unnamed(context, parent, new, flags)?;
        hold(&self.known).paths.made_unnamed(created.0.node, parent);
        Ok(created)
    }

    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        self.timed(node, || self.below.read(context, node, handle, offset, out), |count| *count as u64)
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
        self.timed(node, || self.below.write(context, node, handle, offset, data, kind), |count| *count as u64)
    }

    fn copy_range(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        self.timed(to.0, || self.below.copy_range(context, from, to, length), |count| *count)
    }

    fn flush(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: Option<LockOwner>,
    ) -> Result<(), Errno> {
        self.timed(node, || self.below.flush(context, node, handle, owner), |()| 0)
    }

    fn fsync(&self, context: &Context<'_>, node: NodeId, handle: HandleId, data_only: bool) -> Result<(), Errno> {
        self.timed(node, || self.below.fsync(context, node, handle, data_only), |()| 0)
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
        self.timed(node, || self.below.fallocate(context, node, handle, mode, offset, length), |()| 0)
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let mut found = Vec::new();
        let mut passing = PassingOn::to(sink, |sink, entry| {
            let is_taken = sink.push(entry);
            if let Some(of) = entry.entry.filter(|_| is_taken && !matches!(entry.name, b"." | b"..")) {
                found.push((of.node, entry.name.to_vec()));
            }
            is_taken
        });
        let outcome = self.below.read_directory(context, node, handle, offset, &mut passing);
        let mut known = hold(&self.known);
        found.iter().for_each(|(child, name)| known.paths.found(*child, node, name));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DirectoryEntry, MemoryFiles};

    const SERVER: &Context<'static> = &Context::SERVER;
    const ROOT: NodeId = NodeId::ROOT;
    const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
    const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };

    /// Takes all entries, with what a client needs to use their nodes.
    struct All;

    impl DirectorySink for All {
        fn wants_entries(&self) -> bool {
            true
        }

        fn has_room(&self, _: usize) -> bool {
            true
        }

        fn push(&mut self, _: &DirectoryEntry<'_>) -> bool {
            true
        }
    }

    fn over(below: &Arc<MemoryFiles>, times: &Arc<FileTimes>) -> TimedFiles {
        TimedFiles::new(Arc::clone(below) as Arc<dyn FileSystem>, Arc::clone(times))
    }

    fn write(files: &TimedFiles, node: NodeId, handle: HandleId, count: usize) {
        let mut bytes = vec![7; count];
        let slice = [VolatileSlice::from(&mut bytes[..])];
        assert_eq!(files.write(SERVER, node, handle, 0, &slice, WriteKind::default()), Ok(count));
    }

    /// Paths, requests and bytes, by path.
    fn told(times: &FileTimes) -> Vec<(String, u64, u64)> {
        let files = times.slowest(100);
        assert!(
            files.is_sorted_by_key(|file| std::cmp::Reverse(file.time))
                && files.iter().all(|file| !file.time.is_zero())
        );
        let mut told: Vec<_> =
            files.into_iter().map(|file| (String::from_utf8(file.path).unwrap(), file.requests, file.bytes)).collect();
        told.sort();
        told
    }

    fn file(path: &str, requests: u64, bytes: u64) -> (String, u64, u64) {
        (path.to_owned(), requests, bytes)
    }

    #[test]
    fn a_file_has_the_path_at_which_a_client_last_knew_it() {
        let times = Arc::new(FileTimes::default());
        let files = over(&Arc::new(MemoryFiles::new(1 << 20)), &times);
        let directory = files.make_directory(SERVER, ROOT, b"d", &DIRECTORY).unwrap().node;
        let create = |parent, name: &[u8]| files.create(SERVER, parent, name, &FILE, libc::O_RDWR as u32).unwrap();
        let (a, opened) = create(directory, b"a");
        assert_eq!(told(&times), []);
        write(&files, a.node, opened.handle, 10);
        assert_eq!(told(&times), [file("d/a", 1, 10)]);
        files.rename(SERVER, directory, b"a", ROOT, b"b", 0).unwrap();
        files.fsync(SERVER, a.node, opened.handle, false).unwrap();
        assert_eq!(told(&times), [file("b", 2, 10)]);
        // Removed, and forgotten: the next file may get its number.
        files.unlink(SERVER, ROOT, b"b").unwrap();
        files.release(a.node, opened.handle, None);
        files.forget(a.node, 1);
        let (c, opened) = create(ROOT, b"c");
        write(&files, c.node, opened.handle, 20);
        assert_eq!(told(&times), [file("b", 2, 10), file("c", 1, 20)]);
        drop(files);
        assert_eq!(told(&times), [file("b", 2, 10), file("c", 1, 20)]);
    }

    #[test]
    fn names_of_a_listing_count_as_look_ups_and_file_systems_are_added_up() {
        let (times, below) = (Arc::new(FileTimes::default()), Arc::new(MemoryFiles::new(1 << 20)));
        let first = over(&below, &times);
        let (entry, opened) = first.create(SERVER, ROOT, b"f", &FILE, libc::O_RDWR as u32).unwrap();
        write(&first, entry.node, opened.handle, 5);
        first.disconnected();
        let second = over(&below, &times);
        second.read_directory(SERVER, ROOT, HandleId::default(), 0, &mut All).unwrap();
        let opened = second.open(SERVER, entry.node, libc::O_RDWR as u32).unwrap();
        write(&second, entry.node, opened.handle, 6);
        assert_eq!(told(&times), [file("f", 3, 11)]);
    }

    #[test]
    fn numbers_of_no_files_and_long_paths_take_no_room() {
        let times = Arc::new(FileTimes::default());
        let files = over(&Arc::new(MemoryFiles::new(1 << 20)), &times);
        for number in 2..1000 {
            assert!(files.open(SERVER, NodeId(number), 0).is_err());
        }
        assert!(hold(&files.known).spent.is_empty());
        let name = [b'n'; 255];
        let deepest =
            (0..40).fold(ROOT, |parent, _| files.make_directory(SERVER, parent, &name, &DIRECTORY).unwrap().node);
        let (entry, opened) = files.create(SERVER, deepest, b"file", &FILE, libc::O_RDWR as u32).unwrap();
        write(&files, entry.node, opened.handle, 1);
        let slowest = times.slowest(10);
        assert!(slowest[0].path.len() == LONGEST_PATH && slowest[0].path.ends_with(b"n/file"), "{slowest:?}");
        drop(files);
        assert_eq!(times.slowest(10), slowest);
    }

    #[test]
    fn of_many_forgotten_files_the_slowest_are_remembered() {
        let times = FileTimes::default();
        for number in 0..=REMEMBERED as u64 {
            let spent = Spent { requests: 1, bytes: 0, time: Duration::from_nanos(1 + number) };
            times.add_forgotten(number.to_string().into_bytes(), spent);
        }
        let left = times.slowest(usize::MAX);
        assert_eq!((left.len(), &left[0].path[..]), (REMEMBERED / 2, &REMEMBERED.to_string().into_bytes()[..]));
        assert_eq!(left.last().unwrap().time.as_nanos(), REMEMBERED as u128 / 2 + 2);
    }
}
