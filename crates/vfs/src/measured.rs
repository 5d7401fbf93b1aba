//! [`Measured`]: an adapter that counts the requests to a file system and measures their time, by kind and by file.

mod files;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::{Context, FileSystem, HandleId, NodeId, WriteKind, passes_on};
pub use files::FileTime;
use files::{FileTimes, TimedFiles};

/// What was measured of one kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The request, by the name of the system call or message that it mostly comes from.
    pub name: &'static str,
    /// How many there were.
    pub count: u64,
    /// How many of them failed: a look-up of a name that does not exist is one.
    pub failed: u64,
    /// Bytes that were read, written or copied.
    pub bytes: u64,
    /// The total time of these requests in the file system.
    pub time: Duration,
    /// The longest time of one of them.
    pub longest: Duration,
}

#[derive(Debug, Default)]
struct Counters {
    count: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
    longest: AtomicU64,
}

/// Measurements since this was made. Several file systems may share it.
pub struct Measures {
    operations: [Counters; NAMES.len()],
    files: Arc<FileTimes>,
}

impl Default for Measures {
    fn default() -> Measures {
        Measures { operations: std::array::from_fn(|_| Counters::default()), files: Arc::default() }
    }
}

impl Measures {
    /// The operations that occurred; those that took the most time come first.
    pub fn operations(&self) -> Vec<Operation> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let operation = |(name, of): (&&'static str, &Counters)| Operation {
            name,
            count: get(&of.count),
            failed: get(&of.failed),
            bytes: get(&of.bytes),
            time: Duration::from_nanos(get(&of.nanoseconds)),
            longest: Duration::from_nanos(get(&of.longest)),
        };
        let mut operations: Vec<_> =
            NAMES.iter().zip(&self.operations).map(operation).filter(|one| one.count > 0).collect();
        operations.sort_by_key(|operation| (std::cmp::Reverse(operation.time), operation.name));
        operations
    }

    /// The files whose requests took the most time, `count` at most; those that took the most come first. Requests for names and attributes do
    /// not count.
    pub fn slowest_files(&self, count: usize) -> Vec<FileTime> {
        self.files.slowest(count)
    }

    fn add(&self, method: Method, time: Duration, failed: bool, bytes: u64) {
        // Each method has its counters.
        let Some(counters) = self.operations.get(method as usize) else { return };
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        counters.count.fetch_add(1, Ordering::Relaxed);
        counters.failed.fetch_add(failed.into(), Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        counters.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        counters.longest.fetch_max(nanoseconds, Ordering::Relaxed);
    }
}

impl fmt::Debug for Measures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.operations()).finish()
    }
}

/// See the [module](self).
pub struct Measured {
    below: Arc<TimedFiles>,
    measures: Arc<Measures>,
}

impl Measured {
    /// Measures the requests to `below`.
    pub fn new(below: Arc<dyn FileSystem>, measures: Arc<Measures>) -> Measured {
        let below = Arc::new(TimedFiles::new(below, Arc::clone(&measures.files)));
        Measured { below, measures }
    }

    fn measure<T: Outcome>(&self, method: Method, ask: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let outcome = ask();
        self.measures.add(method, began.elapsed(), outcome.failed(), outcome.bytes());
        outcome
    }
}

/// What a request returns.
trait Outcome {
    fn failed(&self) -> bool;

    /// The bytes that were read or written.
    fn bytes(&self) -> u64 {
        0
    }
}

impl<T> Outcome for Result<T, Errno> {
    fn failed(&self) -> bool {
        is_failure(self)
    }
}

/// `ENOSYS` says that there is nothing to do, as for an open of a directory that needs none.
fn is_failure<T>(outcome: &Result<T, Errno>) -> bool {
    outcome.as_ref().is_err_and(|errno| *errno != Errno::NOSYS)
}

impl Outcome for () {
    fn failed(&self) -> bool {
        false
    }
}

/// The result of a request to read, write or copy.
struct Transferred<T>(Result<T, Errno>);

impl<T: Copy + TryInto<u64>> Outcome for Transferred<T> {
    fn failed(&self) -> bool {
        is_failure(&self.0)
    }

    fn bytes(&self) -> u64 {
        self.0.ok().and_then(|bytes| bytes.try_into().ok()).unwrap_or(0)
    }
}

/// Declares [`Method`], [`NAMES`] and the methods that only pass on; those that move bytes come first.
macro_rules! measured_methods {
    ($($method:ident $name:literal),+ $(,)?) => {
        #[allow(non_camel_case_types, reason = "they are methods' names")]
        #[derive(Clone, Copy)]
        enum Method { read, write, copy_range, $($method),+ }

        const NAMES: &[&str] = &["read", "write", "copy_file_range", $($name),+];

        impl FileSystem for Measured {
            passes_on! { below: absence_valid, disconnected, peek_attributes, is_contested, host_file, interrupted }

            $(crate::method_of_file_system! { $method [passed below by measure] })+

            fn read(
                &self,
                context: &Context<'_>,
                node: NodeId,
                handle: HandleId,
                offset: u64,
                out: &[VolatileSlice<'_>],
            ) -> Result<usize, Errno> {
                self.measure(Method::read, || Transferred(self.below.read(context, node, handle, offset, out))).0
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
                self.measure(Method::write, || Transferred(self.below.write(context, node, handle, offset, data, kind))).0
            }

            fn copy_range(
                &self,
                context: &Context<'_>,
                from: (NodeId, HandleId, u64),
                to: (NodeId, HandleId, u64),
                length: u64,
            ) -> Result<u64, Errno> {
                self.measure(Method::copy_range, || Transferred(self.below.copy_range(context, from, to, length))).0
            }
        }
    };
}

measured_methods! {
    lookup "lookup",
    parent "parent",
    forget "forget",
    attributes "getattr",
    set_attributes "setattr",
    read_link "readlink",
    make_node "mknod",
    make_directory "mkdir",
    make_symlink "symlink",
    link "link",
    unlink "unlink",
    remove_directory "rmdir",
    rename "rename",
    open "open",
    create "create",
    create_unnamed "tmpfile",
    flush "flush",
    fsync "fsync",
    sync "syncfs",
    fallocate "fallocate",
    seek "lseek",
    release "release",
    open_directory "opendir",
    read_directory "readdir",
    release_directory "releasedir",
    get_xattr "getxattr",
    list_xattrs "listxattr",
    set_xattr "setxattr",
    remove_xattr "removexattr",
    test_lock "getlk",
    set_lock "setlk",
    statistics "statfs",
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryFiles, NewNode};

    #[test]
    fn what_took_the_most_time_comes_first() {
        let measures = Measures::default();
        for (method, millis) in [(Method::read, 2), (Method::lookup, 3), (Method::read, 4), (Method::copy_range, 5)] {
            measures.add(method, Duration::from_millis(millis), false, millis);
        }
        let told: Vec<_> =
            measures.operations().iter().map(|one| (one.name, one.time.as_millis(), one.longest.as_millis())).collect();
        assert_eq!(told, [("read", 6, 4), ("copy_file_range", 5, 5), ("lookup", 3, 3)]);
    }

    #[test]
    fn requests_are_counted_with_their_bytes_and_failures() {
        let measures = Arc::new(Measures::default());
        let files = Measured::new(Arc::new(MemoryFiles::new(1 << 20)), Arc::clone(&measures));
        assert_eq!(measures.operations(), []);
        let new = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
        let (server, root) = (&Context::SERVER, NodeId::ROOT);
        let (entry, opened) = files.create(server, root, b"new", &new, libc::O_RDWR as u32).unwrap();
        let mut bytes = [7; 100];
        let slice = [VolatileSlice::from(&mut bytes[..])];
        let handle = opened.handle;
        assert_eq!(files.write(server, entry.node, handle, 0, &slice, WriteKind::default()), Ok(100));
        assert_eq!(files.read(server, entry.node, handle, 40, &slice), Ok(60));
        assert_eq!(files.lookup(server, root, b"absent").unwrap_err(), Errno::NOENT);
        files.lookup(server, root, b"new").unwrap();
        assert_eq!(files.open_directory(server, root).unwrap_err(), Errno::NOSYS);
        files.interrupted();
        let mut told: Vec<_> = measures
            .operations()
            .into_iter()
            .map(|one| (one.name, one.count, one.failed, one.bytes, one.time >= one.longest && !one.longest.is_zero()))
            .collect();
        told.sort_unstable();
        assert_eq!(
            told,
            [
                ("create", 1, 0, 0, true),
                ("lookup", 2, 1, 0, true),
                ("opendir", 1, 0, 0, true),
                ("read", 1, 0, 60, true),
                ("write", 1, 0, 100, true)
            ]
        );
    }
}
