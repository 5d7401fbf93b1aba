//! What all disks of guests have in common: file system format, name and size.

use std::str::FromStr;

/// The size that a device announces before its plan is known. Its file system is smaller and states its own size; the
/// rest reads as zeros.
pub const ANNOUNCED_BYTES: u64 = 64 << 40;

/// The format of the file system on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskFormat {
    /// ext4, which can be written to.
    #[default]
    Ext4,
    /// EROFS, read-only.
    Erofs,
    /// SquashFS without compression, read-only.
    Squashfs,
}

impl DiskFormat {
    /// Every format that can be served.
    pub const ALL: [DiskFormat; 3] = [DiskFormat::Ext4, DiskFormat::Erofs, DiskFormat::Squashfs];

    /// Its name: for the user, for mount(8), and of its kernel module.
    pub fn name(self) -> &'static str {
        match self {
            DiskFormat::Ext4 => "ext4",
            DiskFormat::Erofs => "erofs",
            DiskFormat::Squashfs => "squashfs",
        }
    }

    /// Whether a guest can write to it.
    pub fn is_writable(self) -> bool {
        self == DiskFormat::Ext4
    }
}

impl FromStr for DiskFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskFormat, String> {
        DiskFormat::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            format!("'{text}' is not a file system that can be served; these are: ext4, erofs, squashfs")
        })
    }
}

/// A UUID that is the same every time: disks of one guest differ in their last byte.
pub fn uuid(ordinal: u8) -> [u8; 16] {
    // Version 8 (application-defined), RFC 9562 section 5.8.
    let mut uuid = *b"inarch\x80tree\x80\0\0\0\0";
    uuid[6] = 0x80;
    uuid[8] = 0x80;
    uuid[15] = ordinal;
    uuid
}
