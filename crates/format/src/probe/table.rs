//! The tables of [`super::probe`]: the magic numbers of archives that are sources, and those of known formats that are not read, with their
//! names and what to advise. Each number has its specification or kernel header beside it.

use super::FileKind;

/// Bytes at an offset.
pub(super) type Magic = (usize, &'static [u8]);

/// Something that is no source.
#[derive(Debug)]
pub(super) struct Other {
    /// Any of these tells it.
    pub(super) magics: &'static [Magic],
    /// What it is, with its article.
    name: &'static str,
    advice: Advice,
}

impl Other {
    pub(super) fn text(&self) -> String {
        self.advice.text(self.name)
    }

    /// Whether it is a disk in a container.
    pub(super) fn is_container(&self) -> bool {
        matches!(self.advice, Advice::Convert)
    }
}

/// What to do about it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Advice {
    /// The kernel may mount it.
    Mount,
    /// Partitions are on it.
    Parts,
    /// It is a layer below a file system.
    Open,
    /// QEMU knows it.
    Convert,
    /// It is unpacked by its own program.
    Unpack,
    /// Its decompressor may write into our standard input.
    Decompress(&'static str),
    /// A source, but compressed or in a pipe, where only archives may be.
    Image,
    /// Nothing to do.
    None,
}

impl Advice {
    /// The text after a file's name.
    pub(super) fn text(self, name: &str) -> String {
        match self {
            Advice::Mount => format!("is {name}, which is not read here; mount it, and give the directory"),
            Advice::Parts => format!(
                "is {name}, not a file system; a disk image must be an uncompressed file with a GPT or an MBR; of another \
                 table copy one partition into a file of its own"
            ),
            Advice::Open => format!(
                "is {name}, not a file system; Inarch opens what it knows in an uncompressed disk image; open anything else \
                 by its own tool, mount what is in it, and give the directory"
            ),
            Advice::Convert => {
                format!("is {name}; give an uncompressed file, or let 'qemu-img convert -O raw' make a raw image of it")
            }
            Advice::Unpack => format!("is {name}, which is not read here; unpack it, and give the directory"),
            Advice::Decompress(program) => {
                format!("is {name}, which is not read here; unpack it first ('{program} FILE | inarch ... -')")
            }
            Advice::Image => format!("is {name}; only archives can come through a pipe or be compressed: unpack it"),
            Advice::None => format!("is {name}"),
        }
    }
}

/// The archives that one magic number tells.
pub(super) const SOURCES: &[(Magic, FileKind)] = &[
    // POSIX.1-2017, pax, "ustar Interchange Format".
    ((257, b"ustar"), FileKind::Tar),
    // RFC 1952; RFC 8878, and its skippable frames; the .xz file format 1.1.
    ((0, b"\x1f\x8b"), FileKind::CompressedTar),
    ((0, b"\x28\xb5\x2f\xfd"), FileKind::CompressedTar),
    ((0, b"\x50\x2a\x4d\x18"), FileKind::CompressedTar),
    ((0, b"\xfd7zXZ\0"), FileKind::CompressedTar),
];

macro_rules! other {
    ($name:literal, $advice:expr $(, $magic:expr)* $(,)?) => {
        Other { magics: &[$($magic),*], name: $name, advice: $advice }
    };
}

/// A disk of the BIOS's kind.
pub(super) const MBR: Other = other!("a disk with an MBR partition table", Advice::Parts);
/// Something that a BIOS starts, and that says no more of itself.
pub(super) const LOADER: Other = other!("a disk with a boot sector", Advice::Parts);

/// Unsupported formats. Formats that may be inside another come first: a file system on a disk without a partition
/// table may have a boot sector in front.
pub(super) const OTHERS: &[Other] = &[
    // Layers below a file system. LVM2's label is in one of the first four sectors (lib/label/label.h).
    other!("an encrypted volume (LUKS)", Advice::Open, (0, b"LUKS\xba\xbe"), (0, b"SKUL\xba\xbe")),
    other!(
        "a physical volume of LVM",
        Advice::Open,
        (0, b"LABELONE"),
        (512, b"LABELONE"),
        (1024, b"LABELONE"),
        (1536, b"LABELONE")
    ),
    // `MD_SB_MAGIC` of include/uapi/linux/raid/md_p.h, where versions 1.1 and 1.2 have their superblock.
    other!("a member of a Linux RAID", Advice::Open, (0, b"\xfc\x4e\x2b\xa9"), (4096, b"\xfc\x4e\x2b\xa9")),
    // drivers/md/bcache/bcache_ondisk.h.
    other!(
        "a bcache device",
        Advice::Open,
        (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")
    ),
    other!("an encrypted volume (BitLocker)", Advice::Open, (3, b"-FVE-FS-")),
    other!("swap space", Advice::None, (4086, b"SWAPSPACE2"), (4086, b"SWAP-SPACE"), (65526, b"SWAPSPACE2")),
    // File systems, by their headers in Linux.
    other!(
        "a bcachefs file system",
        Advice::Mount,
        (4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef")
    ),
    other!("a JFS file system", Advice::Mount, (0x8000, b"JFS1")),
    other!("a ReiserFS file system", Advice::Mount, (0x10034, b"ReIsEr"), (0x2034, b"ReIsEr")),
    other!("a Reiser4 file system", Advice::Mount, (0x10000, b"ReIsEr4")),
    // Revision 2, then the magic number.
    other!("a NILFS2 file system", Advice::Mount, (1024, b"\x02\0\0\0\0\0\x34\x34")),
    other!("a GFS2 file system", Advice::Mount, (0x10000, b"\x01\x16\x19\x70")),
    other!(
        "an OCFS2 file system",
        Advice::Mount,
        (1024, b"OCFSV2"),
        (2048, b"OCFSV2"),
        (4096, b"OCFSV2"),
        (8192, b"OCFSV2")
    ),
    // The first name in the list of a label's pairs (OpenZFS, vdev_impl.h: the list begins 16 KiB into the label).
    other!("a member of a ZFS pool", Advice::Mount, (0x4018, b"version")),
    // Apple's TN1150, "Volume Header"; "Apple File System Reference", nx_superblock_t.
    other!("an HFS+ file system", Advice::Mount, (1024, b"H+\0\x04"), (1024, b"HX\0\x05")),
    other!("an APFS container", Advice::Mount, (32, b"NXSB")),
    // `FS_UFS2_MAGIC` and `FS_UFS1_MAGIC` of FreeBSD's sys/ufs/ffs/fs.h.
    other!("a UFS file system", Advice::Mount, (66_908, b"\x19\x01\x54\x19"), (9564, b"\x54\x19\x01\0")),
    other!("a cramfs file system", Advice::Mount, (0, b"\x45\x3d\xcd\x28"), (512, b"\x45\x3d\xcd\x28")),
    other!("a romfs file system", Advice::Mount, (0, b"-rom1fs-")),
    other!("a UBI image", Advice::Mount, (0, b"UBI#\x01")),
    other!("a UBIFS file system", Advice::Mount, (0, b"\x31\x18\x10\x06")),
    other!(
        "a JFFS2 file system",
        Advice::Mount,
        (0, b"\x85\x19\x01\xe0"),
        (0, b"\x85\x19\x02\xe0"),
        (0, b"\x85\x19\x03\x20")
    ),
    other!("a SquashFS file system of before version 4, or of another byte order", Advice::Mount, (0, b"sqsh")),
    // ECMA-167, part 2, section 9.
    other!("a UDF file system", Advice::Mount, (0x8001, b"BEA01"), (0x8801, b"NSR0"), (0x9001, b"NSR0")),
    other!("a ReFS file system", Advice::Mount, (3, b"ReFS\0\0\0\0")),
    // Tables: UEFI specification 2.10, section 5.3.2, with sectors of 512 and 4096 bytes; Apple's "Inside Macintosh:
    // Devices", chapter 3; `BSD_DISKMAGIC`.
    other!("a disk with a GPT partition table", Advice::Parts, (512, b"EFI PART"), (4096, b"EFI PART")),
    other!("a disk with an Apple partition map", Advice::Parts, (512, b"PM\0\0")),
    other!("a disk with a BSD label", Advice::Parts, (512, b"\x57\x45\x56\x82")),
    // Disks within files: QEMU's block/*.c and docs/interop, VMware's "Virtual Disk Format 5.0", Microsoft's VHDX 1.0
    // and VHD 1.0, VirtualBox's VDICore.h.
    other!("a qcow2 disk image", Advice::Convert, (0, b"QFI\xfb")),
    other!("a QED disk image", Advice::Convert, (0, b"QED\0")),
    other!("a VMDK disk image", Advice::Convert, (0, b"KDMV"), (0, b"COWD"), (0, b"# Disk DescriptorFile")),
    other!("a VHDX disk image", Advice::Convert, (0, b"vhdxfile")),
    other!("a VHD disk image", Advice::Convert, (0, b"conectix")),
    other!("a VDI disk image", Advice::Convert, (64, b"\x7f\x10\xda\xbe")),
    other!("a Parallels disk image", Advice::Convert, (0, b"WithoutFreeSpace"), (0, b"WithouFreSpacExt")),
    other!("a Bochs disk image", Advice::Convert, (0, b"Bochs Virtual HD Image")),
    other!("a sparse image of Android; 'simg2img' makes a plain one of it", Advice::None, (0, b"\x3a\xff\x26\xed")),
    other!("an EWF (EnCase) image; 'ewfexport' makes a plain one of it", Advice::None, (0, b"EVF\x09\x0d\x0a\xff\0")),
    other!("a WIM image", Advice::Unpack, (0, b"MSWIM\0\0\0")),
    // Archives: PKWARE's APPNOTE 4.3.6, 7-Zip's 7zFormat.txt, cpio(5), ar(5), RPM's "Package File Structure".
    other!("a ZIP archive", Advice::Unpack, (0, b"PK\x03\x04"), (0, b"PK\x05\x06"), (0, b"PK\x07\x08")),
    other!("a 7-Zip archive", Advice::Unpack, (0, b"7z\xbc\xaf\x27\x1c")),
    other!("a RAR archive", Advice::Unpack, (0, b"Rar!\x1a\x07")),
    other!("a CAB archive", Advice::Unpack, (0, b"MSCF\0\0\0\0"), (0, b"ISc(")),
    other!(
        "a cpio archive",
        Advice::Unpack,
        (0, b"070701"),
        (0, b"070702"),
        (0, b"070707"),
        (0, b"\xc7\x71"),
        (0, b"\x71\xc7")
    ),
    other!("a Debian package", Advice::Decompress("dpkg-deb --fsys-tarfile"), (0, b"!<arch>\ndebian-binary")),
    other!("an ar archive", Advice::Unpack, (0, b"!<arch>\n"), (0, b"!<thin>\n")),
    other!("an RPM package", Advice::Decompress("rpm2archive -n"), (0, b"\xed\xab\xee\xdb")),
    other!("a xar archive", Advice::Unpack, (0, b"xar!\0")),
    other!("a DAR archive", Advice::Unpack, (0, b"\0\0\0\x7b")),
    // Compressed by what is not among the sources.
    other!("compressed by bzip2", Advice::Decompress("bzip2 -dc"), (0, b"BZh")),
    other!("compressed by lz4", Advice::Decompress("lz4 -dc"), (0, b"\x04\x22\x4d\x18"), (0, b"\x02\x21\x4c\x18")),
    other!("compressed by compress", Advice::Decompress("gzip -dc"), (0, b"\x1f\x9d")),
    other!("compressed by lzip", Advice::Decompress("lzip -dc"), (0, b"LZIP")),
    other!("compressed by lzop", Advice::Decompress("lzop -dc"), (0, b"\x89LZO\0")),
    other!("compressed by lrzip", Advice::Decompress("lrzcat"), (0, b"LRZI")),
    other!("compressed by lzma", Advice::Decompress("xz -dc"), (0, b"\x5d\0\0")),
    // Programs.
    other!("a program or library, not a tree", Advice::None, (0, b"\x7fELF")),
    other!("a Linux kernel, not a tree", Advice::None, (514, b"HdrS")),
    other!("a program of Windows or UEFI, not a tree", Advice::None, (0, b"MZ")),
    other!("a script, not a tree", Advice::None, (0, b"#!")),
];

/// Formats recognised by the last bytes: VHD's footer, and that of Apple's disk images.
pub(super) const AT_THE_END: &[Other] = &[
    other!("a VHD disk image", Advice::Convert, (0, b"conectix")),
    other!("an Apple disk image", Advice::Convert, (0, b"koly")),
];
