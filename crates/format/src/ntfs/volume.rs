//! An NTFS volume.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use inarch_block::{Backing, Cursor};
use inarch_tree::{DataRange, Extent, FileType, Timestamp, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pages, Pass, Statistics, Volume, VolumeError, next_data};

use super::compressed::{Units, data_ranges, decode, is_compressed, unit_size};
use super::geometry::Geometry;
use super::index::{FileName, Index, Seen};
use super::inode::{Inode, Stream, Value};
use super::kinds::{Kind, kind_of};
use super::mft::Mft;
use super::names::{Upcase, from_bytes, to_bytes, units};
use super::pass::EveryNode;
use super::spec::{NUMBER, kind, record, u32_at, u64_at};
use super::system::Chunks;
use super::{NAME, about, damaged, unreadable};
use crate::bitmap::zeros;
use crate::{Damage, ReadError};

/// Pages of metadata that are kept: 4 MiB.
const PAGES: usize = 1024;
/// The most bytes of `$UpCase`: all units of UTF-16.
const UPCASE_BYTES: u64 = 2 << 16;
/// The most bytes of `$Bitmap` that are counted: those of a volume of 2 TiB with clusters of 4 KiB.
const BITMAP_BYTES: u64 = 64 << 20;
/// Seconds from 1601, where times begin, to 1970; and units of time in a second.
const EPOCH: i64 = 11_644_473_600;
const SECOND: i64 = 10_000_000;

/// A file system.
pub(super) struct NtfsVolume {
    pub(super) mft: Mft,
    upcase: OnceLock<Upcase>,
    /// Free clusters, once they were counted.
    free: OnceLock<u64>,
    /// Free records of the MFT.
    free_records: OnceLock<u64>,
    units: Units,
    backings: [Arc<dyn Backing>; 1],
    notes: Vec<String>,
}

/// What `$STANDARD_INFORMATION` has.
pub(super) struct Standard {
    created: Timestamp,
    modified: Timestamp,
    changed: Timestamp,
    accessed: Timestamp,
    flags: u32,
}

/// A file, as far as its own records tell of it.
pub(super) struct Known {
    standard: Standard,
    pub(super) kind: Kind,
    /// The content of a regular file.
    pub(super) data: Option<Stream>,
}

/// The content of a regular file.
pub(super) enum Content {
    Nothing,
    /// As it is: small, or in clusters.
    Small(Stream),
    Plain(Stream),
    /// By LZNT1.
    Compressed(Stream),
    /// By Windows's system compression.
    System(Chunks, u64),
}

impl Content {
    /// Bytes.
    fn size(&self) -> u64 {
        match self {
            Content::Nothing => 0,
            Content::Small(stream) | Content::Plain(stream) | Content::Compressed(stream) => stream.size(),
            Content::System(_, size) => *size,
        }
    }
}

/// The node of a reference. The root has one node alone.
pub(super) fn node_of(reference: u64) -> Node {
    Node(if reference & NUMBER == record::ROOT { record::ROOT } else { reference })
}

impl NtfsVolume {
    /// Reads and checks the boot sector, the MFT's own record, the root, and the volume's state.
    pub(super) fn open(backing: Arc<dyn Backing>, damage: Damage) -> Result<NtfsVolume, ReadError> {
        let mut notes = Vec::new();
        let pages = || Pages::new(Arc::clone(&backing), PAGES);
        let geometry = Geometry::read(&pages(), damage, &mut notes)?;
        let mft = match Mft::open(pages(), geometry, geometry.mft) {
            Err(VolumeError::Damaged(reason)) => {
                notes.push(damage.or_refuse(NAME, format!("the MFT: {reason}; its copy is used"))?);
                Mft::open(pages(), geometry, geometry.mirror)
            }
            opened => opened,
        };
        let mft = mft.map_err(|error| unreadable(about("the MFT", error)))?;
        let units = Units::default();
        let mut volume = NtfsVolume {
            mft,
            upcase: OnceLock::new(),
            free: OnceLock::new(),
            free_records: OnceLock::new(),
            units,
            backings: [backing],
            notes,
        };
        let found = volume.look_around().map_err(|error| unreadable(error).into_damage())?;
        volume.notes.extend(found);
        Ok(volume)
    }

    fn look_around(&self) -> Result<Vec<String>, VolumeError> {
        let root = self.inode(self.root_node()).map_err(|error| about("/", error))?;
        if !root.base.is_directory() {
            return Err(damaged("the root is not a directory"));
        }
        Index::open(&self.mft, &root).map_err(|error| about("/", error))?;
        self.state().map_err(|error| about("$Volume", error))
    }

    pub(super) fn root_node(&self) -> Node {
        Node(record::ROOT)
    }

    pub(super) fn inode(&self, node: Node) -> Result<Inode, VolumeError> {
        let (number, sequence) = (node.0 & NUMBER, node.0 >> 48);
        let base = self.mft.record(number)?;
        if sequence != 0 && sequence != u64::from(base.sequence()) {
            return Err(damaged(format!("MFT record {number} belongs to another file by now")));
        }
        Inode::new(&self.mft, base).map_err(|error| about(&format!("MFT record {number}"), error))
    }

    /// The table of capital letters, read when it is wanted first.
    pub(super) fn upcase(&self) -> Result<&Upcase, VolumeError> {
        if let Some(upcase) = self.upcase.get() {
            return Ok(upcase);
        }
        let inode = self.inode(Node(record::UPCASE))?;
        let bytes = inode.bytes(&self.mft, kind::DATA, &[], UPCASE_BYTES).map_err(|error| about("$UpCase", error))?;
        let upcase = Upcase::new(&bytes.ok_or_else(|| damaged("$UpCase is empty"))?);
        Ok(self.upcase.get_or_init(|| upcase))
    }

    /// How many clusters are free, by `$Bitmap`.
    fn count_free(&self) -> Result<u64, VolumeError> {
        let inode = self.inode(Node(record::BITMAP))?;
        let bytes = inode.bytes(&self.mft, kind::DATA, &[], BITMAP_BYTES)?;
        Ok(zeros(&bytes.unwrap_or_default(), self.mft.geometry.clusters))
    }

    /// How many records of the MFT are free, by its bitmap.
    fn count_free_records(&self) -> Result<u64, VolumeError> {
        let inode = self.inode(Node(record::MFT))?;
        let bytes = inode.bytes(&self.mft, kind::BITMAP, &[], BITMAP_BYTES)?;
        Ok(zeros(&bytes.unwrap_or_default(), self.mft.count()))
    }

    fn standard(&self, inode: &Inode) -> Result<Standard, VolumeError> {
        let mut found = None;
        inode.each(&self.mft, kind::STANDARD_INFORMATION, &mut |attribute| {
            found = attribute.resident().and_then(|bytes| {
                let time = |at| u64_at(bytes, at).map(timestamp);
                let (created, modified, changed, accessed) = (time(0)?, time(8)?, time(16)?, time(24)?);
                Some(Standard { created, modified, changed, accessed, flags: u32_at(bytes, 32)? })
            });
            Ok(false)
        })?;
        found.ok_or_else(|| damaged(format!("MFT record {} has no $STANDARD_INFORMATION", inode.base.number)))
    }

    pub(super) fn known(&self, inode: &Inode) -> Result<Known, VolumeError> {
        let standard = self.standard(inode)?;
        let data = match inode.base.is_directory() {
            true => None,
            false => inode.stream(&self.mft, kind::DATA, &[])?,
        };
        let kind = match kind_of(&self.mft, inode, standard.flags, data.as_ref())? {
            // A file without content has none elsewhere.
            Kind::Elsewhere(_) | Kind::System(_) if data.as_ref().is_none_or(|data| data.size() == 0) => Kind::File,
            kind => kind,
        };
        Ok(Known { standard, kind, data })
    }

    pub(super) fn kind(&self, inode: &Inode) -> Result<Kind, VolumeError> {
        self.known(inode).map(|known| known.kind)
    }

    /// The attributes, but for the size of a symbolic link.
    pub(super) fn attributes_of(&self, inode: &Inode, known: &Known) -> Result<Attributes, VolumeError> {
        let (mode, device) = match known.kind {
            Kind::Directory => (FileType::Directory.mode_bits() | 0o755, (0, 0)),
            Kind::File | Kind::System(_) | Kind::Elsewhere(_) => (FileType::Regular.mode_bits() | 0o644, (0, 0)),
            Kind::Symlink(_) => (FileType::Symlink.mode_bits() | 0o777, (0, 0)),
            Kind::Special(file_type, device) => (file_type.mode_bits() | 0o644, device),
        };
        let is_file = matches!(known.kind, Kind::File | Kind::System(_) | Kind::Elsewhere(_));
        let data = known.data.as_ref().filter(|_| is_file);
        let mut links = 0u32;
        inode.each(&self.mft, kind::FILE_NAME, &mut |attribute| {
            let is_long = attribute.resident().and_then(FileName::parse).is_some_and(|name| !name.is_short());
            links = links.saturating_add(u32::from(is_long));
            Ok(true)
        })?;
        Ok(Attributes {
            inode: inode.base.number,
            generation: inode.base.sequence().into(),
            mode,
            // Of a directory, 1 says that its subdirectories are not counted, which find(1) knows.
            links: if known.kind == Kind::Directory { 1 } else { links.max(1) },
            uid: 0,
            gid: 0,
            size: data.map_or(0, Stream::size),
            allocated: data.map_or(0, |data| match &data.value {
                // Programs take a file without blocks for a hole.
                Value::Resident(bytes) => bytes.len() as u64,
                Value::Mapped(mapped) if matches!(known.kind, Kind::System(_)) => mapped.size,
                Value::Mapped(mapped) => mapped.stored,
            }),
            device,
            atime: Some(known.standard.accessed),
            mtime: known.standard.modified,
            ctime: known.standard.changed,
            birth: Some(known.standard.created),
        })
    }

    fn directory(&self, node: Node) -> Result<Inode, VolumeError> {
        let inode = self.inode(node)?;
        match inode.base.is_directory() && self.kind(&inode)? == Kind::Directory {
            true => Ok(inode),
            false => Err(VolumeError::WrongType),
        }
    }

    /// The content of a regular file.
    pub(super) fn content_of(&self, inode: &Inode, known: Known) -> Result<Content, VolumeError> {
        let data = known.data.filter(|data| data.size() > 0);
        Ok(match (known.kind, data) {
            (Kind::File | Kind::System(_), None) => Content::Nothing,
            (Kind::System(bits), Some(data)) => {
                Content::System(Chunks::open(&self.mft, inode, data.size(), bits)?, data.size())
            }
            (Kind::File, Some(data)) => match is_compressed(&data)? {
                true => Content::Compressed(data),
                false if matches!(data.value, Value::Resident(_)) => Content::Small(data),
                false => Content::Plain(data),
            },
            (Kind::Elsewhere(reason), _) => return Err(VolumeError::Unsupported(reason)),
            _ => return Err(VolumeError::WrongType),
        })
    }

    fn file(&self, node: Node) -> Result<(Inode, Content), VolumeError> {
        let inode = self.inode(node)?;
        let known = self.known(&inode)?;
        let content = self.content_of(&inode, known)?;
        Ok((inode, content))
    }

    /// The directory that has the first name of a file.
    pub(super) fn parent_of(&self, inode: &Inode) -> Result<Option<Node>, VolumeError> {
        if inode.base.number == record::ROOT {
            return Ok(Some(self.root_node()));
        }
        let mut found = None;
        inode.each(&self.mft, kind::FILE_NAME, &mut |attribute| {
            found = attribute.resident().and_then(FileName::parse).map(|name| node_of(name.parent));
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// Puts a range of a file, which ends within it, into `out`.
    fn read_content(
        &self,
        inode: &Inode,
        content: &Content,
        range: Range<u64>,
        out: &mut Cursor<'_, '_>,
    ) -> Result<(), VolumeError> {
        let [image] = &self.backings;
        let (mft, file) = (&self.mft, inode.base.reference());
        let mut take = |bytes: &[u8]| out.copy_from(bytes);
        match content {
            Content::Nothing => Ok(()),
            Content::Small(stream) => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                inode.read(mft, stream, range.start, &mut bytes)?;
                take(&bytes);
                Ok(())
            }
            Content::Compressed(stream) => {
                let unit = unit_size(mft, stream)?;
                self.units.read(file, unit, range, &|number| decode(mft, inode, stream, number, unit), &mut take)
            }
            Content::System(chunks, _) => {
                self.units.read(file, chunks.chunk(), range, &|number| chunks.decode(mft, inode, number), &mut take)
            }
            Content::Plain(stream) => {
                let (mut found, mut at) = (Vec::new(), range.start);
                inode.extents(mft, stream, range.clone(), &mut found)?;
                for extent in found {
                    out.fill_zeros(extent.offset - at);
                    let read = image.read(extent.at, extent.length, out);
                    read.map_err(|error| VolumeError::Io { offset: extent.at, error })?;
                    at = extent.offset + extent.length;
                }
                out.fill_zeros(range.end - at);
                Ok(())
            }
        }
    }
}

/// A time in units of 100 ns since 1601.
fn timestamp(time: u64) -> Timestamp {
    let time = time as i64;
    let nanoseconds = time.rem_euclid(SECOND) as u32 * 100;
    Timestamp { seconds: time.div_euclid(SECOND) - EPOCH, nanoseconds }
}

impl Volume for NtfsVolume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        self.root_node()
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        let inode = self.inode(node)?;
        let known = self.known(&inode)?;
        let mut attributes = self.attributes_of(&inode, &known)?;
        if let Kind::Symlink(target) = &known.kind {
            attributes.size = self.target_of(node, target)?.len() as u64;
        }
        Ok(attributes)
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        let inode = self.directory(directory)?;
        let Some(name) = from_bytes(name) else { return Ok(None) };
        let found = Index::open(&self.mft, &inode)?.find(self.upcase()?, &name, true)?;
        Ok(found.filter(|found| !found.is_short).map(|found| node_of(found.reference)))
    }

    fn ignores_case(&self, _directory: Node) -> bool {
        true
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        let inode = self.directory(directory)?;
        Index::open(&self.mft, &inode)?.each(from, &mut |seen, next| match seen {
            Seen::Name(name, reference) => {
                take(Item::entry(&to_bytes(units(name.name)), node_of(reference), name.file_type(), next))
            }
            Seen::Lost(loss) => take(Item::Lost(loss)),
        })
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        self.parent_of(&self.directory(directory)?)
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        match self.kind(&self.inode(symlink)?)? {
            Kind::Symlink(target) => self.target_of(symlink, &target),
            _ => Err(VolumeError::WrongType),
        }
    }

    fn xattrs(&self, node: Node, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        self.xattrs_of(&self.inode(node)?, lost)
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let (inode, content) = self.file(file)?;
        let end = offset.saturating_add(count).min(content.size());
        let within = end.saturating_sub(offset);
        if within > 0 {
            self.read_content(&inode, &content, offset..end, out)?;
        }
        out.fill_zeros(count - within);
        Ok(())
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        let (inode, content) = self.file(file)?;
        let mut found = Vec::new();
        match content {
            Content::Small(_) | Content::Compressed(_) | Content::System(..) => return Ok(None),
            Content::Nothing => {}
            Content::Plain(stream) => {
                inode.extents(&self.mft, &stream, offset..offset.saturating_add(count), &mut found)?;
            }
        }
        Ok(Some(found))
    }

    fn data(&self, file: Node, offset: u64) -> Result<Option<DataRange>, VolumeError> {
        let (inode, content) = self.file(file)?;
        let size = content.size();
        if offset >= size {
            return Ok(None);
        }
        match content {
            Content::Nothing | Content::Small(_) | Content::System(..) => {
                Ok(Some(DataRange { offset: 0, length: size }))
            }
            Content::Compressed(stream) => {
                let mut ranges = Vec::new();
                data_ranges(&self.mft, &inode, &stream, offset, &mut ranges)?;
                Ok(next_data(ranges.iter().map(|range| (range.offset, range.length)), offset))
            }
            Content::Plain(stream) => {
                let mut found = Vec::new();
                inode.extents(&self.mft, &stream, offset..size, &mut found)?;
                Ok(next_data(found.iter().map(|extent| (extent.offset, extent.length)), offset))
            }
        }
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &self.backings
    }

    fn block_size(&self) -> u32 {
        self.mft.geometry.cluster() as u32
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            block_size: self.block_size(),
            blocks: self.mft.geometry.clusters,
            free_blocks: *self.free.get_or_init(|| self.count_free().unwrap_or(0)),
            reserved_blocks: 0,
            inodes: self.mft.count(),
            free_inodes: *self.free_records.get_or_init(|| self.count_free_records().unwrap_or(0)),
            name_max: 255,
        }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn pass(&self) -> Box<dyn Pass + '_> {
        Box::new(EveryNode::new(self))
    }
}
