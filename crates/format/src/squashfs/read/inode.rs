//! Reads inodes.

use inarch_tree::FileType;
use zerocopy::little_endian::U32;

use super::metadata::Reader;
use crate::squashfs::spec::inode::{
    BasicDirectory, BasicFile, Body, Device, ExtendedDirectory, ExtendedFile, Header, Inode, Ipc, NO_XATTRS, Symlink,
    kind_of,
};
use inarch_volume::VolumeError;

/// Bytes of a symlink's target at most: `PATH_MAX` without its NUL.
const MAX_TARGET: u32 = 4095;

/// Reads an inode, and the target into `target` if it is a symlink's. The reader is then at what follows: a directory's index, or a
/// file's list of blocks.
pub(super) fn read_inode(reader: &mut Reader<'_>, target: &mut Vec<u8>) -> Result<Inode, VolumeError> {
    let header: Header = reader.read_struct()?;
    let Some((kind, extended)) = kind_of(header.kind.get()) else {
        return Err(reader.wrong(&format!("an inode of the unknown type {}", header.kind.get())));
    };
    let (links, xattrs, body) = match (kind, extended) {
        (FileType::Directory, false) => {
            let (links, body) = reader.read_struct::<BasicDirectory>()?.parts();
            (links, None, Body::Directory(body))
        }
        (FileType::Directory, true) => {
            let (links, xattrs, body) = reader.read_struct::<ExtendedDirectory>()?.parts();
            (links, Some(xattrs), Body::Directory(body))
        }
        (FileType::Regular, false) => (1, None, Body::File(reader.read_struct::<BasicFile>()?.body())),
        (FileType::Regular, true) => {
            let (links, xattrs, body) = reader.read_struct::<ExtendedFile>()?.parts();
            (links, Some(xattrs), Body::File(body))
        }
        (FileType::Symlink, _) => {
            let symlink: Symlink = reader.read_struct()?;
            read_target(reader, symlink.length.get(), target)?;
            (symlink.links.get(), None, Body::Symlink { length: symlink.length.get() })
        }
        (FileType::CharDevice | FileType::BlockDevice, _) => {
            let device: Device = reader.read_struct()?;
            (device.links.get(), None, Body::Device { kind, number: device.number.get() })
        }
        (FileType::Fifo | FileType::Socket, _) => (reader.read_struct::<Ipc>()?.links.get(), None, Body::Ipc { kind }),
    };
    let xattrs = match xattrs {
        Some(xattrs) => xattrs,
        None if extended => reader.read_struct::<U32>()?.get(),
        None => NO_XATTRS,
    };
    Ok(Inode {
        mode: header.mode.get() & 0o7777,
        uid: header.uid.get(),
        gid: header.gid.get(),
        mtime: header.mtime.get(),
        number: header.number.get(),
        links,
        xattrs,
        body,
    })
}

fn read_target(reader: &mut Reader<'_>, length: u32, target: &mut Vec<u8>) -> Result<(), VolumeError> {
    if length == 0 || length > MAX_TARGET {
        return Err(reader.wrong(&format!("a symlink's target of {length} bytes; it has 1 to {MAX_TARGET}")));
    }
    target.resize(length as usize, 0);
    reader.read(target)
}
