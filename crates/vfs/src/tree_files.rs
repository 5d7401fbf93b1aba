//! Shows a tree, of an archive, image or snapshot, as a read-only file system.

use std::sync::Arc;
use std::time::Duration;

use inarch_block::{Content, Cursor};
use inarch_tree::{FileType, InodeId, Tree};
use rustix::fs::makedev;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::frozen::FOR_EVER;
use crate::name::check_long_name;
use crate::{
    Attributes, Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, NodeId, Opened, Statistics,
    not_supported, read_only,
};

const BLOCK_SIZE: u32 = 4096;

/// A [`Tree`] and its [`Content`] as a file system.
///
/// A node's number is its inode number plus 1, so that the root has the usual number. There is no state for each
/// client: nothing needs to be forgotten or opened.
pub struct TreeFiles {
    tree: Arc<Tree>,
    content: Arc<dyn Content>,
    /// Blocks of the whole tree.
    size: u64,
}

impl TreeFiles {
    /// A file system of `tree`, whose regular files have the bytes of `content`.
    pub fn new(tree: Arc<Tree>, content: Arc<dyn Content>) -> TreeFiles {
        let blocks = tree.inodes().map(|(_, inode)| inode.size().div_ceil(BLOCK_SIZE.into()));
        let size = blocks.fold(0u64, u64::saturating_add);
        TreeFiles { tree, content, size }
    }

    fn inode(&self, node: NodeId) -> Result<InodeId, Errno> {
        let number = node.0.checked_sub(1).and_then(|number| u32::try_from(number).ok());
        number.filter(|number| *number < self.tree.inode_count()).map(InodeId).ok_or(Errno::STALE)
    }

    fn directory(&self, node: NodeId) -> Result<InodeId, Errno> {
        let inode = self.inode(node)?;
        if self.tree.inode(inode).file_type() == FileType::Directory { Ok(inode) } else { Err(Errno::NOTDIR) }
    }

    fn file(&self, node: NodeId) -> Result<InodeId, Errno> {
        let inode = self.inode(node)?;
        match self.tree.inode(inode).file_type() {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(Errno::ISDIR),
            FileType::Symlink => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }

    fn attributes_of(&self, id: InodeId) -> Attributes {
        let inode = self.tree.inode(id);
        let (major, minor) = inode.device();
        Attributes {
            inode: node_of(id).0,
            mode: inode.mode(),
            links: inode.links(),
            uid: inode.uid(),
            gid: inode.gid(),
            device: makedev(major, minor),
            size: self.size_of(id),
            blocks: self.blocks_of(id),
            block_size: BLOCK_SIZE,
            atime: inode.mtime(),
            mtime: inode.mtime(),
            ctime: inode.ctime(),
            birth: None,
            // The content never changes.
            version: 1,
            is_submount: false,
            valid: FOR_EVER,
        }
    }

    /// A file's size; some sources do not store the length of a symbolic link.
    fn size_of(&self, id: InodeId) -> u64 {
        match self.tree.symlink_target(id) {
            [] => self.tree.inode(id).size(),
            target => target.len() as u64,
        }
    }

    /// The space for its data, in units of 512 bytes.
    fn blocks_of(&self, id: InodeId) -> u64 {
        let bytes = match self.tree.sparse_ranges(id) {
            Some(ranges) => ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.length)),
            None => self.tree.inode(id).size(),
        };
        bytes.div_ceil(512)
    }

    fn entry_of(&self, id: InodeId) -> Entry {
        Entry { node: node_of(id), generation: 0, attributes: self.attributes_of(id), valid: FOR_EVER }
    }

    /// Finds `name` in a directory, whose names are sorted.
    fn find(&self, directory: InodeId, name: &[u8]) -> Option<InodeId> {
        let entries = self.tree.entries(directory);
        let (mut low, mut high) = (0, entries.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = entries.get(middle)?;
            match entry.name.cmp(name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(entry.inode),
            }
        }
        None
    }
}

fn node_of(id: InodeId) -> NodeId {
    NodeId(u64::from(id.0) + 1)
}

impl FileSystem for TreeFiles {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        check_long_name(name)?;
        let found = self.find(self.directory(parent)?, name).ok_or(Errno::NOENT)?;
        Ok(self.entry_of(found))
    }

    fn absence_valid(&self, _: NodeId) -> Duration {
        FOR_EVER
    }

    fn parent(&self, _: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        Ok(self.entry_of(self.tree.parent(self.directory(node)?)))
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId, _: Option<HandleId>) -> Result<Attributes, Errno> {
        Ok(self.attributes_of(self.inode(node)?))
    }

    fn peek_attributes(&self, _: &Context<'_>, node: NodeId, _: Option<HandleId>) -> Result<Attributes, Errno> {
        Ok(self.attributes_of(self.inode(node)?))
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        match self.tree.symlink_target(self.inode(node)?) {
            [] => Err(Errno::INVAL),
            target => Ok(target.to_vec()),
        }
    }

    fn open(&self, _: &Context<'_>, node: NodeId, flags: u32) -> Result<Opened, Errno> {
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
        let file = self.file(node)?;
        let mut cursor = Cursor::new(out);
        let count = self.tree.inode(file).size().saturating_sub(offset).min(cursor.remaining());
        if count > 0 {
            let read = self.content.read(file, offset, count, &mut cursor);
            read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        usize::try_from(count).map_err(|_| Errno::IO)
    }

    fn fsync(&self, _: &Context<'_>, node: NodeId, _: HandleId, _: bool) -> Result<(), Errno> {
        self.inode(node).map(drop)
    }

    fn sync(&self, _: &Context<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn seek(&self, _: &Context<'_>, node: NodeId, _: HandleId, offset: u64, whence: u32) -> Result<u64, Errno> {
        let file = self.file(node)?;
        let size = self.tree.inode(file).size();
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let ranges = self.tree.sparse_ranges(file);
        // The first range that does not end before the offset.
        let next = ranges.map(|ranges| {
            let at = ranges.partition_point(|range| range.offset.saturating_add(range.length) <= offset);
            ranges.get(at).copied()
        });
        match (i32::try_from(whence), next) {
            (Ok(libc::SEEK_DATA), None) => Ok(offset),
            (Ok(libc::SEEK_HOLE), None) => Ok(size),
            (Ok(libc::SEEK_DATA), Some(Some(range))) => Ok(range.offset.max(offset)),
            (Ok(libc::SEEK_DATA), Some(None)) => Err(Errno::NXIO),
            (Ok(libc::SEEK_HOLE), Some(Some(range))) if range.offset <= offset => Ok(range.offset + range.length),
            (Ok(libc::SEEK_HOLE), Some(_)) => Ok(offset),
            _ => Err(Errno::INVAL),
        }
    }

    fn open_directory(&self, _: &Context<'_>, node: NodeId) -> Result<Opened, Errno> {
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
        let entries = self.tree.entries(directory);
        let dots: [(&[u8], InodeId); 2] = [(b".", directory), (b"..", self.tree.parent(directory))];
        let Ok(start) = usize::try_from(offset) else { return Ok(()) };
        for place in start..usize::MAX {
            let (name, inode, is_dots) = match (dots.get(place), place.checked_sub(dots.len())) {
                (Some((name, inode)), _) => (*name, *inode, true),
                (None, at) => match at.and_then(|at| entries.get(at)) {
                    Some(entry) => (entry.name, entry.inode, false),
                    None => break,
                },
            };
            let mode = self.tree.inode(inode).mode() & libc::S_IFMT;
            // No look-up has to be counted.
            let entry = (sink.wants_entries() && !is_dots).then(|| self.entry_of(inode));
            let next = place as u64 + 1;
            if !sink.push(&DirectoryEntry { inode: node_of(inode).0, next, mode, name, entry }) {
                break;
            }
        }
        Ok(())
    }

    fn get_xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let xattrs = self.tree.xattrs(self.tree.inode(self.inode(node)?).xattrs());
        let found = xattrs.iter().find(|xattr| *xattr.name == *name);
        found.map(|xattr| xattr.value.to_vec()).ok_or(Errno::NODATA)
    }

    fn list_xattrs(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        let xattrs = self.tree.xattrs(self.tree.inode(self.inode(node)?).xattrs());
        Ok(xattrs.iter().flat_map(|xattr| xattr.name.iter().copied().chain([0])).collect())
    }

    // Node numbers follow from inode numbers, so look-ups need no counting.
    not_supported! { forget, disconnected, release, release_directory, interrupted }

    // Without open files there are no writes, and clients keep their own locks.
    not_supported! { create_unnamed, write, copy_range, fallocate, flush, test_lock, set_lock, host_file }

    // Changes get `EROFS` instead of `ENOSYS`.
    read_only! {}

    fn statistics(&self, _: &Context<'_>, _: NodeId) -> Result<Statistics, Errno> {
        Ok(Statistics {
            block_size: BLOCK_SIZE,
            blocks: self.size,
            files: self.tree.inode_count().into(),
            name_max: 255,
            ..Statistics::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use inarch_block::HostFiles;
    use inarch_tree::scan;

    use super::*;
    use crate::listing::Listing;

    const ME: Context<'static> = Context::SERVER;

    fn layer(directory: &std::path::Path) -> TreeFiles {
        let scan = scan::scan(directory, &scan::ScanOptions::default()).unwrap();
        let tree = Arc::new(scan.tree);
        let content = HostFiles::new(scan.root, Arc::clone(&tree), 16);
        TreeFiles::new(tree, Arc::new(content))
    }

    #[test]
    fn a_tree_reads_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("d")).unwrap();
        for number in 0..100 {
            fs::write(directory.path().join(format!("d/{number}")), format!("content {number}")).unwrap();
        }
        symlink("d/1", directory.path().join("link")).unwrap();
        let layer = layer(directory.path());
        let d = layer.lookup(&ME, NodeId::ROOT, b"d").unwrap();
        assert_eq!(layer.parent(&ME, d.node).unwrap().node, NodeId::ROOT);
        let seen = Listing::whole(&layer, d.node, (7, true));
        assert_eq!(seen.len(), 102);
        for (name, entry) in seen.iter().skip(2) {
            let node = entry.unwrap().node;
            assert_eq!(layer.lookup(&ME, d.node, name.as_bytes()).unwrap().node, node);
            assert_eq!(layer.open(&ME, node, libc::O_RDONLY as u32).unwrap_err(), Errno::NOSYS);
            let mut buffer = [0; 100];
            let slices = [VolatileSlice::from(&mut buffer[..])];
            let count = layer.read(&ME, node, HandleId::default(), 3, &slices).unwrap();
            assert_eq!(buffer[..count], format!("content {name}").as_bytes()[3..]);
        }
        let link = layer.lookup(&ME, NodeId::ROOT, b"link").unwrap().node;
        assert_eq!(layer.read_link(&ME, link).unwrap(), b"d/1");
        assert_eq!(layer.attributes(&ME, link, None).unwrap().size, 3);
        assert_eq!(layer.lookup(&ME, d.node, b"100").unwrap_err(), Errno::NOENT);
        assert_eq!(layer.statistics(&ME, d.node).unwrap().files, 103);
    }

    #[test]
    fn holes_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = fs::File::create(directory.path().join("sparse")).unwrap();
        let part = 1 << 20;
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; part], part as u64).unwrap();
        file.set_len(4 * part as u64).unwrap();
        let layer = layer(directory.path());
        let node = layer.lookup(&ME, NodeId::ROOT, b"sparse").unwrap().node;
        let seek = |offset: usize, whence: i32| {
            layer.seek(&ME, node, HandleId::default(), offset as u64, whence as u32).map(|offset| offset as usize)
        };
        if seek(0, libc::SEEK_HOLE) == Ok(4 * part) {
            return println!("skipped: holes_are_told: no holes on the file system of temporary files");
        }
        assert_eq!((seek(0, libc::SEEK_DATA), seek(0, libc::SEEK_HOLE)), (Ok(part), Ok(0)));
        assert_eq!((seek(part + 1, libc::SEEK_DATA), seek(part, libc::SEEK_HOLE)), (Ok(part + 1), Ok(2 * part)));
        assert_eq!(
            (seek(2 * part, libc::SEEK_DATA), seek(3 * part, libc::SEEK_HOLE)),
            (Err(Errno::NXIO), Ok(3 * part))
        );
        assert_eq!(seek(4 * part, libc::SEEK_HOLE), Err(Errno::NXIO));
    }

    #[test]
    fn strange_numbers_and_changes_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), "a").unwrap();
        let layer = layer(directory.path());
        let a = layer.lookup(&ME, NodeId::ROOT, b"a").unwrap().node;
        for node in [0, 3, u64::MAX, 1 << 32, (1 << 32) + 1] {
            assert_eq!(layer.attributes(&ME, NodeId(node), None).unwrap_err(), Errno::STALE);
        }
        assert_eq!(layer.lookup(&ME, a, b"x").unwrap_err(), Errno::NOTDIR);
        assert_eq!(layer.lookup(&ME, NodeId::ROOT, b"..").unwrap_err(), Errno::INVAL);
        assert_eq!(layer.open(&ME, a, libc::O_WRONLY as u32).unwrap_err(), Errno::ROFS);
        assert_eq!(layer.open(&ME, NodeId::ROOT, 0).unwrap_err(), Errno::ISDIR);
        let end = Listing::of(&layer, &ME, (NodeId::ROOT, HandleId::default()), u64::MAX, (9, true)).unwrap();
        assert!(end.entries.is_empty());
        assert_eq!(layer.read(&ME, a, HandleId::default(), u64::MAX, &[]), Ok(0));
    }
}
