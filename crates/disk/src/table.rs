//! Makes partition tables: GPT (UEFI specification 2.10, section 5.3) and MBR (section 5.2).
//!
//! A table is planned as bytes and the places where they belong. Whoever has the disk writes them, in their order: the first sector, which
//! announces the table, comes last.

use crate::TableKind;

/// Partitions start at multiples of this many bytes, as those of all usual tools do.
pub const ALIGNMENT: u64 = 1 << 20;
/// A partition that takes the rest ends at a multiple of this many bytes: file systems count in such blocks.
const BLOCK: u64 = 4096;
/// The entries of a GPT, and the bytes of one.
const ENTRIES: u32 = 128;
const ENTRY: u32 = 128;
/// The bytes of a GPT's header.
const HEADER: usize = 92;
/// UTF-16 units of a partition's name.
const NAME: usize = 36;
/// Bytes of a sector that an MBR counts in.
const MBR_SECTOR: u64 = 512;

/// What a partition is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartKind {
    /// A Linux file system.
    #[default]
    Linux,
    /// Linux swap.
    Swap,
    /// The EFI system partition.
    Efi,
    /// Where GRUB puts itself on a GPT.
    BiosBoot,
    /// A physical volume of LVM.
    Lvm,
    /// A member of a Linux RAID.
    Raid,
    /// A file system of Windows: FAT, exFAT, NTFS.
    Windows,
    /// HFS or HFS+.
    Apple,
}

impl PartKind {
    /// Every kind.
    pub const ALL: [PartKind; 8] = [
        PartKind::Linux,
        PartKind::Swap,
        PartKind::Efi,
        PartKind::BiosBoot,
        PartKind::Lvm,
        PartKind::Raid,
        PartKind::Windows,
        PartKind::Apple,
    ];

    /// Its name for users.
    pub fn name(self) -> &'static str {
        match self {
            PartKind::Linux => "linux",
            PartKind::Swap => "swap",
            PartKind::Efi => "efi",
            PartKind::BiosBoot => "bios",
            PartKind::Lvm => "lvm",
            PartKind::Raid => "raid",
            PartKind::Windows => "windows",
            PartKind::Apple => "apple",
        }
    }

    /// The GUID's fields in a GPT: those of the UEFI specification, Linux, GRUB, Microsoft and Apple.
    fn guid(self) -> [u8; 16] {
        let fields: (u32, u16, u16, [u8; 8]) = match self {
            PartKind::Linux => (0x0fc6_3daf, 0x8483, 0x4772, [0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4]),
            PartKind::Swap => (0x0657_fd6d, 0xa4ab, 0x43c4, [0x84, 0xe5, 0x09, 0x33, 0xc8, 0x4b, 0x4f, 0x4f]),
            PartKind::Efi => (0xc12a_7328, 0xf81f, 0x11d2, [0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b]),
            PartKind::BiosBoot => (0x2168_6148, 0x6449, 0x6e6f, [0x74, 0x4e, 0x65, 0x65, 0x64, 0x45, 0x46, 0x49]),
            PartKind::Lvm => (0xe6d6_d379, 0xf507, 0x44c2, [0xa2, 0x3c, 0x23, 0x8f, 0x2a, 0x3d, 0xf9, 0x28]),
            PartKind::Raid => (0xa19d_880f, 0x05fc, 0x4d3b, [0xa0, 0x06, 0x74, 0x3f, 0x0f, 0x84, 0x91, 0x1e]),
            PartKind::Windows => (0xebd0_a0a2, 0xb9e5, 0x4433, [0x87, 0xc0, 0x68, 0xb6, 0xb7, 0x26, 0x99, 0xc7]),
            PartKind::Apple => (0x4846_5300, 0x0000, 0x11aa, [0xaa, 0x11, 0x00, 0x30, 0x65, 0x43, 0xec, 0xac]),
        };
        let mut guid = [0; 16];
        let bytes = fields.0.to_le_bytes().into_iter().chain(fields.1.to_le_bytes()).chain(fields.2.to_le_bytes());
        guid.iter_mut().zip(bytes.chain(fields.3)).for_each(|(to, byte)| *to = byte);
        guid
    }

    /// The byte in an MBR; none if it exists in a GPT only.
    fn byte(self) -> Option<u8> {
        Some(match self {
            PartKind::Linux => 0x83,
            PartKind::Swap => 0x82,
            PartKind::Efi => 0xEF,
            PartKind::BiosBoot => return None,
            PartKind::Lvm => 0x8E,
            PartKind::Raid => 0xFD,
            PartKind::Windows => 0x07,
            PartKind::Apple => 0xAF,
        })
    }
}

/// A partition that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes; `None` takes what is left, which only the last one can.
    pub length: Option<u64>,
    /// What it is for.
    pub kind: PartKind,
    /// Its name in a GPT.
    pub name: String,
}

/// Where a partition came to lie, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Where it starts.
    pub start: u64,
    /// How long it is.
    pub length: u64,
}

/// A planned table.
#[derive(Clone, Debug)]
pub struct NewTable {
    /// The partitions, in the order of their numbers.
    pub parts: Vec<Placed>,
    /// What to write, and where, in bytes; in this order.
    pub pieces: Vec<(u64, Vec<u8>)>,
}

/// Why there cannot be such a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Nothing fits.
    #[error("a disk of {0} bytes is too small for a partition table; 3 MiB are enough")]
    TooSmall(u64),
    /// The partitions need more than there is.
    #[error("partition {number} does not fit: {left} bytes are left for it")]
    NoRoom {
        /// Which.
        number: usize,
        /// Bytes from its start to the end of what partitions can use.
        left: u64,
    },
    /// Only the last can take the rest.
    #[error("partition {0} takes the rest, so none can follow it")]
    RestNotLast(usize),
    /// It overlaps another one, or lies where no partition can.
    #[error("partition {0} overlaps another one, or the places of the table itself")]
    Place(usize),
    /// A partition without a byte.
    #[error("partition {0} has no size")]
    Empty(usize),
    /// More partitions than a table has entries.
    #[error("a table of kind {kind} has {most} partitions at most, not {count}{hint}")]
    TooMany {
        /// The table's name.
        kind: &'static str,
        /// The most that there can be.
        most: usize,
        /// How many are wanted.
        count: usize,
        /// What to do.
        hint: &'static str,
    },
    /// An MBR has 32 bits for the number of a sector.
    #[error("partition {0} ends beyond 2 TiB, which an MBR cannot address; use a GPT")]
    BeyondMbr(usize),
    /// An MBR does not say how large its sectors are.
    #[error("an MBR has sectors of 512 bytes; use a GPT for those of {0}")]
    MbrSector(u64),
    /// Sectors have one of two sizes.
    #[error("sectors have 512 or 4096 bytes, not {0}")]
    Sector(u64),
    /// An MBR has no such type.
    #[error("partition {number}: an MBR has no partitions of type {kind}; use a GPT")]
    NotInMbr {
        /// Which.
        number: usize,
        /// Its type.
        kind: &'static str,
    },
    /// Partitions of an MBR have no names.
    #[error("partition {0}: partitions of an MBR have no names; use a GPT")]
    NamedInMbr(usize),
    /// The name has too many letters.
    #[error("partition {0}: a name has 36 letters at most")]
    LongName(usize),
}

/// Plans a table for a disk of `size` bytes with sectors of `sector` bytes. `random` gives identifiers.
///
/// # Errors
/// See [`TableError`].
pub fn plan(
    kind: TableKind,
    size: u64,
    sector: u64,
    wanted: &[Wanted],
    random: &mut dyn FnMut() -> [u8; 16],
) -> Result<NewTable, TableError> {
    let end = check(kind, size, sector, wanted.len())?;
    let parts = place(end, sector, wanted).map_err(|error| match error {
        TableError::NoRoom { number: 1, .. } if size < 3 * ALIGNMENT => TableError::TooSmall(size),
        error => error,
    })?;
    pieces(kind, size, sector, (wanted, parts), random)
}

/// Plans a table whose partitions lie where they are told to: `wanted` and where each lies, in bytes.
///
/// # Errors
/// See [`TableError`]; [`TableError::Place`] if one overlaps another, or lies where the table does.
pub fn plan_at(
    kind: TableKind,
    size: u64,
    sector: u64,
    (wanted, places): (&[Wanted], &[Placed]),
    random: &mut dyn FnMut() -> [u8; 16],
) -> Result<NewTable, TableError> {
    let end = check(kind, size, sector, wanted.len())?;
    let first = if kind == TableKind::Gpt { entries_length().saturating_add(2 * sector) } else { sector };
    let end_of = |part: &Placed| part.start.saturating_add(part.length);
    for (number, part) in (1..).zip(places) {
        let overlaps = |other: &Placed| other.start < end_of(part) && part.start < end_of(other);
        let is_whole = part.start.is_multiple_of(sector) && part.length.is_multiple_of(sector) && part.length > 0;
        let is_taken = places.iter().take(number - 1).any(overlaps);
        if part.start < first || end_of(part) > end || !is_whole || is_taken {
            return Err(TableError::Place(number));
        }
    }
    pieces(kind, size, sector, (wanted, places.to_vec()), random)
}

/// Checks what holds for every table; returns where partitions must end.
fn check(kind: TableKind, size: u64, sector: u64, count: usize) -> Result<u64, TableError> {
    if !matches!(sector, 512 | 4096) {
        return Err(TableError::Sector(sector));
    }
    let is_gpt = kind == TableKind::Gpt;
    let (most, hint) = if is_gpt { (ENTRIES as usize, "") } else { (4, "; use a GPT") };
    if count > most {
        return Err(TableError::TooMany { kind: kind.name(), most, count, hint });
    }
    if !is_gpt && sector != MBR_SECTOR {
        return Err(TableError::MbrSector(sector));
    }
    // The second copy of a GPT: its entries, and its header in the last sector.
    let behind = if is_gpt { entries_length().saturating_add(sector) } else { 0 };
    let end = (size / sector).saturating_mul(sector).saturating_sub(behind);
    // Without partitions nothing else finds out that there is no room.
    if size < behind.saturating_add(ALIGNMENT) { Err(TableError::TooSmall(size)) } else { Ok(end) }
}

fn pieces(
    kind: TableKind,
    size: u64,
    sector: u64,
    (wanted, parts): (&[Wanted], Vec<Placed>),
    random: &mut dyn FnMut() -> [u8; 16],
) -> Result<NewTable, TableError> {
    let pieces = match kind {
        TableKind::Gpt => gpt(size, sector, wanted, &parts, random)?,
        TableKind::Mbr => mbr(wanted, &parts, random)?,
    };
    Ok(NewTable { parts, pieces })
}

/// Bytes of all entries of a GPT.
fn entries_length() -> u64 {
    u64::from(ENTRIES) * u64::from(ENTRY)
}

/// Places partitions one after another, up to `end`.
fn place(end: u64, sector: u64, wanted: &[Wanted]) -> Result<Vec<Placed>, TableError> {
    let mut next = ALIGNMENT;
    let mut placed = Vec::new();
    for (number, part) in (1..).zip(wanted) {
        let start = next.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        let left = end.saturating_sub(start);
        let length = match part.length {
            Some(0) => return Err(TableError::Empty(number)),
            Some(length) => length.checked_next_multiple_of(sector).unwrap_or(u64::MAX),
            None if number < wanted.len() => return Err(TableError::RestNotLast(number)),
            None => left - left % BLOCK,
        };
        if length > left || length == 0 {
            return Err(TableError::NoRoom { number, left });
        }
        next = start.saturating_add(length);
        placed.push(Placed { start, length });
    }
    Ok(placed)
}

/// Both copies of a GPT, and the MBR that protects it.
fn gpt(
    size: u64,
    sector: u64,
    wanted: &[Wanted],
    parts: &[Placed],
    random: &mut dyn FnMut() -> [u8; 16],
) -> Result<Vec<(u64, Vec<u8>)>, TableError> {
    let id = version_4(random());
    let mut entries = Vec::new();
    for (number, (wanted, part)) in (1..).zip(wanted.iter().zip(parts)) {
        let name: Vec<u8> = wanted.name.encode_utf16().take(NAME + 1).flat_map(u16::to_le_bytes).collect();
        if name.len() > 2 * NAME {
            return Err(TableError::LongName(number));
        }
        entries.extend(wanted.kind.guid());
        entries.extend(version_4(random()));
        let first = part.start / sector;
        let last = (part.start.saturating_add(part.length) / sector).saturating_sub(1);
        entries.extend([first, last, 0].into_iter().flat_map(u64::to_le_bytes));
        entries.extend(name);
        entries.resize(number * ENTRY as usize, 0);
    }
    let length = entries_length();
    entries.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
    let (last, sectors) = ((size / sector).saturating_sub(1), length.div_ceil(sector));
    let usable = (2 + sectors, last.saturating_sub(sectors).saturating_sub(1));
    let header = |own: u64, other: u64, at: u64| {
        let mut header = b"EFI PART".to_vec();
        header.extend(0x0001_0000_u32.to_le_bytes());
        header.extend(u32::try_from(HEADER).unwrap_or_default().to_le_bytes());
        // The checksum of the header comes here, and four reserved bytes.
        header.extend([0; 8]);
        header.extend([own, other, usable.0, usable.1].into_iter().flat_map(u64::to_le_bytes));
        header.extend(id);
        header.extend(at.to_le_bytes());
        header.extend([ENTRIES, ENTRY, crc32fast::hash(&entries)].into_iter().flat_map(u32::to_le_bytes));
        let checksum = crc32fast::hash(&header);
        header.splice(16..20, checksum.to_le_bytes());
        header.resize(usize::try_from(sector).unwrap_or(HEADER), 0);
        header
    };
    let (first, second) = (header(1, last, 2), header(last, 1, last.saturating_sub(sectors)));
    let at = |place: u64| place.saturating_mul(sector);
    let protected = u32::try_from(last).unwrap_or(u32::MAX);
    let protective = first_sector(0, &[entry(0, 0xEE, 1, protected, [0, 2, 0])]);
    Ok(vec![
        (at(last.saturating_sub(sectors)), entries.clone()),
        (at(last), second),
        (at(2), entries),
        (at(1), first),
        (0, protective),
    ])
}

/// A random GUID, as RFC 9562 (section 5.4) marks it; a GUID's third field is little-endian on a disk.
fn version_4(mut id: [u8; 16]) -> [u8; 16] {
    id[7] = id[7] & 0x0F | 0x40;
    id[8] = id[8] & 0x3F | 0x80;
    id
}

fn mbr(
    wanted: &[Wanted],
    parts: &[Placed],
    random: &mut dyn FnMut() -> [u8; 16],
) -> Result<Vec<(u64, Vec<u8>)>, TableError> {
    let mut entries = Vec::new();
    for (number, (wanted, part)) in (1..).zip(wanted.iter().zip(parts)) {
        let kind = wanted.kind.byte().ok_or(TableError::NotInMbr { number, kind: wanted.kind.name() })?;
        if !wanted.name.is_empty() {
            return Err(TableError::NamedInMbr(number));
        }
        let (start, length) = (part.start / MBR_SECTOR, part.length / MBR_SECTOR);
        let is_within = start.saturating_add(length) <= u64::from(u32::MAX);
        let (Ok(start), Ok(length), true) = (u32::try_from(start), u32::try_from(length), is_within) else {
            return Err(TableError::BeyondMbr(number));
        };
        entries.push(entry(0, kind, start, length, [0xFE, 0xFF, 0xFF]));
    }
    let [a, b, c, d, ..] = random();
    Ok(vec![(0, first_sector(u32::from_le_bytes([a, b, c, d]), &entries))])
}

/// An entry of an MBR. Cylinders, heads and sectors cannot count this far, which their largest numbers say.
fn entry(flag: u8, kind: u8, start: u32, length: u32, first: [u8; 3]) -> [u8; 16] {
    let [a, b, c, d] = start.to_le_bytes();
    let [e, f, g, h] = length.to_le_bytes();
    let last = if kind == 0xEE { [0xFF; 3] } else { [0xFE, 0xFF, 0xFF] };
    [flag, first[0], first[1], first[2], kind, last[0], last[1], last[2], a, b, c, d, e, f, g, h]
}

/// The first sector, with no program to boot.
fn first_sector(id: u32, entries: &[[u8; 16]]) -> Vec<u8> {
    let mut sector = vec![0; 440];
    sector.extend(id.to_le_bytes());
    sector.extend([0; 2]);
    sector.extend(entries.iter().flatten());
    sector.resize(510, 0);
    sector.extend([0x55, 0xAA]);
    sector
}
