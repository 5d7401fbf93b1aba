//! Live file systems: the trait [`FileSystem`], what implements it, and adapters over it.
//!
//! [`FileSystem`] executes one request at a time. Its callers are wires: FUSE, through `/dev/fuse` or a virtqueue
//! (virtiofs), and 9P. A file system knows nothing of wires, a wire nothing of file systems.
//!
//! - File systems: a live directory of this host ([`HostDirectory`]); a file system in an image, or a tree
//!   ([`VolumeFiles`]); memory ([`MemoryFiles`]); a block device as one raw image ([`ImageFile`]).
//! - Adapters: an upper layer for writes ([`Overlay`]), other owners ([`MappedOwners`]), the share of one of several
//!   clients ([`OneClient`]), a record of each access ([`Recorder`]), the number and time of requests ([`Measured`]),
//!   some paths and no others ([`Only`]).
//!
//! A file system assigns node numbers itself and does not use the host's inode numbers, which are reused. A wire counts
//! the look-ups of each node and drops them by [`FileSystem::forget`].
//!
//! ```
//! use inarch_vfs::{Context, FileSystem, MemoryFiles, NewNode, NodeId};
//!
//! let files = MemoryFiles::new(1 << 20); // at most 1 MiB
//! let new = NewNode { mode: 0o040755, umask: 0o022, device: 0 };
//! let made = files.make_directory(&Context::SERVER, NodeId::ROOT, b"docs", &new).unwrap();
//! let found = files.lookup(&Context::SERVER, NodeId::ROOT, b"docs").unwrap();
//! assert_eq!(made.node, found.node);
//! files.forget(found.node, 2); // two look-ups: of the creation and of the search
//! ```

#![deny(unsafe_code)]

mod accessed;
mod decided;
mod digest;
mod file_system;
mod host;
mod image_file;
#[cfg(test)]
mod listing;
mod measured;
mod memory;
mod name;
mod node;
mod one_client;
mod only;
mod overlay;
mod owners;
mod passing;
mod paths;
mod recorder;
mod slab;
mod slab_index;
mod slots;
#[cfg(test)]
mod tests;
mod told;
mod volume_files;
mod xattr_names;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, which protects bookkeeping only: a panic of another holder leaves that intact.
fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[doc(hidden)]
pub use decided::signature;
pub use file_system::{DirectorySink, FileSystem};
pub use host::{Changes, HostDirectory, HostError, HostOptions, Refused, Submounts, is_shown_as, may_open_every_file};
pub use image_file::{ImageFile, ImageName};
pub use measured::{FileTime, Measured, Measures, Operation};
pub use memory::MemoryFiles;
pub use name::{NAME_MAX, check_name};
pub use node::{
    Attributes, Caching, Context, DirectoryEntry, Entry, HandleId, Lock, LockKind, LockOwner, NewNode, NodeId,
    OPEN_TO_EXECUTE, OpenHandle, SetAttributes, SetTime, Statistics, WriteKind,
};
pub use one_client::OneClient;
pub use only::{Only, Shown};
pub use overlay::Overlay;
pub use owners::MappedOwners;
pub use recorder::{Access, AccessKind, AccessSink, Identity, Listed, RecordLevel, Recorder, Recording};
pub use slots::{ClientSlots, DescriptorShare, DescriptorShares, Slot, Slots, descriptor_limit, open_file_limit};
pub use volume_files::{Tell, VolumeFiles};
pub use xattr_names::{OF_USERS, visible_to};
