//! Tells what a volume holds, by the numbers that mark its format.
//!
//! The places are those of the formats' own headers, as Linux's fs/*/ and include/uapi/linux/ define them, and for volumes
//! of several disks those of lvm2, mdadm and cryptsetup.

use inarch_block::Backing;

use crate::DiskError;
use crate::identifiers::{label, lvm_id, uuid, wide_label};
use crate::md::superblock;
use crate::read::{array, bytes, u16_at, u32_at, u64_at};

/// The bytes that are looked at: as far as the superblock of ReiserFS and Btrfs.
const HEAD: usize = 0x1_1000;

/// What a volume holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The format, by the name that Linux's mount(8) or blkid(8) has for it.
    pub format: &'static str,
    /// The volume's label.
    pub label: Option<String>,
    /// Its identifier, as blkid(8) prints it.
    pub uuid: Option<String>,
}

impl Signature {
    /// Whether a partition table may be in the same first sector, and then takes precedence.
    pub(crate) fn is_weak(&self) -> bool {
        matches!(self.format, "vfat" | "ntfs" | "exfat")
    }
}

/// A format: tells it by the first bytes of a volume.
type Teller = fn(&[u8]) -> Option<Signature>;

/// The most certain ones first. A volume that was formatted anew may still have another format's magic numbers.
const TELLERS: [Teller; 23] = [
    luks, lvm, raid, xfs, btrfs, ext, squashfs, erofs, f2fs, iso9660, hfsplus, hfs, jfs, reiserfs, nilfs, gfs2, apfs,
    swap, bitlocker, ntfs, exfat, fat, bcache,
];

/// What the volume holds; `None` if that is not known, or nothing.
pub fn signature(volume: &dyn Backing) -> Result<Option<Signature>, DiskError> {
    // A member of a mirror with its superblock at the end looks like the array's content.
    let member = raid_at_the_end(volume)?;
    if member.is_some() { Ok(member) } else { at_the_start(volume) }
}

/// The same by its first bytes alone. The end of a disk may be that of its last partition.
pub fn at_the_start(volume: &dyn Backing) -> Result<Option<Signature>, DiskError> {
    let length = volume.size().min(HEAD as u64) as usize;
    let Some(mut head) = bytes(volume, 0, length)? else { return Ok(None) };
    // Nothing lies beyond the end, but all places exist.
    head.resize(HEAD, 0);
    let Some(found) = TELLERS.iter().find_map(|tell| tell(&head)) else { return Ok(None) };
    let label = if found.format == "ntfs" { ntfs_label(volume, &head)? } else { None };
    Ok(Some(Signature { label: label.or(found.label), ..found }))
}

fn has(head: &[u8], at: usize, magic: &[u8]) -> bool {
    head.get(at..).is_some_and(|rest| rest.starts_with(magic))
}

/// A format with a label and a UUID at fixed places.
fn told(format: &'static str, head: &[u8], label_at: (usize, usize), uuid_at: usize) -> Option<Signature> {
    let (from, length) = label_at;
    Some(Signature {
        format,
        label: head.get(from..from.checked_add(length)?).and_then(label),
        uuid: array(head, uuid_at).and_then(|bytes| uuid(&bytes)),
    })
}

fn only(format: &'static str) -> Option<Signature> {
    Some(Signature { format, label: None, uuid: None })
}

fn ext(head: &[u8]) -> Option<Signature> {
    const SUPER: usize = 1024;
    if u16_at(head, SUPER + 56)? != 0xEF53 {
        return None;
    }
    let [compatible, incompatible, read_only] = [92, 96, 100].map(|at| u32_at(head, SUPER + at).unwrap_or_default());
    // Features that ext3 does not have (fs/ext4/ext4.h): all but filetype, recover, meta_bg; sparse_super, large_file, btree_dir.
    let is_journal = incompatible & 0x8 != 0;
    let is_ext4 = incompatible & !0x16 != 0 || read_only & !0x7 != 0;
    let has_journal = compatible & 0x4 != 0;
    let format = match (is_journal, is_ext4, has_journal) {
        (true, ..) => "jbd",
        (_, true, _) => "ext4",
        (_, _, true) => "ext3",
        _ => "ext2",
    };
    told(format, head, (SUPER + 120, 16), SUPER + 104)
}

fn xfs(head: &[u8]) -> Option<Signature> {
    has(head, 0, b"XFSB").then(|| told("xfs", head, (108, 12), 32))?
}

fn btrfs(head: &[u8]) -> Option<Signature> {
    const SUPER: usize = 0x1_0000;
    has(head, SUPER + 64, b"_BHRfS_M").then(|| told("btrfs", head, (SUPER + 299, 256), SUPER + 32))?
}

fn squashfs(head: &[u8]) -> Option<Signature> {
    (has(head, 0, b"hsqs") && u16_at(head, 28)? == 4).then(|| only("squashfs"))?
}

fn erofs(head: &[u8]) -> Option<Signature> {
    (u32_at(head, 1024)? == 0xE0F5_E1E2).then(|| told("erofs", head, (1024 + 64, 16), 1024 + 48))?
}

fn f2fs(head: &[u8]) -> Option<Signature> {
    const SUPER: usize = 1024;
    if u32_at(head, SUPER)? != 0xF2F5_2010 {
        return None;
    }
    let label = head.get(SUPER + 124..SUPER + 124 + 1024).and_then(wide_label);
    Some(Signature { label, ..told("f2fs", head, (0, 0), SUPER + 108)? })
}

fn iso9660(head: &[u8]) -> Option<Signature> {
    const DESCRIPTOR: usize = 32_768;
    if !has(head, DESCRIPTOR + 1, b"CD001") {
        return None;
    }
    // The time of its making, to a hundredth of a second.
    let time = head.get(DESCRIPTOR + 813..DESCRIPTOR + 829)?;
    let digits = std::str::from_utf8(time).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let uuid = digits.map(|text| {
        let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
        [part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 12), part(12, 14), part(14, 16)].join("-")
    });
    let label = head.get(DESCRIPTOR + 40..DESCRIPTOR + 72).and_then(label);
    Some(Signature { format: "iso9660", label, uuid })
}

fn hfsplus(head: &[u8]) -> Option<Signature> {
    (has(head, 1024, b"H+\0\x04") || has(head, 1024, b"HX\0\x05")).then(|| only("hfsplus"))?
}

fn hfs(head: &[u8]) -> Option<Signature> {
    const SUPER: usize = 1024;
    // Blocks are whole sectors; a volume that only wraps HFS+ has a mark of that.
    let block = u32::from_be_bytes(array(head, SUPER + 20)?);
    if !has(head, SUPER, b"BD") || block == 0 || block % 512 != 0 || has(head, SUPER + 124, b"H+") {
        return None;
    }
    let length = usize::from(*head.get(SUPER + 36)?).min(27);
    Some(Signature { format: "hfs", label: head.get(SUPER + 37..SUPER + 37 + length).and_then(label), uuid: None })
}

fn jfs(head: &[u8]) -> Option<Signature> {
    const SUPER: usize = 32_768;
    has(head, SUPER, b"JFS1").then(|| told("jfs", head, (SUPER + 152, 16), SUPER + 136))?
}

fn reiserfs(head: &[u8]) -> Option<Signature> {
    const SUPER: usize = 0x1_0000;
    let is_it = [&b"ReIsEr2Fs"[..], b"ReIsErFs", b"ReIsEr3Fs"].iter().any(|magic| has(head, SUPER + 52, magic));
    is_it.then(|| told("reiserfs", head, (SUPER + 100, 16), SUPER + 84))?
}

fn nilfs(head: &[u8]) -> Option<Signature> {
    const SUPER: usize = 1024;
    let is_it = u16_at(head, SUPER + 6)? == 0x3434 && u32_at(head, SUPER)? == 2;
    is_it.then(|| told("nilfs2", head, (SUPER + 168, 80), SUPER + 152))?
}

fn gfs2(head: &[u8]) -> Option<Signature> {
    const SUPER: usize = 0x1_0000;
    let is_it = has(head, SUPER, &[0x01, 0x16, 0x19, 0x70, 0, 0, 0, 1]);
    is_it.then(|| told("gfs2", head, (SUPER + 160, 64), SUPER + 256))?
}

fn apfs(head: &[u8]) -> Option<Signature> {
    has(head, 32, b"NXSB").then(|| told("apfs", head, (0, 0), 72))?
}

fn swap(head: &[u8]) -> Option<Signature> {
    // The last ten bytes of the first page, whose size the machine had.
    let is_it = [4096, 8192, 16_384, 65_536].iter().any(|page| has(head, page - 10, b"SWAPSPACE2"));
    is_it.then(|| told("swap", head, (1052, 16), 1036))?
}

fn luks(head: &[u8]) -> Option<Signature> {
    if !has(head, 0, b"LUKS\xBA\xBE") {
        return None;
    }
    let is_second = head.get(6..8)? == [0, 2];
    let label = if is_second { head.get(24..72).and_then(label) } else { None };
    Some(Signature { format: "crypto_LUKS", label, uuid: head.get(168..208).and_then(crate::identifiers::label) })
}

fn lvm(head: &[u8]) -> Option<Signature> {
    // The label is in one of the first four sectors.
    let at =
        (0..4).map(|sector| sector * 512).find(|at| has(head, *at, b"LABELONE") && has(head, at + 24, b"LVM2 001"))?;
    let header = at.checked_add(u32_at(head, at + 20)? as usize)?;
    Some(Signature { format: "LVM2_member", label: None, uuid: array(head, header).and_then(|id| lvm_id(&id)) })
}

/// Superblocks of version 1.1 and 1.2, at the start and 4 KiB from it.
fn raid(head: &[u8]) -> Option<Signature> {
    let at =
        [4096, 0].into_iter().find(|at| u32_at(head, *at) == Some(0xA92B_4EFC) && u32_at(head, at + 4) == Some(1))?;
    told("linux_raid_member", head, (at + 32, 32), at + 16)
}

/// Superblocks of version 1.0 and 0.90, near the end.
fn raid_at_the_end(volume: &dyn Backing) -> Result<Option<Signature>, DiskError> {
    let block = superblock::at_the_end(volume)?;
    Ok(block.map(|block| Signature { format: "linux_raid_member", uuid: block.id(), label: block.full_name }))
}

fn bitlocker(head: &[u8]) -> Option<Signature> {
    has(head, 3, b"-FVE-FS-").then(|| only("BitLocker"))?
}

fn bcache(head: &[u8]) -> Option<Signature> {
    let magic = [0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA, 0x82, 0x65, 0xF5, 0x7F, 0x48, 0xBA, 0x6D, 0x81];
    has(head, 4096 + 24, &magic).then(|| told("bcache", head, (4096 + 72, 32), 4096 + 40))?
}

fn ntfs(head: &[u8]) -> Option<Signature> {
    if !has(head, 3, b"NTFS    ") {
        return None;
    }
    Some(Signature { format: "ntfs", label: None, uuid: u64_at(head, 72).map(|serial| format!("{serial:016X}")) })
}

/// The label of an NTFS: the attribute `$VOLUME_NAME` of the MFT's record 3, by the places in the boot sector.
fn ntfs_label(volume: &dyn Backing, head: &[u8]) -> Result<Option<String>, DiskError> {
    const VOLUME_NAME: u32 = 0x60;
    let place = || {
        let [per_cluster] = array(head, 13)?;
        let sectors =
            if per_cluster <= 0x80 { per_cluster.into() } else { 1u64.checked_shl(256 - u32::from(per_cluster))? };
        let cluster = sectors.checked_mul(u16_at(head, 11)?.into())?;
        let [per_record] = array(head, 64)?;
        let record = match per_record as i8 {
            count @ 1.. => cluster.checked_mul(count as u64)?,
            bits => 1u64.checked_shl(bits.unsigned_abs().into())?,
        };
        let at = u64_at(head, 48)?.checked_mul(cluster)?.checked_add(record.checked_mul(3)?)?;
        Some((at, usize::try_from(record).ok()?)).filter(|(_, length)| (512..=65_536).contains(length))
    };
    let Some((at, length)) = place() else { return Ok(None) };
    let Some(mut record) = bytes(volume, at, length)? else { return Ok(None) };
    // The record keeps the last two bytes of each 512 in a list. Label and list are in the first 1024 bytes.
    if let Some(saved) = u16_at(&record, 4).map(usize::from).and_then(|list| array::<2>(&record, list.checked_add(2)?))
        && let Some(place) = record.get_mut(510..512)
    {
        place.copy_from_slice(&saved);
    }
    let label = || {
        let mut at = usize::from(u16_at(&record, 20)?);
        while u32_at(&record, at)? < VOLUME_NAME {
            at = at.checked_add(u32_at(&record, at + 4)?.max(8) as usize)?;
        }
        let (start, length) = (usize::from(u16_at(&record, at + 20)?), u32_at(&record, at + 16)? as usize);
        let is_it = u32_at(&record, at)? == VOLUME_NAME && record.get(at + 8) == Some(&0);
        let start = at.checked_add(start)?;
        record.get(start..start.checked_add(length)?).filter(|_| is_it && has(&record, 0, b"FILE")).and_then(wide_label)
    };
    Ok(label())
}

fn exfat(head: &[u8]) -> Option<Signature> {
    if !has(head, 3, b"EXFAT   ") {
        return None;
    }
    Some(Signature { format: "exfat", label: None, uuid: u32_at(head, 100).map(serial) })
}

/// A FAT's serial number as it is usually written.
fn serial(serial: u32) -> String {
    format!("{:04X}-{:04X}", serial >> 16, serial & 0xFFFF)
}

fn fat(head: &[u8]) -> Option<Signature> {
    let is_wide = has(head, 82, b"FAT32   ");
    let is_narrow = [&b"FAT12   "[..], b"FAT16   ", b"FAT     "].iter().any(|magic| has(head, 54, magic));
    if head.get(510..512)? != [0x55, 0xAA] || !(is_wide || is_narrow) {
        return None;
    }
    let at = if is_wide { 67 } else { 39 };
    let label = head.get(at + 4..at + 15).and_then(label).filter(|label| label != "NO NAME");
    Some(Signature { format: "vfat", label, uuid: u32_at(head, at).map(serial) })
}
