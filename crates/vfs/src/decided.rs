//! Macros that list the methods of [`FileSystem`](crate::FileSystem) which an adapter passes on, does not support, or
//! refuses.
//!
//! One table repeats the signatures, so that the lists name methods only.

use std::time::Duration;

use rustix::io::Errno;

/// The types that the signatures use.
#[doc(hidden)]
pub mod signature {
    pub use std::os::fd::OwnedFd;
    pub use std::sync::Arc;
    pub use std::time::Duration;

    pub use rustix::io::Errno;
    pub use vm_memory::VolatileSlice;

    pub use super::NotSupported;
    pub use crate::{
        Attributes, Context, DirectorySink, Entry, HandleId, Lock, LockOwner, NewNode, NodeId, OpenHandle,
        SetAttributes, Statistics, WriteKind,
    };
}

/// The result of a method that is not supported.
#[doc(hidden)]
pub trait NotSupported {
    fn not_supported() -> Self;
}

impl<T> NotSupported for Result<T, Errno> {
    fn not_supported() -> Self {
        Err(Errno::NOSYS)
    }
}

impl<T> NotSupported for Option<T> {
    fn not_supported() -> Self {
        None
    }
}

impl NotSupported for Duration {
    fn not_supported() -> Self {
        Duration::ZERO
    }
}

impl NotSupported for bool {
    fn not_supported() -> Self {
        false
    }
}

impl NotSupported for () {
    fn not_supported() -> Self {}
}

/// In an `impl FileSystem`: passes the listed methods on to the file system in the named field.
///
/// ```text
/// passes_on! { below: forget, disconnected, interrupted }
/// ```
#[macro_export]
macro_rules! passes_on {
    ($below:ident: $($method:ident),+ $(,)?) => { $($crate::method_of_file_system! { $method [passed $below] })+ };
}

/// In an `impl FileSystem`: the listed methods do nothing. They return `ENOSYS`, a TTL of zero for negative entries,
/// `false`, and no host file.
///
/// ```text
/// not_supported! { test_lock, set_lock, host_file }
/// ```
#[macro_export]
macro_rules! not_supported {
    ($($method:ident),+ $(,)?) => { $($crate::method_of_file_system! { $method [not_supported] })+ };
}

/// In an `impl FileSystem` that never changes: every method that would change something returns `EROFS`.
#[macro_export]
macro_rules! read_only {
    () => {
        $crate::read_only! {
            @ set_attributes, make_node, make_directory, make_symlink, link, unlink, remove_directory, rename, create, set_xattr,
            remove_xattr
        }
    };
    (@ $($method:ident),+) => { $($crate::method_of_file_system! { $method [read_only] })+ };
}

/// The table of signatures, by method name.
#[doc(hidden)]
#[macro_export]
macro_rules! method_of_file_system {
    (lookup $how:tt) => { $crate::method_of_file_system! { @ $how
        fn lookup(context: &$crate::signature::Context<'_>, parent: $crate::signature::NodeId, name: &[u8]) -> Result<$crate::signature::Entry, $crate::signature::Errno> } };
    (absence_valid $how:tt) => { $crate::method_of_file_system! { @ $how
        fn absence_valid(parent: $crate::signature::NodeId) -> $crate::signature::Duration } };
    (parent $how:tt) => { $crate::method_of_file_system! { @ $how
        fn parent(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId) -> Result<$crate::signature::Entry, $crate::signature::Errno> } };
    (forget $how:tt) => { $crate::method_of_file_system! { @ $how
        fn forget(node: $crate::signature::NodeId, lookups: u64) -> () } };
    (disconnected $how:tt) => { $crate::method_of_file_system! { @ $how
        fn disconnected() -> () } };
    (attributes $how:tt) => { $crate::method_of_file_system! { @ $how
        fn attributes(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: Option<$crate::signature::HandleId>) -> Result<$crate::signature::Attributes, $crate::signature::Errno> } };
    (peek_attributes $how:tt) => { $crate::method_of_file_system! { @ $how
        fn peek_attributes(
            context: &$crate::signature::Context<'_>,
            node: $crate::signature::NodeId,
            handle: Option<$crate::signature::HandleId>
        ) -> Result<$crate::signature::Attributes, $crate::signature::Errno> } };
    (is_contested $how:tt) => { $crate::method_of_file_system! { @ $how
        fn is_contested(node: $crate::signature::NodeId) -> bool } };
    (set_attributes $how:tt) => { $crate::method_of_file_system! { @ $how
        fn set_attributes(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: Option<$crate::signature::HandleId>, set: &$crate::signature::SetAttributes)
            -> Result<$crate::signature::Attributes, $crate::signature::Errno> } };
    (read_link $how:tt) => { $crate::method_of_file_system! { @ $how
        fn read_link(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId) -> Result<Vec<u8>, $crate::signature::Errno> } };
    (make_node $how:tt) => { $crate::method_of_file_system! { @ $how
        fn make_node(context: &$crate::signature::Context<'_>, parent: $crate::signature::NodeId, name: &[u8], new: &$crate::signature::NewNode) -> Result<$crate::signature::Entry, $crate::signature::Errno> } };
    (make_directory $how:tt) => { $crate::method_of_file_system! { @ $how
        fn make_directory(context: &$crate::signature::Context<'_>, parent: $crate::signature::NodeId, name: &[u8], new: &$crate::signature::NewNode)
            -> Result<$crate::signature::Entry, $crate::signature::Errno> } };
    (make_symlink $how:tt) => { $crate::method_of_file_system! { @ $how
        fn make_symlink(context: &$crate::signature::Context<'_>, parent: $crate::signature::NodeId, name: &[u8], target: &[u8]) -> Result<$crate::signature::Entry, $crate::signature::Errno> } };
    (link $how:tt) => { $crate::method_of_file_system! { @ $how
        fn link(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, parent: $crate::signature::NodeId, name: &[u8]) -> Result<$crate::signature::Entry, $crate::signature::Errno> } };
    (unlink $how:tt) => { $crate::method_of_file_system! { @ $how
        fn unlink(context: &$crate::signature::Context<'_>, parent: $crate::signature::NodeId, name: &[u8]) -> Result<(), $crate::signature::Errno> } };
    (remove_directory $how:tt) => { $crate::method_of_file_system! { @ $how
        fn remove_directory(context: &$crate::signature::Context<'_>, parent: $crate::signature::NodeId, name: &[u8]) -> Result<(), $crate::signature::Errno> } };
    (rename $how:tt) => { $crate::method_of_file_system! { @ $how
        fn rename(
            context: &$crate::signature::Context<'_>, parent: $crate::signature::NodeId, name: &[u8], new_parent: $crate::signature::NodeId, new_name: &[u8], flags: u32
        ) -> Result<(), $crate::signature::Errno> } };
    (open $how:tt) => { $crate::method_of_file_system! { @ $how
        fn open(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, flags: u32) -> Result<$crate::signature::OpenHandle, $crate::signature::Errno> } };
    (create $how:tt) => { $crate::method_of_file_system! { @ $how
        fn create(context: &$crate::signature::Context<'_>, parent: $crate::signature::NodeId, name: &[u8], new: &$crate::signature::NewNode, flags: u32)
            -> Result<($crate::signature::Entry, $crate::signature::OpenHandle), $crate::signature::Errno> } };
    (create_unnamed $how:tt) => { $crate::method_of_file_system! { @ $how
        fn create_unnamed(context: &$crate::signature::Context<'_>, parent: $crate::signature::NodeId, new: &$crate::signature::NewNode, flags: u32)
            -> Result<($crate::signature::Entry, $crate::signature::OpenHandle), $crate::signature::Errno> } };
    (read $how:tt) => { $crate::method_of_file_system! { @ $how
        fn read(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: $crate::signature::HandleId, offset: u64, out: &[$crate::signature::VolatileSlice<'_>])
            -> Result<usize, $crate::signature::Errno> } };
    (write $how:tt) => { $crate::method_of_file_system! { @ $how
        fn write(
            context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: $crate::signature::HandleId, offset: u64, data: &[$crate::signature::VolatileSlice<'_>], kind: $crate::signature::WriteKind
        ) -> Result<usize, $crate::signature::Errno> } };
    (copy_range $how:tt) => { $crate::method_of_file_system! { @ $how
        fn copy_range(
            context: &$crate::signature::Context<'_>, from: ($crate::signature::NodeId, $crate::signature::HandleId, u64), to: ($crate::signature::NodeId, $crate::signature::HandleId, u64), length: u64
        ) -> Result<u64, $crate::signature::Errno> } };
    (flush $how:tt) => { $crate::method_of_file_system! { @ $how
        fn flush(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: $crate::signature::HandleId, owner: Option<$crate::signature::LockOwner>)
            -> Result<(), $crate::signature::Errno> } };
    (fsync $how:tt) => { $crate::method_of_file_system! { @ $how
        fn fsync(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: $crate::signature::HandleId, data_only: bool) -> Result<(), $crate::signature::Errno> } };
    (sync $how:tt) => { $crate::method_of_file_system! { @ $how
        fn sync(context: &$crate::signature::Context<'_>) -> Result<(), $crate::signature::Errno> } };
    (fallocate $how:tt) => { $crate::method_of_file_system! { @ $how
        fn fallocate(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: $crate::signature::HandleId, mode: u32, offset: u64, length: u64)
            -> Result<(), $crate::signature::Errno> } };
    (seek $how:tt) => { $crate::method_of_file_system! { @ $how
        fn seek(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: $crate::signature::HandleId, offset: u64, whence: u32)
            -> Result<u64, $crate::signature::Errno> } };
    (release $how:tt) => { $crate::method_of_file_system! { @ $how
        fn release(node: $crate::signature::NodeId, handle: $crate::signature::HandleId, owner: Option<$crate::signature::LockOwner>) -> () } };
    (open_directory $how:tt) => { $crate::method_of_file_system! { @ $how
        fn open_directory(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId) -> Result<$crate::signature::OpenHandle, $crate::signature::Errno> } };
    (read_directory $how:tt) => { $crate::method_of_file_system! { @ $how
        fn read_directory(
            context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: $crate::signature::HandleId, offset: u64, sink: &mut dyn $crate::signature::DirectorySink
        ) -> Result<(), $crate::signature::Errno> } };
    (release_directory $how:tt) => { $crate::method_of_file_system! { @ $how
        fn release_directory(node: $crate::signature::NodeId, handle: $crate::signature::HandleId) -> () } };
    (get_xattr $how:tt) => { $crate::method_of_file_system! { @ $how
        fn get_xattr(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, name: &[u8]) -> Result<Vec<u8>, $crate::signature::Errno> } };
    (list_xattrs $how:tt) => { $crate::method_of_file_system! { @ $how
        fn list_xattrs(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId) -> Result<Vec<u8>, $crate::signature::Errno> } };
    (set_xattr $how:tt) => { $crate::method_of_file_system! { @ $how
        fn set_xattr(
            context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, name: &[u8], value: &[u8], flags: u32, kill_set_group_id: bool
        ) -> Result<(), $crate::signature::Errno> } };
    (remove_xattr $how:tt) => { $crate::method_of_file_system! { @ $how
        fn remove_xattr(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, name: &[u8]) -> Result<(), $crate::signature::Errno> } };
    (test_lock $how:tt) => { $crate::method_of_file_system! { @ $how
        fn test_lock(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: $crate::signature::HandleId, owner: $crate::signature::LockOwner, lock: &$crate::signature::Lock)
            -> Result<Option<$crate::signature::Lock>, $crate::signature::Errno> } };
    (set_lock $how:tt) => { $crate::method_of_file_system! { @ $how
        fn set_lock(
            context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId, handle: $crate::signature::HandleId, owner: $crate::signature::LockOwner, lock: &$crate::signature::Lock, wait: bool
        ) -> Result<(), $crate::signature::Errno> } };
    (statistics $how:tt) => { $crate::method_of_file_system! { @ $how
        fn statistics(context: &$crate::signature::Context<'_>, node: $crate::signature::NodeId) -> Result<$crate::signature::Statistics, $crate::signature::Errno> } };
    (host_file $how:tt) => { $crate::method_of_file_system! { @ $how
        fn host_file(node: $crate::signature::NodeId, handle: $crate::signature::HandleId) -> Option<$crate::signature::Arc<$crate::signature::OwnedFd>> } };
    (interrupted $how:tt) => { $crate::method_of_file_system! { @ $how
        fn interrupted() -> () } };
    (@ [passed $below:ident] fn $method:ident($($argument:ident: $type:ty),*) -> $gives:ty) => {
        fn $method(&self, $($argument: $type),*) -> $gives {
            self.$below.$method($($argument),*)
        }
    };
    (@ [passed $below:ident by $by:ident] fn $method:ident($($argument:ident: $type:ty),*) -> $gives:ty) => {
        fn $method(&self, $($argument: $type),*) -> $gives {
            self.$by(Method::$method, || self.$below.$method($($argument),*))
        }
    };
    (@ [read_only] fn $method:ident($($argument:ident: $type:ty),*) -> $gives:ty) => {
        fn $method(&self, $(_: $type),*) -> $gives {
            Err($crate::signature::Errno::ROFS)
        }
    };
    (@ [not_supported] fn $method:ident($($argument:ident: $type:ty),*) -> $gives:ty) => {
        fn $method(&self, $(_: $type),*) -> $gives {
            $crate::signature::NotSupported::not_supported()
        }
    };
}
