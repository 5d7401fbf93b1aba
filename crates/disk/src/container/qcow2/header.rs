//! The header and its extensions (sections "Header" and "Header extensions").

use inarch_block::Backing;

use super::super::unpack::Method;
use super::super::{Container, ContainerError};
use crate::read::array;

/// The shortest header of version 3, and that of version 2.
const LENGTH_3: u32 = 104;
const LENGTH_2: u32 = 72;

/// Bits of `cluster_bits`.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// The least with extended L2 entries: a subcluster has at least a sector.
const EXTENDED_CLUSTER_BITS: u32 = 14;
/// The longest name of a backing file.
const LONGEST_NAME: u32 = 1023;
/// The largest L1 table, in bytes: `QCOW_MAX_L1_SIZE` of QEMU's block/qcow2.h.
const LARGEST_L1: u64 = 32 << 20;

/// Incompatible features. Bits 0 and 1 say that reference counts, or other metadata, may be wrong; reading is still allowed.
const TOLERATED: u64 = 3;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// Types of header extensions.
const BACKING_FORMAT: u32 = 0xE279_2ACA;
const DATA_FILE: u32 = 0x4441_5441;
const FEATURE_NAMES: u32 = 0x6803_F857;

/// What the header says.
#[derive(Debug)]
pub(super) struct Header {
    /// Bytes of the disk.
    pub(super) size: u64,
    pub(super) cluster_bits: u32,
    /// Where the L1 table is in the file.
    pub(super) l1: u64,
    pub(super) method: Method,
    /// Whether clusters that read as zeros can be marked: from version 3 on.
    pub(super) marks_zeros: bool,
    pub(super) extended_l2: bool,
    pub(super) backing: Option<Vec<u8>>,
    pub(super) backing_format: Option<Vec<u8>>,
    pub(super) data_file: Option<Vec<u8>>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_be_bytes)
}

fn refused(reason: impl Into<String>) -> ContainerError {
    Container::Qcow2.refused(reason)
}

impl Header {
    /// Reads and checks it.
    pub(super) fn read(file: &dyn Backing) -> Result<Header, ContainerError> {
        let first = Container::Qcow2.bytes(file, 0, u64::from(LENGTH_2), "the header")?;
        let version = u32_at(&first, 4);
        let cluster_bits = u32_at(&first, 20);
        if !first.starts_with(super::MAGIC) || !matches!(version, 2 | 3) {
            return Err(refused(format!("version {version}, where 2 and 3 are read")));
        }
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(refused(format!("clusters of 2^{cluster_bits} bytes, where 2^9 to 2^21 are allowed")));
        }
        // Header, extensions and the backing file's name are in the first cluster.
        let bytes = Container::Qcow2.bytes(file, 0, file.size().min(1 << cluster_bits), "the first cluster")?;
        let length = if version == 3 { u32_at(&bytes, 100) } else { LENGTH_2 };
        if version == 3 && (length < LENGTH_3 || length as usize > bytes.len() || !length.is_multiple_of(8)) {
            return Err(refused(format!("a header of {length} bytes")));
        }
        if u32_at(&bytes, 32) != 0 {
            return Err(refused(
                "it is encrypted, which is not read here; 'qemu-img convert' with its secret makes a plain one",
            ));
        }
        let extensions = Extensions::read(&bytes, length as usize)?;
        let incompatible = if version == 3 { u64_at(&bytes, 72) } else { 0 };
        let unknown = incompatible & !(TOLERATED | EXTERNAL_DATA | COMPRESSION_TYPE | EXTENDED_L2);
        if unknown != 0 {
            return Err(refused(extensions.feature(&bytes, unknown.trailing_zeros())));
        }
        let extended_l2 = incompatible & EXTENDED_L2 != 0;
        if extended_l2 && cluster_bits < EXTENDED_CLUSTER_BITS {
            return Err(refused(format!(
                "extended L2 entries with clusters of 2^{cluster_bits} bytes; 2^14 is the least"
            )));
        }
        let method = match bytes.get(104).filter(|_| length > LENGTH_3).copied().unwrap_or(0) {
            0 => Method::Deflate,
            1 => Method::Zstd,
            other => {
                return Err(refused(format!(
                    "clusters are compressed by method {other}, where 0 (zlib) and 1 (zstd) are read"
                )));
            }
        };
        let data_file = match (incompatible & EXTERNAL_DATA != 0, extensions.data_file) {
            (false, _) => None,
            (true, Some(name)) => Some(name),
            (true, None) => return Err(refused("its clusters are in another file, whose name is not in the header")),
        };
        let header = Header {
            size: u64_at(&bytes, 24),
            cluster_bits,
            l1: u64_at(&bytes, 40),
            method,
            marks_zeros: version == 3,
            extended_l2,
            backing: backing(&bytes)?,
            backing_format: extensions.backing_format,
            data_file,
        };
        header.check_l1(u64::from(u32_at(&bytes, 36)), file.size())?;
        Ok(header)
    }

    /// Bits of an L2 entry's number.
    pub(super) fn l2_bits(&self) -> u32 {
        self.cluster_bits - if self.extended_l2 { 4 } else { 3 }
    }

    /// The L1 table is in the file, and has an entry for every part of the disk.
    fn check_l1(&self, entries: u64, file: u64) -> Result<(), ContainerError> {
        let needed = self.size.div_ceil(1 << (self.cluster_bits + self.l2_bits()));
        let length = needed.saturating_mul(8);
        if entries < needed || length > LARGEST_L1 {
            return Err(refused(format!("an L1 table of {entries} entries for a disk of {} bytes", self.size)));
        }
        let is_within = self.l1.checked_add(length).is_some_and(|end| end <= file);
        if needed > 0 && (!self.l1.is_multiple_of(1 << self.cluster_bits) || self.l1 == 0 || !is_within) {
            return Err(refused(format!(
                "the L1 table at byte {} is not in the file; the image is cut off or damaged",
                self.l1
            )));
        }
        Ok(())
    }
}

/// The backing file's name.
fn backing(bytes: &[u8]) -> Result<Option<Vec<u8>>, ContainerError> {
    let (offset, length) = (u64_at(bytes, 8), u32_at(bytes, 16));
    if offset == 0 || length == 0 {
        return Ok(None);
    }
    let end = offset.checked_add(u64::from(length)).filter(|_| length <= LONGEST_NAME);
    let name = end.and_then(|end| bytes.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?));
    match name {
        Some(name) => Ok(Some(name.to_vec())),
        None => Err(refused(format!(
            "the name of its backing file, {length} bytes at byte {offset}, is not in the first cluster"
        ))),
    }
}

/// The extensions that matter.
#[derive(Default)]
struct Extensions {
    backing_format: Option<Vec<u8>>,
    data_file: Option<Vec<u8>>,
    /// Where the table of feature names is in the first cluster.
    feature_names: std::ops::Range<usize>,
}

impl Extensions {
    /// Those that follow the header, up to the one that ends them.
    fn read(bytes: &[u8], mut at: usize) -> Result<Extensions, ContainerError> {
        let mut found = Extensions::default();
        while bytes.len().saturating_sub(at) >= 8 {
            let (kind, length) = (u32_at(bytes, at), u32_at(bytes, at + 4) as usize);
            if kind == 0 {
                break;
            }
            let start = at + 8;
            let end = start.saturating_add(length);
            let Some(content) = bytes.get(start..end) else {
                return Err(refused(format!("the header extension at byte {at} goes beyond the first cluster")));
            };
            match kind {
                BACKING_FORMAT => found.backing_format = Some(content.to_vec()),
                DATA_FILE => found.data_file = Some(content.to_vec()),
                FEATURE_NAMES => found.feature_names = start..end,
                _ => {}
            }
            at = end.next_multiple_of(8);
        }
        Ok(found)
    }

    /// What to say of an incompatible feature: entries of 48 bytes have its kind (0), its bit and its name.
    fn feature(&self, bytes: &[u8], bit: u32) -> String {
        let table = bytes.get(self.feature_names.clone()).unwrap_or_default();
        let of = |entry: &&[u8]| entry.first() == Some(&0) && entry.get(1).copied().map(u32::from) == Some(bit);
        let name = table.chunks_exact(48).find(of).and_then(|entry| entry.get(2..)?.split(|byte| *byte == 0).next());
        let name = name.map(|name| format!(", {}", super::super::error::quoted(name))).unwrap_or_default();
        format!("it uses a feature that is not read here (bit {bit}{name})")
    }
}
