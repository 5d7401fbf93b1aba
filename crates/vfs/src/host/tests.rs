//! The host file system by itself, without a kernel in between.

mod accessed;
mod ahead;
mod hostile;
mod locks;
mod mounts;
mod operations;
mod races;
mod refused;
mod unchanged;
mod unopened;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;
use vm_memory::VolatileSlice;

use super::*;
use crate::listing::Listing;

/// A directory and the file system over it.
struct Scene {
    directory: TempDir,
    layer: HostDirectory,
}

const NEW_FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const NEW_DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };
const READ: u32 = libc::O_RDONLY as u32;
const WRITE: u32 = libc::O_RDWR as u32;

const ME: Context<'static> = Context::SERVER;

/// A user other than the server's.
fn user(uid: u32, gid: u32) -> Context<'static> {
    Context { uid, gid, ..Context::SERVER }
}

impl Scene {
    fn new() -> Scene {
        Scene::with(HostOptions { changes: Changes::Host, ..HostOptions::default() })
    }

    fn with(options: HostOptions) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let layer = HostDirectory::new(directory.path(), options).unwrap();
        Scene { directory, layer }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn file(&self, name: &str, content: &str) {
        fs::write(self.path().join(name), content).unwrap();
    }

    /// The node at a path of several components.
    fn node(&self, path: &str) -> NodeId {
        self.try_node(path).unwrap()
    }

    fn try_node(&self, path: &str) -> Result<NodeId, Errno> {
        path.split('/').try_fold(NodeId::ROOT, |parent, name| Ok(self.lookup(parent, name)?.node))
    }

    fn lookup(&self, parent: NodeId, name: &str) -> Result<Entry, Errno> {
        self.layer.lookup(&ME, parent, name.as_bytes())
    }

    fn create(&self, parent: NodeId, name: &str) -> (NodeId, HandleId) {
        let (entry, opened) = self.layer.create(&ME, parent, name.as_bytes(), &NEW_FILE, WRITE).unwrap();
        (entry.node, opened.handle)
    }

    fn open(&self, node: NodeId, flags: u32) -> HandleId {
        self.layer.open(&ME, node, flags).unwrap().handle
    }

    fn read(&self, node: NodeId, handle: HandleId, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; length];
        // In pieces, as a client's memory is.
        let middle = length / 2;
        let (front, back) = buffer.split_at_mut(middle);
        let count = self.layer.read(&ME, node, handle, offset, &[front.into(), back.into()])?;
        buffer.truncate(count);
        Ok(buffer)
    }

    fn write(&self, node: NodeId, handle: HandleId, offset: u64, data: &str) -> Result<usize, Errno> {
        self.write_as(node, handle, offset, data, WriteKind::default())
    }

    fn write_as(
        &self,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &str,
        kind: WriteKind,
    ) -> Result<usize, Errno> {
        let mut bytes = data.as_bytes().to_vec();
        self.layer.write(&ME, node, handle, offset, &[VolatileSlice::from(&mut bytes[..])], kind)
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes, Errno> {
        self.layer.attributes(&ME, node, None)
    }

    fn set(&self, node: NodeId, set: SetAttributes) -> Result<Attributes, Errno> {
        self.layer.set_attributes(&ME, node, None, &set)
    }

    /// All names and nodes of a directory, in parts of `room` entries.
    fn list(&self, node: NodeId, room: usize, plus: bool) -> Vec<(String, Option<NodeId>)> {
        let listed = Listing::whole(&self.layer, node, (room, plus));
        listed.into_iter().map(|(name, entry)| (name, entry.map(|entry| entry.node))).collect()
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
