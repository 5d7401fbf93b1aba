//! A Btrfs file system as a volume.

use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_tree::{DataRange, Extent, FileType, Xattr};
use inarch_volume::{Attributes, Item, Loss, Node, Pass, Statistics, Volume, VolumeError, is_name};

use super::blocks::Blocks;
use super::content::{Contents, File};
use super::numbers::{Numbers, Place, What};
use super::pass::EveryNode;
use super::space::Space;
use super::spec::TOP_LEVEL;
use super::subvolumes::{Roots, Subvolume};
use super::superblock::Parameters;
use super::{NAME, ReadOptions, Root, damaged, inodes, names, unsupported};
use crate::ReadError;

/// The permissions of the directory in place of a subvolume that is not linked there (`new_simple_dir`).
const MISSING_MODE: u32 = 0o040_755;

/// A Btrfs file system, with one of its subvolumes as the root.
pub(super) struct BtrfsVolume {
    pub(super) blocks: Blocks,
    pub(super) roots: Roots,
    pub(super) numbers: Numbers,
    main: Subvolume,
    contents: Contents,
    backings: [Arc<dyn Backing>; 1],
    notes: Vec<String>,
}

impl BtrfsVolume {
    /// Reads and checks the superblock, the chunks, and the root of the wanted subvolume.
    pub(super) fn open(image: Arc<dyn Backing>, options: &ReadOptions) -> Result<BtrfsVolume, ReadError> {
        let mut notes = Vec::new();
        let parameters = Parameters::read(&*image, options.damage, &mut notes)?;
        let damage = |error| ReadError::of_volume(NAME, error).into_damage();
        let blocks = match Blocks::open(Arc::clone(&image), parameters) {
            Err(error @ VolumeError::Unsupported(_)) => return Err(ReadError::of_volume(NAME, error)),
            blocks => blocks.map_err(damage)?,
        };
        let roots = Roots::new(&blocks);
        let top = roots.subvolume(&blocks, TOP_LEVEL).map_err(damage)?;
        let top = top.ok_or_else(|| damage(damaged("it has no subvolume 5, which all others are below")))?;
        let numbers = Numbers { root: TOP_LEVEL };
        let contents = Contents::new();
        let mut volume = BtrfsVolume { blocks, roots, numbers, main: top, contents, backings: [image], notes };
        let main = match &options.root {
            Root::Default => {
                let id = volume.roots.default_id(&volume.blocks).map_err(damage)?;
                let found = volume.roots.subvolume(&volume.blocks, id).map_err(damage)?;
                found.ok_or_else(|| damage(damaged(format!("its default subvolume, {id}, does not exist"))))?
            }
            Root::Id(id) => {
                let found = volume.roots.subvolume(&volume.blocks, *id).map_err(damage)?;
                found.ok_or_else(|| no_subvolume(&id.to_string()))?
            }
            Root::Path(path) => {
                let found = volume.find_subvolume(path).map_err(damage)?;
                found.ok_or_else(|| no_subvolume(&format!("{:?}", String::from_utf8_lossy(path))))?
            }
        };
        (volume.numbers, volume.main) = (Numbers { root: main.id }, main);
        let root = volume.attributes(volume.root());
        match root.map(|root| root.file_type()).map_err(|error| damage(super::about("its root", error)))? {
            Some(FileType::Directory) => Ok(volume),
            _ => Err(damage(damaged("its root is no directory"))),
        }
    }

    /// The subvolume at a path from the top on.
    fn find_subvolume(&self, path: &[u8]) -> Result<Option<Subvolume>, VolumeError> {
        let mut node = self.root();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match if is_name(name) { self.lookup(node, name) } else { Ok(None) } {
                Ok(Some(found)) => node = found,
                Ok(None) | Err(VolumeError::WrongType) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let place = self.numbers.place(node);
        let subvolume = self.subvolume(place.subvolume)?;
        Ok((place.what == What::Inode(subvolume.directory)).then_some(subvolume))
    }

    /// The subvolume with that number, which a node has.
    pub(super) fn subvolume(&self, id: u64) -> Result<Subvolume, VolumeError> {
        if id == self.main.id {
            return Ok(self.main);
        }
        let found = self.roots.subvolume(&self.blocks, id)?;
        found.ok_or_else(|| damaged(format!("is in subvolume {id}, which does not exist")))
    }

    /// The attributes of the empty directory where a subvolume is not linked: as the root directory around it has them.
    pub(super) fn missing(&self, node: Node, subvolume: &Subvolume) -> Result<Attributes, VolumeError> {
        let around = inodes::read(&self.blocks, subvolume, subvolume.directory)?;
        Ok(Attributes { mode: MISSING_MODE, ..inodes::attributes(node, &around)? })
    }

    fn file_of(&self, node: Node, file_type: FileType) -> Result<File, VolumeError> {
        let place = self.numbers.place(node);
        let subvolume = self.subvolume(place.subvolume)?;
        let What::Inode(inode) = place.what else { return Err(VolumeError::WrongType) };
        let item = inodes::read(&self.blocks, &subvolume, inode)?;
        let attributes = inodes::attributes(node, &item)?;
        match attributes.file_type() == Some(file_type) {
            true => Ok(File { root: subvolume.root, inode, size: attributes.size }),
            false => Err(VolumeError::WrongType),
        }
    }

    /// Puts a symlink's target into `target`, which is empty.
    pub(super) fn target_of(&self, file: &File, target: &mut Vec<u8>) -> Result<(), VolumeError> {
        // Not more than TARGET_MAX: `inodes::attributes` has checked it.
        target.resize(file.size as usize, 0);
        self.contents.read_start(&self.blocks, file, target)?;
        match target.contains(&0) {
            true => Err(damaged("is a symlink whose target is not there, or has a NUL in it")),
            false => Ok(()),
        }
    }
}

fn no_subvolume(which: &str) -> ReadError {
    let text = format!("it has no subvolume {which}");
    ReadError::of_volume(NAME, unsupported(text))
}

impl Volume for BtrfsVolume {
    fn format(&self) -> &'static str {
        NAME
    }

    fn root(&self) -> Node {
        Node(self.main.directory)
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        let place = self.numbers.place(node);
        let subvolume = self.subvolume(place.subvolume)?;
        match place.what {
            What::Inode(number) => inodes::attributes(node, &inodes::read(&self.blocks, &subvolume, number)?),
            What::Missing(_) => self.missing(node, &subvolume),
        }
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        match self.directory(directory)? {
            Some((subvolume, inode)) => self.find(&subvolume, inode, name),
            None => Ok(None),
        }
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        match self.directory(directory)? {
            Some((subvolume, inode)) => self.each_name(&subvolume, inode, from, take),
            None => Ok(()),
        }
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        if directory == self.root() {
            return Ok(Some(directory));
        }
        match self.directory(directory)? {
            Some((subvolume, inode)) => self.parent_of(&subvolume, inode),
            None => Ok(None),
        }
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        let mut target = Vec::new();
        self.target_of(&self.file_of(symlink, FileType::Symlink)?, &mut target)?;
        Ok(target)
    }

    fn xattrs(&self, node: Node, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        let Place { subvolume, what: What::Inode(inode) } = self.numbers.place(node) else { return Ok(Vec::new()) };
        names::xattrs(&self.blocks, &self.subvolume(subvolume)?.root, inode, lost)
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        self.contents.read(&self.blocks, &self.file_of(file, FileType::Regular)?, offset, count, out)
    }

    fn extents(&self, file: Node, offset: u64, count: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        self.contents.extents(&self.blocks, &self.file_of(file, FileType::Regular)?, offset, count)
    }

    fn data(&self, file: Node, offset: u64) -> Result<Option<DataRange>, VolumeError> {
        self.contents.data(&self.blocks, &self.file_of(file, FileType::Regular)?, offset)
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &self.backings
    }

    fn block_size(&self) -> u32 {
        self.blocks.parameters.sector_size
    }

    fn statistics(&self) -> Statistics {
        let block_size = self.block_size();
        let blocks = |bytes: u64| bytes / u64::from(block_size);
        // Where the counts are damaged, no space counts as free.
        let all = self.blocks.parameters.superblock.total_bytes.get();
        let space = Space::read(&self.blocks, &self.roots).unwrap_or(Space { all, free: 0, available: 0 });
        Statistics {
            block_size,
            blocks: blocks(space.all),
            free_blocks: blocks(space.free),
            reserved_blocks: blocks(space.free - space.available),
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
