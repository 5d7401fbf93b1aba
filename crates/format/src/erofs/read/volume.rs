//! An EROFS image as a volume.

use std::ops::Range;
use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_tree::{Extent, FileType, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pages, Pass, Statistics, TARGET_MAX, Volume, VolumeError};

use super::compressed::{Compressed, Packed, Store};
use super::directory::{Found, entries};
use super::image::Image;
use super::inode::Inode;
use super::map::{extents, map_size};
use super::parameters::Parameters;
use super::pass::EveryNode;
use super::xattr::{LongPrefix, Xattrs};
use super::{NAME, about, damaged, unreadable};
use crate::erofs::spec::inode::{DataLayout, decode_device, file_type_of_entry};
use crate::{Damage, ReadError};

/// Pages of metadata that are kept: 4 MiB.
const PAGES: usize = 1024;
/// In a place in a directory, the bits of the entry within its block: a block of 64 KiB has 5461.
const PLACE_BITS: u32 = 16;

/// An EROFS file system.
pub(crate) struct ErofsVolume {
    pub(super) pages: Pages,
    pub(super) parameters: Parameters,
    pub(super) xattrs: Xattrs,
    store: Store,
    backings: [Arc<dyn Backing>; 1],
    notes: Vec<String>,
}

impl ErofsVolume {
    /// Reads and checks the superblock, the packed inode, the prefixes of attributes' names, and the root.
    pub(crate) fn open(backing: Arc<dyn Backing>, damage: Damage) -> Result<ErofsVolume, ReadError> {
        let image = Image::new(Arc::clone(&backing));
        let mut notes = Vec::new();
        let parameters = Parameters::read(&image, damage, &mut notes)?;
        let pages = Pages::new(Arc::clone(&backing), PAGES);
        let read = || {
            let packed = parameters.packed_nid.map(|nid| packed_inode(&pages, &parameters, nid)).transpose();
            let packed = packed.map_err(|error| about("the packed inode", error))?;
            let prefixes = read_prefixes(&image, &parameters, packed.as_ref())?;
            let root = Inode::read(&pages, &parameters, parameters.root_nid).map_err(|error| about("/", error))?;
            if root.file_type != FileType::Directory {
                return Err(damaged(format!("the root inode has the mode {:#o}, not a directory's", root.mode)));
            }
            Ok((packed, prefixes))
        };
        let (packed, prefixes) = read().map_err(|error| unreadable(error).into_damage())?;
        let (xattrs, store) = (Xattrs::new(prefixes), Store::new(image, packed));
        Ok(ErofsVolume { pages, parameters, xattrs, store, backings: [backing], notes })
    }

    pub(super) fn inode(&self, node: Node) -> Result<Inode, VolumeError> {
        Inode::read(&self.pages, &self.parameters, node.0)
    }

    fn inode_of(&self, node: Node, file_type: FileType) -> Result<Inode, VolumeError> {
        let inode = self.inode(node)?;
        match inode.file_type == file_type {
            true => check_size(&inode, &self.parameters, self.pages.size()).map(|()| inode),
            false => Err(VolumeError::WrongType),
        }
    }

    /// Puts where the bytes `range` of an uncompressed inode lie into `found`.
    pub(super) fn extents_of(
        &self,
        inode: &Inode,
        range: Range<u64>,
        found: &mut Vec<Extent>,
    ) -> Result<(), VolumeError> {
        extents(&self.pages, &self.parameters, inode, range, found)
    }

    fn extents_in(&self, inode: &Inode, offset: u64, count: u64) -> Result<Vec<Extent>, VolumeError> {
        let mut found = Vec::new();
        self.extents_of(inode, offset..offset.saturating_add(count), &mut found)?;
        Ok(found)
    }

    pub(super) fn compressed(&self, inode: &Inode) -> Result<Compressed, VolumeError> {
        Compressed::read(&self.pages, &self.parameters, inode)
    }

    pub(super) fn attributes_of(&self, node: Node, inode: &Inode) -> Result<Attributes, VolumeError> {
        check_length(inode)?;
        let is_device = matches!(inode.file_type, FileType::CharDevice | FileType::BlockDevice);
        let has_size = matches!(inode.file_type, FileType::Regular | FileType::Symlink);
        Ok(Attributes {
            inode: node.0,
            generation: 0,
            mode: inode.mode,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            size: if has_size { inode.size } else { 0 },
            // A compressed file has its number of blocks in the field that other files have for the first block's
            // address.
            allocated: match is_compressed(inode) {
                true => u64::from(inode.value).saturating_mul(self.parameters.block()),
                false => inode.size,
            },
            device: if is_device { decode_device(inode.value) } else { (0, 0) },
            atime: None,
            mtime: inode.mtime,
            ctime: inode.mtime,
            birth: None,
        })
    }

    /// Puts what a symlink points at into `target`, which is empty.
    pub(super) fn target_of(&self, inode: &Inode, target: &mut Vec<u8>) -> Result<(), VolumeError> {
        if !(1..=TARGET_MAX as u64).contains(&inode.size) {
            return Err(damaged(format!("a target of {} bytes; it has 1 to {TARGET_MAX}", inode.size)));
        }
        target.resize(inode.size as usize, 0);
        self.read_metadata(inode, 0, target)?;
        match target.contains(&0) {
            true => Err(damaged("a symlink's target is 1 to 4095 bytes without NUL")),
            false => Ok(()),
        }
    }

    /// Fills `out` with an uncompressed inode's content from `offset`.
    fn read_metadata(&self, inode: &Inode, offset: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        out.fill(0);
        for part in self.extents_in(inode, offset, out.len() as u64)? {
            let start = (part.offset - offset) as usize;
            let place = start..start + part.length as usize;
            self.pages.read(part.at, out.get_mut(place).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Reads block `number` of a directory into `block`, which is as long as it is.
    fn directory_block<'b>(
        &self,
        inode: &Inode,
        number: u64,
        block: &'b mut Vec<u8>,
    ) -> Result<Vec<Found<'b>>, VolumeError> {
        let offset = number.saturating_mul(self.parameters.block());
        let length = self.parameters.block().min(inode.size.saturating_sub(offset));
        block.resize(length as usize, 0);
        self.read_metadata(inode, offset, block)?;
        entries(block)
    }

    /// What a name leads to: blocks are sorted by their first names.
    fn find(&self, inode: &Inode, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        let (mut low, mut high) = (0, inode.size.div_ceil(self.parameters.block()));
        let mut block = Vec::new();
        while low < high {
            let middle = low + (high - low) / 2;
            let found = self.directory_block(inode, middle, &mut block)?;
            match (found.first(), found.last()) {
                (Some(first), _) if name < first.name => high = middle,
                (_, Some(last)) if name > last.name => low = middle + 1,
                _ => {
                    let place = found.binary_search_by(|entry| entry.name.cmp(name)).ok();
                    return Ok(place.and_then(|place| found.get(place)).map(|entry| Node(entry.nid)));
                }
            }
        }
        Ok(None)
    }
}

impl Volume for ErofsVolume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        Node(self.parameters.root_nid)
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        self.attributes_of(node, &self.inode(node)?)
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        self.find(&self.inode_of(directory, FileType::Directory)?, name)
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        let inode = self.inode_of(directory, FileType::Directory)?;
        let blocks = inode.size.div_ceil(self.parameters.block());
        let mut block = Vec::new();
        // The last name of the block before.
        let mut last: Vec<u8> = Vec::new();
        for number in from >> PLACE_BITS..blocks {
            let first = if number == from >> PLACE_BITS { from & ((1 << PLACE_BITS) - 1) } else { 0 };
            let found = match self.directory_block(&inode, number, &mut block) {
                Ok(found) => found,
                Err(VolumeError::Damaged(reason)) => match take(Item::Lost(Loss::damage(reason))) {
                    true => continue,
                    false => return Ok(()),
                },
                Err(error) => return Err(error),
            };
            let mut before = &*last;
            for (place, entry) in found.iter().enumerate().skip(first as usize) {
                let Found { name, nid, type_code } = *entry;
                if name <= before && !before.is_empty() && !take(Item::Lost(unsorted(name))) {
                    return Ok(());
                }
                before = name;
                if matches!(name, b"." | b"..") {
                    continue;
                }
                let next = number << PLACE_BITS | (place as u64 + 1);
                if !take(Item::entry(name, Node(nid), file_type_of_entry(type_code), next)) {
                    return Ok(());
                }
            }
            last = before.to_vec();
        }
        Ok(())
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        match directory == self.root() {
            true => Ok(Some(directory)),
            false => self.find(&self.inode_of(directory, FileType::Directory)?, b".."),
        }
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        let mut target = Vec::new();
        self.target_of(&self.inode_of(symlink, FileType::Symlink)?, &mut target)?;
        Ok(target)
    }

    fn xattrs(&self, node: Node, _: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        self.xattrs.of(&self.pages, &self.parameters, &self.inode(node)?)
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let inode = self.inode_of(file, FileType::Regular)?;
        if is_compressed(&inode) {
            let compressed = self.compressed(&inode)?;
            return self.store.read(file.0, &compressed, offset, count, &mut |bytes| out.copy_from(bytes));
        }
        let mut at = offset;
        let [image] = &self.backings;
        for part in self.extents_in(&inode, offset, count)? {
            out.fill_zeros(part.offset - at);
            let read = image.read(part.at, part.length, out);
            read.map_err(|error| VolumeError::Io { offset: part.at, error })?;
            at = part.offset + part.length;
        }
        out.fill_zeros(count - (at - offset));
        Ok(())
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        let inode = self.inode_of(file, FileType::Regular)?;
        if is_compressed(&inode) {
            return Ok(None);
        }
        self.extents_in(&inode, offset, count).map(Some)
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &self.backings
    }

    fn block_size(&self) -> u32 {
        self.parameters.block() as u32
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            block_size: self.block_size(),
            blocks: self.parameters.blocks,
            inodes: self.parameters.inodes,
            name_max: 255,
            ..Statistics::default()
        }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn pass(&self) -> Box<dyn Pass + '_> {
        Box::new(EveryNode::new(self))
    }
}

fn unsorted(name: &[u8]) -> Loss {
    let name = String::from_utf8_lossy(name);
    Loss::damage(format!("its names are not sorted: {name:?} comes twice, or before one that sorts ahead"))
}

pub(super) fn is_compressed(inode: &Inode) -> bool {
    matches!(inode.layout, DataLayout::CompressedFull | DataLayout::CompressedCompact)
}

fn check_length(inode: &Inode) -> Result<(), VolumeError> {
    match i64::try_from(inode.size) {
        Ok(_) => Ok(()),
        Err(_) => Err(damaged(format!("its size is {} bytes", inode.size))),
    }
}

/// Refuses what is larger than the image: a directory, and a map of chunks.
fn check_size(inode: &Inode, parameters: &Parameters, size: u64) -> Result<(), VolumeError> {
    check_length(inode)?;
    if inode.file_type == FileType::Directory && inode.size > size {
        return Err(damaged(format!("a directory of {} bytes is larger than the image", inode.size)));
    }
    match map_size(inode, parameters) {
        Some(map) if map <= size => Ok(()),
        _ => Err(damaged(format!("a file of {} bytes has a map larger than the image", inode.size))),
    }
}

fn packed_inode(pages: &Pages, parameters: &Parameters, nid: u64) -> Result<Packed, VolumeError> {
    let inode = Inode::read(pages, parameters, nid)?;
    if inode.file_type != FileType::Regular {
        return Err(damaged(format!("its mode is {:#o}, not a file's", inode.mode)));
    }
    if is_compressed(&inode) {
        return Compressed::read(pages, parameters, &inode).map(Packed::Compressed);
    }
    check_size(&inode, parameters, pages.size())?;
    let mut found = Vec::new();
    extents(pages, parameters, &inode, 0..inode.size, &mut found)?;
    Ok(Packed::Plain(found))
}

/// Reads the list of prefixes of attributes' names: records of a length of two bytes and as many bytes, each at a
/// multiple of four.
fn read_prefixes(
    image: &Image,
    parameters: &Parameters,
    packed: Option<&Packed>,
) -> Result<Vec<LongPrefix>, VolumeError> {
    let store = packed.filter(|_| !parameters.prefixes_plain);
    let store = store.map(|packed| Store::new(image.clone(), Some(packed.clone())));
    let read = |at: u64, out: &mut [u8]| match &store {
        Some(store) => store.read_packed(at, out),
        None => image.read(at, out),
    };
    let mut prefixes = Vec::new();
    let mut at = parameters.prefixes_start;
    for _ in 0..parameters.prefix_count {
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
