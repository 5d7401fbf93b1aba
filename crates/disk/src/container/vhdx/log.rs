//! The log of an image that was not closed properly (section 2.3), replayed in memory: [`Replayed`] is the file as it would be if its
//! writer had finished. Nothing is written.
//!
//! The log is a ring of entries. Each entry names a tail: the oldest entry that was still needed when it was written. The newest run of
//! consecutive entries whose last one names the first as its tail is the active one. Its changes are made in order.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use inarch_block::{Backing, Borrower, ChangedFile, Cursor};

use super::{Guid, Header, is_whole, refused};
use crate::container::{Container, ContainerError};
use crate::read::{array, u32_at, u64_at};

/// Bytes of a sector of the log, and of a change.
const SECTOR: u64 = 4096;
const HEADER: usize = 64;
const DESCRIPTOR: usize = 32;
/// The largest log that is replayed. Writers make one of 1 MiB.
const LARGEST: u64 = 64 << 20;
/// The most sectors that change: 256 MiB, in which the blocks of 64 TiB are listed.
const MOST_CHANGES: usize = 64 << 10;

/// The most sectors that become zeros by all entries, however often the same ones do. Writers make zeros of a block at a time, if at all.
const MOST_ZEROS: u64 = 16 * MOST_CHANGES as u64;

/// What a sector becomes: zeros, or these bytes.
type Change = Option<Box<[u8; SECTOR as usize]>>;
type Changes = BTreeMap<u64, Change>;

/// The most by which a file is to grow: the largest block. QEMU and Hyper-V grow it by blocks.
const MOST_GROWTH: u64 = 256 << 20;

/// An entry of the log.
struct Entry {
    at: u64,
    length: u64,
    tail: u64,
    sequence: u64,
    /// Bytes that the file had on its medium when the entry was written, and those that it is to have (`FlushedFileOffset`
    /// and `LastFileOffset`).
    flushed: u64,
    last: u64,
}

/// The file with the changes of its log.
pub(super) fn replay(file: Arc<dyn Backing>, header: &Header) -> Result<Arc<dyn Backing>, ContainerError> {
    let length = header.log_length;
    if length == 0 || !length.is_multiple_of(SECTOR) || length > LARGEST {
        return Err(refused(format!(
            "it was not closed properly, and its log has {length} bytes; 'qemu-img check -r all' repairs it"
        )));
    }
    let ring = Container::Vhdx.bytes(&*file, header.log_at, length, "the log")?;
    let ring = Ring::new(ring, header.log);
    let Some(run) = ring.newest_run() else {
        return Err(refused(
            "it was not closed properly, and its log has no valid entry; 'qemu-img check -r all' may repair it",
        ));
    };
    let (flushed, last) = run.last().map_or((0, 0), |last| (last.flushed, last.last));
    let size = file.size().max(last);
    if flushed > file.size() || size - file.size() > MOST_GROWTH {
        let reason = format!("by its log it had {flushed} bytes and was to have {last}, and it has {}", file.size());
        return Err(refused(format!("{reason}; the image is cut off or damaged")));
    }
    let mut changes = Changes::new();
    for entry in &run {
        let made = ring.changes_of(entry, &mut changes, size);
        made.ok_or_else(|| {
            refused(format!(
                "the log's entry at byte {} makes no sense, or changes too much; the image is damaged",
                header.log_at + entry.at
            ))
        })?;
    }
    Ok(Arc::new(Replayed { file, changes, size }))
}

/// The log.
struct Ring {
    bytes: Vec<u8>,
    log: Guid,
    /// Bytes that may still be checksummed: without a limit, entries that overlap each other would take a long time.
    left: Cell<u64>,
    /// Sectors that may still become zeros: a descriptor of a few bytes can name many.
    zeros: Cell<u64>,
}

impl Ring {
    fn new(bytes: Vec<u8>, log: Guid) -> Ring {
        let left = Cell::new(bytes.len() as u64 * 8);
        Ring { bytes, log, left, zeros: Cell::new(MOST_ZEROS) }
    }

    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// `length` bytes from `at`, past the end from the start again.
    fn bytes(&self, at: u64, length: u64) -> Option<Vec<u8>> {
        let at = (at % self.length()) as usize;
        let length = usize::try_from(length).ok().filter(|length| *length <= self.bytes.len())?;
        let (start, end) = (self.bytes.get(..at)?, self.bytes.get(at..)?);
        Some(end.iter().chain(start).take(length).copied().collect())
    }

    /// The entry at `at`, if a whole one of this log is there.
    fn entry(&self, at: u64) -> Option<Entry> {
        let header = self.bytes(at, HEADER as u64)?;
        let length = u64::from(u32_at(&header, 8)?);
        let is_header = header.starts_with(b"loge") && array(&header, 32) == Some(self.log);
        if !is_header || length < SECTOR || !length.is_multiple_of(SECTOR) {
            return None;
        }
        self.left.set(self.left.get().checked_sub(length)?);
        if !is_whole(&self.bytes(at, length)?) {
            return None;
        }
        Some(Entry {
            at: at % self.length(),
            length,
            tail: u64::from(u32_at(&header, 12)?),
            sequence: u64_at(&header, 16).filter(|sequence| *sequence > 0)?,
            flushed: u64_at(&header, 48)?,
            last: u64_at(&header, 56)?,
        })
    }

    /// The entries of the newest run whose last one's tail is its first (2.3.2).
    fn newest_run(&self) -> Option<Vec<Entry>> {
        let mut newest: Option<Vec<Entry>> = None;
        let mut at = 0;
        // Each sector is looked at once: the next run begins behind the last one.
        while at < self.length() {
            let Some(first) = self.entry(at) else {
                at += SECTOR;
                continue;
            };
            let mut end = first.at + first.length;
            let mut run = vec![first];
            while let Some(next) =
                self.entry(end).filter(|next| Some(next.sequence) == run.last().map(|last| last.sequence + 1))
            {
                if end - at + next.length > self.length() {
                    break;
                }
                end += next.length;
                run.push(next);
            }
            at = end;
            let tail = run.last().map_or(0, |last| last.tail);
            let Some(from) = run.iter().position(|entry| entry.at == tail) else { continue };
            let run: Vec<Entry> = run.into_iter().skip(from).collect();
            let last = |run: &[Entry]| run.last().map(|entry| entry.sequence);
            if newest.as_deref().and_then(last) < last(&run) {
                newest = Some(run);
            }
        }
        newest
    }

    /// Adds the changes of an entry; none if it makes no sense.
    fn changes_of(&self, entry: &Entry, changes: &mut Changes, size: u64) -> Option<()> {
        let bytes = self.bytes(entry.at, entry.length)?;
        let count = u32_at(&bytes, 24)? as usize;
        let end = HEADER.checked_add(count.checked_mul(DESCRIPTOR)?)?;
        let descriptors = bytes.get(HEADER..end)?;
        let mut data =
            bytes.get(end.next_multiple_of(SECTOR as usize)..).unwrap_or_default().chunks_exact(SECTOR as usize);
        for descriptor in descriptors.chunks_exact(DESCRIPTOR) {
            let at = u64_at(descriptor, 16).filter(|at| at.is_multiple_of(SECTOR) && *at < size)?;
            if u64_at(descriptor, 24) != Some(entry.sequence) {
                return None;
            }
            if descriptor.starts_with(b"zero") {
                let length = u64_at(descriptor, 8).filter(|length| length.is_multiple_of(SECTOR))?;
                // A block past the end has nothing to change.
                let sectors = length.min(size - at).div_ceil(SECTOR);
                if sectors > MOST_CHANGES as u64 {
                    return None;
                }
                self.zeros.set(self.zeros.get().checked_sub(sectors)?);
                changes.extend((0..sectors).map(|sector| (at + sector * SECTOR, None)));
            } else if descriptor.starts_with(b"desc") {
                changes.insert(at, Some(Box::new(sector(descriptor, data.next()?, entry.sequence)?)));
            } else {
                return None;
            }
            if changes.len() > MOST_CHANGES {
                return None;
            }
        }
        Some(())
    }
}

/// A sector: its first eight bytes and its last four are in the descriptor, and the sequence number is in their place.
fn sector(descriptor: &[u8], data: &[u8], sequence: u64) -> Option<[u8; SECTOR as usize]> {
    let sequences = u64::from(u32_at(data, 4)?) << 32 | u64::from(u32_at(data, 4092)?);
    if !data.starts_with(b"data") || sequences != sequence {
        return None;
    }
    let mut sector = [0; SECTOR as usize];
    sector.copy_from_slice(data);
    sector.get_mut(..8)?.copy_from_slice(descriptor.get(8..16)?);
    sector.get_mut(4092..)?.copy_from_slice(descriptor.get(4..8)?);
    Some(sector)
}

/// A file with sectors that changed.
struct Replayed {
    file: Arc<dyn Backing>,
    changes: Changes,
    /// The file's size, or what it is to be: the rest is zeros.
    size: u64,
}

impl Replayed {
    /// Reads what is not changed.
    fn read_file(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let held = self.file.size().saturating_sub(offset).min(count);
        if held > 0 {
            self.file.read(offset, held, out)?;
        }
        out.fill_zeros(count - held);
        Ok(())
    }

    /// The changes of a range.
    fn changes(&self, offset: u64, count: u64) -> impl Iterator<Item = (&u64, &Change)> {
        self.changes.range(offset - offset % SECTOR..offset.saturating_add(count))
    }
}

impl Backing for Replayed {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).filter(|end| *end <= self.size()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut at = offset;
        for (start, change) in self.changes(offset, count) {
            let (from, to) = ((*start).max(at), (start + SECTOR).min(end));
            if from > at {
                self.read_file(at, from - at, out)?;
            }
            match change {
                None => out.fill_zeros(to - from),
                Some(bytes) => {
                    out.copy_from(bytes.get((from - start) as usize..(to - start) as usize).unwrap_or_default());
                }
            }
            at = to;
        }
        self.read_file(at, end - at, out)
    }

    fn lends(&self, offset: u64, count: u64) -> bool {
        let is_of_file = offset.checked_add(count).is_some_and(|end| end <= self.file.size());
        is_of_file && self.changes(offset, count).next().is_none() && self.file.lends(offset, count)
    }

    fn lend(&self, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<()> {
        if !self.lends(offset, count) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.file.lend(offset, count, take)
    }

    fn changed(&self) -> Option<ChangedFile> {
        self.file.changed()
    }
}

#[cfg(test)]
mod tests {
    use inarch_block::read_backing;

    use super::*;

    /// A log whose only entry says `times` times that the same sectors become zeros.
    fn zeroing(times: u32, sectors: u64) -> (Ring, Entry) {
        let length = (HEADER as u64 + u64::from(times) * DESCRIPTOR as u64).next_multiple_of(SECTOR);
        let mut bytes = vec![0; length as usize];
        bytes[24..28].copy_from_slice(&times.to_le_bytes());
        for descriptor in bytes[HEADER..].chunks_exact_mut(DESCRIPTOR).take(times as usize) {
            descriptor[..4].copy_from_slice(b"zero");
            descriptor[8..16].copy_from_slice(&(sectors * SECTOR).to_le_bytes());
            descriptor[24..32].copy_from_slice(&1_u64.to_le_bytes());
        }
        let ring = Ring::new(bytes, [0; 16]);
        (ring, Entry { at: 0, length, tail: 0, sequence: 1, flushed: 0, last: 0 })
    }

    #[test]
    fn sectors_that_become_zeros_again_and_again_are_refused() {
        let size = MOST_CHANGES as u64 * SECTOR;
        for (times, sectors, is_taken) in
            [(100, 100, true), (8, MOST_CHANGES as u64, true), (20, MOST_CHANGES as u64, false)]
        {
            let (ring, entry) = zeroing(times, sectors);
            let mut changes = Changes::new();
            assert_eq!(ring.changes_of(&entry, &mut changes, size).is_some(), is_taken, "{times} times {sectors}");
        }
    }

    /// Unused by the parser, which reads pages: ranges that begin and end anywhere.
    #[test]
    fn any_range_has_the_changes() {
        struct Sevens;
        impl Backing for Sevens {
            fn size(&self) -> u64 {
                5 * SECTOR + 100
            }
            fn read(&self, _: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
                assert!(count <= 5 * SECTOR + 100);
                out.copy_from(&vec![7; count as usize]);
                Ok(())
            }
        }
        let changes = BTreeMap::from([(SECTOR, None), (2 * SECTOR, Some(Box::new([9; 4096])))]);
        let replayed = Replayed { file: Arc::new(Sevens), changes, size: 6 * SECTOR };
        let mut whole = vec![7u8; replayed.size() as usize];
        whole[4096..8192].fill(0);
        whole[8192..12288].fill(9);
        whole[5 * 4096 + 100..].fill(0);
        for (start, end) in
            [(0, whole.len()), (1, 4096), (4095, 4097), (5000, 9000), (8192, 12_290), (20_479, 20_580), (3, 3)]
        {
            let mut bytes = vec![1; end - start];
            read_backing(&replayed, start as u64, &mut bytes).unwrap();
            assert!(bytes == whole[start..end], "{start}..{end}");
        }
    }
}
