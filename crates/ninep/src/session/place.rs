//! [`Place`]: the node that a fid refers to, and the name that led to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use inarch_vfs::{Context, FileSystem, HandleId, Lock, LockKind, LockOwner, NodeId};
use rustix::io::Errno;

use super::lock_table::{LockTable, RangeCount};
use super::locks::LockChanges;
use super::usage::OpenFile;
use inarch_vfs::{ClientSlots, Slot, Slots};

/// One byte in this many is reserved in equal shares for the possible clients.
const DIVIDED: usize = 16;

/// What all clients of a server share.
pub struct Shared {
    /// Notifies when a lock may have become free, whoever owned it.
    pub changes: LockChanges,
    /// The clients' locks.
    pub locks: LockTable,
    slots: Arc<Slots>,
    /// Bytes of what all fids refer to, and the limit.
    used: AtomicUsize,
    most: usize,
    /// The bytes that each client may have beyond the limit.
    each: usize,
}

impl Shared {
    /// For `clients` clients that may have `files` files open, and whose fids may refer to `bytes` bytes of places.
    pub fn new(files: usize, bytes: usize, clients: usize) -> Shared {
        let slots = Arc::new(Slots::new(files, clients));
        let divided = bytes / DIVIDED;
        let each = divided / clients.max(1);
        let (changes, locks) = (LockChanges::default(), LockTable::default());
        Shared { changes, locks, slots, used: AtomicUsize::new(0), most: bytes - divided, each }
    }
}

/// The file system, as one client uses it.
pub struct Export {
    file_system: Arc<Arc<dyn FileSystem>>,
    shared: Arc<Shared>,
    ranges: RangeCount,
    slots: Arc<ClientSlots>,
    /// Bytes of what the client's fids refer to, and the limit.
    used: AtomicUsize,
    most: usize,
}

impl Export {
    /// Exports `file_system` to a client whose fids may refer to `most` bytes of places.
    pub fn new(file_system: Arc<Arc<dyn FileSystem>>, shared: Arc<Shared>, most: usize) -> Export {
        let slots = ClientSlots::new(&shared.slots);
        Export { file_system, shared, ranges: RangeCount::default(), slots, used: AtomicUsize::new(0), most }
    }

    /// The file system.
    pub fn file_system(&self) -> &dyn FileSystem {
        &**self.file_system
    }

    /// Notifies when a lock may have become free.
    pub fn changes(&self) -> &LockChanges {
        &self.shared.changes
    }

    /// `ENFILE` if the client, or all of them together, have no bytes left. Checked before a request that needs some; one request may exceed the
    /// limit.
    pub fn check_room(&self) -> Result<(), Errno> {
        let own = self.used.load(Ordering::Relaxed);
        let is_left = own < self.shared.each || self.shared.used.load(Ordering::Relaxed) < self.shared.most;
        if own < self.most && is_left { Ok(()) } else { Err(Errno::NFILE) }
    }

    /// A slot for a file that is about to be opened; `ENFILE` if the client has too many.
    pub fn slot(&self) -> Result<Slot, Errno> {
        self.slots.take()
    }

    /// Adds `bytes` to the client's use.
    pub fn take(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.shared.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts `bytes` from the client's use.
    pub fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes or releases a lock on a file that the client has open; `EAGAIN` if it conflicts with another one.
    pub fn set_lock(&self, context: &Context<'_>, file: &OpenFile, owner: LockOwner, lock: &Lock) -> Result<(), Errno> {
        let (node, handle) = (file.place.node, file.handle());
        // flock(2) allows an exclusive lock on a file that is open for reading only, and Linux's client sends it like
        // that of fcntl(2), which does not. Only a client that may write may keep the host's programs from reading. A
        // shared lock at least keeps them from writing.
        let on_host = match lock.kind {
            LockKind::Exclusive if !file.writable => Lock { kind: LockKind::Shared, ..*lock },
            _ => *lock,
        };
        self.shared.locks.set(node, owner, lock, &self.ranges, || {
            match self.file_system().set_lock(context, node, handle, owner, &on_host, false) {
                // Only the clients lock these files.
                Err(Errno::NOSYS) => Ok(()),
                set => set,
            }
        })
    }

    /// A lock that conflicts with `lock`, or `None`.
    pub fn test_lock(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
    ) -> Result<Option<Lock>, Errno> {
        if let Some(found) = self.shared.locks.test(node, owner, lock) {
            return Ok(Some(found));
        }
        match self.file_system().test_lock(context, node, handle, owner, lock) {
            Err(Errno::NOSYS) => Ok(None),
            found => found,
        }
    }

    /// Releases all of an owner's locks on a file.
    pub fn end_locks(&self, node: NodeId, handle: HandleId, owner: LockOwner) {
        // If this fails, closing the handle releases them.
        let _ = self.file_system().flush(&Context::SERVER, node, handle, Some(owner));
        self.shared.locks.end(node, owner, &self.ranges);
    }
}

/// A node, and the name that led to it. Immutable, so that requests on one fid need no coordination. It counts as one
/// lookup of the node, which is given back after its last use.
pub struct Place {
    export: Arc<Export>,
    /// The node.
    pub node: NodeId,
    /// Where it was found; `None` for the root and for nodes reached by `..`.
    pub parent: Option<Arc<Place>>,
    /// The name.
    pub name: Box<[u8]>,
    /// Its type, in the bits of a mode.
    pub file_type: u32,
}

/// The type bits of a mode (`S_IFMT` of inode(7)).
pub const TYPE_MASK: u32 = 0o170_000;
/// A directory's.
pub const DIRECTORY: u32 = 0o040_000;
/// A regular file's.
pub const REGULAR: u32 = 0o100_000;
/// A symbolic link's.
pub const SYMLINK: u32 = 0o120_000;

impl Place {
    /// Takes ownership of a lookup of `node`, whose mode is `mode`.
    pub fn new(export: &Arc<Export>, node: NodeId, mode: u32, parent: Option<&Arc<Place>>, name: &[u8]) -> Arc<Place> {
        let place = Place {
            export: Arc::clone(export),
            node,
            parent: parent.map(Arc::clone),
            name: name.into(),
            file_type: mode & TYPE_MASK,
        };
        export.take(place.bytes());
        Arc::new(place)
    }

    /// Bytes that it takes, including reference counts and the allocator's overhead.
    fn bytes(&self) -> usize {
        size_of::<Place>() + self.name.len() + 48
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type == DIRECTORY
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.export.give_back(self.bytes());
        if self.node != NodeId::ROOT {
            self.export.file_system().forget(self.node, 1);
        }
        // Drops one after the other: a client can nest directories deeper than the stack allows.
        let mut above = self.parent.take();
        while let Some(mut place) = above.and_then(Arc::into_inner) {
            above = place.parent.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use inarch_vfs::Attributes;

    use super::*;

    /// Counts the nodes that were given back.
    struct Counter(Arc<AtomicU64>);

    impl FileSystem for Counter {
        fn attributes(&self, _: &Context<'_>, _: NodeId, _: Option<HandleId>) -> Result<Attributes, Errno> {
            Err(Errno::STALE)
        }

        fn forget(&self, _: NodeId, lookups: u64) {
            self.0.fetch_add(lookups, Ordering::Relaxed);
        }

        inarch_vfs::not_supported! {
            lookup, absence_valid, is_contested, parent, disconnected, peek_attributes, set_attributes, read_link, make_node, make_directory, make_symlink,
            link, unlink, remove_directory, rename, open, create, create_unnamed, read, write, copy_range, flush, fsync, sync,
            fallocate, seek, release, open_directory, read_directory, release_directory, get_xattr, list_xattrs, set_xattr,
            remove_xattr, test_lock, set_lock, statistics, host_file, interrupted
        }
    }

    #[test]
    fn what_nests_deeper_than_a_stack_is_given_back() {
        const DEPTH: u64 = 1_000_000;
        let count = Arc::new(AtomicU64::new(0));
        let file_system: Arc<dyn FileSystem> = Arc::new(Counter(Arc::clone(&count)));
        let export = Arc::new(Export::new(Arc::new(file_system), Arc::new(Shared::new(1, 1 << 30, 1)), 0));
        let mut place = Place::new(&export, NodeId::ROOT, DIRECTORY, None, b"");
        for depth in 0..DEPTH {
            place = Place::new(&export, NodeId(depth + 2), DIRECTORY, Some(&place), b"d");
        }
        assert_eq!(export.check_room(), Err(Errno::NFILE));
        drop(place);
        assert_eq!(count.load(Ordering::Relaxed), DEPTH);
        assert_eq!(export.used.load(Ordering::Relaxed), 0);
        assert_eq!(export.shared.used.load(Ordering::Relaxed), 0);
    }
}
