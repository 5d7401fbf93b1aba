//! Inodes (`struct squashfs_*_inode`): each type of file has a basic form and an extended one.

use inarch_tree::FileType;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The fragment of a file that has none (`SQUASHFS_INVALID_FRAG`).
pub(crate) const NO_FRAGMENT: u32 = u32::MAX;
/// The attribute set of a file that has none (`SQUASHFS_INVALID_XATTR`).
pub(crate) const NO_XATTRS: u32 = u32::MAX;
/// What is added to a basic type to make the extended one.
const EXTENDED: u16 = 7;
/// A directory's size is that of its listing and 3, as if it listed `.` and `..`.
pub(crate) const DOTS: u32 = 3;
/// Bytes of the longest inode, without what follows it: block lists, targets, indexes.
pub(crate) const MAX_LENGTH: usize = size_of::<Header>() + size_of::<ExtendedFile>();
/// Bytes of an attribute set's number behind an extended symlink's target.
pub(crate) const SYMLINK_TAIL: usize = 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) kind: U16,
    /// Without the type's bits.
    pub(crate) mode: U16,
    pub(crate) uid: U16,
    pub(crate) gid: U16,
    pub(crate) mtime: U32,
    pub(crate) number: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BasicDirectory {
    block: U32,
    links: U32,
    size: U16,
    offset: U16,
    parent: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ExtendedDirectory {
    links: U32,
    size: U32,
    block: U32,
    parent: U32,
    indexes: U16,
    offset: U16,
    xattrs: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BasicFile {
    start: U32,
    fragment: U32,
    offset: U32,
    size: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ExtendedFile {
    start: U64,
    size: U64,
    sparse: U64,
    links: U32,
    fragment: U32,
    offset: U32,
    xattrs: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Symlink {
    pub(crate) links: U32,
    pub(crate) length: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Device {
    pub(crate) links: U32,
    pub(crate) number: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Ipc {
    pub(crate) links: U32,
}

/// An inode, of either form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    /// Permission bits.
    pub(crate) mode: u16,
    /// Owner, as an index into the table of ids.
    pub(crate) uid: u16,
    /// Group, as an index into the table of ids.
    pub(crate) gid: u16,
    /// Seconds since 1970.
    pub(crate) mtime: u32,
    /// From 1.
    pub(crate) number: u32,
    pub(crate) links: u32,
    /// Attribute set, or [`NO_XATTRS`].
    pub(crate) xattrs: u32,
    pub(crate) body: Body,
}

/// What depends on the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Followed by its indexes.
    Directory(DirectoryBody),
    /// Followed by the sizes of its blocks.
    File(FileBody),
    /// Followed by its target, and in the extended form by the attribute set.
    Symlink {
        length: u32,
    },
    Device {
        kind: FileType,
        number: u32,
    },
    Ipc {
        kind: FileType,
    },
}

impl Body {
    /// The type's bits of `st_mode`.
    pub(crate) fn type_bits(&self) -> u32 {
        match self {
            Body::Directory(_) => 0o040000,
            Body::File(_) => 0o100000,
            Body::Symlink { .. } => 0o120000,
            Body::Device { kind: FileType::CharDevice, .. } => 0o020000,
            Body::Device { .. } => 0o060000,
            Body::Ipc { kind: FileType::Fifo } => 0o010000,
            Body::Ipc { .. } => 0o140000,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryBody {
    /// Where its listing is: the metadata block's offset from the start of the directory table.
    pub(crate) block: u32,
    /// And the offset in that block.
    pub(crate) offset: u16,
    /// Bytes of the listing, and [`DOTS`].
    pub(crate) size: u32,
    /// The parent's inode number.
    pub(crate) parent: u32,
    /// Entries of its index.
    pub(crate) indexes: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileBody {
    /// Where its blocks start, in bytes from the image's start.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Bytes in blocks without content.
    pub(crate) sparse: u64,
    /// The fragment with its end, or [`NO_FRAGMENT`].
    pub(crate) fragment: u32,
    /// Where its end starts in the fragment.
    pub(crate) offset: u32,
}

/// An inode's first bytes.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    bytes: [u8; MAX_LENGTH],
    length: usize,
}

impl Encoded {
    fn push<T: IntoBytes + Immutable>(&mut self, part: &T) {
        let part = part.as_bytes();
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Inode {
    /// Whether the basic form cannot hold it.
    pub(crate) fn is_extended(&self) -> bool {
        self.xattrs != NO_XATTRS
            || match &self.body {
                Body::Directory(body) => body.indexes > 0 || body.size > u32::from(u16::MAX),
                Body::File(body) => {
                    self.links != 1 || body.sparse > 0 || u32::try_from(body.start.max(body.size)).is_err()
                }
                _ => false,
            }
    }

    /// The type on disk.
    fn kind(&self) -> u16 {
        let basic = match self.body {
            Body::Directory(_) => basic_kind(FileType::Directory),
            Body::File(_) => basic_kind(FileType::Regular),
            Body::Symlink { .. } => basic_kind(FileType::Symlink),
            Body::Device { kind, .. } | Body::Ipc { kind } => basic_kind(kind),
        };
        if self.is_extended() { basic + EXTENDED } else { basic }
    }

    /// Bytes of [`Inode::encode`].
    pub(crate) fn length(&self) -> usize {
        let extended = self.is_extended();
        let xattrs = if extended { size_of::<U32>() } else { 0 };
        size_of::<Header>()
            + match self.body {
                Body::Directory(_) if extended => size_of::<ExtendedDirectory>(),
                Body::Directory(_) => size_of::<BasicDirectory>(),
                Body::File(_) if extended => size_of::<ExtendedFile>(),
                Body::File(_) => size_of::<BasicFile>(),
                Body::Symlink { .. } => size_of::<Symlink>(),
                Body::Device { .. } => size_of::<Device>() + xattrs,
                Body::Ipc { .. } => size_of::<Ipc>() + xattrs,
            }
    }

    /// Its bytes, without what follows it.
    pub(crate) fn encode(&self) -> Encoded {
        let mut out = Encoded { bytes: [0; MAX_LENGTH], length: 0 };
        out.push(&Header {
            kind: self.kind().into(),
            mode: self.mode.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            mtime: self.mtime.into(),
            number: self.number.into(),
        });
        let links = U32::new(self.links);
        match &self.body {
            Body::Directory(body) => self.encode_directory(body, &mut out),
            Body::File(body) => self.encode_file(body, &mut out),
            Body::Symlink { length } => out.push(&Symlink { links, length: (*length).into() }),
            Body::Device { number, .. } => {
                out.push(&Device { links, number: (*number).into() });
                self.encode_xattrs(&mut out);
            }
            Body::Ipc { .. } => {
                out.push(&Ipc { links });
                self.encode_xattrs(&mut out);
            }
        }
        out
    }

    fn encode_xattrs(&self, out: &mut Encoded) {
        if self.is_extended() {
            out.push(&U32::new(self.xattrs));
        }
    }

    fn encode_directory(&self, body: &DirectoryBody, out: &mut Encoded) {
        if self.is_extended() {
            out.push(&ExtendedDirectory {
                links: self.links.into(),
                size: body.size.into(),
                block: body.block.into(),
                parent: body.parent.into(),
                indexes: body.indexes.into(),
                offset: body.offset.into(),
                xattrs: self.xattrs.into(),
            });
        } else {
            out.push(&BasicDirectory {
                block: body.block.into(),
                links: self.links.into(),
                size: (body.size as u16).into(),
                offset: body.offset.into(),
                parent: body.parent.into(),
            });
        }
    }

    fn encode_file(&self, body: &FileBody, out: &mut Encoded) {
        if self.is_extended() {
            out.push(&ExtendedFile {
                start: body.start.into(),
                size: body.size.into(),
                sparse: body.sparse.into(),
                links: self.links.into(),
                fragment: body.fragment.into(),
                offset: body.offset.into(),
                xattrs: self.xattrs.into(),
            });
        } else {
            out.push(&BasicFile {
                start: (body.start as u32).into(),
                fragment: body.fragment.into(),
                offset: body.offset.into(),
                size: (body.size as u32).into(),
            });
        }
    }
}

impl BasicDirectory {
    /// Its links, and the rest.
    pub(crate) fn parts(&self) -> (u32, DirectoryBody) {
        let body = DirectoryBody {
            block: self.block.get(),
            offset: self.offset.get(),
            size: self.size.get().into(),
            parent: self.parent.get(),
            indexes: 0,
        };
        (self.links.get(), body)
    }
}

impl ExtendedDirectory {
    /// Its links, its attribute set, and the rest.
    pub(crate) fn parts(&self) -> (u32, u32, DirectoryBody) {
        let body = DirectoryBody {
            block: self.block.get(),
            offset: self.offset.get(),
            size: self.size.get(),
            parent: self.parent.get(),
            indexes: self.indexes.get(),
        };
        (self.links.get(), self.xattrs.get(), body)
    }
}

impl BasicFile {
    pub(crate) fn body(&self) -> FileBody {
        FileBody {
            start: self.start.get().into(),
            size: self.size.get().into(),
            sparse: 0,
            fragment: self.fragment.get(),
            offset: self.offset.get(),
        }
    }
}

impl ExtendedFile {
    /// Its links, its attribute set, and the rest.
    pub(crate) fn parts(&self) -> (u32, u32, FileBody) {
        let body = FileBody {
            start: self.start.get(),
            size: self.size.get(),
            sparse: self.sparse.get(),
            fragment: self.fragment.get(),
            offset: self.offset.get(),
        };
        (self.links.get(), self.xattrs.get(), body)
    }
}

/// The kind of file of a type on disk, and whether the inode is extended.
pub(crate) fn kind_of(number: u16) -> Option<(FileType, bool)> {
    let extended = number > EXTENDED;
    let basic = if extended { number - EXTENDED } else { number };
    let kinds = [
        FileType::Directory,
        FileType::Regular,
        FileType::Symlink,
        FileType::BlockDevice,
        FileType::CharDevice,
        FileType::Fifo,
        FileType::Socket,
    ];
    kinds.into_iter().find(|kind| basic_kind(*kind) == basic).map(|kind| (kind, extended))
}

/// The basic type of a kind of file, which directory entries have as well (`SQUASHFS_DIR_TYPE` and so on).
pub(crate) fn basic_kind(kind: FileType) -> u16 {
    match kind {
        FileType::Directory => 1,
        FileType::Regular => 2,
        FileType::Symlink => 3,
        FileType::BlockDevice => 4,
        FileType::CharDevice => 5,
        FileType::Fifo => 6,
        FileType::Socket => 7,
    }
}

/// A device number as the kernel's `new_encode_dev` has it: 12 bits of major and 20 of minor number.
pub(crate) fn encode_device(major: u32, minor: u32) -> Option<u32> {
    let fits = major < 1 << 12 && minor < 1 << 20;
    fits.then_some(minor & 0xFF | major << 8 | (minor & !0xFF) << 12)
}

/// The major and minor number of [`encode_device`].
pub(crate) fn decode_device(number: u32) -> (u32, u32) {
    ((number >> 8) & 0xFFF, number & 0xFF | (number >> 12) & 0xF_FF00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for device in [(0, 0), (1, 3), (259, 70_000), (4095, (1 << 20) - 1)] {
            assert_eq!(encode_device(device.0, device.1).map(decode_device), Some(device));
        }
        assert_eq!(encode_device(4096, 0), None);
        assert_eq!(encode_device(0, 1 << 20), None);
    }

    #[test]
    fn types_come_back() {
        for number in 1..=14 {
            let (kind, extended) = kind_of(number).unwrap();
            assert_eq!(basic_kind(kind) + if extended { EXTENDED } else { 0 }, number);
        }
        assert_eq!(kind_of(0), None);
        assert_eq!(kind_of(15), None);
    }

    #[test]
    fn a_length_is_that_of_the_bytes() {
        let bodies = [
            Body::Ipc { kind: FileType::Fifo },
            Body::Symlink { length: 3 },
            Body::Device { kind: FileType::CharDevice, number: 1 },
            Body::File(FileBody { start: 1, size: 2, sparse: 0, fragment: 0, offset: 0 }),
            Body::File(FileBody { start: 1, size: 1 << 32, sparse: 0, fragment: 0, offset: 0 }),
            Body::Directory(DirectoryBody { block: 0, offset: 0, size: 3, parent: 1, indexes: 0 }),
            Body::Directory(DirectoryBody { block: 0, offset: 0, size: 1 << 16, parent: 1, indexes: 0 }),
        ];
        for (body, xattrs) in bodies.into_iter().flat_map(|body| [(body, NO_XATTRS), (body, 0)]) {
            let inode = Inode { mode: 0, uid: 0, gid: 0, mtime: 0, number: 1, links: 1, xattrs, body };
            assert_eq!(inode.encode().as_slice().len(), inode.length(), "{inode:?}");
        }
    }
}
