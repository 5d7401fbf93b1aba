//! [`Composite`]: several volumes as one, mounted on each other's directories as in a guest.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use inarch_block::{Backing, ChangedFile, Cursor};
use inarch_tree::{DataRange, Extent, FileType, Xattr};

use crate::path::{Last, resolve};
use crate::{Attributes, Facts, Item, Listed, Loss, Node, Pass, Statistics, Stream, Volume, VolumeError};

/// The bits of a [`Node`] that are the node within its volume.
const NODE_BITS: u32 = 56;
/// The bits from here on are the volume's place in the list. The one before says that the node is folded.
const NUMBER_SHIFT: u32 = NODE_BITS + 1;
/// Where a folded node keeps its upper 8 bits. An NTFS node has a sequence number in the upper bits, and zeros here.
const FOLD_SHIFT: u32 = 40;
/// The most volumes.
const MOST: usize = 1 << (u64::BITS - NUMBER_SHIFT);

/// A node packed into 57 bits: as it is, or with its upper 8 bits moved to [`FOLD_SHIFT`]. `None` if it has bits in both places.
fn folded(node: u64) -> Option<u64> {
    let upper = node >> NODE_BITS;
    if upper == 0 {
        return Some(node);
    }
    let low = node & ((1 << NODE_BITS) - 1);
    (low >> FOLD_SHIFT & 0xFF == 0).then_some(1 << NODE_BITS | low | upper << FOLD_SHIFT)
}

/// The address, among several volumes, of a node of volume `number`.
fn among_several(number: u64, inner: Node) -> Result<Node, VolumeError> {
    let large = || VolumeError::Unsupported("its inode's address is too large to be one of several volumes".to_owned());
    Ok(Node(folded(inner.0).ok_or_else(large)? | number << NUMBER_SHIFT))
}

/// The inverse of [`folded`].
fn unfolded(node: u64) -> u64 {
    let low = node & ((1 << NODE_BITS) - 1);
    if node >> NODE_BITS & 1 == 0 {
        return low;
    }
    let upper = low >> FOLD_SHIFT & 0xFF;
    low & !(0xFF << FOLD_SHIFT) | upper << NODE_BITS
}

/// Why a volume was not mounted.
#[derive(Debug, thiserror::Error)]
pub enum NotMounted {
    /// There is no directory of that path.
    #[error("there is no such directory")]
    NoDirectory,
    /// Something is mounted there.
    #[error("another volume is mounted there")]
    Occupied,
    /// There are too many.
    #[error("there are more than {MOST} volumes")]
    TooMany,
    /// The directory's volume is damaged.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// Volumes that are mounted on directories of each other.
///
/// If there are several, the upper 7 bits of a [`Node`] are its volume's number. A node whose own address does not fit into the other bits is left out; no
/// format has such nodes in practice. Inode numbers contain the volume's number too, so that no two files have the same.
pub struct Composite {
    volumes: Vec<Mounted>,
    /// From a mount point to the number of the volume whose root covers it.
    covered: HashMap<Node, u64>,
    /// Directories that are shown as empty.
    hidden: HashSet<Node>,
    /// The backings of all volumes, one volume after the other.
    backings: Vec<Arc<dyn Backing>>,
    notes: Vec<String>,
    root: Node,
}

struct Mounted {
    volume: Arc<dyn Volume>,
    /// The directory above its root.
    parent: Node,
    /// The number of its first backing.
    first_backing: u32,
}

impl Composite {
    /// Only a root.
    pub fn new(root: Arc<dyn Volume>) -> Composite {
        let node = root.root();
        let mut composite = Composite {
            volumes: Vec::new(),
            covered: HashMap::new(),
            hidden: HashSet::new(),
            backings: Vec::new(),
            notes: Vec::new(),
            root: node,
        };
        composite.push(root, node);
        composite
    }

    /// Makes the directory `path` the root. What it leads to above itself is hidden from then on.
    ///
    /// # Errors
    /// There is no such directory, or its volume is damaged.
    pub fn set_root(&mut self, path: &[u8]) -> Result<(), NotMounted> {
        self.root = self.directory(path)?;
        Ok(())
    }

    fn directory(&self, path: &[u8]) -> Result<Node, NotMounted> {
        let directory = resolve(self, path, Last::Followed)?.ok_or(NotMounted::NoDirectory)?;
        match self.attributes(directory)?.file_type() {
            Some(FileType::Directory) => Ok(directory),
            _ => Err(NotMounted::NoDirectory),
        }
    }

    /// Adds a line to [`Volume::notes`].
    pub fn note(&mut self, line: String) {
        self.notes.push(line);
    }

    fn push(&mut self, volume: Arc<dyn Volume>, parent: Node) {
        let first_backing = u32::try_from(self.backings.len()).unwrap_or(u32::MAX);
        self.backings.extend(volume.backings().iter().cloned());
        self.volumes.push(Mounted { volume, parent, first_backing });
    }

    /// Mounts a volume on the directory `path`, which is looked up in what is mounted so far.
    ///
    /// # Errors
    /// See [`NotMounted`]; nothing is changed then.
    pub fn mount(&mut self, path: &[u8], volume: Arc<dyn Volume>) -> Result<(), NotMounted> {
        let directory = self.directory(path)?;
        let number = self.volumes.len();
        // The root of a volume is found in place of the directory that it covers.
        if self.is_root(directory) {
            return Err(NotMounted::Occupied);
        }
        if number >= MOST {
            return Err(NotMounted::TooMany);
        }
        let parent = self.parent(directory)?.unwrap_or_else(|| self.root());
        // With a single volume, addresses do not contain a number yet.
        let several = |node: Node| if number > 1 { Ok(node) } else { among_several(0, node) };
        let (directory, parent, root) = (several(directory)?, several(parent)?, several(self.root)?);
        self.hidden = self.hidden.iter().copied().map(several).collect::<Result<_, _>>()?;
        self.root = root;
        self.push(volume, parent);
        self.covered.insert(directory, number as u64);
        Ok(())
    }

    /// Shows the directory `path` as empty: what would be mounted there is not here, and what it covers must not be taken for it.
    ///
    /// # Errors
    /// There is no such directory, or its volume is damaged.
    pub fn hide(&mut self, path: &[u8]) -> Result<(), NotMounted> {
        let directory = self.directory(path)?;
        self.hidden.insert(directory);
        Ok(())
    }

    fn is_root(&self, node: Node) -> bool {
        self.inner(node).is_ok_and(|(_, mounted, inner)| mounted.volume.root() == inner)
    }

    /// The volume of a node, its number, and the node in it.
    fn inner(&self, node: Node) -> Result<(u64, &Mounted, Node), VolumeError> {
        if let [only] = &*self.volumes {
            return Ok((0, only, node));
        }
        let number = node.0 >> NUMBER_SHIFT;
        let mounted = usize::try_from(number).ok().and_then(|number| self.volumes.get(number));
        let mounted = mounted.ok_or_else(|| VolumeError::Damaged(format!("{} is no node's address", node.0)))?;
        Ok((number, mounted, Node(unfolded(node.0))))
    }

    /// What callers see in place of a volume's node: the root of the volume that is mounted on it, or the node itself.
    fn seen(&self, number: u64, inner: Node) -> Result<Node, VolumeError> {
        let node = self.outer(number, inner)?;
        let Some(over) = self.covered.get(&node) else { return Ok(node) };
        let root = usize::try_from(*over).ok().and_then(|over| self.volumes.get(over)).map(|over| over.volume.root());
        root.map_or(Ok(node), |root| self.outer(*over, root))
    }

    /// The inverse of [`Composite::inner`].
    fn outer(&self, number: u64, inner: Node) -> Result<Node, VolumeError> {
        if self.volumes.len() == 1 {
            return Ok(inner);
        }
        among_several(number, inner)
    }

    fn item<'a>(&self, number: u64, item: Item<'a>) -> Item<'a> {
        let Item::Entry(entry) = item else { return item };
        match self.seen(number, entry.node) {
            Ok(node) => Item::Entry(Listed { node, ..entry }),
            Err(error) => Item::Lost(Loss::sound(format!("has an entry that is left out: {error}"))),
        }
    }
}

fn numbered(number: u64, attributes: Attributes) -> Attributes {
    Attributes { inode: attributes.inode ^ number << NUMBER_SHIFT, ..attributes }
}

fn shifted(first_backing: u32, extents: &mut [Extent]) {
    for extent in extents {
        extent.backing = extent.backing.saturating_add(first_backing);
    }
}

impl Volume for Composite {
    fn format(&self) -> &'static str {
        self.volumes.first().map_or("none", |root| root.volume.format())
    }

    fn root(&self) -> Node {
        self.root
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        let (number, mounted, inner) = self.inner(node)?;
        Ok(numbered(number, mounted.volume.attributes(inner)?))
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        if self.hidden.contains(&directory) {
            return Ok(None);
        }
        let (number, mounted, inner) = self.inner(directory)?;
        mounted.volume.lookup(inner, name)?.map(|found| self.seen(number, found)).transpose()
    }

    fn ignores_case(&self, directory: Node) -> bool {
        self.inner(directory).is_ok_and(|(_, mounted, inner)| mounted.volume.ignores_case(inner))
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        if self.hidden.contains(&directory) {
            return Ok(());
        }
        let (number, mounted, inner) = self.inner(directory)?;
        mounted.volume.list(inner, from, &mut |item| take(self.item(number, item)))
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        let (number, mounted, inner) = self.inner(directory)?;
        if directory == self.root {
            return Ok(Some(directory));
        }
        if inner == mounted.volume.root() {
            return Ok(Some(mounted.parent));
        }
        mounted.volume.parent(inner)?.map(|parent| self.outer(number, parent)).transpose()
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        let (_, mounted, inner) = self.inner(symlink)?;
        mounted.volume.target(inner)
    }

    fn xattrs(&self, node: Node, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        let (_, mounted, inner) = self.inner(node)?;
        mounted.volume.xattrs(inner, lost)
    }

    fn streams(&self, file: Node) -> Result<Vec<Stream>, VolumeError> {
        let (_, mounted, inner) = self.inner(file)?;
        mounted.volume.streams(inner)
    }

    fn read_stream(
        &self,
        file: Node,
        name: &[u8],
        offset: u64,
        count: u64,
        out: &mut Cursor<'_, '_>,
    ) -> Result<(), VolumeError> {
        let (_, mounted, inner) = self.inner(file)?;
        mounted.volume.read_stream(inner, name, offset, count, out)
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let (_, mounted, inner) = self.inner(file)?;
        mounted.volume.read(inner, offset, count, out)
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        let (_, mounted, inner) = self.inner(file)?;
        let mut extents = mounted.volume.extents(inner, offset, count)?;
        shifted(mounted.first_backing, extents.as_deref_mut().unwrap_or_default());
        Ok(extents)
    }

    fn data(&self, file: Node, offset: u64) -> Result<Option<DataRange>, VolumeError> {
        let (_, mounted, inner) = self.inner(file)?;
        mounted.volume.data(inner, offset)
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &self.backings
    }

    fn block_size(&self) -> u32 {
        self.block_size_at(self.root)
    }

    fn block_size_at(&self, node: Node) -> u32 {
        self.inner(node).map_or(0, |(_, mounted, inner)| mounted.volume.block_size_at(inner))
    }

    /// Sizes are those of the root's volume; inodes are counted in all volumes.
    fn statistics(&self) -> Statistics {
        let mut all = self.volumes.iter().map(|mounted| mounted.volume.statistics());
        let root = all.next().unwrap_or_default();
        all.fold(root, |sum, of| Statistics {
            inodes: sum.inodes.saturating_add(of.inodes),
            free_inodes: sum.free_inodes.saturating_add(of.free_inodes),
            name_max: sum.name_max.max(of.name_max),
            ..sum
        })
    }

    fn statistics_at(&self, node: Node) -> Statistics {
        self.inner(node).map_or_else(|_| self.statistics(), |(_, mounted, inner)| mounted.volume.statistics_at(inner))
    }

    fn notes(&self) -> Vec<String> {
        let of_volumes = self.volumes.iter().flat_map(|mounted| mounted.volume.notes());
        self.notes.iter().cloned().chain(of_volumes).collect()
    }

    fn changed(&self) -> Option<ChangedFile> {
        self.volumes.iter().find_map(|mounted| mounted.volume.changed())
    }

    fn pass(&self) -> Box<dyn Pass + '_> {
        let passes = self.volumes.iter().map(|mounted| mounted.volume.pass()).collect();
        Box::new(Passes { composite: self, passes })
    }
}

/// A pass of each volume.
struct Passes<'a> {
    composite: &'a Composite,
    passes: Vec<Box<dyn Pass + 'a>>,
}

impl<'a> Passes<'a> {
    fn of(&mut self, node: Node) -> Result<(u64, &'a Mounted, &mut (dyn Pass + 'a), Node), VolumeError> {
        let (number, mounted, inner) = self.composite.inner(node)?;
        let pass = usize::try_from(number).ok().and_then(|number| self.passes.get_mut(number));
        let pass = pass.ok_or_else(|| VolumeError::Damaged(format!("{} is no node's address", node.0)))?;
        Ok((number, mounted, &mut **pass, inner))
    }
}

impl Pass for Passes<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        let composite = self.composite;
        if composite.hidden.contains(&directory) {
            return Ok(());
        }
        let (number, _, pass, inner) = self.of(directory)?;
        pass.list(inner, &mut |item| take(composite.item(number, item)))
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let (number, mounted, pass, inner) = self.of(node)?;
        pass.facts(inner, facts)?;
        facts.attributes = numbered(number, facts.attributes);
        shifted(mounted.first_backing, &mut facts.extents);
        // Keys of different volumes may be equal.
        if !facts.shared.is_empty() {
            facts.shared.extend_from_slice(&number.to_le_bytes());
        }
        Ok(())
    }

    fn xattrs(&mut self, node: Node) -> Result<Vec<Xattr>, VolumeError> {
        let (_, _, pass, inner) = self.of(node)?;
        pass.xattrs(inner)
    }

    fn notes(&mut self) -> Vec<String> {
        self.passes.iter_mut().flat_map(|pass| pass.notes()).collect()
    }
}

#[cfg(test)]
mod tests;
