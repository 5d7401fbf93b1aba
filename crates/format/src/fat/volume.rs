//! A FAT as a volume.

use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_tree::{Extent, FileType, Timestamp, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pages, Pass, Statistics, Volume, VolumeError};

use super::boot::{Parameters, Root};
use super::chains::{Chains, Width};
use super::entry::{ENTRY, Entry};
use super::listing::{Found, each};
use super::pass::EveryNode;
use super::{NAME, damaged};
use crate::region::{Region, find};
use crate::{Damage, ReadError};

/// Pages of directories that are kept: 1 MiB.
const PAGES: usize = 256;
/// The root, which has no entry. No entry can be in the boot sector.
const ROOT: Node = Node(1);
/// The most bytes of a name: 255 units of UTF-16.
const NAME_MAX: u32 = 255 * 3;

/// A FAT file system.
pub(super) struct FatVolume {
    pages: Pages,
    pub(super) chains: Chains,
    root: Root,
    backings: [Arc<dyn Backing>; 1],
    notes: Vec<String>,
}

/// A file or directory.
pub(super) enum Held {
    /// The root directory.
    Root,
    /// What an entry says.
    Entry(Entry),
}

impl FatVolume {
    pub(super) fn open(image: Arc<dyn Backing>, damage: Damage) -> Result<FatVolume, ReadError> {
        let pages = Pages::new(Arc::clone(&image), PAGES);
        let Parameters { area, root, notes } = Parameters::read(&*image, &pages, damage)?;
        let volume = FatVolume { pages, chains: Chains::new(Arc::clone(&image), area), root, backings: [image], notes };
        let directory = volume.directory(ROOT).map_err(|error| ReadError::of_volume(NAME, error))?;
        match directory.flaw() {
            Some(flaw) if directory.bytes() == 0 => {
                Err(ReadError::of_volume(NAME, damaged(format!("its root {flaw}"))))
            }
            _ => Ok(volume),
        }
    }

    fn is_32(&self) -> bool {
        self.chains.area().width == Width::ThirtyTwo
    }

    /// Whether an entry can be at that byte.
    fn is_place(&self, at: u64) -> bool {
        match self.root {
            Root::Fixed(start, bytes) if at.checked_sub(start).is_some_and(|within| within < bytes) => true,
            _ => self.chains.is_in_clusters(at),
        }
    }

    pub(super) fn item(&self, node: Node) -> Result<Held, VolumeError> {
        if node == ROOT {
            return Ok(Held::Root);
        }
        let at = node.0.checked_mul(ENTRY as u64).filter(|at| self.is_place(*at));
        let at = at.ok_or_else(|| damaged(format!("{} is no entry's place", node.0)))?;
        let entry = Entry::read(&self.pages.array(at)?);
        match entry.is_file() && !entry.is_dots() {
            true => Ok(Held::Entry(entry)),
            false => Err(damaged(format!("at byte {at} is no file's entry"))),
        }
    }

    fn root_region(&self) -> Result<Arc<Region>, VolumeError> {
        match self.root {
            Root::Fixed(at, bytes) if self.pages.holds(at, bytes) => Ok(Arc::new(Region::one(at, bytes))),
            Root::Fixed(at, bytes) => {
                Err(damaged(format!("its root of {bytes} bytes at byte {at} is not in the image")))
            }
            Root::Cluster(first) => self.chains.region(first, None),
        }
    }

    /// Where a directory's entries are.
    pub(super) fn directory(&self, node: Node) -> Result<Arc<Region>, VolumeError> {
        match self.item(node)? {
            Held::Root => self.root_region(),
            Held::Entry(entry) if entry.is_directory() => self.chains.region(entry.first(self.is_32()), None),
            Held::Entry(_) => Err(VolumeError::WrongType),
        }
    }

    fn file(&self, node: Node) -> Result<Entry, VolumeError> {
        match self.item(node)? {
            Held::Entry(entry) if !entry.is_directory() => Ok(entry),
            _ => Err(VolumeError::WrongType),
        }
    }

    /// Where a file's bytes are.
    pub(super) fn content(&self, file: &Entry) -> Result<Arc<Region>, VolumeError> {
        match self.chains.clusters_of(file.size()) {
            0 => Ok(Arc::default()),
            clusters => self.chains.region(file.first(self.is_32()), Some(clusters)),
        }
    }

    pub(super) fn attributes_of(&self, node: Node, item: &Held) -> Attributes {
        let Held::Entry(entry) = item else {
            let epoch = Timestamp { seconds: 0, nanoseconds: 0 };
            return Attributes {
                inode: ROOT.0,
                mode: 0o040_755,
                links: 2,
                mtime: epoch,
                ctime: epoch,
                ..Attributes::default()
            };
        };
        let (mode, size, links) = match (entry.is_directory(), entry.is_read_only()) {
            (true, _) => (0o040_755, 0, 2),
            (false, true) => (0o100_444, entry.size(), 1),
            (false, false) => (0o100_644, entry.size(), 1),
        };
        Attributes {
            inode: node.0,
            mode,
            links,
            size,
            allocated: self.chains.clusters_of(size).saturating_mul(self.chains.area().cluster),
            atime: entry.read_on(),
            mtime: entry.written(),
            ctime: entry.written(),
            birth: entry.created(),
            ..Attributes::default()
        }
    }

    /// The entries of a directory, from its entry `from` on.
    pub(super) fn entries(
        &self,
        directory: Node,
        from: u64,
        take: &mut dyn FnMut(Result<Found, Loss>) -> bool,
    ) -> Result<(), VolumeError> {
        each(&self.pages, &*self.directory(directory)?, from, take)
    }

    /// The cluster of a directory's parent, 0 for the root.
    fn parent_cluster(&self, first: u32) -> Result<Option<u32>, VolumeError> {
        let region = self.chains.region(first, Some(1))?;
        let mut found = None;
        region.each::<ENTRY>(&self.pages, 0, &mut |offset, _, bytes| {
            let entry = Entry::read(bytes);
            if entry.is_parent() && entry.is_directory() {
                found = Some(entry.first(self.is_32()));
            }
            offset < ENTRY as u64
        })?;
        Ok(found.map(|cluster| match self.root {
            Root::Cluster(root) if root == cluster => 0,
            _ => cluster,
        }))
    }
}

/// An entry, for the trait's callers.
pub(super) fn give(found: &Result<Found, Loss>, take: &mut dyn FnMut(Item<'_>) -> bool) -> bool {
    match found {
        Ok(found) => {
            let file_type = if found.entry.is_directory() { FileType::Directory } else { FileType::Regular };
            let told = found.shown.note().is_none_or(|note| take(Item::Lost(note)));
            told && take(Item::entry(&found.shown.name, Node(found.number), Some(file_type), found.next))
        }
        Err(loss) => take(Item::Lost(loss.clone())),
    }
}

impl Volume for FatVolume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        ROOT
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        Ok(self.attributes_of(node, &self.item(node)?))
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        find(name, |take| {
            self.entries(directory, 0, &mut |found| {
                take(found.as_ref().map(|found| (&*found.shown.name, Node(found.number))).map_err(Loss::clone))
            })
        })
    }

    fn ignores_case(&self, _directory: Node) -> bool {
        true
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        self.entries(directory, from, &mut |found| give(&found, take))
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        let entry = match self.item(directory)? {
            Held::Root => return Ok(Some(ROOT)),
            Held::Entry(entry) if entry.is_directory() => entry,
            Held::Entry(_) => return Err(VolumeError::WrongType),
        };
        let Some(parent) = self.parent_cluster(entry.first(self.is_32()))? else { return Ok(None) };
        if parent == 0 {
            return Ok(Some(ROOT));
        }
        // Its entry is in its own parent.
        let grandparent = match self.parent_cluster(parent)? {
            None => return Ok(None),
            Some(0) => self.root_region()?,
            Some(cluster) => self.chains.region(cluster, None)?,
        };
        let mut node = None;
        each(&self.pages, &grandparent, 0, &mut |found| {
            let Ok(found) = found else { return true };
            let is_it = found.entry.is_directory() && found.entry.first(self.is_32()) == parent;
            node = is_it.then_some(Node(found.number));
            !is_it
        })?;
        Ok(node)
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        self.item(symlink)?;
        Err(VolumeError::WrongType)
    }

    fn xattrs(&self, node: Node, _: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        self.item(node).map(|_| Vec::new())
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let file = self.file(file)?;
        self.content(&file)?.read(&**self.pages.backing(), file.size(), offset, count, out)
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        let file = self.file(file)?;
        self.content(&file)?.extents(offset..offset.saturating_add(count), file.size()).map(Some)
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
            free_blocks: self.chains.free(),
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
