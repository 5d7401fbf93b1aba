//! The live side: a tree as files that are asked for one request at a time.
//!
//! [`FileSystem`] is the seam. What implements it is a layer: a directory of the host, a file system in an image
//! ([`Volume`](inarch_volume::Volume)), a [`Tree`](inarch_tree::Tree), an overlay of one layer over another, one that maps
//! owners. What calls it is a wire: FUSE's, whether by `/dev/fuse` or
//! by a virtqueue, and 9P's. A layer knows nothing of wires, a wire nothing of layers.
//!
//! Nodes have numbers of the file system's own making, never the host's inode numbers, which are reused. A wire counts
//! what it learned of a node and gives that back by [`FileSystem::forget`].

#![deny(unsafe_code)]

mod accessed;
mod decided;
mod file_system;
mod host;
#[cfg(test)]
mod listing;
mod memory;
mod name;
mod node;
mod one_client;
mod overlay;
mod owners;
mod passing;
mod recorder;
mod slab;
mod slab_index;
#[cfg(test)]
mod tests;
mod volume_files;

#[doc(hidden)]
pub use decided::signature;
pub use file_system::{DirectorySink, FileSystem};
pub use host::{Changes, HostDirectory, HostError, HostOptions, Refused, Submounts, may_open_every_file};
pub use memory::MemoryFiles;
pub use name::{NAME_MAX, check_name};
pub use node::{
    Attributes, Caching, Context, DirectoryEntry, Entry, HandleId, Lock, LockKind, LockOwner, NewNode, NodeId,
    OPEN_TO_EXECUTE, Opened, SetAttributes, SetTime, Statistics, WriteKind,
};
pub use one_client::OneClient;
pub use overlay::Overlay;
pub use owners::MappedOwners;
pub use recorder::{Access, AccessKind, AccessSink, Identity, RecordLevel, Recorder, Recording};
pub use volume_files::VolumeFiles;
