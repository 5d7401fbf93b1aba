//! Reads ext2, ext3 and ext4: on demand as a volume, or at once as a [`Tree`] with the places of its files' bytes.
//!
//! 1. `disk` checks the superblock and finds the inode tables.
//! 2. `journal` shows an image that was not unmounted cleanly as the kernel would after replaying the journal.
//!    Nothing is written.
//! 3. `volume` answers questions about one node, and `pass` about all of them during a walk. `inodes` reads the inode
//!    tables in large pieces, `listing` and `hashed` the names of a directory, `mapping` the places of blocks.
//! 4. Content stays where it is: a file is a list of byte ranges of the image.
//!
//! With `metadata_csum`, a structure with a wrong checksum counts as damaged, as in the kernel. Damage is refused and
//! named. If it is salvaged, a damaged group descriptor or inode costs the files that need it, a directory block its
//! names; a damaged block of an extent tree makes that part of the file unreadable (`EIO`, never zeros); and without
//! its journal the file system is in its state before the journal's last changes. Bitmaps are not read: what is in
//! use follows from the names. [`TreeAndContent::notes`] lists everything left out.

mod disk;
mod flaw;
mod hashed;
mod inline;
mod inodes;
mod journal;
mod listing;
mod mapping;
mod pass;
mod volume;
mod xattrs;

use std::io;
use std::sync::Arc;

use inarch_block::{BackedFiles, Backing, Content, Cursor};
use inarch_confine::Parsing;
use inarch_tree::{Extent, Extents, InodeId, Tree};
use inarch_volume::{Volume, Walked, walk};

use self::volume::Ext4Volume;
use super::NAME;
use crate::{Damage, ReadError, TreeAndContent};

/// What to do with `lost+found` in the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LostAndFound {
    /// Take it as any other directory.
    Keep,
    /// Leave it out where nothing is in it.
    #[default]
    KeepIfUsed,
    /// Leave it out.
    Omit,
}

/// How to read a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// What to do with `lost+found`.
    pub lost_and_found: LostAndFound,
    /// Whether structures with a wrong checksum are refused; see the module's page.
    pub verify: bool,
    /// What becomes of damage.
    pub damage: Damage,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions { lost_and_found: LostAndFound::default(), verify: true, damage: Damage::Refused }
    }
}

/// A walked ext4 file system: its tree, and each inode's bytes on the device.
///
/// It serves to compare two states of a device, such as a base with and without an overlay. A file with the same
/// inode number and generation, equal attributes and equal [`Ext4Image::extents`] in both is unchanged if none of the
/// device's bytes in those extents were written.
pub struct Ext4Image {
    /// The tree, its content, and what was left out.
    pub opened: TreeAndContent,
    files: Arc<BackedFiles>,
    /// `i_generation` of each inode of the tree.
    generations: Vec<u32>,
    /// The inodes of the tree in order of their inode numbers.
    by_ino: Vec<InodeId>,
}

impl Ext4Image {
    /// The inode number on the device of an inode of the tree, which is also the tree's `source_ino`; 0 for an inode
    /// that is not in the tree.
    pub fn ino(&self, inode: InodeId) -> u32 {
        let tree = &self.opened.tree;
        if inode.0 < tree.inode_count() { tree.inode(inode).source_ino() as u32 } else { 0 }
    }

    /// `i_generation`, which the kernel changes when an inode number is used for another file.
    pub fn generation(&self, inode: InodeId) -> u32 {
        self.generations.get(inode.index()).copied().unwrap_or(0)
    }

    /// The inode of the tree with this number on the device.
    pub fn find(&self, ino: u32) -> Option<InodeId> {
        let found = self.by_ino.binary_search_by_key(&ino, |inode| self.ino(*inode));
        found.ok().and_then(|at| self.by_ino.get(at)).copied()
    }

    /// The ranges of each regular file on the device, in bytes: `at` counts from the device's start, whatever
    /// `backing` says. Ascending and limited to the file's size, without holes and unwritten extents.
    pub fn extents(&self) -> &Extents {
        self.files.extents()
    }

    /// Whether an extent's bytes are on the device itself; otherwise they are in the journal, or unknown.
    pub fn is_on_device(&self, extent: &Extent) -> bool {
        extent.backing == backing::IMAGE
    }
}

/// The error of an image that cannot be read at all.
fn unreadable(reason: impl Into<String>) -> ReadError {
    ReadError::Format { format: NAME, reason: reason.into() }
}

/// Opens the ext2, ext3 or ext4 file system at the start of `image` for reading on demand. Reads and checks the
/// superblock, the group descriptors, the journal and the root.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    let volume = Ext4Volume::open(image, &ReadOptions { damage, ..ReadOptions::default() })?;
    if damage == Damage::Refused {
        volume.check_groups()?;
    }
    Ok(Arc::new(volume))
}

/// Opens such a file system as [`open_image`] does.
pub fn open(parsing: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<TreeAndContent, ReadError> {
    Ok(open_image(parsing, image, &ReadOptions { damage, ..ReadOptions::default() })?.opened)
}

/// Opens and walks a file system.
///
/// Fails if the host fails, if there is no such file system, if it has unsupported features, or if it is damaged. If
/// damage is salvaged, unreadable parts are left out and noted.
pub fn open_image(parsing: Parsing, image: Arc<dyn Backing>, options: &ReadOptions) -> Result<Ext4Image, ReadError> {
    let volume = Ext4Volume::open(image, options)?;
    let mut generations = Vec::new();
    let walked = walk(parsing, &volume, &mut |attributes| generations.push(attributes.generation));
    let Walked { tree, extents, findings, .. } = walked.map_err(|error| ReadError::of_volume(NAME, error))?;
    options.damage.refuse(NAME, &findings, &tree)?;
    let tree = Arc::new(tree);
    let files = Arc::new(BackedFiles::new(tree.clone(), extents, volume.backings().to_vec()));
    let notes = findings.into_notes(&tree);
    let by_ino = by_ino(&tree);
    let content: Arc<dyn Content> = files.clone();
    Ok(Ext4Image { opened: TreeAndContent { tree, content, notes, image: None }, files, generations, by_ino })
}

fn by_ino(tree: &Tree) -> Vec<InodeId> {
    let mut list: Vec<_> = (0..tree.inode_count()).map(InodeId).collect();
    list.sort_by_key(|inode| tree.inode(*inode).source_ino());
    list
}

/// The backings of a file's extents.
mod backing {
    /// The image itself.
    pub(super) const IMAGE: u32 = 0;
    /// The image with its journal replayed.
    pub(super) const REPLAYED: u32 = 1;
    /// Nowhere: to read it is an error.
    pub(super) const UNKNOWN: u32 = 2;
}

/// The backing for parts of files whose place is unknown.
struct Unknown(u64);

impl Backing for Unknown {
    fn size(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, _: u64, _: &mut Cursor<'_, '_>) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }
}
