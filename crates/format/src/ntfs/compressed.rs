//! Compressed content. A value is cut into units of some clusters, and each unit is stored as it is, compressed into fewer
//! clusters with a hole behind them, or is a hole.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_tree::DataRange;
use inarch_volume::{VolumeError, join_data};

use super::damaged;
use super::inode::{Inode, Stream, Value};
use super::lznt1::decompress;
use super::mft::Mft;
use super::spec::attribute_flag::{COMPRESSION, ENCRYPTED};

/// The largest unit. Those of Windows have 64 KiB.
const MAX_UNIT: u64 = 1 << 20;
/// Decompressed units that are kept: a client reads on where it stopped.
const KEPT: usize = 16;
/// The method of compression.
const LZNT1: u16 = 1;

type Key = (u64, u64);

/// Decompresses units, and keeps a few.
#[derive(Default)]
pub(super) struct Units {
    /// By the file's reference and the unit's number; the last one was used last.
    kept: Mutex<Vec<(Key, Arc<Vec<u8>>)>>,
}

/// Whether a value is compressed; an error if it cannot be read at all.
pub(super) fn is_compressed(stream: &Stream) -> Result<bool, VolumeError> {
    match (stream.flags & ENCRYPTED, stream.flags & COMPRESSION, &stream.value) {
        (ENCRYPTED, ..) => Err(VolumeError::Unsupported("is encrypted, and is not read".to_owned())),
        (_, 0, _) | (_, _, Value::Resident(_)) => Ok(false),
        // Files of volumes with large clusters carry the flag, and are stored as they are.
        (_, LZNT1, Value::Mapped(mapped)) => Ok(mapped.unit_bits != 0),
        (_, method, _) => Err(VolumeError::Unsupported(format!("is compressed by the unknown method {method}"))),
    }
}

/// Bytes of a unit.
pub(super) fn unit_size(mft: &Mft, stream: &Stream) -> Result<u64, VolumeError> {
    let Value::Mapped(mapped) = &stream.value else { return Err(VolumeError::WrongType) };
    let size = mft.geometry.cluster().checked_shl(mapped.unit_bits.into()).filter(|_| mapped.unit_bits < 16);
    let size = size.filter(|size| *size <= MAX_UNIT);
    size.ok_or_else(|| damaged(format!("its units of compression have 2^{} clusters", mapped.unit_bits)))
}

impl Units {
    /// Gives `take` the bytes `range` of content in units of `size` bytes, in order and in pieces. `make` makes a unit that is not
    /// kept; the last one may be shorter.
    pub(super) fn read(
        &self,
        file: u64,
        size: u64,
        range: Range<u64>,
        make: &dyn Fn(u64) -> Result<Vec<u8>, VolumeError>,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), VolumeError> {
        let mut at = range.start;
        while at < range.end {
            let (number, within) = (at / size, (at % size) as usize);
            let count = (size - at % size).min(range.end - at) as usize;
            let unit = match self.kept((file, number)) {
                Some(unit) => unit,
                None => self.keep((file, number), Arc::new(make(number)?)),
            };
            take(unit.get(within..within + count).ok_or_else(|| damaged("internal: a unit is too short"))?);
            at += count as u64;
        }
        Ok(())
    }

    fn kept(&self, key: Key) -> Option<Arc<Vec<u8>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let index = kept.iter().position(|(known, _)| *known == key)?;
        let found = kept.remove(index);
        let unit = Arc::clone(&found.1);
        kept.push(found);
        Some(unit)
    }

    fn keep(&self, key: Key, unit: Arc<Vec<u8>>) -> Arc<Vec<u8>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((key, Arc::clone(&unit)));
        unit
    }
}

/// Unit `number` of `size` bytes of a compressed value. What is beyond the value, or was not written, is zeros.
pub(super) fn decode(
    mft: &Mft,
    inode: &Inode,
    stream: &Stream,
    number: u64,
    size: u64,
) -> Result<Vec<u8>, VolumeError> {
    let Value::Mapped(mapped) = &stream.value else { return Err(VolumeError::WrongType) };
    let start = number.saturating_mul(size);
    let mut unit = vec![0; size as usize];
    if start >= mapped.written {
        return Ok(unit);
    }
    let bits = mft.geometry.cluster_bits;
    let end = (start + size).min(mapped.allocated.next_multiple_of(1 << bits));
    let (mut stored, mut behind) = (Vec::new(), false);
    inode.each_run(mft, stream, start >> bits..end >> bits, &mut |run| {
        match run.place {
            None => behind = true,
            Some(_) if behind => return Err(damaged("a unit of its compressed content has a hole in it")),
            Some(place) => {
                let from = stored.len();
                stored.resize(from + (run.count << bits) as usize, 0);
                mft.read(place << bits, stored.get_mut(from..).unwrap_or_default())?;
            }
        }
        Ok(true)
    })?;
    match stored.len() {
        0 => return Ok(unit),
        all if all as u64 == size => unit = stored,
        _ => decompress(&stored, &mut unit)
            .ok_or_else(|| damaged(format!("its compressed content at byte {start} makes no sense")))?,
    }
    let written = (mapped.written - start).min(size) as usize;
    unit.get_mut(written..).unwrap_or_default().fill(0);
    Ok(unit)
}

/// The ranges with data of a compressed value that end behind `offset`, ascending: whole units.
pub(super) fn data_ranges(
    mft: &Mft,
    inode: &Inode,
    stream: &Stream,
    offset: u64,
    ranges: &mut Vec<DataRange>,
) -> Result<(), VolumeError> {
    let Value::Mapped(mapped) = &stream.value else { return Err(VolumeError::WrongType) };
    let (size, bits) = (unit_size(mft, stream)?, mft.geometry.cluster_bits);
    let start = offset / size * size;
    if start >= mapped.written {
        return Ok(());
    }
    let mut at = start;
    let clusters = start >> bits..mapped.written.div_ceil(1 << bits);
    inode.each_run(mft, stream, clusters, &mut |run| {
        if run.place.is_some() {
            let first = ((run.first << bits) / size * size).max(at);
            let end = (run.end() << bits).next_multiple_of(size).min(mapped.size);
            join_data(ranges, first, end.saturating_sub(first));
            at = at.max(end);
        }
        Ok(true)
    })
}
