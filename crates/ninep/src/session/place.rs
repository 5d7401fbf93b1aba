//! What fids refer to.

use std::sync::Arc;

use inarch_vfs::{FileSystem, NodeId};

use super::locks::LockChanges;

/// The file system of a server's clients.
pub struct Export {
    file_system: Arc<Arc<dyn FileSystem>>,
    /// When a lock may have become free, whoever's it was.
    pub locks: Arc<LockChanges>,
}

impl Export {
    /// An export of `file_system`.
    pub fn new(file_system: Arc<Arc<dyn FileSystem>>, locks: Arc<LockChanges>) -> Export {
        Export { file_system, locks }
    }

    /// The file system.
    pub fn file_system(&self) -> &dyn FileSystem {
        &**self.file_system
    }
}

/// A node, and the name that led to it: never changed, so that requests on one fid need not agree on anything. It counts
/// as one lookup of the node, which is given back when nothing refers to it any more.
pub struct Place {
    export: Arc<Export>,
    /// The node.
    pub node: NodeId,
    /// Where it was found; nowhere, if it is the root or was reached by `..`.
    pub parent: Option<Arc<Place>>,
    /// Under what name.
    pub name: Box<[u8]>,
    /// Its type, in the bits of a mode.
    pub file_type: u32,
}

/// The bits of a mode that are the type (`S_IFMT` of inode(7)).
pub const TYPE_MASK: u32 = 0o170_000;
/// A directory's.
pub const DIRECTORY: u32 = 0o040_000;
/// A regular file's.
pub const REGULAR: u32 = 0o100_000;
/// A symbolic link's.
pub const SYMLINK: u32 = 0o120_000;

impl Place {
    /// Takes over a lookup of `node`, whose mode is `mode`.
    pub fn new(export: &Arc<Export>, node: NodeId, mode: u32, parent: Option<&Arc<Place>>, name: &[u8]) -> Arc<Place> {
        Arc::new(Place {
            export: Arc::clone(export),
            node,
            parent: parent.map(Arc::clone),
            name: name.into(),
            file_type: mode & TYPE_MASK,
        })
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type == DIRECTORY
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.node != NodeId::ROOT {
            self.export.file_system().forget(self.node, 1);
        }
        // One after the other: a client can make directories nest deeper than a stack is.
        let mut above = self.parent.take();
        while let Some(mut place) = above.and_then(Arc::into_inner) {
            above = place.parent.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use inarch_vfs::{Attributes, Context, HandleId};
    use rustix::io::Errno;

    use super::*;

    /// Counts what is given back.
    struct Counter(Arc<AtomicU64>);

    impl FileSystem for Counter {
        fn attributes(&self, _: &Context<'_>, _: NodeId, _: Option<HandleId>) -> Result<Attributes, Errno> {
            Err(Errno::STALE)
        }

        fn forget(&self, _: NodeId, lookups: u64) {
            self.0.fetch_add(lookups, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_nests_deeper_than_a_stack_is_given_back() {
        const DEPTH: u64 = 1_000_000;
        let count = Arc::new(AtomicU64::new(0));
        let file_system: Arc<dyn FileSystem> = Arc::new(Counter(Arc::clone(&count)));
        let export = Arc::new(Export::new(Arc::new(file_system), Arc::default()));
        let mut place = Place::new(&export, NodeId::ROOT, DIRECTORY, None, b"");
        for depth in 0..DEPTH {
            place = Place::new(&export, NodeId(depth + 2), DIRECTORY, Some(&place), b"d");
        }
        drop(place);
        assert_eq!(count.load(Ordering::Relaxed), DEPTH);
    }
}
