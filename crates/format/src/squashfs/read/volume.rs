//! A squashfs image as a volume.

use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_tree::{DataRange, Extent, Timestamp, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pass, Statistics, Volume, VolumeError};
use zerocopy::little_endian::{U32, U64};

use super::content::{File, Packed};
use super::files::{FilePlace, Files};
use super::image::{Image, wrong};
use super::inode::read_inode;
use super::listing::Listings;
use super::metadata::Table;
use super::pass::{Budget, EveryNode};
use super::xattrs::Sets;
use crate::ReadError;
use crate::squashfs::NAME;
use crate::squashfs::spec::directory::MAX_NAME;
use crate::squashfs::spec::inode::{Body, FileBody, Inode, NO_XATTRS, decode_device};
use crate::squashfs::spec::{METADATA_SIZE, NO_TABLE, Reference};

/// References to inodes in a block of the export table.
const EXPORTS_PER_BLOCK: u64 = (METADATA_SIZE / size_of::<U64>()) as u64;

/// A squashfs file system.
pub(super) struct SquashfsVolume {
    pub(super) image: Arc<Image>,
    pub(super) files: Files,
    directories: Table,
    exports: Table,
    ids: Vec<u32>,
    pub(super) sets: Option<Sets>,
    packed: Packed,
    backings: [Arc<dyn Backing>; 1],
}

impl SquashfsVolume {
    pub(super) fn open(backing: Arc<dyn Backing>) -> Result<SquashfsVolume, ReadError> {
        let unreadable = |error| ReadError::of_volume(NAME, error);
        let image = Arc::new(Image::open(Arc::clone(&backing)).map_err(unreadable)?);
        let files = Files::open(&image).map_err(unreadable)?;
        SquashfsVolume::with_tables(image, files, backing).map_err(|error| unreadable(error).into_damage())
    }

    fn with_tables(image: Arc<Image>, files: Files, backing: Arc<dyn Backing>) -> Result<SquashfsVolume, VolumeError> {
        let ids = read_ids(&image)?;
        let sets = Sets::open(&image)?;
        let start = image.superblock.directory_table.get();
        let directories = Table::new(&image, "directory", start, image.bytes_used());
        let exports = Table::new(&image, "export", 0, image.bytes_used());
        let packed = Packed::new(Arc::clone(&image));
        let volume = SquashfsVolume { image, files, directories, exports, ids, sets, packed, backings: [backing] };
        match volume.inode_of(volume.root())?.body {
            Body::Directory(_) => Ok(volume),
            _ => Err(wrong("the root is not a directory")),
        }
    }

    /// An inode, and where what follows it is. The target of a symlink goes into `target`, which is empty.
    pub(super) fn inode(&self, node: Node, target: &mut Vec<u8>) -> Result<(Inode, Reference), VolumeError> {
        let mut reader = self.files.inodes.reader(Reference(node.0))?;
        let inode = read_inode(&mut reader, target)?;
        Ok((inode, reader.reference()))
    }

    fn inode_of(&self, node: Node) -> Result<Inode, VolumeError> {
        self.inode(node, &mut Vec::new()).map(|(inode, _)| inode)
    }

    pub(super) fn attributes_of(&self, inode: &Inode) -> Result<Attributes, VolumeError> {
        let owner = |index: u16| {
            let (number, count) = (inode.number, self.ids.len());
            let found = self.ids.get(usize::from(index)).copied();
            found.ok_or_else(|| wrong(format!("inode {number} has owner number {index} of {count}")))
        };
        let (size, allocated, device) = match inode.body {
            Body::File(body) => (body.size, body.size.saturating_sub(body.sparse), (0, 0)),
            Body::Symlink { length } => (length.into(), 0, (0, 0)),
            Body::Device { number, .. } => (0, 0, decode_device(number)),
            _ => (0, 0, (0, 0)),
        };
        if i64::try_from(size).is_err() {
            return Err(wrong(format!("{size} bytes are more than a file can have")));
        }
        let time = Timestamp { seconds: inode.mtime.into(), nanoseconds: 0 };
        Ok(Attributes {
            inode: inode.number.into(),
            generation: 0,
            mode: u32::from(inode.mode) | inode.body.type_bits(),
            links: inode.links,
            uid: owner(inode.uid)?,
            gid: owner(inode.gid)?,
            size,
            allocated,
            device,
            atime: None,
            mtime: time,
            ctime: time,
            birth: None,
        })
    }

    /// Checks where a file's content is; `list` is what follows its inode.
    pub(super) fn file_of(&self, body: FileBody, list: Reference) -> Result<File, VolumeError> {
        let place = FilePlace { start: body.start, list, fragment: body.fragment, offset: body.offset };
        Ok(File { place: self.files.check(place, body.size)?, size: body.size })
    }

    fn file(&self, node: Node) -> Result<File, VolumeError> {
        match self.inode(node, &mut Vec::new())? {
            (Inode { body: Body::File(body), .. }, list) => self.file_of(body, list),
            _ => Err(VolumeError::WrongType),
        }
    }

    fn listings(&self) -> Listings<'_> {
        Listings { inodes: &self.files.inodes, directories: &self.directories }
    }

    /// The inode with a number, where the image has a table of them.
    fn by_number(&self, number: u32) -> Result<Option<Node>, VolumeError> {
        let start = self.image.superblock.export_table.get();
        let Some(index) = number.checked_sub(1).filter(|_| start != NO_TABLE) else { return Ok(None) };
        if index >= self.image.superblock.inodes.get() {
            return Err(wrong(format!("inode {number} does not exist")));
        }
        let block = start.checked_add(u64::from(index) / EXPORTS_PER_BLOCK * size_of::<U64>() as u64);
        let block = self.image.read_struct::<U64>(block.ok_or_else(|| wrong("the export table is nowhere"))?)?;
        let within = (u64::from(index) % EXPORTS_PER_BLOCK) as usize * size_of::<U64>();
        let place: U64 = self.exports.reader_at(block.get(), within)?.read_struct()?;
        Ok(Some(Node(place.get())))
    }
}

impl Volume for SquashfsVolume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        Node(self.image.superblock.root.get())
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        self.attributes_of(&self.inode_of(node)?)
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        let listings = self.listings();
        let found = listings.find(&listings.directory(Reference(directory.0))?, name)?;
        Ok(found.map(|place| Node(place.0)))
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        let listings = self.listings();
        let directory = listings.directory(Reference(directory.0))?;
        listings.each(&directory, from, &mut |found| {
            take(Item::entry(found.name, Node(found.inode.0), found.file_type, found.next))
        })
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        if directory == self.root() {
            return Ok(Some(directory));
        }
        let parent = self.by_number(self.listings().directory(Reference(directory.0))?.body.parent)?;
        match parent.map(|node| self.inode_of(node)).transpose()? {
            Some(Inode { body: Body::Directory(_), .. }) | None => Ok(parent),
            Some(_) => Err(wrong("a directory lies in something that is none")),
        }
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        let mut target = Vec::new();
        match self.inode(symlink, &mut target)?.0.body {
            Body::Symlink { .. } if !target.contains(&0) => Ok(target),
            Body::Symlink { .. } => Err(wrong("a symlink's target has a NUL")),
            _ => Err(VolumeError::WrongType),
        }
    }

    fn xattrs(&self, node: Node, _: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        let set = self.inode_of(node)?.xattrs;
        match self.sets.as_ref().filter(|_| set != NO_XATTRS) {
            Some(sets) => sets.read(set, &mut Budget::new(self.image.bytes_used())),
            None => Ok(Vec::new()),
        }
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        self.packed.read(&self.files, &self.file(file)?, offset, count, out)
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        self.packed.extents(&self.files, &self.file(file)?, offset, offset.saturating_add(count))
    }

    fn data(&self, file: Node, offset: u64) -> Result<Option<DataRange>, VolumeError> {
        self.packed.data(&self.files, &self.file(file)?, offset)
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &self.backings
    }

    fn block_size(&self) -> u32 {
        self.image.block_size()
    }

    fn statistics(&self) -> Statistics {
        let block_size = self.block_size();
        Statistics {
            block_size,
            blocks: self.image.bytes_used().div_ceil(block_size.into()),
            inodes: self.image.superblock.inodes.get().into(),
            name_max: MAX_NAME as u32,
            ..Statistics::default()
        }
    }

    fn pass(&self) -> Box<dyn Pass + '_> {
        Box::new(EveryNode::new(self))
    }
}

/// The table of owners and groups.
fn read_ids(image: &Arc<Image>) -> Result<Vec<u32>, VolumeError> {
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
