//! The names in a directory.

use super::flaw::tolerate;
use super::inline;
use super::inodes::Slot;
use super::mapping::{Claims, Place, Run, map};
use super::volume::Volume;
use crate::ReadError;
use crate::ext4::spec::directory::{LeafReader, checksum_matches};
use crate::ext4::spec::inode::flags;
use crate::ext4::spec::superblock::incompat;

/// Blocks of a directory are read in pieces of at most so many bytes.
const STEP: u64 = 256 << 10;
/// Faults of one directory that are told.
const TOLD: usize = 20;

/// A directory's names, sorted.
#[derive(Default)]
pub(super) struct Listing {
    bytes: Vec<u8>,
    /// Where each name is in `bytes`, and its inode.
    names: Vec<(u32, u8, u32)>,
    runs: Vec<Run>,
    buffer: Vec<u8>,
    /// What was found wrong.
    pub(super) faults: Vec<String>,
}

impl Listing {
    /// Reads the directory of `slot` in the place of what was listed before.
    ///
    /// A hashed directory is read as a linear one, which it is made to look like: its index blocks have no names in
    /// them, so there is no index to go astray in.
    pub(super) fn read(&mut self, volume: &Volume, claims: &mut Claims, slot: &Slot<'_>) -> Result<(), ReadError> {
        self.bytes.clear();
        self.names.clear();
        self.faults.clear();
        self.runs.clear();
        let has_types = volume.superblock.has_incompat(incompat::FILETYPE);
        if slot.inode.has(flags::INLINE_DATA) {
            match inline::directory(slot) {
                Some(parts) => parts.into_iter().for_each(|part| self.add_block(part, has_types)),
                None => self.fault("says that its names are in its inode, where none are".to_owned()),
            }
        } else {
            self.read_blocks(volume, claims, slot, has_types)?;
        }
        let bytes = &self.bytes;
        let name = |&(start, length, _): &(u32, u8, u32)| {
            bytes.get(start as usize..start as usize + usize::from(length)).unwrap_or_default()
        };
        self.names.sort_by(|a, b| name(a).cmp(name(b)));
        let before = self.names.len();
        self.names.dedup_by(|b, a| name(a) == name(b));
        if self.names.len() < before {
            self.fault(format!("has {} names twice", before - self.names.len()));
        }
        Ok(())
    }

    /// How many names there are, `.` and `..` not counted.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// A name and the inode that it is of.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], u32)> {
        let (start, length, ino) = *self.names.get(index)?;
        Some((self.bytes.get(start as usize..start as usize + usize::from(length))?, ino))
    }

    fn read_blocks(
        &mut self,
        volume: &Volume,
        claims: &mut Claims,
        slot: &Slot<'_>,
        has_types: bool,
    ) -> Result<(), ReadError> {
        let size = match volume.superblock.has_incompat(incompat::LARGEDIR) {
            true => slot.inode.size(),
            false => u64::from(slot.inode.size_lo.get()),
        };
        let blocks = size.div_ceil(volume.block_size);
        let mut runs = std::mem::take(&mut self.runs);
        self.faults.extend(map(volume, claims, slot.ino, &slot.inode, blocks, &mut runs)?);
        let seed = volume.verifies().then(|| volume.seed.inode_of(slot.ino, slot.inode.generation.get()));
        for run in &runs {
            let Place::Blocks(first) = run.place else { continue };
            let mut next = first;
            while next < first + run.length {
                // Claimed before it is read, so that nothing is read twice.
                let limit = next + (first + run.length - next).min(STEP.div_ceil(volume.block_size));
                let end = (next..limit).find(|block| !claims.take(*block)).unwrap_or(limit);
                self.read_run(volume, next..end, seed, has_types)?;
                if end < limit {
                    self.fault(format!("has the block {end}, which is in another place, too"));
                }
                next = end + u64::from(end < limit);
            }
        }
        self.runs = runs;
        Ok(())
    }

    fn read_run(
        &mut self,
        volume: &Volume,
        blocks: std::ops::Range<u64>,
        seed: Option<u32>,
        has_types: bool,
    ) -> Result<(), ReadError> {
        let size = volume.block_size as usize;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize((blocks.end - blocks.start) as usize * size, 0);
        match tolerate(volume.read_blocks(blocks.start, &mut buffer))? {
            Err(reason) => self.fault(format!("has a block that {reason}")),
            Ok(()) => {
                for (number, block) in blocks.zip(buffer.chunks_exact(size)) {
                    if seed.is_some_and(|seed| !checksum_matches(block, seed)) {
                        self.fault(format!("has a block with a wrong checksum, {number}; its names are left out"));
                    } else {
                        self.add_block(block, has_types);
                    }
                }
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    fn fault(&mut self, reason: String) {
        if self.faults.len() < TOLD {
            self.faults.push(reason);
        }
    }

    fn add_block(&mut self, block: &[u8], has_types: bool) {
        for entry in LeafReader::new(block, has_types) {
            let Ok(entry) = entry else {
                self.fault("has a block with nonsense in it, behind which names are left out".to_owned());
                return;
            };
            if entry.ino == 0 || entry.name == b"." || entry.name == b".." {
                continue;
            }
            let fits = u8::try_from(entry.name.len()).ok().zip(u32::try_from(self.bytes.len()).ok());
            let Some((length, start)) = fits.filter(|_| is_name(entry.name)) else {
                self.fault(format!("has an entry that is left out: {:?} is no name", Lossy(entry.name)));
                continue;
            };
            self.bytes.extend_from_slice(entry.name);
            self.names.push((start, length, entry.ino));
        }
    }
}

/// A name as a message shows it.
struct Lossy<'a>(&'a [u8]);

impl std::fmt::Debug for Lossy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&String::from_utf8_lossy(self.0), f)
    }
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && !name.contains(&b'/') && !name.contains(&0)
}
