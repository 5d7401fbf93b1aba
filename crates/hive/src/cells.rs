//! Reads the cells that a hive's bins consist of, through cached pages. Sectors of a replayed log stand in for those of the file.

use std::collections::BTreeMap;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_volume::{Pages, VolumeError};

use crate::HiveError;
use crate::base::{LENGTH, SECTOR};

/// Sectors that the logs changed, by their number from the first bin.
pub type Replayed = BTreeMap<u32, Box<[u8; SECTOR]>>;

/// Pages of 4 KiB that are kept of the file.
const CACHED: usize = 1024;

/// The bytes of a hive's bins.
pub struct Cells {
    file: Pages,
    replayed: Replayed,
    /// Where the bins end: no further than the header says, and no further than there are bytes.
    end: u32,
    /// Bytes that there are before the end. A log may change one sector far behind the end of the file, and none before it.
    length: u32,
}

impl Cells {
    /// Bins of `claimed` bytes.
    pub fn new(file: Arc<dyn Backing>, replayed: Replayed, claimed: u32) -> Cells {
        let in_file = file.size().saturating_sub(LENGTH as u64);
        let in_log = replayed.last_key_value().map_or(0, |(sector, _)| (u64::from(*sector) + 1) * SECTOR as u64);
        let end = u64::from(claimed).min(in_file.max(in_log));
        let length = end.min(in_file.saturating_add(replayed.len() as u64 * SECTOR as u64));
        let [end, length] = [end, length].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        Cells { file: Pages::new(file, CACHED), replayed, end, length }
    }

    /// Bytes of all cells: what keys, values and data can take together if nothing is counted twice.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Fills `out` with the bytes from `at`.
    fn read(&self, at: u32, out: &mut [u8]) -> Result<(), HiveError> {
        let (mut at, mut out) = (at, out);
        while !out.is_empty() {
            let within = at as usize % SECTOR;
            let (now, later) = out.split_at_mut(out.len().min(SECTOR - within));
            match self.replayed.get(&(at / SECTOR as u32)) {
                Some(sector) => now.copy_from_slice(sector.get(within..within + now.len()).unwrap_or_default()),
                None => self.file.read(u64::from(at) + LENGTH as u64, now).map_err(|error| match error {
                    VolumeError::Io { offset, error } => HiveError::Io { offset, error },
                    _ => HiveError::cell(at, "the file ends before"),
                })?,
            }
            at = at.saturating_add(now.len() as u32);
            out = later;
        }
        Ok(())
    }

    /// Bytes of the content of the cell at `at` ("Cell"): it must be in use, and within the bins.
    pub fn size(&self, at: u32) -> Result<u32, HiveError> {
        if !at.is_multiple_of(8) || at.checked_add(8).is_none_or(|end| end > self.end) {
            return Err(HiveError::cell(at, "no cell can be there"));
        }
        let mut size = [0; 4];
        self.read(at, &mut size)?;
        // A cell in use has a negative size.
        let size = i32::from_le_bytes(size);
        if size >= 0 {
            return Err(HiveError::cell(at, "a free cell is used"));
        }
        let size = size.unsigned_abs();
        match at.checked_add(size).is_some_and(|end| end <= self.end) && size >= 8 {
            true => Ok(size - 4),
            false => Err(HiveError::cell(at, "a cell has a size that is none")),
        }
    }

    /// The first bytes of the content of the cell at `at`: at most `limit`.
    pub fn start(&self, at: u32, limit: u32) -> Result<Vec<u8>, HiveError> {
        let mut content = vec![0; self.size(at)?.min(limit) as usize];
        self.read(at + 4, &mut content)?;
        Ok(content)
    }
}
