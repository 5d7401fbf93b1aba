//! Shows a volume as a read-only file system that reads the image on demand. An archive or snapshot is a volume too
//! ([`TreeVolume`]).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use inarch_block::{Content, Cursor};
use inarch_tree::{FileType, Tree, Xattr};
use inarch_volume::{Item, Loss, Node, TreeVolume, Volume, VolumeError};
use rustix::fs::makedev;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::name::check_long_name;
use crate::{
    Attributes, Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, NodeId, OpenHandle, Statistics,
    not_supported, read_only,
};

#[cfg(test)]
mod tests;

/// The TTL for what never changes: a year.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// `.` and `..` come before the volume's entries in a listing.
const DOTS: u64 = 2;
/// The most nodes whose damage is reported.
const TOLD: usize = 1000;

/// Receives a line about a node that cannot be read.
pub type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// A [`Volume`] as a file system.
///
/// A node's number is the volume's plus 2, except the root, which has the usual number. There is no table, so nothing
/// grows with what clients know. Damage is an error of the file or directory that it belongs to (`EUCLEAN`, or `EIO`
/// if the image itself cannot be read), and is reported once.
pub struct VolumeFiles {
    volume: Arc<dyn Volume>,
    salvage: bool,
    told: Told,
}

/// The nodes that were reported.
struct Told {
    nodes: Mutex<HashSet<Node>>,
    tell: Tell,
}

impl VolumeFiles {
    /// A file system of `volume`. With `salvage`, a partly damaged directory or set of attributes is shown without
    /// the damaged part. `tell` receives a line for each damaged node, up to a thousand.
    pub fn new(volume: Arc<dyn Volume>, salvage: bool, tell: Tell) -> VolumeFiles {
        VolumeFiles { volume, salvage, told: Told { nodes: Mutex::default(), tell } }
    }

    /// A file system of `tree`, whose regular files have the bytes of `content`. `tell` receives a line for each file
    /// that cannot be read, up to a thousand.
    pub fn of_tree(tree: Arc<Tree>, content: Arc<dyn Content>, tell: Tell) -> VolumeFiles {
        VolumeFiles::new(Arc::new(TreeVolume::new(tree, content)), false, tell)
    }

    fn node(&self, node: NodeId) -> Result<Node, Errno> {
        match node {
            NodeId::ROOT => Ok(self.volume.root()),
            NodeId(number) => number.checked_sub(DOTS).map(Node).ok_or(Errno::STALE),
        }
    }

    fn id(&self, node: Node) -> Result<NodeId, Errno> {
        if node == self.volume.root() {
            return Ok(NodeId::ROOT);
        }
        // The root has the lowest number; zero is no node.
        node.0.checked_add(DOTS).map(NodeId).ok_or(Errno::UCLEAN)
    }

    /// Converts an error about a node, and reports it once.
    fn fail(&self, node: Node, error: &VolumeError) -> Errno {
        if !matches!(error, VolumeError::WrongType) {
            self.told.about(&*self.volume, node, &error.to_string());
        }
        Errno::from_raw_os_error(error.errno())
    }

    /// The same for a part that is left out; succeeds if the rest is shown.
    fn lose(&self, node: Node, loss: &Loss) -> Result<(), Errno> {
        self.told.about(&*self.volume, node, &loss.reason);
        if loss.is_damage && !self.salvage { Err(Errno::UCLEAN) } else { Ok(()) }
    }

    fn of_volume(&self, node: Node) -> Result<inarch_volume::Attributes, Errno> {
        self.volume.attributes(node).map_err(|error| self.fail(node, &error))
    }

    fn directory(&self, node: NodeId) -> Result<Node, Errno> {
        let node = self.node(node)?;
        let is_directory = self.of_volume(node)?.file_type() == Some(FileType::Directory);
        if is_directory { Ok(node) } else { Err(Errno::NOTDIR) }
    }

    /// A regular file and its size.
    fn file(&self, node: NodeId) -> Result<(Node, u64), Errno> {
        let node = self.node(node)?;
        let attributes = self.of_volume(node)?;
        match attributes.file_type() {
            Some(FileType::Regular) => Ok((node, attributes.size)),
            Some(FileType::Directory) => Err(Errno::ISDIR),
            Some(FileType::Symlink) => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }

    fn attributes_of(&self, node: Node) -> Result<Attributes, Errno> {
        let of = self.of_volume(node)?;
        Ok(Attributes {
            inode: of.inode,
            mode: of.mode,
            links: of.links,
            uid: of.uid,
            gid: of.gid,
            device: makedev(of.device.0, of.device.1),
            size: of.size,
            blocks: of.allocated.div_ceil(512),
            block_size: self.volume.block_size_at(node),
            atime: of.atime.unwrap_or(of.mtime),
            mtime: of.mtime,
            ctime: of.ctime,
            birth: of.birth,
            // The content never changes.
            version: 1,
            is_submount: false,
            valid: FOR_EVER,
        })
    }

    fn entry_of(&self, node: Node) -> Result<Entry, Errno> {
        let attributes = self.attributes_of(node)?;
        Ok(Entry { node: self.id(node)?, generation: 0, attributes, valid: FOR_EVER })
    }

    fn xattrs(&self, node: NodeId) -> Result<Vec<Xattr>, Errno> {
        let node = self.node(node)?;
        let mut lost = Ok(());
        let xattrs = self.volume.xattrs(node, &mut |loss| {
            let result = self.lose(node, &loss);
            if lost.is_ok() {
                lost = result;
            }
        });
        let xattrs = xattrs.map_err(|error| self.fail(node, &error))?;
        lost.map(|()| xattrs)
    }

    /// Adds `.` and `..` from `offset`; returns false if there is no more room.
    fn push_dots(&self, directory: Node, offset: u64, sink: &mut dyn DirectorySink) -> Result<bool, Errno> {
        for (place, name) in [(0, &b"."[..]), (1, b"..")].into_iter().filter(|(place, _)| *place >= offset) {
            let node = match place {
                0 => directory,
                // A directory whose parent is unknown is listed all the same.
                _ => self.volume.parent(directory).ok().flatten().unwrap_or(directory),
            };
            let inode = self.of_volume(node).map_or(node.0, |attributes| attributes.inode);
            let entry = DirectoryEntry { inode, next: place + 1, mode: libc::S_IFDIR, name, entry: None };
            if !sink.push(&entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Told {
    /// Reports a node once, by its inode number if it has one.
    fn about(&self, volume: &dyn Volume, node: Node, reason: &str) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes.len() > TOLD || !nodes.insert(node) {
            return;
        }
        let last = nodes.len() > TOLD;
        drop(nodes);
        let inode = volume.attributes(node).map_or(node.0, |attributes| attributes.inode);
        match last {
            true => (self.tell)("more of the image cannot be read; no more of it is told"),
            false => (self.tell)(&format!("inode {inode}: {reason}")),
        }
    }
}

impl FileSystem for VolumeFiles {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        check_long_name(name)?;
        let directory = self.node(parent)?;
        match self.volume.lookup(directory, name) {
            Ok(Some(node)) => self.entry_of(node),
            Ok(None) => Err(Errno::NOENT),
            Err(VolumeError::WrongType) => Err(Errno::NOTDIR),
            Err(error) => match self.fail(directory, &error) {
                Errno::UCLEAN if self.salvage => Err(Errno::NOENT),
                errno => Err(errno),
            },
        }
    }

    fn absence_valid(&self, _: NodeId) -> Duration {
        FOR_EVER
    }

    fn is_contested(&self, _: NodeId) -> bool {
        false
    }

    fn parent(&self, _: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        let directory = self.directory(node)?;
        let parent = self.volume.parent(directory).map_err(|error| self.fail(directory, &error))?;
        self.entry_of(parent.ok_or(Errno::STALE)?)
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId, _: Option<HandleId>) -> Result<Attributes, Errno> {
        self.attributes_of(self.node(node)?)
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        let node = self.node(node)?;
        self.volume.target(node).map_err(|error| self.fail(node, &error))
    }

    fn open(&self, _: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        self.file(node)?;
        let reads = flags & libc::O_ACCMODE as u32 == libc::O_RDONLY as u32;
        // Writers do not get ENOSYS: the kernel would then stop sending opens for readers too.
        if reads && flags & libc::O_TRUNC as u32 == 0 { Err(Errno::NOSYS) } else { Err(Errno::ROFS) }
    }

    fn read(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        let (node, size) = self.file(node)?;
        let mut cursor = Cursor::new(out);
        let count = size.saturating_sub(offset).min(cursor.remaining());
        if count > 0 {
            self.volume.read(node, offset, count, &mut cursor).map_err(|error| self.fail(node, &error))?;
        }
        usize::try_from(count).map_err(|_| Errno::IO)
    }

    fn fsync(&self, _: &Context<'_>, node: NodeId, _: HandleId, _: bool) -> Result<(), Errno> {
        self.node(node).map(drop)
    }

    fn seek(&self, _: &Context<'_>, node: NodeId, _: HandleId, offset: u64, whence: u32) -> Result<u64, Errno> {
        let (node, size) = self.file(node)?;
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let data = self.volume.data(node, offset).map_err(|error| self.fail(node, &error))?;
        match (i32::try_from(whence), data) {
            (Ok(libc::SEEK_DATA), Some(range)) => Ok(range.offset.max(offset)),
            (Ok(libc::SEEK_DATA), None) => Err(Errno::NXIO),
            (Ok(libc::SEEK_HOLE), Some(range)) if range.offset <= offset => {
                Ok(range.offset.saturating_add(range.length).min(size))
            }
            (Ok(libc::SEEK_HOLE), _) => Ok(offset),
            _ => Err(Errno::INVAL),
        }
    }

    fn open_directory(&self, _: &Context<'_>, node: NodeId) -> Result<OpenHandle, Errno> {
        self.directory(node)?;
        Err(Errno::NOSYS)
    }

    fn read_directory(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let directory = self.directory(node)?;
        if !self.push_dots(directory, offset, sink)? {
            return Ok(());
        }
        let (mut result, mut pushed) = (Ok(()), 0);
        let listed = self.volume.list(directory, offset.saturating_sub(DOTS), &mut |item| {
            let listed = match item {
                Item::Lost(loss) => {
                    result = self.lose(directory, &loss);
                    return result.is_ok();
                }
                Item::Entry(listed) => listed,
            };
            // An entry whose node cannot be read is listed without it; looking it up gives the error.
            let entry = match sink.wants_entries() && sink.has_room(listed.name.len()) {
                true => self.entry_of(listed.node).ok(),
                false => None,
            };
            let inode = entry.map_or(listed.node.0, |entry| entry.attributes.inode);
            let mode = match (entry, listed.file_type) {
                (Some(entry), _) => entry.attributes.mode & libc::S_IFMT,
                (None, Some(file_type)) => file_type.mode_bits(),
                (None, None) => 0,
            };
            let next = listed.next.saturating_add(DOTS);
            let took = sink.push(&DirectoryEntry { inode, next, mode, name: listed.name, entry });
            pushed += u64::from(took);
            took
        });
        let listed = listed.map_err(|error| self.fail(directory, &error)).and(result);
        // Entries before the damage are delivered first; the next request starts at the damage.
        if pushed > 0 { Ok(()) } else { listed }
    }

    fn get_xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let found = self.xattrs(node)?.into_iter().find(|xattr| *xattr.name == *name);
        found.map(|xattr| xattr.value.into_vec()).ok_or(Errno::NODATA)
    }

    fn list_xattrs(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        Ok(self.xattrs(node)?.iter().flat_map(|xattr| xattr.name.iter().copied().chain([0])).collect())
    }

    fn peek_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<Attributes, Errno> {
        self.attributes(context, node, handle)
    }

    fn sync(&self, _: &Context<'_>) -> Result<(), Errno> {
        Ok(())
    }

    // Node numbers follow from the volume's, so look-ups need no counting.
    not_supported! { forget, disconnected, release, release_directory, interrupted }

    // Without open files there are no writes, and clients keep their own locks.
    not_supported! { create_unnamed, write, copy_range, fallocate, flush, test_lock, set_lock, host_file }

    // Changes get `EROFS` instead of `ENOSYS`.
    read_only! {}

    fn statistics(&self, _: &Context<'_>, node: NodeId) -> Result<Statistics, Errno> {
        let of = self.volume.statistics_at(self.node(node)?);
        Ok(Statistics {
            block_size: of.block_size,
            blocks: of.blocks,
            free_blocks: of.free_blocks,
            available_blocks: of.available_blocks(),
            files: of.inodes,
            free_files: of.free_inodes,
            name_max: of.name_max,
        })
    }
}
