//! From the root directory to the tree.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use inarch_tree::{Attributes, BuildError, Builder, DataRange, InodeId, Timestamp, Tree, XattrSetId};
use zerocopy::little_endian::U32;

use super::files::{FilePlace, Files};
use super::image::{Image, wrong};
use super::inode::read_inode;
use super::metadata::Table;
use super::xattrs::Sets;
use crate::notes::Notes;
use crate::squashfs::spec::directory::{Entry, Header, MAX_RUN};
use crate::squashfs::spec::inode::{Body, DOTS, DirectoryBody, Inode, NO_XATTRS, decode_device};
use crate::squashfs::spec::{METADATA_SIZE, Reference};
use crate::{Damage, ReadError};

/// Bytes of a name at most, for Linux.
const MAX_NAME: usize = 255;
/// Bytes of a name at most, for squashfs.
const MAX_STORED_NAME: usize = 256;

/// Bounds what is made of an image by its size: names, targets and attributes that are used again and again, or
/// compress better than real ones, are refused before they fill memory.
pub(super) struct Budget {
    left: u64,
}

impl Budget {
    /// Real metadata compresses to a tenth; images of a few blocks may do better.
    pub(super) fn new(image_bytes: u64) -> Budget {
        Budget { left: image_bytes.saturating_mul(64).saturating_add(16 << 20) }
    }

    pub(super) fn spend(&mut self, bytes: u64) -> Result<(), ReadError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| wrong("names and attributes are more than an image of its size can have"))?;
        Ok(())
    }
}

/// An entry of a listing.
struct Listed {
    name: Vec<u8>,
    inode: Reference,
}

struct Walk<'a> {
    files: &'a mut Files,
    directories: Table,
    ids: Vec<u32>,
    sets: Option<Sets>,
    known_sets: HashMap<u32, XattrSetId>,
    builder: Builder,
    /// Inodes that have several names, by where they are.
    links: HashMap<Reference, InodeId>,
    /// Directories, each of which has one name.
    seen: HashSet<Reference>,
    budget: Budget,
    /// Names that are too long for Linux: how many, and the first.
    long_names: Option<(u64, String)>,
    damage: Damage,
    notes: &'a mut Notes,
}

/// Reads the tree of an image; `files` learns where the content of regular files is.
pub(super) fn read_tree(
    image: &Arc<Image>,
    files: &mut Files,
    damage: Damage,
    notes: &mut Notes,
) -> Result<Tree, ReadError> {
    let superblock = &image.superblock;
    let ids = read_ids(image)?;
    let sets = Sets::open(image)?;
    let root_place = Reference(superblock.root.get());
    let (root, _) = read_inode(&mut files.inodes.reader(root_place)?)?;
    let Body::Directory(body) = root.body else { return Err(wrong("the root is not a directory")) };
    let mut attributes = attributes(&root, &ids)?;
    let builder = Builder::new(&attributes).map_err(|error| build_error(&error))?;
    let mut walk = Walk {
        files,
        directories: Table::new(image, "directory", superblock.directory_table.get(), image.bytes_used()),
        ids,
        sets,
        known_sets: HashMap::new(),
        builder,
        links: HashMap::new(),
        seen: HashSet::from([root_place]),
        budget: Budget::new(image.bytes_used()),
        long_names: None,
        damage,
        notes,
    };
    attributes.xattrs = walk.xattrs(root.xattrs)?;
    walk.builder.set_root(&attributes).map_err(|error| build_error(&error))?;
    let mut ahead = vec![(InodeId::ROOT, body)];
    while let Some((directory, body)) = ahead.pop() {
        walk.list(directory, &body, &mut ahead)?;
    }
    if let Some((count, first)) = walk.long_names {
        walk.notes
            .tell(format!("{count} names of 256 bytes, which Linux cannot show, are left out; the first is {first}"));
    }
    walk.builder.finish().map_err(|error| build_error(&error))
}

fn build_error(error: &BuildError) -> ReadError {
    wrong(error.to_string())
}

impl Walk<'_> {
    /// Adds what is in a directory; puts the directories in it on the stack `ahead`, the first on top.
    fn list(
        &mut self,
        directory: InodeId,
        body: &DirectoryBody,
        ahead: &mut Vec<(InodeId, DirectoryBody)>,
    ) -> Result<(), ReadError> {
        let mut listed = Vec::new();
        if let Err(error) = self.read_listing(body, &mut listed) {
            self.tolerate(error, || "the names of a directory".to_owned())?;
        }
        if !listed.is_sorted_by(|a, b| a.name < b.name) {
            listed.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self.builder.list(directory).map_err(|error| build_error(&error))?;
        let first = ahead.len();
        for entry in &listed {
            match self.add(entry) {
                Ok(added) => ahead.extend(added),
                Err(error) => {
                    self.tolerate(error, || format!("the entry {:?}", String::from_utf8_lossy(&entry.name)))?;
                }
            }
        }
        if let Some(added) = ahead.get_mut(first..) {
            added.reverse();
        }
        Ok(())
    }

    /// An error about what `whose` says; where damage is salvaged, it is noted.
    fn tolerate(&mut self, error: ReadError, whose: impl FnOnce() -> String) -> Result<(), ReadError> {
        match error {
            ReadError::Format { format, reason } => {
                let reason = format!("{}: {reason}", whose());
                self.notes.tell(self.damage.or_refuse(format, reason)?);
                Ok(())
            }
            other => Err(other),
        }
    }

    /// Adds a directory's entries as they are on disk to `list`.
    fn read_listing(&mut self, body: &DirectoryBody, list: &mut Vec<Listed>) -> Result<(), ReadError> {
        let mut left = u64::from(body.size.saturating_sub(DOTS));
        if left == 0 {
            return Ok(());
        }
        let mut reader = self.directories.reader(Reference::new(body.block.into(), body.offset))?;
        while left > 0 {
            let header: Header = reader.read_struct()?;
            let count = u64::from(header.count.get()) + 1;
            if count > MAX_RUN as u64 {
                return Err(reader.wrong(&format!("a run of {count} entries; it has {MAX_RUN} at most")));
            }
            left = left.saturating_sub(size_of::<Header>() as u64);
            for _ in 0..count {
                let entry: Entry = reader.read_struct()?;
                let length = usize::from(entry.name_size.get()) + 1;
                let bytes = size_of::<Entry>() as u64 + length as u64;
                if length > MAX_STORED_NAME || bytes > left {
                    return Err(reader.wrong(&format!("a name of {length} bytes, more than can be")));
                }
                left -= bytes;
                self.budget.spend(bytes)?;
                let mut name = vec![0; length];
                reader.read(&mut name)?;
                let inode = Reference::new(header.block.get().into(), entry.offset.get());
                if length > MAX_NAME {
                    let shown = || String::from_utf8_lossy(&name).into_owned();
                    self.long_names.get_or_insert_with(|| (0, shown())).0 += 1;
                    continue;
                }
                list.push(Listed { name, inode });
            }
        }
        Ok(())
    }

    /// Adds an entry; gives it back if it is a directory that has to be listed.
    fn add(&mut self, entry: &Listed) -> Result<Option<(InodeId, DirectoryBody)>, ReadError> {
        let named = |error: BuildError| build_error(&error);
        if let Some(known) = self.links.get(&entry.inode) {
            self.builder.link(&entry.name, *known).map_err(named)?;
            return Ok(None);
        }
        let shown = || String::from_utf8_lossy(&entry.name).into_owned();
        let mut reader = self.files.inodes.reader(entry.inode)?;
        let (inode, target) = read_inode(&mut reader)?;
        let list = reader.reference();
        drop(reader);
        let mut attributes = attributes(&inode, &self.ids)?;
        attributes.xattrs = self.xattrs(inode.xattrs)?;
        if matches!(inode.body, Body::Directory(_)) && !self.seen.insert(entry.inode) {
            return Err(wrong(format!("the directory {:?} has two names, or is within itself", shown())));
        }
        self.budget.spend(target.len() as u64)?;
        let id = self.builder.add(&entry.name, &attributes).map_err(named)?;
        if inode.links > 1 && !matches!(inode.body, Body::Directory(_)) {
            self.links.insert(entry.inode, id);
        }
        match inode.body {
            Body::Directory(body) => return Ok(Some((id, body))),
            Body::File(body) => {
                let place = FilePlace { start: body.start, list, fragment: body.fragment, offset: body.offset };
                match self.files.add(id, place, body.size) {
                    Ok(holes) => self.set_sparse(id, holes)?,
                    // It stays a file that cannot be read.
                    Err(error) => self.tolerate(error, || format!("the file {:?}", shown()))?,
                }
            }
            Body::Symlink { .. } => {
                self.builder.set_target(id, &target).map_err(named)?;
            }
            Body::Device { .. } | Body::Ipc { .. } => {}
        }
        Ok(None)
    }

    fn set_sparse(&mut self, id: InodeId, ranges: Option<Vec<DataRange>>) -> Result<(), ReadError> {
        match ranges {
            Some(ranges) => self.builder.set_sparse(id, &ranges).map_err(|error| build_error(&error)),
            None => Ok(()),
        }
    }

    /// An attribute set, each read once.
    fn xattrs(&mut self, set: u32) -> Result<XattrSetId, ReadError> {
        let Some(sets) = self.sets.as_ref().filter(|_| set != NO_XATTRS) else { return Ok(XattrSetId::NONE) };
        if let Some(known) = self.known_sets.get(&set) {
            return Ok(*known);
        }
        let list = sets.read(set, &mut self.budget)?;
        let id = self.builder.intern_xattrs(list);
        self.known_sets.insert(set, id);
        Ok(id)
    }
}

/// What the tree knows of an inode.
fn attributes(inode: &Inode, ids: &[u32]) -> Result<Attributes, ReadError> {
    let owner = |index: u16| {
        let found = ids.get(usize::from(index)).copied();
        found.ok_or_else(|| wrong(format!("inode {} has owner number {index} of {}", inode.number, ids.len())))
    };
    let (size, device) = match inode.body {
        Body::File(body) => (body.size, (0, 0)),
        Body::Device { number, .. } => (0, decode_device(number)),
        _ => (0, (0, 0)),
    };
    let time = Timestamp { seconds: inode.mtime.into(), nanoseconds: 0 };
    Ok(Attributes {
        mode: u32::from(inode.mode) | inode.body.type_bits(),
        uid: owner(inode.uid)?,
        gid: owner(inode.gid)?,
        size,
        mtime: time,
        ctime: time,
        source_ino: inode.number.into(),
        device,
        xattrs: XattrSetId::NONE,
    })
}

/// The table of owners and groups.
fn read_ids(image: &Arc<Image>) -> Result<Vec<u32>, ReadError> {
    let count = usize::from(image.superblock.ids.get());
    let start = image.superblock.id_table.get();
    let per_block = METADATA_SIZE / size_of::<u32>();
    let blocks = image.read_offsets(start, count.div_ceil(per_block))?;
    let table = Table::new(image, "id", 0, start);
    let mut ids = Vec::with_capacity(count);
    for block in blocks {
        let mut reader = table.reader_at(block, 0)?;
        for _ in ids.len()..count.min(ids.len() + per_block) {
            ids.push(reader.read_struct::<U32>()?.get());
        }
    }
    Ok(ids)
}
