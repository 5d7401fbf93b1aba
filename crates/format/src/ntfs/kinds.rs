//! Tells what a file is. NTFS has files, directories and reparse points. Symbolic links, devices, FIFOs and sockets of other systems are
//! stored as one of these.

use inarch_tree::FileType;
use inarch_volume::VolumeError;

use super::damaged;
use super::inode::{Inode, Stream};
use super::mft::Mft;
use super::spec::{array, file_flag, kind, part, u16_at, u32_at, u64_at};
use super::system::chunk_bits;

/// The most bytes of a reparse point (`MAXIMUM_REPARSE_DATA_BUFFER_SIZE`).
const MAX_REPARSE: u64 = 16 << 10;
/// The longest target of a link that is kept in a file: 4,096 units of UTF-16, behind a magic number.
const MAX_LINK: u64 = 8 + 2 * 4096;

/// Tags of reparse points ([MS-FSCC], section 2.1.2.1).
mod tag {
    pub(super) const MOUNT_POINT: u32 = 0xA000_0003;
    pub(super) const SYMLINK: u32 = 0xA000_000C;
    pub(super) const LX_SYMLINK: u32 = 0xA000_001D;
    pub(super) const AF_UNIX: u32 = 0x8000_0023;
    pub(super) const LX_FIFO: u32 = 0x8000_0024;
    pub(super) const WOF: u32 = 0x8000_0017;
    pub(super) const DEDUP: u32 = 0x8000_0013;
    /// OneDrive and its like, and the bits that say which.
    pub(super) const CLOUD: u32 = 0x9000_001A;
    pub(super) const CLOUD_PROVIDER: u32 = 0xF000;
}

/// What a symbolic link leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A path of Windows, in UTF-16, and whether it is relative to the link's directory.
    Windows(Vec<u16>, bool),
    /// A path of other systems.
    Unix(Vec<u8>),
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    /// A regular file.
    File,
    /// A regular file whose content Windows's system compression has, in chunks of 2 to the power of this.
    System(u32),
    /// A regular file whose content is not where files have it, and why it is not read.
    Elsewhere(String),
    Symlink(Target),
    /// A device with its numbers, a FIFO or a socket.
    Special(FileType, (u32, u32)),
}

/// Tells what a file is. `flags` are those of its `$STANDARD_INFORMATION`.
pub(super) fn kind_of(mft: &Mft, inode: &Inode, flags: u32, data: Option<&Stream>) -> Result<Kind, VolumeError> {
    let is_directory = inode.base.is_directory();
    if flags & file_flag::REPARSE_POINT != 0
        && let Some(point) = inode.bytes(mft, kind::REPARSE_POINT, &[], MAX_REPARSE)?
    {
        return reparse(&point, is_directory, flags);
    }
    if is_directory {
        return Ok(Kind::Directory);
    }
    if flags & file_flag::SYSTEM != 0
        && let Some(special) = interix(mft, inode, flags, data)?
    {
        return Ok(special);
    }
    if flags & file_flag::ELSEWHERE != 0 {
        return Ok(Kind::Elsewhere("is offline: its content is not on this volume".to_owned()));
    }
    Ok(Kind::File)
}

/// What a reparse point makes of a file with these flags.
fn reparse(point: &[u8], is_directory: bool, flags: u32) -> Result<Kind, VolumeError> {
    let wrong = || damaged("its reparse point makes no sense");
    let tag = u32_at(point, 0).ok_or_else(wrong)?;
    let data = part(point, 8, u16_at(point, 4).ok_or_else(wrong)?.into()).ok_or_else(wrong)?;
    let path = |paths: usize| {
        let start = paths.checked_add(usize::from(u16_at(data, 0)?))?;
        let units: Vec<u16> = super::names::units(part(data, start, u16_at(data, 2)?.into())?).collect();
        Some(units).filter(|units| !units.is_empty())
    };
    Ok(match tag {
        tag::MOUNT_POINT => Kind::Symlink(Target::Windows(path(8).ok_or_else(wrong)?, false)),
        tag::SYMLINK => {
            let is_relative = u32_at(data, 8).ok_or_else(wrong)? & 1 != 0;
            Kind::Symlink(Target::Windows(path(12).ok_or_else(wrong)?, is_relative))
        }
        // Its version, then the path.
        tag::LX_SYMLINK => Kind::Symlink(Target::Unix(data.get(4..).ok_or_else(wrong)?.to_vec())),
        tag::AF_UNIX => Kind::Special(FileType::Socket, (0, 0)),
        tag::LX_FIFO => Kind::Special(FileType::Fifo, (0, 0)),
        // A directory of files that a service provides has those that are here.
        _ if is_directory => Kind::Directory,
        tag if tag & !tag::CLOUD_PROVIDER == tag::CLOUD => match flags & file_flag::ELSEWHERE {
            0 => Kind::File,
            _ => Kind::Elsewhere("is in the cloud: its content is not on this volume".to_owned()),
        },
        tag::WOF => match chunk_bits(data) {
            Some(bits) => Kind::System(bits),
            None => Kind::Elsewhere("is compressed by LZX or kept in a WIM image, which is not read".to_owned()),
        },
        tag::DEDUP => Kind::Elsewhere("is deduplicated by Windows, which is not read".to_owned()),
        tag => {
            Kind::Elsewhere(format!("has its content elsewhere, by a reparse point with the unknown tag {tag:#010x}"))
        }
    })
}

/// What Interix, and ntfs-3g after it, keep in files with the flag of the system's own.
fn interix(mft: &Mft, inode: &Inode, flags: u32, data: Option<&Stream>) -> Result<Option<Kind>, VolumeError> {
    let Some(data) = data else { return Ok(None) };
    let is_hidden = flags & file_flag::HIDDEN != 0;
    let size = data.size();
    match size {
        0 if !is_hidden => return Ok(Some(Kind::Special(FileType::Fifo, (0, 0)))),
        1 if !is_hidden => return Ok(Some(Kind::Special(FileType::Socket, (0, 0)))),
        9..=MAX_LINK => {}
        _ => return Ok(None),
    }
    let mut magic = [0; 8];
    inode.read(mft, data, 0, &mut magic)?;
    let file_type = match &magic {
        b"IntxLNK\x01" => FileType::Symlink,
        b"IntxCHR\0" => FileType::CharDevice,
        b"IntxBLK\0" => FileType::BlockDevice,
        _ => return Ok(None),
    };
    let mut rest = vec![0; (size - 8) as usize];
    inode.read(mft, data, 8, &mut rest)?;
    Ok(match file_type {
        FileType::Symlink => Some(Kind::Symlink(Target::Unix(super::names::to_bytes(super::names::units(&rest))))),
        file_type => {
            let number = |at| u64_at(&rest, at).and_then(|number| u32::try_from(number).ok());
            let numbers = array::<16>(&rest, 0).and_then(|_| Some((number(0)?, number(8)?)));
            numbers.map(|numbers| Kind::Special(file_type, numbers))
        }
    })
}
