//! Inodes, of 32 bytes and of 64.

use inarch_tree::{FileType, Timestamp};
use zerocopy::FromBytes;

use super::damaged;
use super::parameters::Parameters;
use crate::erofs::spec::inode::{
    COMPACT_SIZE, CompactInode, DataLayout, EXTENDED_SIZE, ExtendedInode, FORMAT_ALL, FORMAT_EXTENDED,
    FORMAT_NLINK_1_OR_NO_DOT,
};
use crate::erofs::spec::xattr::area_size;
use crate::erofs::spec::{NULL_BLOCK, SLOT_SIZE};
use inarch_volume::{Pages, VolumeError};

/// An inode, as far as a tree or a map of its content wants it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inode {
    pub(crate) file_type: FileType,
    pub(crate) layout: DataLayout,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Names.
    pub(crate) links: u32,
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    /// The four bytes that hold a block address, a device number or the format of chunks.
    pub(crate) value: u32,
    /// The first block; `None` for a hole as long as the file.
    pub(crate) block: Option<u64>,
    /// Byte where the attributes start, and how many bytes they take.
    pub(crate) xattrs_at: u64,
    pub(crate) xattrs_size: u64,
}

impl Inode {
    /// Reads the inode with number `nid`.
    pub(crate) fn read(pages: &Pages, parameters: &Parameters, nid: u64) -> Result<Inode, VolumeError> {
        let at = nid.checked_mul(SLOT_SIZE).and_then(|at| at.checked_add(parameters.inodes_start));
        let at = at.ok_or_else(|| damaged(format!("an inode's number is {nid}, beyond 2^64 bytes")))?;
        let head: [u8; COMPACT_SIZE as usize] = pages.array(at)?;
        let Ok(compact) = CompactInode::read_from_bytes(&head) else {
            return Err(damaged("internal: a compact inode has 32 bytes"));
        };
        let format = compact.format.get();
        let layout = DataLayout::from_format(format).filter(|_| format & !FORMAT_ALL == 0);
        let layout = layout.ok_or_else(|| damaged(format!("inode {nid} has the unknown format {format:#x}")))?;
        let mode = u32::from(compact.mode.get());
        let file_type = FileType::from_mode(mode);
        let file_type = file_type.ok_or_else(|| damaged(format!("inode {nid} has the mode {mode:#o} of no type")))?;
        let common = Common { at, layout, mode, file_type };
        if format & FORMAT_EXTENDED == 0 {
            return Ok(common.with_compact(&compact, parameters));
        }
        let bytes: [u8; EXTENDED_SIZE as usize] = pages.array(at)?;
        match ExtendedInode::read_from_bytes(&bytes) {
            Ok(extended) => Ok(common.with_extended(&extended)),
            Err(_) => Err(damaged("internal: an extended inode has 64 bytes")),
        }
    }

    /// Byte behind the attributes: what the layout wants there.
    pub(crate) fn behind(&self) -> u64 {
        self.xattrs_at + self.xattrs_size
    }
}

/// What both kinds have in the same places.
struct Common {
    at: u64,
    layout: DataLayout,
    mode: u32,
    file_type: FileType,
}

impl Common {
    fn with_compact(self, inode: &CompactInode, parameters: &Parameters) -> Inode {
        let value = inode.block.get();
        // A directory's bit of this value leaves its `.` out.
        let one_link = inode.format.get() & FORMAT_NLINK_1_OR_NO_DOT != 0 && self.file_type != FileType::Directory;
        let block = if one_link { block48(value, inode.links.get()) } else { block32(value) };
        let seconds = parameters.epoch.wrapping_add(inode.mtime.get().into());
        Inode {
            file_type: self.file_type,
            layout: self.layout,
            mode: self.mode,
            uid: inode.uid.get().into(),
            gid: inode.gid.get().into(),
            links: if one_link { 1 } else { inode.links.get().into() },
            size: inode.size.get().into(),
            mtime: Timestamp { seconds, nanoseconds: parameters.epoch_nanoseconds },
            value,
            block,
            xattrs_at: self.at + COMPACT_SIZE,
            xattrs_size: area_size(inode.xattr_count.get()),
        }
    }

    fn with_extended(self, inode: &ExtendedInode) -> Inode {
        let value = inode.block.get();
        let nanoseconds = inode.mtime_nanoseconds.get().min(999_999_999);
        Inode {
            file_type: self.file_type,
            layout: self.layout,
            mode: self.mode,
            uid: inode.uid.get(),
            gid: inode.gid.get(),
            links: inode.links.get(),
            size: inode.size.get(),
            mtime: Timestamp { seconds: inode.mtime.get() as i64, nanoseconds },
            value,
            block: block48(value, inode.block_high.get()),
            xattrs_at: self.at + EXTENDED_SIZE,
            xattrs_size: area_size(inode.xattr_count.get()),
        }
    }
}

/// An address of 32 bits; all ones is a hole.
pub(super) fn block32(low: u32) -> Option<u64> {
    (low != NULL_BLOCK).then_some(low.into())
}

/// An address of 48 bits; all ones is a hole.
pub(super) fn block48(low: u32, high: u16) -> Option<u64> {
    (low != NULL_BLOCK || high != u16::MAX).then_some(u64::from(high) << 32 | u64::from(low))
}
