//! Sparse extents: a directory of tables of grains, which may be compressed.

use std::io;
use std::sync::Arc;

use inarch_block::{Backing, read_backing};

use super::descriptor::Descriptor;
use super::{SECTOR, SPARSE, refused};
use crate::container::mapped::{Map, Mapped, Piece};
use crate::container::opening::Opening;
use crate::container::tables::{Tables, damaged};
use crate::container::unpack::{Method, unpack};
use crate::container::{Container, ContainerError};
use crate::read::{array, u32_at, u64_at};

/// Bytes of the header.
const HEADER: u64 = 512;
/// Flags.
const LINES_ARE_TESTED: u32 = 1;
const MARKS_ZEROS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
const HAS_MARKERS: u32 = 1 << 17;
/// The bytes that show whether a transfer as text changed line ends.
const LINE_ENDS: &[u8] = b"\n \r\n";
/// A directory at the end of the file: a copy of the header, with its place, is 1024 bytes before the end.
const AT_THE_END: u64 = u64::MAX;
const FOOTER: u64 = 1024;
/// Sizes of grains in sectors; compressed ones are decompressed as a whole.
const GRAINS: std::ops::RangeInclusive<u64> = 1..=1 << 16;
const LARGEST_COMPRESSED: u64 = 1 << 12;
/// The most entries of a table.
const MOST_ENTRIES: u64 = 512;
/// An entry for a grain of zeros.
const ZEROS: u32 = 1;
/// What precedes a compressed grain: its number, and its size in bytes.
const MARKER: u64 = 12;

/// What the header of a sparse extent says.
pub(super) struct Sparse {
    flags: u32,
    /// Bytes.
    size: u64,
    grain: u64,
    /// Entries of a table.
    entries: u64,
    /// Where the directory is.
    directory: u64,
    /// Where the descriptor is, and its length; none if it is in a file of its own.
    descriptor: Option<(u64, u64)>,
}

impl Sparse {
    /// Reads and checks it.
    pub(super) fn read(file: &dyn Backing) -> Result<Sparse, ContainerError> {
        let mut bytes = Container::Vmdk.bytes(file, 0, HEADER, "the header")?;
        if u64_at(&bytes, 56) == Some(AT_THE_END) {
            let at = file.size().saturating_sub(FOOTER);
            bytes = Container::Vmdk.bytes(file, at, HEADER, "the header's copy")?;
        }
        let word = |at: usize| u32_at(&bytes, at).unwrap_or(0);
        let sectors = |at: usize| u64_at(&bytes, at).and_then(|sectors| sectors.checked_mul(SECTOR));
        if !bytes.starts_with(SPARSE) {
            return Err(refused("an extent has no header, or none at its end; the image is cut off or damaged"));
        }
        let (version, flags) = (word(4), word(8));
        if !matches!(version, 1..=3) {
            return Err(refused(format!("version {version}, where 1 to 3 are read")));
        }
        if flags & LINES_ARE_TESTED != 0 && bytes.get(73..77) != Some(LINE_ENDS) {
            return Err(refused("it was transferred as text, which changed its line ends; transfer it again"));
        }
        let grain = u64_at(&bytes, 20).unwrap_or(0);
        let largest = if flags & COMPRESSED != 0 { LARGEST_COMPRESSED } else { *GRAINS.end() };
        if !GRAINS.contains(&grain) || grain > largest || !grain.is_power_of_two() {
            return Err(refused(format!("grains of {grain} sectors")));
        }
        let method = array(&bytes, 77).map(u16::from_le_bytes);
        if flags & COMPRESSED != 0 && method != Some(1) {
            return Err(refused(format!(
                "grains are compressed by method {}, where 1 (deflate) is read",
                method.unwrap_or(0)
            )));
        }
        let entries = u64::from(word(44));
        if !(1..=MOST_ENTRIES).contains(&entries) {
            return Err(refused(format!("tables of {entries} grains")));
        }
        let too_large = || refused("its header has numbers that are too large; the image is damaged");
        let size = sectors(12).ok_or_else(too_large)?;
        let directory = sectors(56).ok_or_else(too_large)?;
        let grain = grain * SECTOR;
        let length = size.div_ceil(grain * entries) * 4;
        if directory == 0 || directory.checked_add(length).is_none_or(|end| end > file.size()) {
            return Err(refused(format!(
                "the grain directory at byte {directory} is not in the file; the image is cut off or damaged"
            )));
        }
        let descriptor = match (sectors(28), sectors(36)) {
            (Some(at), Some(length)) if at > 0 && length > 0 => Some((at, length)),
            _ => None,
        };
        Ok(Sparse { flags, size, grain, entries, directory, descriptor })
    }

    /// The descriptor, if it is in the extent.
    pub(super) fn descriptor(&self, file: &dyn Backing) -> Result<Option<Descriptor>, ContainerError> {
        self.descriptor.map(|(at, length)| Descriptor::read(file, at, length)).transpose()
    }

    /// The extent's content. Grains that it does not have are those of `below`.
    pub(super) fn disk(
        self,
        opening: &mut Opening<'_, '_>,
        file: Arc<dyn Backing>,
        below: Option<Arc<dyn Backing>>,
    ) -> Arc<dyn Backing> {
        let size = self.size;
        let map = Grains { tables: opening.tables(&file), sparse: self };
        Arc::new(Mapped { map, size, data: file, below })
    }
}

/// The map of an extent.
struct Grains {
    tables: Tables,
    sparse: Sparse,
}

impl Grains {
    fn grain_at(&self, table: u64, offset: u64) -> io::Result<Piece> {
        let Sparse { grain, entries, flags, .. } = self.sparse;
        let number = offset / grain % entries;
        let within = offset % grain;
        Ok(match u32::from_le_bytes(self.tables.array(table + number * 4)?) {
            0 => Piece::Below,
            ZEROS if flags & MARKS_ZEROS != 0 => Piece::Zeros,
            start if flags & COMPRESSED != 0 => Piece::Packed { cluster: start.into(), within },
            start => Piece::At(u64::from(start) * SECTOR + within),
        })
    }
}

impl Map for Grains {
    fn unit(&self) -> u64 {
        self.sparse.grain
    }

    fn piece(&self, offset: u64, count: u64) -> io::Result<(Piece, u64)> {
        let covered = self.sparse.grain * self.sparse.entries;
        let count = count.min(covered - offset % covered);
        match u32::from_le_bytes(self.tables.array(self.sparse.directory + offset / covered * 4)?) {
            0 => Ok((Piece::Below, count)),
            table => Piece::run(offset, count, self.sparse.grain, &|at| self.grain_at(u64::from(table) * SECTOR, at)),
        }
    }

    fn unpack(&self, cluster: u64) -> io::Result<Arc<[u8]>> {
        let at = cluster.saturating_mul(SECTOR);
        let most = self.sparse.grain;
        let (data, length) = if self.sparse.flags & HAS_MARKERS == 0 {
            (at, most * 2)
        } else {
            (at + MARKER, u32::from_le_bytes(self.tables.array(at + 8)?).into())
        };
        self.tables.unpacked(cluster, |file: &dyn Backing| {
            let length = length.min(most * 2).min(file.size().saturating_sub(data));
            let mut packed = vec![0; length as usize];
            read_backing(file, data, &mut packed)?;
            let unpacked = unpack(Method::Zlib, &packed, most as usize);
            unpacked
                .ok_or_else(|| damaged(format!("the compressed grain at byte {at} of the file does not decompress")))
        })
    }
}
