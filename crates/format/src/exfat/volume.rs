//! An exFAT as a volume.

use std::sync::{Arc, OnceLock};

use inarch_block::{Backing, Cursor};
use inarch_tree::{Extent, FileType, Timestamp, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pages, Pass, Statistics, Volume, VolumeError};

use super::boot::Parameters;
use super::entry::{ENTRY, FILE, FileEntry, STREAM, StreamEntry};
use super::listing::{Found, each};
use super::pass::EveryNode;
use super::{NAME, damaged};
use crate::bitmap::zeros;
use crate::fat::chains::Chains;
use crate::region::{Region, find};
use crate::{Damage, ReadError};

/// Pages of directories that are kept: 1 MiB.
const PAGES: usize = 256;
/// The type of the entry of an allocation bitmap (exFAT specification, section 7.1).
const BITMAP: u8 = 0x81;
/// The root, which has no entry.
const ROOT: Node = Node(1);
/// The most bytes of a name: 255 units of UTF-16.
const NAME_MAX: u32 = 255 * 3;

/// An exFAT file system.
pub(super) struct ExfatVolume {
    pages: Pages,
    pub(super) chains: Chains,
    root: u32,
    backings: [Arc<dyn Backing>; 1],
    notes: Vec<String>,
    /// Free clusters, once they were counted.
    free: OnceLock<u64>,
}

/// A file or directory.
pub(super) enum Held {
    /// The root directory.
    Root,
    /// What a set of entries says.
    Entry(FileEntry, StreamEntry),
}

/// A node: the number of an entry, and whether its directory's clusters follow one another, so that the table does not say
/// where the entries after it are.
fn node_of(number: u64, is_contiguous: bool) -> Node {
    Node(number << 1 | u64::from(is_contiguous))
}

impl ExfatVolume {
    pub(super) fn open(image: Arc<dyn Backing>, damage: Damage) -> Result<ExfatVolume, ReadError> {
        let pages = Pages::new(Arc::clone(&image), PAGES);
        let Parameters { area, root, notes } = Parameters::read(&pages, damage)?;
        let chains = Chains::new(Arc::clone(&image), area);
        let volume = ExfatVolume { pages, chains, root, backings: [image], notes, free: OnceLock::new() };
        let (directory, _) = volume.directory(ROOT).map_err(|error| ReadError::of_volume(NAME, error))?;
        match directory.flaw() {
            Some(flaw) if directory.bytes() == 0 => {
                Err(ReadError::of_volume(NAME, damaged(format!("its root {flaw}"))))
            }
            _ => Ok(volume),
        }
    }

    pub(super) fn held(&self, node: Node) -> Result<Held, VolumeError> {
        if node == ROOT {
            return Ok(Held::Root);
        }
        let none = || damaged(format!("{} is no entry's place", node.0));
        let at = (node.0 >> 1).checked_mul(ENTRY as u64).ok_or_else(none)?;
        let cluster = self.chains.cluster_at(at).ok_or_else(none)?;
        let file = FileEntry::read(&self.pages.array(at)?);
        let after = at + ENTRY as u64;
        let second = match self.chains.cluster_at(after) == Some(cluster) || node.0 & 1 == 1 {
            true => Some(after),
            false => self.chains.after(cluster)?,
        };
        let second = second.ok_or_else(|| damaged("has its second entry nowhere"))?;
        let stream = StreamEntry::read(&self.pages.array(second)?);
        match (file.kind, stream.kind) {
            (FILE, STREAM) => Ok(Held::Entry(file, stream)),
            _ => Err(damaged(format!("at byte {at} is no file's entry"))),
        }
    }

    /// How many clusters are free, by the first allocation bitmap that the root has.
    fn count_free(&self) -> Result<u64, VolumeError> {
        let mut place = None;
        self.chains.region(self.root, None)?.each::<ENTRY>(&self.pages, 0, &mut |_, _, entry| {
            if let [BITMAP, 0, rest @ ..] = entry
                && let (Some(first), Some(length)) = (rest.get(18..).and_then(<[u8]>::first_chunk), rest.last_chunk())
            {
                place = Some((u32::from_le_bytes(*first), u64::from_le_bytes(*length)));
            }
            place.is_none() && entry[0] != 0
        })?;
        let Some((first, length)) = place else { return Ok(0) };
        let region = self.chains.region(first, Some(self.chains.clusters_of(length)))?;
        let clusters = u64::from(self.chains.area().clusters);
        let mut free = 0;
        region.each::<ENTRY>(&self.pages, 0, &mut |offset, _, piece| {
            free += zeros(piece, clusters.saturating_sub(offset.saturating_mul(8)));
            offset.saturating_mul(8) < clusters
        })?;
        Ok(free)
    }

    /// The clusters of a file or directory, and whether they follow one another.
    pub(super) fn region(&self, stream: &StreamEntry) -> Result<Arc<Region>, VolumeError> {
        let first = stream.first.get();
        match (self.chains.clusters_of(stream.length()), stream.is_contiguous()) {
            (0, _) => Ok(Arc::default()),
            (clusters, true) => Ok(Arc::new(self.chains.contiguous(first, clusters))),
            (clusters, false) => self.chains.region(first, Some(clusters)),
        }
    }

    /// Where a directory's entries are, and whether its clusters follow one another.
    pub(super) fn directory(&self, node: Node) -> Result<(Arc<Region>, bool), VolumeError> {
        match self.held(node)? {
            Held::Root => Ok((self.chains.region(self.root, None)?, false)),
            Held::Entry(file, stream) if file.is_directory() => Ok((self.region(&stream)?, stream.is_contiguous())),
            Held::Entry(..) => Err(VolumeError::WrongType),
        }
    }

    fn file(&self, node: Node) -> Result<StreamEntry, VolumeError> {
        match self.held(node)? {
            Held::Entry(file, stream) if !file.is_directory() => Ok(stream),
            _ => Err(VolumeError::WrongType),
        }
    }

    pub(super) fn attributes_of(&self, node: Node, held: &Held) -> Result<Attributes, VolumeError> {
        let Held::Entry(file, stream) = held else {
            let epoch = Timestamp { seconds: 0, nanoseconds: 0 };
            return Ok(Attributes {
                inode: ROOT.0,
                mode: 0o040_755,
                links: 2,
                mtime: epoch,
                ctime: epoch,
                ..Attributes::default()
            });
        };
        if i64::try_from(stream.length()).is_err() {
            return Err(damaged(format!("has {} bytes, more than a file can have", stream.length())));
        }
        let (mode, size, links) = match (file.is_directory(), file.is_read_only()) {
            (true, _) => (0o040_755, 0, 2),
            (false, true) => (0o100_444, stream.length(), 1),
            (false, false) => (0o100_644, stream.length(), 1),
        };
        Ok(Attributes {
            inode: node.0 >> 1,
            mode,
            links,
            size,
            allocated: self.chains.clusters_of(size).saturating_mul(self.chains.area().cluster),
            atime: Some(file.read_at()),
            mtime: file.written(),
            ctime: file.written(),
            birth: Some(file.created()),
            ..Attributes::default()
        })
    }

    /// What is in a directory, from its entry `from` on, each with its node.
    pub(super) fn entries(
        &self,
        directory: Node,
        from: u64,
        take: &mut dyn FnMut(Result<(Found, Node), Loss>) -> bool,
    ) -> Result<(), VolumeError> {
        let (region, is_contiguous) = self.directory(directory)?;
        each(&self.pages, &region, from, &mut |found| {
            take(found.map(|found| {
                let node = node_of(found.number, is_contiguous);
                (found, node)
            }))
        })
    }
}

/// An entry, for the trait's callers.
pub(super) fn give(found: Result<(Found, Node), Loss>, take: &mut dyn FnMut(Item<'_>) -> bool) -> bool {
    match found {
        Ok((found, node)) => {
            let file_type = if found.file.is_directory() { FileType::Directory } else { FileType::Regular };
            let told = found.shown.note().is_none_or(|note| take(Item::Lost(note)));
            told && take(Item::entry(&found.shown.name, node, Some(file_type), found.next))
        }
        Err(loss) => take(Item::Lost(loss)),
    }
}

impl Volume for ExfatVolume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        ROOT
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        self.attributes_of(node, &self.held(node)?)
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        find(name, |take| {
            self.entries(directory, 0, &mut |found| {
                take(found.as_ref().map(|(found, node)| (&*found.shown.name, *node)).map_err(Loss::clone))
            })
        })
    }

    fn ignores_case(&self, _directory: Node) -> bool {
        true
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        self.entries(directory, from, &mut |found| give(found, take))
    }

    /// Only the root's: a directory does not say where its parent is.
    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        self.directory(directory)?;
        Ok((directory == ROOT).then_some(ROOT))
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        self.held(symlink)?;
        Err(VolumeError::WrongType)
    }

    fn xattrs(&self, node: Node, _: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        self.held(node).map(|_| Vec::new())
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let stream = self.file(file)?;
        self.region(&stream)?.read(&**self.pages.backing(), stream.valid(), offset, count, out)
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        let stream = self.file(file)?;
        self.region(&stream)?.extents(offset..offset.saturating_add(count), stream.valid()).map(Some)
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &self.backings
    }

    fn block_size(&self) -> u32 {
        self.chains.area().cluster as u32
    }

    fn statistics(&self) -> Statistics {
        let area = self.chains.area();
        Statistics {
            block_size: self.block_size(),
            blocks: area.clusters.into(),
            free_blocks: *self.free.get_or_init(|| self.count_free().unwrap_or(0)),
            name_max: NAME_MAX,
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
