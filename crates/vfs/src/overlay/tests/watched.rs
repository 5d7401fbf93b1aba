//! A layer that shows each call to the test, which may refuse it, before the call is made.

use std::os::fd::OwnedFd;

use super::*;

/// Gets the name of a call, and that of the file or attribute that it is about, if it has one.
pub type Watch = dyn Fn(&'static str, &[u8]) -> Result<(), Errno> + Send + Sync;

pub struct Watched {
    pub below: Arc<dyn FileSystem>,
    pub watch: Box<Watch>,
    /// Whether the host's kernel is not given the files, so that content goes by calls.
    pub hides_files: bool,
}

impl Watched {
    pub fn over(
        below: Arc<dyn FileSystem>,
        watch: impl Fn(&'static str, &[u8]) -> Result<(), Errno> + Send + Sync + 'static,
    ) -> Arc<Watched> {
        Arc::new(Watched { below, watch: Box::new(watch), hides_files: false })
    }
}

type C<'a, 'b> = &'a Context<'b>;

#[rustfmt::skip]
impl FileSystem for Watched {
    crate::passes_on! { below:
        absence_valid, parent, peek_attributes, is_contested, forget, disconnected, seek, release, open_directory,
        release_directory, test_lock, set_lock, statistics, interrupted
    }
    fn lookup(&self, context: C<'_, '_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        (self.watch)("lookup", name)?;
        self.below.lookup(context, parent, name)
    }
    fn attributes(&self, context: C<'_, '_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        (self.watch)(if handle.is_some() { "attributes by handle" } else { "attributes" }, b"")?;
        self.below.attributes(context, node, handle)
    }
    fn set_attributes(&self, context: C<'_, '_>, node: NodeId, handle: Option<HandleId>, set: &SetAttributes) -> Result<Attributes, Errno> {
        (self.watch)(if handle.is_some() { "set attributes by handle" } else { "set attributes" }, b"")?;
        self.below.set_attributes(context, node, handle, set)
    }
    fn read_link(&self, context: C<'_, '_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        (self.watch)("read link", b"")?;
        self.below.read_link(context, node)
    }
    fn make_node(&self, context: C<'_, '_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        (self.watch)("make node", name)?;
        self.below.make_node(context, parent, name, new)
    }
    fn make_directory(&self, context: C<'_, '_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        (self.watch)("make directory", name)?;
        self.below.make_directory(context, parent, name, new)
    }
    fn make_symlink(&self, context: C<'_, '_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        (self.watch)("make symlink", name)?;
        self.below.make_symlink(context, parent, name, target)
    }
    fn link(&self, context: C<'_, '_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        (self.watch)("link", name)?;
        self.below.link(context, node, parent, name)
    }
    fn unlink(&self, context: C<'_, '_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        (self.watch)("unlink", name)?;
        self.below.unlink(context, parent, name)
    }
    fn remove_directory(&self, context: C<'_, '_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        (self.watch)("remove directory", name)?;
        self.below.remove_directory(context, parent, name)
    }
    fn rename(&self, context: C<'_, '_>, parent: NodeId, name: &[u8], new_parent: NodeId, new_name: &[u8], flags: u32) -> Result<(), Errno> {
        (self.watch)("rename", new_name)?;
        self.below.rename(context, parent, name, new_parent, new_name, flags)
    }
    fn open(&self, context: C<'_, '_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        (self.watch)("open", b"")?;
        self.below.open(context, node, flags)
    }
    fn create(&self, context: C<'_, '_>, parent: NodeId, name: &[u8], new: &NewNode, flags: u32) -> Result<(Entry, OpenHandle), Errno> {
        (self.watch)("create", name)?;
        self.below.create(context, parent, name, new, flags)
    }
    fn create_unnamed(&self, context: C<'_, '_>, parent: NodeId, new: &NewNode, flags: u32) -> Result<(Entry, OpenHandle), Errno> {
        (self.watch)("create unnamed", b"")?;
        self.below.create_unnamed(context, parent, new, flags)
    }
    fn read(&self, context: C<'_, '_>, node: NodeId, handle: HandleId, offset: u64, out: &[VolatileSlice<'_>]) -> Result<usize, Errno> {
        (self.watch)("read", offset.to_string().as_bytes())?;
        self.below.read(context, node, handle, offset, out)
    }
    fn write(&self, context: C<'_, '_>, node: NodeId, handle: HandleId, offset: u64, data: &[VolatileSlice<'_>], kind: WriteKind) -> Result<usize, Errno> {
        (self.watch)("write", b"")?;
        self.below.write(context, node, handle, offset, data, kind)
    }
    fn fsync(&self, context: C<'_, '_>, node: NodeId, handle: HandleId, data_only: bool) -> Result<(), Errno> {
        (self.watch)("fsync", b"")?;
        self.below.fsync(context, node, handle, data_only)
    }
    fn copy_range(&self, context: C<'_, '_>, from: (NodeId, HandleId, u64), to: (NodeId, HandleId, u64), length: u64) -> Result<u64, Errno> {
        (self.watch)("copy range", b"")?;
        self.below.copy_range(context, from, to, length)
    }
    fn flush(&self, context: C<'_, '_>, node: NodeId, handle: HandleId, owner: Option<LockOwner>) -> Result<(), Errno> {
        (self.watch)("flush", b"")?;
        self.below.flush(context, node, handle, owner)
    }
    fn sync(&self, context: C<'_, '_>) -> Result<(), Errno> {
        (self.watch)("sync", b"")?;
        self.below.sync(context)
    }
    fn fallocate(&self, context: C<'_, '_>, node: NodeId, handle: HandleId, mode: u32, offset: u64, length: u64) -> Result<(), Errno> {
        (self.watch)("fallocate", b"")?;
        self.below.fallocate(context, node, handle, mode, offset, length)
    }
    fn read_directory(&self, context: C<'_, '_>, node: NodeId, handle: HandleId, offset: u64, sink: &mut dyn DirectorySink) -> Result<(), Errno> {
        (self.watch)("read directory", b"")?;
        self.below.read_directory(context, node, handle, offset, sink)
    }
    fn get_xattr(&self, context: C<'_, '_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        (self.watch)("get attribute", name)?;
        self.below.get_xattr(context, node, name)
    }
    fn list_xattrs(&self, context: C<'_, '_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        (self.watch)("list attributes", b"")?;
        self.below.list_xattrs(context, node)
    }
    fn set_xattr(&self, context: C<'_, '_>, node: NodeId, name: &[u8], value: &[u8], flags: u32, kill: bool) -> Result<(), Errno> {
        (self.watch)("set attribute", name)?;
        self.below.set_xattr(context, node, name, value, flags, kill)
    }
    fn remove_xattr(&self, context: C<'_, '_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        (self.watch)("remove attribute", name)?;
        self.below.remove_xattr(context, node, name)
    }
    fn host_file(&self, node: NodeId, handle: HandleId) -> Option<Arc<OwnedFd>> {
        if self.hides_files { None } else { self.below.host_file(node, handle) }
    }
}
