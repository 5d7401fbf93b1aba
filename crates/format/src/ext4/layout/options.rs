//! The planner's options and errors.

use inarch_tree::Tree;

use super::Layout;
use crate::ext4::spec::superblock::{compat, incompat, ro_compat};

/// Options of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Volume name: at most 16 bytes.
    pub label: String,
    /// UUID of the file system; seeds its checksums.
    pub uuid: [u8; 16],
    /// Seed of the hashes of names.
    pub hash_seed: [u32; 4],
    /// Bytes free for the guest's writes, rounded up to blocks. They take no space until written. The kernel reserves
    /// up to 16 MiB of them (`ext4_calculate_resv_clusters`).
    pub free_bytes: u64,
    /// Inodes free for what the guest creates; rounding up to whole block groups may give some more.
    pub free_inodes: u32,
    /// Bytes of the journal, 4 MiB to 512 MiB, rounded down to blocks; `None` for no journal. A temporary device
    /// needs none.
    pub journal: Option<u64>,
    /// Whether to add a `lost+found`, with room for what `e2fsck` recovers, if the tree has none. A temporary device
    /// needs none, and programs without root's rights cannot read it.
    pub lost_and_found: bool,
    /// Seconds since 1970 for the superblock and the file system's own inodes; `None` for the tree's newest mtime.
    pub epoch: Option<i64>,
}

impl Default for Options {
    /// 16 GiB and 2^20 inodes free, no journal, a `lost+found`, and a fixed UUID: the same tree gives the same bytes.
    fn default() -> Options {
        Options {
            label: String::new(),
            // A UUID of version 8, whose bits are free.
            uuid: *b"inarch\x80e\x80xt4\0\0\0\x01",
            hash_seed: [0x6e69_7261, 0x6863_6174, 0x7265_6565, 0x7365_6564],
            free_bytes: 16 << 30,
            free_inodes: 1 << 20,
            journal: None,
            lost_and_found: true,
            epoch: None,
        }
    }
}

/// What was planned, in numbers. A block has 4096 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Blocks of the device.
    pub blocks: u64,
    /// Blocks before the first file's content, those of untouched inode tables and bitmaps included.
    pub metadata_blocks: u64,
    /// Blocks of directories, `lost+found` included.
    pub directory_blocks: u64,
    /// Directories with a hashed index.
    pub hashed_directories: u64,
    /// Blocks of file content.
    pub data_blocks: u64,
    /// Blocks for the guest to write.
    pub free_blocks: u64,
    /// Inodes of the device, the reserved ones included.
    pub inodes: u64,
    /// Inodes for the guest to create.
    pub free_inodes: u64,
    /// Block groups.
    pub groups: u32,
    /// Inodes that stand in for one with more than 65,000 hard links, each with its own copy of the content.
    pub split_inodes: u64,
    /// Blocks of extended attributes shared by inodes with equal sets.
    pub xattr_blocks: u64,
    /// Extended attribute values in inodes of their own.
    pub xattr_inodes: u64,
    /// Names of the file system's features, as `dumpe2fs` prints them.
    pub features: Vec<&'static str>,
}

impl Summary {
    pub(crate) fn new(tree: &Tree, layout: &Layout) -> Summary {
        let geometry = &layout.geometry;
        let regions = &layout.regions;
        let directories = u64::from(layout.measured.directories.blocks()) + layout.measured.lost_and_found_blocks;
        Summary {
            blocks: geometry.blocks,
            metadata_blocks: regions.data.start,
            directory_blocks: directories,
            hashed_directories: layout.measured.directories.hashed() as u64,
            data_blocks: regions.data.end - regions.data.start,
            free_blocks: geometry.blocks - geometry.free,
            inodes: u64::from(geometry.inodes()),
            free_inodes: u64::from(layout.free_inodes()),
            groups: geometry.groups,
            split_inodes: u64::from(layout.nodes.tree_nodes() - tree.inode_count()),
            xattr_blocks: regions.xattr_blocks.end - regions.xattr_blocks.start,
            xattr_inodes: layout.measured.xattrs.values.len() as u64,
            features: layout.features().names(),
        }
    }
}

/// The feature words of the superblock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    pub(crate) compat: u32,
    pub(crate) incompat: u32,
    pub(crate) ro_compat: u32,
}

impl Layout {
    /// The features this file system has.
    pub(crate) fn features(&self) -> Features {
        let mut features = Features {
            compat: compat::EXT_ATTR | compat::DIR_INDEX | compat::SPARSE_SUPER2,
            incompat: incompat::FILETYPE | incompat::EXTENTS | incompat::FLEX_BG,
            ro_compat: ro_compat::LARGE_FILE
                | ro_compat::HUGE_FILE
                | ro_compat::DIR_NLINK
                | ro_compat::EXTRA_ISIZE
                | ro_compat::METADATA_CSUM,
        };
        if !self.regions.journal.is_empty() {
            features.compat |= compat::HAS_JOURNAL;
        }
        if self.geometry.is_64bit() {
            features.incompat |= incompat::BIT64;
        }
        if !self.measured.xattrs.values.is_empty() {
            features.incompat |= incompat::EA_INODE;
        }
        features
    }

    /// Inodes that no file uses. Inode 11 is one of them if no `lost+found` is added.
    pub(crate) fn free_inodes(&self) -> u32 {
        let unused = u32::from(!self.measured.has_lost_and_found());
        self.geometry.inodes() - self.nodes.last_ino() + unused
    }
}

impl Features {
    /// The names of the features, as `dumpe2fs` prints them.
    fn names(self) -> Vec<&'static str> {
        let words = [
            (self.compat, compat::HAS_JOURNAL, "has_journal"),
            (self.compat, compat::EXT_ATTR, "ext_attr"),
            (self.compat, compat::DIR_INDEX, "dir_index"),
            (self.compat, compat::SPARSE_SUPER2, "sparse_super2"),
            (self.incompat, incompat::FILETYPE, "filetype"),
            (self.incompat, incompat::EXTENTS, "extent"),
            (self.incompat, incompat::BIT64, "64bit"),
            (self.incompat, incompat::FLEX_BG, "flex_bg"),
            (self.incompat, incompat::EA_INODE, "ea_inode"),
            (self.ro_compat, ro_compat::LARGE_FILE, "large_file"),
            (self.ro_compat, ro_compat::HUGE_FILE, "huge_file"),
            (self.ro_compat, ro_compat::DIR_NLINK, "dir_nlink"),
            (self.ro_compat, ro_compat::EXTRA_ISIZE, "extra_isize"),
            (self.ro_compat, ro_compat::METADATA_CSUM, "metadata_csum"),
        ];
        words.into_iter().filter(|(word, bit, _)| word & bit != 0).map(|(_, _, name)| name).collect()
    }
}
