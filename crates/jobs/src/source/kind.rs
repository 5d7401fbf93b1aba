//! What a file is, by its first bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// An archive or a disk image that can be a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A tar archive, plain.
    Tar,
    /// A tar archive, compressed by gzip, zstd or xz.
    CompressedTar,
    /// An ext2, ext3 or ext4 file system.
    Ext4,
    /// An EROFS file system.
    Erofs,
    /// A SquashFS file system.
    Squashfs,
}

/// What a source may be, for messages: goes on after "a source is a directory,".
pub(super) const ACCEPTED: &str = "a tar archive (plain, gzip, zstd, xz; '-' for standard input), oci:DIR[:TAG], or an \
                                   ext4, erofs or squashfs image";

/// A sequence of bytes at an offset from a file's start.
type Magic = (u64, &'static [u8]);

/// The sources. Compressed files are taken for archives: nothing else that is compressed can be a source.
const SOURCES: [(Magic, FileKind); 7] = [
    ((257, b"ustar"), FileKind::Tar),
    ((0, b"\x1f\x8b"), FileKind::CompressedTar),
    ((0, b"\x28\xb5\x2f\xfd"), FileKind::CompressedTar),
    ((0, b"\xfd7zXZ\0"), FileKind::CompressedTar),
    // `EXT4_SUPER_MAGIC` in the superblock, which is at 1024 as EROFS's is.
    ((1080, b"\x53\xef"), FileKind::Ext4),
    ((1024, b"\xe2\xe1\xf5\xe0"), FileKind::Erofs),
    ((0, b"hsqs"), FileKind::Squashfs),
];

/// Files that people have, and that are no sources; each with what it is and, where that is easy, what to do.
const OTHERS: [(Magic, &str); 17] = [
    ((0, b"QFI\xfb"), "is a qcow2 image; convert it with 'qemu-img convert -O raw'"),
    ((0, b"KDMV"), "is a VMDK image; convert it with 'qemu-img convert -O raw'"),
    ((0, b"vhdxfile"), "is a VHDX image; convert it with 'qemu-img convert -O raw'"),
    ((512, b"EFI PART"), "is a disk with a partition table, not a file system"),
    ((0, b"XFSB"), "is an XFS file system, which is not read"),
    ((0x10040, b"_BHRfS_M"), "is a btrfs file system, which is not read"),
    ((0x8001, b"CD001"), "is an ISO 9660 image, which is not read"),
    ((0, b"LUKS\xba\xbe"), "is an encrypted volume (LUKS)"),
    ((0, b"PK\x03\x04"), "is a ZIP archive, which is not read"),
    ((0, b"BZh"), "is compressed by bzip2; unpack it first ('bzip2 -dc FILE | inarch ... -')"),
    ((0, b"\x04\x22\x4d\x18"), "is compressed by lz4; unpack it first ('lz4 -dc FILE | inarch ... -')"),
    ((0, b"070701"), "is a cpio archive, which is not read"),
    ((0, b"070702"), "is a cpio archive, which is not read"),
    ((0, b"!<arch>"), "is an ar archive or a Debian package; 'dpkg-deb --fsys-tarfile FILE' gives its tar"),
    ((0, b"7z\xbc\xaf\x27\x1c"), "is a 7-Zip archive, which is not read"),
    ((0, b"\x7fELF"), "is a program or library, not a tree"),
    // Boot sectors of FAT and of disks end with it.
    ((510, b"\x55\xaa"), "is a disk with partitions or a FAT file system, which is not read"),
];

/// What the file is; `Err` says what it looks like, if it is no source.
pub(super) fn recognise(path: &Path) -> io::Result<Result<FileKind, &'static str>> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Err("is empty"));
    }
    let has = |(offset, bytes): Magic| {
        let mut found = [0; 8];
        let found = &mut found[..bytes.len()];
        match file.read_exact_at(found, offset) {
            Ok(()) => Ok(found == bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    };
    for (magic, kind) in SOURCES {
        if has(magic)? {
            return Ok(Ok(kind));
        }
    }
    let mut header = [0; 512];
    if file.read_exact_at(&mut header, 0).is_ok() && is_tar_header(&header) {
        return Ok(Ok(FileKind::Tar));
    }
    for (magic, what) in OTHERS {
        if has(magic)? {
            return Ok(Err(what));
        }
    }
    Ok(Err("is of no known kind"))
}

/// Whether a block is a header of a tar from before the `ustar` magic, which only its checksum shows, or the block of
/// zeros that an archive without files begins with.
fn is_tar_header(header: &[u8; 512]) -> bool {
    const CHECKSUM: std::ops::Range<usize> = 148..156;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    let Some(field) = header.get(CHECKSUM) else { return false };
    let spaces: u32 = field.iter().map(|byte| 32u32.wrapping_sub(u32::from(*byte))).fold(0, u32::wrapping_add);
    let text = String::from_utf8_lossy(field);
    let stored = u32::from_str_radix(text.trim_matches([' ', '\0']), 8);
    sum == 0 || stored == Ok(sum.wrapping_add(spaces))
}
