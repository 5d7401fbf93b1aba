//! Blocks of directories.

use zerocopy::FromBytes;

use super::damaged;
use crate::erofs::spec::directory::{DIRENT_SIZE, Dirent};
use inarch_volume::VolumeError;

/// The bits of an inode's number; the highest would say that the inode is in compressed metadata.
const NID_MASK: u64 = u64::MAX >> 1;

/// An entry: a name, its inode's number, and the code of its type.
pub(crate) struct Found<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) nid: u64,
    pub(crate) type_code: u8,
}

/// The entries in a block in their order, `.` and `..` among them where they are stored.
/// `block` ends where the directory does.
pub(crate) fn entries(block: &[u8]) -> Result<Vec<Found<'_>>, VolumeError> {
    let first = dirent(block, 0).map_or(0, |dirent| usize::from(dirent.name_offset.get()));
    if first < DIRENT_SIZE || !first.is_multiple_of(DIRENT_SIZE) || first > block.len() {
        return Err(damaged(format!("a block of it has its first name at byte {first}")));
    }
    let count = first / DIRENT_SIZE;
    let mut entries = Vec::with_capacity(count);
    for place in 0..count {
        let Some(dirent) = dirent(block, place) else { break };
        let start = usize::from(dirent.name_offset.get());
        let end = match self::dirent(block, place + 1).filter(|_| place + 1 < count) {
            Some(next) => usize::from(next.name_offset.get()),
            None => block.len(),
        };
        let name = block.get(start..end).filter(|_| start >= first);
        let name = name.ok_or_else(|| damaged(format!("a name of it is at bytes {start} to {end} of a block")))?;
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        // Only the last name of a block may end at a NUL before the next would begin.
        let name = name.get(..length).filter(|_| length == name.len() || place + 1 == count);
        let name = name.ok_or_else(|| damaged(format!("a name of it at byte {start} of a block has a NUL")))?;
        if dirent.nid.get() > NID_MASK {
            return Err(damaged("it names an inode in compressed metadata, which is not supported"));
        }
        entries.push(Found { name, nid: dirent.nid.get(), type_code: dirent.file_type });
    }
    Ok(entries)
}

fn dirent(block: &[u8], place: usize) -> Option<Dirent> {
    let bytes = block.get(place * DIRENT_SIZE..)?;
    Dirent::read_from_prefix(bytes).ok().map(|(dirent, _)| dirent)
}
