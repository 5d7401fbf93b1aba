//! Reads inodes and finds their forks.

use inarch_tree::FileType;
use inarch_volume::{Attributes, VolumeError};

use super::damaged;
use super::disk::Disk;
use crate::xfs::spec::be32;
use crate::xfs::spec::inode::{CHECKSUM, Core, Format, device};
use crate::xfs::spec::seal::checksum_matches;

/// An inode.
pub(super) struct Inode {
    pub(super) ino: u64,
    pub(super) core: Core,
    pub(super) file_type: FileType,
    bytes: Vec<u8>,
    /// Where the data fork ends.
    data_end: usize,
}

/// One of an inode's two forks.
#[derive(Clone, Copy)]
pub(super) struct Fork<'a> {
    pub(super) format: Format,
    /// How many extents it has.
    pub(super) extents: u64,
    pub(super) bytes: &'a [u8],
}

impl Inode {
    /// Reads and checks an inode that a directory may name.
    pub(super) fn read(disk: &Disk, ino: u64) -> Result<Inode, VolumeError> {
        let at = disk.inode(ino);
        let at = at.ok_or_else(|| damaged(format!("has the inode number {ino}, which no file can have")))?;
        let about = |reason: &str| damaged(format!("has an inode, {ino}, {reason}"));
        let mut bytes = vec![0; disk.inode_size];
        disk.pages.read(at, &mut bytes)?;
        let core = Core::parse(&bytes).ok_or_else(|| about("that is none (the magic number is missing)"))?;
        let is_known = matches!((core.version, disk.is_sealed), (3, true) | (1 | 2, false));
        if !is_known {
            return Err(about(&format!("of version {}", core.version)));
        }
        if disk.is_sealed {
            if !disk.is_replayed(at, bytes.len() as u64) && !checksum_matches(&bytes, CHECKSUM) {
                return Err(about("with a wrong checksum"));
            }
            if core.ino.get() != ino || core.uuid != disk.uuid {
                return Err(about(&format!("that says it is {} or of another file system", core.ino)));
            }
        }
        let mode = u32::from(core.mode.get());
        if mode == 0 {
            return Err(about("that is not in use"));
        }
        let Some(file_type) = FileType::from_mode(mode) else {
            return Err(about(&format!("of no type: mode {mode:#o}")));
        };
        if core.links() == 0 {
            return Err(about("that was deleted"));
        }
        let data_end = match core.fork_offset {
            0 => bytes.len(),
            offset => core.length() + usize::from(offset) * 8,
        };
        if data_end > bytes.len() {
            return Err(about("whose attributes start beyond its end"));
        }
        if i64::try_from(core.size.get()).is_err() {
            return Err(about(&format!("with a size of {} bytes", core.size)));
        }
        Ok(Inode { ino, core, file_type, bytes, data_end })
    }

    /// The data fork.
    pub(super) fn data(&self) -> Fork<'_> {
        Fork {
            format: self.core.data_format(),
            extents: self.core.data_extents(),
            bytes: self.bytes.get(self.core.length()..self.data_end).unwrap_or_default(),
        }
    }

    /// The attribute fork; `None` without one.
    pub(super) fn attribute(&self) -> Option<Fork<'_>> {
        (self.core.fork_offset != 0).then(|| Fork {
            format: self.core.attribute_format(),
            extents: self.core.attribute_extents(),
            bytes: self.bytes.get(self.data_end..).unwrap_or_default(),
        })
    }

    /// The inode's attributes.
    pub(super) fn attributes(&self, disk: &Disk) -> Attributes {
        let core = &self.core;
        let is_device = matches!(self.file_type, FileType::CharDevice | FileType::BlockDevice);
        let has_size = matches!(self.file_type, FileType::Regular | FileType::Symlink);
        let number = be32(self.data().bytes, 0).filter(|_| is_device && core.data_format() == Format::Device);
        Attributes {
            inode: self.ino,
            generation: core.generation.get(),
            mode: core.mode.get().into(),
            links: core.links(),
            uid: core.uid.get(),
            gid: core.gid.get(),
            size: if has_size { core.size.get() } else { 0 },
            allocated: core.blocks.get().saturating_mul(disk.block_size),
            device: number.map_or((0, 0), device),
            atime: Some(core.atime()),
            mtime: core.mtime(),
            ctime: core.ctime(),
            birth: core.birth(),
        }
    }
}
