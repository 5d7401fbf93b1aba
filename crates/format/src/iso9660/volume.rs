//! An ISO 9660 image as a volume.

use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_tree::{Extent, FileType, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pages, Pass, Statistics, Volume, VolumeError};

use super::descriptors::Descriptors;
use super::listing::{Found, Names, each, sections};
use super::pass::EveryNode;
use super::record::Record;
use super::rock::{Rock, skipped};
use super::{NAME, damaged};
use crate::region::{Region, find};

/// Pages of metadata that are kept: 4 MiB.
const PAGES: usize = 1024;

/// An ISO 9660 file system.
pub(super) struct IsoVolume {
    pub(super) pages: Pages,
    pub(super) names: Names,
    descriptors: Descriptors,
    root: Node,
    backings: [Arc<dyn Backing>; 1],
}

/// A node, as its records say.
pub(super) struct Held {
    record: Record,
    rock: Rock,
    pub(super) attributes: Attributes,
    /// Where a regular file's bytes are.
    region: Region,
    /// Why its content is not read.
    unread: Option<&'static str>,
}

impl IsoVolume {
    pub(super) fn open(image: Arc<dyn Backing>) -> Result<IsoVolume, VolumeError> {
        let pages = Pages::new(Arc::clone(&image), PAGES);
        let descriptors = Descriptors::read(&pages)?;
        let first = Record::read(&pages, descriptors.root)?.filter(Record::is_self);
        let rock = first.as_ref().and_then(skipped);
        let (names, root) = match (rock, descriptors.joliet) {
            (Some(skip), _) => (Names::Rock(skip), descriptors.root),
            (None, Some(joliet)) => (Names::Joliet, joliet),
            (None, None) => (Names::Plain, descriptors.root),
        };
        let volume = IsoVolume { pages, names, descriptors, root: Node(root), backings: [image] };
        volume.directory(volume.root).map_err(|error| match error {
            VolumeError::Damaged(reason) => damaged(format!("its root {reason}")),
            VolumeError::WrongType => damaged("its root is no directory"),
            error => error,
        })?;
        Ok(volume)
    }

    /// Bytes of a block.
    pub(super) fn block(&self) -> u64 {
        self.descriptors.block
    }

    /// A record's fields of Rock Ridge.
    pub(super) fn rock(&self, record: &Record) -> Result<Rock, VolumeError> {
        let Names::Rock(skip) = self.names else { return Ok(Rock::default()) };
        // The root's area begins with the field that says how much others skip.
        let skip = if record.at == self.root.0 { skip.root } else { skip.others };
        Rock::read(&self.pages, record, skip, self.block())
    }

    /// The node of a record in a directory.
    pub(super) fn node_of(&self, record: &Record, rock: &Rock) -> u64 {
        match rock.child {
            Some(block) => u64::from(block) * self.block(),
            None if record.is_directory() => record.content(self.block()),
            None => record.at,
        }
    }

    /// The record at a node.
    fn record(&self, node: Node) -> Result<Record, VolumeError> {
        let record = Record::read(&self.pages, node.0)?;
        let record = record.filter(|record| record.is_self() || !record.is_directory());
        record.ok_or_else(|| damaged(format!("has no record at byte {}", node.0)))
    }

    pub(super) fn directory(&self, node: Node) -> Result<Record, VolumeError> {
        let record = self.record(node)?;
        if !record.is_directory() {
            return Err(VolumeError::WrongType);
        }
        match record.content(self.block()) == node.0 && self.pages.holds(node.0, record.size()) {
            true => Ok(record),
            false => Err(damaged(format!("at byte {} is not where its record says, or not in the image", node.0))),
        }
    }

    pub(super) fn held(&self, node: Node) -> Result<Held, VolumeError> {
        let record = self.record(node)?;
        let rock = self.rock(&record)?;
        let file_type = match (record.is_directory(), rock.posix) {
            (true, _) => FileType::Directory,
            (false, Some(posix)) => match FileType::from_mode(posix.mode) {
                Some(FileType::Directory) | None => {
                    return Err(damaged(format!("has the mode {:#o} and is no directory", posix.mode)));
                }
                Some(file_type) => file_type,
            },
            (false, None) => FileType::Regular,
        };
        let mut held =
            Held { record, rock, attributes: Attributes::default(), region: Region::default(), unread: None };
        if file_type == FileType::Regular {
            self.place(&mut held)?;
        }
        held.attributes = attributes(node, file_type, &held);
        Ok(held)
    }

    /// Finds a regular file's bytes.
    fn place(&self, held: &mut Held) -> Result<(), VolumeError> {
        let Some(first) = Record::read(&self.pages, held.record.at)? else { return Err(damaged("is not there")) };
        for section in sections(self, first)? {
            let (at, size) = (section.content(self.block()), section.size());
            if section.is_interleaved() {
                held.unread = Some("is interleaved with other files, which is not read");
            }
            let there = size.min(self.pages.size().saturating_sub(at));
            if held.region.flaw().is_none() {
                held.region.push(at, there);
            }
            if there < size && held.region.flaw().is_none() {
                held.region.end_early(format!("has {size} bytes at byte {at}, beyond the image's end"));
            }
            held.attributes.size += size;
        }
        if let Some(bytes) = held.rock.zisofs {
            held.attributes.size = bytes.into();
            held.unread = Some("is compressed by zisofs, which is not read");
        }
        if held.rock.is_sparse {
            held.unread = Some("is sparse in the way of Rock Ridge, which is not read");
        }
        Ok(())
    }

    fn file(&self, node: Node) -> Result<Held, VolumeError> {
        let held = self.held(node)?;
        match (held.attributes.file_type(), held.unread) {
            (Some(FileType::Regular), None) => Ok(held),
            (Some(FileType::Regular), Some(reason)) => Err(VolumeError::Unsupported(reason.to_owned())),
            _ => Err(VolumeError::WrongType),
        }
    }

    pub(super) fn extents_of(&self, held: &Held, offset: u64, count: u64) -> Result<Vec<Extent>, VolumeError> {
        match held.unread {
            Some(reason) => Err(VolumeError::Unsupported(reason.to_owned())),
            None => held.region.extents(offset..offset.saturating_add(count), held.attributes.size),
        }
    }

    /// What is in a directory, from byte `from` of it on.
    pub(super) fn entries(
        &self,
        directory: Node,
        from: u64,
        take: &mut dyn FnMut(Result<Found, Loss>) -> bool,
    ) -> Result<(), VolumeError> {
        each(self, &self.directory(directory)?, from, take)
    }
}

impl Held {
    /// What a symbolic link points at.
    pub(super) fn target(&self) -> Result<&[u8], VolumeError> {
        match self.rock.bad_target || self.rock.target.is_empty() || self.rock.target.contains(&0) {
            true => Err(damaged("is a symlink whose target is not 1 to 4095 bytes without NUL")),
            false => Ok(&self.rock.target),
        }
    }

    /// Bytes of metadata beyond its records.
    pub(super) fn cost(&self) -> u64 {
        self.rock.cost + self.region.pieces() as u64 * 64
    }
}

fn attributes(node: Node, file_type: FileType, held: &Held) -> Attributes {
    let (record, rock) = (&held.record, &held.rock);
    let usual = if file_type == FileType::Directory { 0o755 } else { 0o644 };
    let mode = rock.posix.map_or(usual, |posix| posix.mode & 0o7777) | file_type.mode_bits();
    let mtime = rock.modified.unwrap_or_else(|| record.time());
    let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    let size = if file_type == FileType::Symlink { rock.target.len() as u64 } else { held.attributes.size };
    Attributes {
        inode: node.0,
        generation: 0,
        mode,
        links: rock.posix.map_or(1, |posix| posix.links),
        uid: rock.posix.map_or(0, |posix| posix.uid),
        gid: rock.posix.map_or(0, |posix| posix.gid),
        size,
        allocated: held.region.bytes(),
        device: if is_device { rock.device } else { (0, 0) },
        atime: rock.accessed,
        mtime,
        ctime: rock.changed.unwrap_or(mtime),
        birth: rock.created,
    }
}

/// An entry, for the trait's callers.
pub(super) fn give(found: &Result<Found, Loss>, take: &mut dyn FnMut(Item<'_>) -> bool) -> bool {
    match found {
        Ok(found) => {
            let file_type = found.is_directory.then_some(FileType::Directory);
            let told = found.shown.note().is_none_or(|note| take(Item::Lost(note)));
            told && take(Item::entry(&found.shown.name, Node(found.node), file_type, found.next))
        }
        Err(loss) => take(Item::Lost(loss.clone())),
    }
}

impl Volume for IsoVolume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        self.root
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        Ok(self.held(node)?.attributes)
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        find(name, |take| {
            self.entries(directory, 0, &mut |found| {
                take(found.as_ref().map(|found| (&*found.shown.name, Node(found.node))).map_err(Loss::clone))
            })
        })
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        self.entries(directory, from, &mut |found| give(&found, take))
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        let record = self.directory(directory)?;
        if directory == self.root {
            return Ok(Some(directory));
        }
        let parent = record.after(&self.pages)?.filter(Record::is_parent);
        let parent = parent.ok_or_else(|| damaged("has no record of its parent"))?;
        let moved_from = self.rock(&parent)?.parent;
        let place = moved_from.map_or(parent.content(self.block()), |block| u64::from(block) * self.block());
        Ok(Some(Node(place)))
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        let held = self.held(symlink)?;
        match held.attributes.file_type() {
            Some(FileType::Symlink) => held.target().map(<[u8]>::to_vec),
            _ => Err(VolumeError::WrongType),
        }
    }

    fn xattrs(&self, node: Node, _: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        self.record(node).map(|_| Vec::new())
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let held = self.file(file)?;
        held.region.read(&**self.pages.backing(), held.attributes.size, offset, count, out)
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        self.extents_of(&self.file(file)?, offset, count).map(Some)
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &self.backings
    }

    fn block_size(&self) -> u32 {
        self.block() as u32
    }

    fn statistics(&self) -> Statistics {
        let name_max = match self.names {
            Names::Rock(_) => 255,
            Names::Joliet => 110 * 3,
            Names::Plain => 222,
        };
        Statistics { block_size: self.block_size(), blocks: self.descriptors.blocks, name_max, ..Statistics::default() }
    }

    fn notes(&self) -> Vec<String> {
        let udf = "it has a UDF file system as well, which is not read and may have other files";
        self.descriptors.has_udf.then(|| udf.to_owned()).into_iter().collect()
    }

    fn pass(&self) -> Box<dyn Pass + '_> {
        Box::new(EveryNode::new(self))
    }
}
