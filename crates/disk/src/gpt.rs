//! GUID partition tables (UEFI specification 2.10, section 5.3).

use inarch_block::Backing;

use crate::identifiers::{guid, wide_label};
use crate::read::{array, bytes, u32_at, u64_at};
use crate::{DiskError, Part, Table, TableKind, mbr};

const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Sizes of logical sectors that disks have.
const SECTORS: [u64; 2] = [512, 4096];
/// The size of a header of revision 1.0, in bytes; a later one may be larger, but not than a sector.
const HEADER: usize = 92;
/// The most bytes of entries that are read: 8,192 of the usual size. Tables have 128.
const MOST: u64 = 1 << 20;

/// A header whose checksum is right.
struct Header {
    sector: u64,
    id: String,
    /// Where the entries start, in sectors.
    entries: u64,
    /// Their number, the size of one, and the checksum of all.
    count: u32,
    size: u32,
    checksum: u32,
}

/// Reads the table, or its copy at the disk's end. `None` if the disk has none.
///
/// # Errors
/// The disk says that it has one, and both copies are damaged.
pub fn read(image: &dyn Backing, notes: &mut Vec<String>) -> Result<Option<(Table, Vec<Part>)>, DiskError> {
    let is_announced = mbr::kinds(image)?.is_some_and(|kinds| kinds.contains(&mbr::PROTECTIVE));
    let mut faults = Vec::new();
    for sector in SECTORS {
        for (place, which) in [(1, "first"), ((image.size() / sector).saturating_sub(1), "second")] {
            match copy(image, sector, place)? {
                Ok(None) => {}
                Err(fault) => faults.push(format!("the {which} copy: {fault}")),
                Ok(Some(found)) => {
                    if which == "second" {
                        // If there is no trace of the first copy, the second is left over from before the disk was
                        // given another table.
                        if faults.is_empty() && !is_announced {
                            continue;
                        }
                        faults.push("the second copy of the table is used".to_owned());
                    }
                    notes.append(&mut faults);
                    return Ok(Some(found));
                }
            }
        }
    }
    match is_announced || !faults.is_empty() {
        false => Ok(None),
        true if faults.is_empty() => Err(DiskError::Damaged("a GPT is announced, but not there".to_owned())),
        true => Err(DiskError::Damaged(faults.join("; "))),
    }
}

/// One copy of a table, `None` if it is not there, or the fault that makes it unusable.
type Copy = Result<Option<(Table, Vec<Part>)>, String>;

/// Reads the copy whose header is in the sector `place`.
fn copy(image: &dyn Backing, sector: u64, place: u64) -> Result<Copy, DiskError> {
    let Some(raw) = bytes(image, place.saturating_mul(sector), sector as usize)? else { return Ok(Ok(None)) };
    let header = match header(&raw, sector, place) {
        Ok(Some(header)) => header,
        Ok(None) => return Ok(Ok(None)),
        Err(fault) => return Ok(Err(fault)),
    };
    let length = u64::from(header.count) * u64::from(header.size);
    if length > MOST {
        return Ok(Err(format!("it has {} entries of {} bytes", header.count, header.size)));
    }
    let Some(raw) = bytes(image, header.entries.saturating_mul(sector), length as usize)? else {
        return Ok(Err("its entries lie beyond the end of the image".to_owned()));
    };
    if crc32fast::hash(&raw) != header.checksum {
        return Ok(Err("the checksum of its entries is wrong".to_owned()));
    }
    let parts =
        (1..).zip(raw.chunks_exact(header.size as usize)).filter_map(|(number, entry)| part(number, entry, sector));
    let table = Table { kind: TableKind::Gpt, id: header.id, sector: header.sector };
    Ok(Ok(Some((table, parts.collect()))))
}

fn header(raw: &[u8], sector: u64, place: u64) -> Result<Option<Header>, String> {
    if !raw.starts_with(SIGNATURE) {
        return Ok(None);
    }
    let short = || "its header is cut off".to_owned();
    let size = u32_at(raw, 12).ok_or_else(short)? as usize;
    if !(HEADER..=raw.len()).contains(&size) {
        return Err(format!("its header claims {size} bytes"));
    }
    let mut covered = raw.get(..size).ok_or_else(short)?.to_vec();
    // The field of the checksum counts as zeros.
    covered.get_mut(16..20).ok_or_else(short)?.fill(0);
    if Some(crc32fast::hash(&covered)) != u32_at(raw, 16) {
        return Err("the checksum of its header is wrong".to_owned());
    }
    let own = u64_at(raw, 24).ok_or_else(short)?;
    if own != place {
        return Err(format!("its header belongs into sector {own}"));
    }
    let id = guid(&array(raw, 56).ok_or_else(short)?);
    let (entries, count) = (u64_at(raw, 72).ok_or_else(short)?, u32_at(raw, 80).ok_or_else(short)?);
    let (size, checksum) = (u32_at(raw, 84).ok_or_else(short)?, u32_at(raw, 88).ok_or_else(short)?);
    if size < 128 || !size.is_power_of_two() {
        return Err(format!("its entries have {size} bytes"));
    }
    Ok(Some(Header { sector, id, entries, count, size, checksum }))
}

/// A used entry, with a valid range.
fn part(number: u32, entry: &[u8], sector: u64) -> Option<Part> {
    let type_id = array::<16>(entry, 0).filter(|id| *id != [0; 16])?;
    let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
    let sectors = last.checked_sub(first)?.checked_add(1)?;
    let flags = u64_at(entry, 48)?;
    let type_id = guid(&type_id);
    Some(Part {
        number,
        start: first.checked_mul(sector)?,
        length: sectors.checked_mul(sector)?,
        type_name: name(&type_id),
        type_id,
        name: wide_label(entry.get(56..128)?),
        id: array(entry, 16).map(|id| guid(&id)),
        // "Legacy BIOS bootable".
        boots: flags & 4 != 0,
        content: None,
    })
}

/// Usual types: of the UEFI specification, systemd's Discoverable Partitions Specification, and Microsoft.
fn name(type_id: &str) -> Option<&'static str> {
    Some(match type_id {
        "c12a7328-f81f-11d2-ba4b-00a0c93ec93b" => "EFI system",
        "21686148-6449-6e6f-744e-656564454649" => "BIOS boot",
        "0fc63daf-8483-4772-8e79-3d69d8477de4" => "Linux",
        "4f68bce3-e8cd-4db1-96e7-fbcaf984b709" => "Linux root, x86-64",
        "b921b045-1df0-41c3-af44-4c6f280d3fae" => "Linux root, arm64",
        "72ec70a6-cf74-40e6-bd49-4bda08e8f224" => "Linux root, riscv64",
        "8484680c-9521-48c6-9c11-b0720656f69e" => "Linux /usr, x86-64",
        "bc13c2ff-59e6-4262-a352-b275fd6f7172" => "Linux /boot",
        "933ac7e1-2eb4-4f13-b844-0e14e2aef915" => "Linux /home",
        "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f" => "Linux swap",
        "e6d6d379-f507-44c2-a23c-238f2a3df928" => "Linux LVM",
        "a19d880f-05fc-4d3b-a006-743f0f84911e" => "Linux RAID",
        "ca7d7ccb-63ed-4c53-861c-1742536059cc" => "Linux LUKS",
        "e3c9e316-0b5c-4db8-817d-f92df00215ae" => "Microsoft reserved",
        "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7" => "Microsoft basic data",
        "de94bba4-06d1-4d40-a16a-bfd50179d6ac" => "Windows recovery",
        "7c3457ef-0000-11aa-aa11-00306543ecac" => "Apple APFS",
        "48465300-0000-11aa-aa11-00306543ecac" => "Apple HFS+",
        _ => return None,
    })
}
