//! The walk over an image's directories, which builds the tree.
//!
//! No directory is entered twice, and no two pieces of metadata may share bytes: together they must not be larger than
//! the image. So the walk ends, and takes memory in proportion to the image, whatever the image says.

use std::collections::HashMap;

use inarch_tree::{Attributes, BuildError, Builder, DataRange, Extent, FileType, InodeId, Tree, XattrSetId};

use super::compressed::{Compressed, Packed, Store};
use super::image::Pages;
use super::inode::Inode;
use super::map::{Part, map_size, parts};
use super::volume::Volume;
use super::xattr::{LongPrefix, Xattrs};
use super::{about, damaged, directory};
use crate::erofs::spec::inode::{DataLayout, decode_device};
use crate::notes::Notes;
use crate::{Damage, ReadError};

/// What the walk finds.
pub(crate) struct Walked {
    pub(crate) tree: Tree,
    pub(crate) extents: Vec<(InodeId, Extent)>,
    /// Compressed files, ascending.
    pub(crate) compressed: Vec<(InodeId, Compressed)>,
    pub(crate) packed: Option<Packed>,
}

/// Bytes of a symlink's target at most.
const TARGET_MAX: u64 = 4095;
/// Bytes of a path in a message at most.
const PATH_MAX: usize = 4096;

/// Walks all directories. Where damage is salvaged, what cannot be read is left out and noted.
pub(crate) fn walk(mut pages: Pages, volume: &Volume, damage: Damage, notes: &mut Notes) -> Result<Walked, ReadError> {
    let packed = volume.packed_nid.map(|nid| packed_inode(&mut pages, volume, nid)).transpose();
    let packed = packed.map_err(|error| about("the packed inode", error))?;
    let prefixes = read_prefixes(&mut pages, volume, packed.as_ref())?;
    let size = pages.image().size();
    let mut xattrs = Xattrs::new(size, prefixes);
    let root = Inode::read(&mut pages, volume, volume.root_nid).map_err(|error| about("/", error))?;
    if root.file_type != FileType::Directory {
        return Err(damaged(format!("the root inode has the mode {:#o}, not a directory's", root.mode)));
    }
    // The attributes of the root are needed before there is a builder to intern them.
    let bare = attributes(&root, XattrSetId::NONE);
    let mut builder = Builder::new(&bare).map_err(built)?;
    let set = xattrs.of(&mut pages, volume, &root, &mut builder).map_err(|error| about("/", error))?;
    builder.set_root(&attributes(&root, set)).map_err(built)?;
    let mut walker = Walker {
        pages,
        volume,
        builder,
        xattrs,
        nodes: HashMap::from([(volume.root_nid, InodeId::ROOT)]),
        directories: vec![Directory { parent: 0, name: Box::default(), id: InodeId::ROOT, inode: root }],
        budget: size,
        damage,
        notes,
        extents: Vec::new(),
        compressed: Vec::new(),
    };
    walker.charge(&root).map_err(|error| about("/", error))?;
    let mut pending = vec![0];
    while let Some(index) = pending.pop() {
        let first = walker.directories.len();
        walker.read_directory(index)?;
        // The first of them is to be read next.
        pending.extend((first..walker.directories.len()).rev());
    }
    let tree = walker.builder.finish().map_err(built)?;
    Ok(Walked { tree, extents: walker.extents, compressed: walker.compressed, packed })
}

fn packed_inode(pages: &mut Pages, volume: &Volume, nid: u64) -> Result<Packed, ReadError> {
    let inode = Inode::read(pages, volume, nid)?;
    if inode.file_type != FileType::Regular {
        return Err(damaged(format!("its mode is {:#o}, not a file's", inode.mode)));
    }
    if is_compressed(&inode) {
        return Compressed::read(pages, volume, &inode).map(Packed::Compressed);
    }
    check_map(&inode, volume, pages.image().size())?;
    parts(pages, volume, &inode).map(Packed::Plain)
}

/// Reads the list of prefixes of attributes' names: records of a length of two bytes and as many bytes, each at a
/// multiple of four.
fn read_prefixes(pages: &mut Pages, volume: &Volume, packed: Option<&Packed>) -> Result<Vec<LongPrefix>, ReadError> {
    let image = pages.image().clone();
    let store = packed.filter(|_| !volume.prefixes_plain);
    let store = store.map(|packed| Store::new(image.clone(), Some(packed.clone())));
    let read = |at: u64, out: &mut [u8]| match &store {
        Some(store) => store.read_packed(at, out),
        None => image.read(at, out),
    };
    let mut prefixes = Vec::new();
    let mut at = volume.prefixes_start;
    for _ in 0..volume.prefix_count {
        let list = |error| about("the list of prefixes of attribute names", error);
        let mut length = [0; 2];
        read(at, &mut length).map_err(list)?;
        let length = u16::from_le_bytes(length);
        // A byte for the base, at most 255 for the rest of the name.
        let mut record = vec![0; usize::from(length).min(256)];
        read(at + 2, &mut record).map_err(list)?;
        let prefix = LongPrefix::new(&record).filter(|_| length <= 256);
        prefixes.push(prefix.ok_or_else(|| list(damaged(format!("a record has {length} bytes"))))?);
        at = (at + 2 + u64::from(length)).next_multiple_of(4);
    }
    Ok(prefixes)
}

struct Directory {
    /// The index of the directory that it is in; the root's is itself.
    parent: usize,
    name: Box<[u8]>,
    id: InodeId,
    inode: Inode,
}

/// What an inode has beside its attributes.
enum Body {
    Directory,
    /// What it points at.
    Symlink(Vec<u8>),
    Compressed(Compressed),
    Plain(Vec<Part>),
    /// A device node, a FIFO or a socket.
    Other,
}

struct Walker<'a> {
    pages: Pages,
    volume: &'a Volume,
    builder: Builder,
    xattrs: Xattrs,
    /// What was found, by number.
    nodes: HashMap<u64, InodeId>,
    directories: Vec<Directory>,
    /// Bytes of metadata that may still come.
    budget: u64,
    damage: Damage,
    notes: &'a mut Notes,
    extents: Vec<(InodeId, Extent)>,
    compressed: Vec<(InodeId, Compressed)>,
}

impl Walker<'_> {
    /// An error about a name of a directory, or the directory itself: where damage is salvaged, it is noted.
    fn tolerate(&mut self, directory: usize, name: &[u8], error: ReadError) -> Result<(), ReadError> {
        match about(&self.path(directory, name), error) {
            ReadError::Format { format, reason } => {
                self.notes.tell(self.damage.or_refuse(format, reason)?);
                Ok(())
            }
            other => Err(other),
        }
    }

    /// Reads a directory's names, and the inodes that they lead to.
    fn read_directory(&mut self, index: usize) -> Result<(), ReadError> {
        let Some(directory) = self.directories.get(index) else { return Ok(()) };
        let (id, inode) = (directory.id, directory.inode);
        self.builder.list(id).map_err(|error| about(&self.path(index, b""), built(error)))?;
        let parts = match parts(&mut self.pages, self.volume, &inode) {
            Ok(parts) => parts,
            Err(error) => return self.tolerate(index, b"", error),
        };
        let mut block = vec![0; self.volume.block() as usize];
        for offset in (0..inode.size).step_by(block.len()) {
            let length = self.volume.block().min(inode.size - offset) as usize;
            let block = block.get_mut(..length).unwrap_or_default();
            let entries = read_parts(&mut self.pages, &parts, offset, block).and_then(|()| directory::entries(block));
            let entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    self.tolerate(index, b"", error)?;
                    continue;
                }
            };
            for (name, nid) in entries {
                if name != b"."
                    && name != b".."
                    && let Err(error) = self.add(index, name, nid)
                {
                    self.tolerate(index, name, error)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a name to the directory being read: not before all of it was read, so that what fails leaves nothing.
    fn add(&mut self, parent: usize, name: &[u8], nid: u64) -> Result<(), ReadError> {
        if let Some(id) = self.nodes.get(&nid) {
            return self.builder.link(name, *id).map_err(built);
        }
        let inode = Inode::read(&mut self.pages, self.volume, nid)?;
        self.charge(&inode)?;
        let set = self.xattrs.of(&mut self.pages, self.volume, &inode, &mut self.builder)?;
        let body = self.body(&inode)?;
        let id = self.builder.add(name, &attributes(&inode, set)).map_err(built)?;
        self.nodes.insert(nid, id);
        match body {
            Body::Directory => self.directories.push(Directory { parent, name: name.into(), id, inode }),
            Body::Symlink(target) => self.builder.set_target(id, &target).map_err(built)?,
            Body::Compressed(compressed) => self.compressed.push((id, compressed)),
            Body::Plain(parts) => self.add_content(id, &inode, &parts)?,
            Body::Other => {}
        }
        Ok(())
    }

    fn body(&mut self, inode: &Inode) -> Result<Body, ReadError> {
        Ok(match inode.file_type {
            FileType::Directory => Body::Directory,
            FileType::Symlink => Body::Symlink(self.target(inode)?),
            FileType::Regular if is_compressed(inode) => {
                Body::Compressed(Compressed::read(&mut self.pages, self.volume, inode)?)
            }
            FileType::Regular => Body::Plain(parts(&mut self.pages, self.volume, inode)?),
            _ => Body::Other,
        })
    }

    fn target(&mut self, inode: &Inode) -> Result<Vec<u8>, ReadError> {
        if !(1..=TARGET_MAX).contains(&inode.size) {
            return Err(damaged(format!("a target of {} bytes; it has 1 to {TARGET_MAX}", inode.size)));
        }
        let mut target = vec![0; inode.size as usize];
        let parts = parts(&mut self.pages, self.volume, inode)?;
        read_parts(&mut self.pages, &parts, 0, &mut target)?;
        match target.contains(&0) {
            true => Err(damaged("a symlink's target is 1 to 4095 bytes without NUL")),
            false => Ok(target),
        }
    }

    fn add_content(&mut self, id: InodeId, inode: &Inode, parts: &[Part]) -> Result<(), ReadError> {
        let mut ranges: Vec<DataRange> = Vec::new();
        for part in parts {
            let Part { offset, length, at } = *part;
            self.extents.push((id, Extent { offset, length, at, backing: 0 }));
            match ranges.last_mut() {
                Some(last) if last.offset + last.length == offset => last.length += length,
                _ => ranges.push(DataRange { offset, length }),
            }
        }
        let whole = [DataRange { offset: 0, length: inode.size }];
        if inode.size > 0 && ranges != whole {
            self.builder.set_sparse(id, &ranges).map_err(built)?;
        }
        Ok(())
    }

    /// Counts an inode's metadata.
    fn charge(&mut self, inode: &Inode) -> Result<(), ReadError> {
        if inode.size > i64::MAX as u64 {
            return Err(damaged(format!("its size is {} bytes", inode.size)));
        }
        let listing = if inode.file_type == FileType::Directory { inode.size } else { 0 };
        let map = if has_content(inode) { map_size(inode, self.volume) } else { Some(0) };
        let bytes = map.and_then(|map| map.max(listing).checked_add(inode.xattrs_size + 32));
        let left = bytes.and_then(|bytes| self.budget.checked_sub(bytes));
        self.budget = left.ok_or_else(|| {
            damaged("the metadata up to this file is larger than the image: parts of it overlap, or sizes are wrong")
        })?;
        Ok(())
    }

    /// The path of `name` in a directory, for messages.
    fn path(&self, directory: usize, name: &[u8]) -> String {
        let mut names = vec![name];
        let mut length = name.len();
        let mut at = directory;
        while at > 0
            && length < PATH_MAX
            && let Some(directory) = self.directories.get(at)
        {
            length += directory.name.len();
            names.push(&directory.name);
            at = directory.parent;
        }
        names.reverse();
        let path = names.join(&b'/');
        let path = path.strip_suffix(b"/").unwrap_or(&path);
        if path.is_empty() { "/".into() } else { String::from_utf8_lossy(path).into_owned() }
    }
}

fn built(error: BuildError) -> ReadError {
    damaged(error.to_string())
}

fn has_content(inode: &Inode) -> bool {
    matches!(inode.file_type, FileType::Regular | FileType::Directory | FileType::Symlink)
}

fn is_compressed(inode: &Inode) -> bool {
    matches!(inode.layout, DataLayout::CompressedFull | DataLayout::CompressedCompact)
}

/// Refuses a map of chunks that is larger than the image.
fn check_map(inode: &Inode, volume: &Volume, size: u64) -> Result<(), ReadError> {
    match map_size(inode, volume) {
        Some(map) if map <= size => Ok(()),
        _ => Err(damaged(format!("a file of {} bytes has a map larger than the image", inode.size))),
    }
}

fn attributes(inode: &Inode, xattrs: XattrSetId) -> Attributes {
    let is_device = matches!(inode.file_type, FileType::CharDevice | FileType::BlockDevice);
    Attributes {
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        size: if inode.file_type == FileType::Regular { inode.size } else { 0 },
        mtime: inode.mtime,
        ctime: inode.mtime,
        source_ino: 0,
        device: if is_device { decode_device(inode.value) } else { (0, 0) },
        xattrs,
    }
}

/// Fills `out` with an inode's content from `offset`; what no part covers is zeros.
fn read_parts(pages: &mut Pages, parts: &[Part], offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
    out.fill(0);
    let end = offset + out.len() as u64;
    let first = parts.partition_point(|part| part.offset + part.length <= offset);
    for part in parts.get(first..).unwrap_or_default().iter().take_while(|part| part.offset < end) {
        let start = part.offset.max(offset);
        let stop = (part.offset + part.length).min(end);
        let place = (start - offset) as usize..(stop - offset) as usize;
        pages.read(part.at + (start - part.offset), out.get_mut(place).unwrap_or_default())?;
    }
    Ok(())
}
