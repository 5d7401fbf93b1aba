//! Lists the names of a directory from any position.

use inarch_volume::{Item, Loss, Node, VolumeError};

use super::disk::Disk;
use super::inodes::Inode;
use super::mapping::{Claims, Run, blocks_of, map};
use super::{damaged, tolerate};
use crate::xfs::spec::directory::{Entry, INDEX_START, Names, Short, UNIT, file_type_of};
use crate::xfs::spec::inode::Format;
use crate::xfs::spec::seal::{self, Seal};

/// Lists a directory.
///
/// The blocks with names are read in their order, without the index. So a damaged index cannot mislead.
pub(super) struct Listing<'a> {
    pub(super) disk: &'a Disk,
    pub(super) inode: &'a Inode,
    pub(super) claims: &'a mut Claims,
}

impl Listing<'_> {
    /// Gives `take` the entries from `from` on, until it says false.
    pub(super) fn each(&mut self, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        if let Some(short) = self.short()? {
            for entry in short {
                if !give(entry, 0, from, take) {
                    break;
                }
            }
            return Ok(());
        }
        let first = from.saturating_mul(UNIT as u64) / self.disk.directory_block;
        let mut runs = Vec::new();
        let flaw = self.map(first..INDEX_START / self.disk.directory_block, &mut runs)?;
        if flaw.is_some_and(|reason| !take(Item::Lost(Loss::damage(reason)))) {
            return Ok(());
        }
        let per_block = self.per_block();
        let mut next = first;
        for run in runs.iter().filter(|run| run.block.is_some()) {
            let end = (run.logical + run.length).div_ceil(per_block);
            for number in next.max(run.logical / per_block)..end {
                let goes_on = match tolerate(self.block(&runs, number, seal::NAMES))? {
                    Ok(block) => self.each_of_block(&block, number, from, take),
                    Err(reason) => {
                        take(Item::Lost(Loss::damage(format!("has a block that {reason}; its names are left out"))))
                    }
                };
                if !goes_on {
                    return Ok(());
                }
            }
            next = next.max(end);
        }
        Ok(())
    }

    /// The names in the inode, if they are there.
    fn short(&self) -> Result<Option<Short<'_>>, VolumeError> {
        let data = self.inode.data();
        if data.format != Format::Local {
            return Ok(None);
        }
        let short = Short::parse(data.bytes, self.disk.has_types);
        short.map(Some).ok_or_else(|| damaged("has no names where its inode says so"))
    }

    /// Blocks of the file system in one of the directory.
    pub(super) fn per_block(&self) -> u64 {
        self.disk.directory_block / self.disk.block_size
    }

    /// Maps blocks of the directory.
    pub(super) fn map(
        &mut self,
        blocks: std::ops::Range<u64>,
        runs: &mut Vec<Run>,
    ) -> Result<Option<String>, VolumeError> {
        let per_block = self.per_block();
        let blocks = blocks.start.saturating_mul(per_block)..blocks.end.saturating_mul(per_block);
        map(self.disk, self.claims, self.inode.ino, self.inode.data(), blocks, runs)
    }

    /// Reads a block of the directory, and checks that it is this directory's and was not read before.
    pub(super) fn block(&mut self, runs: &[Run], number: u64, seal: Seal) -> Result<Vec<u8>, VolumeError> {
        let per_block = self.per_block();
        let blocks = blocks_of(runs, number.saturating_mul(per_block), per_block);
        let blocks = blocks.ok_or_else(|| damaged(format!("is not all there: {number}")))?;
        let mut bytes = vec![0; self.disk.directory_block as usize];
        for (block, part) in blocks.iter().zip(bytes.chunks_exact_mut(self.disk.block_size as usize)) {
            if !self.claims.take(*block) {
                return Err(damaged(format!("is in another place, too: {block}")));
            }
            self.disk.read_blocks(*block, part)?;
        }
        self.disk.check(seal, &bytes, &blocks, self.inode.ino)?;
        Ok(bytes)
    }

    /// The entries of a block from the position `from` on.
    pub(super) fn each_of_block(
        &self,
        block: &[u8],
        number: u64,
        from: u64,
        take: &mut dyn FnMut(Item<'_>) -> bool,
    ) -> bool {
        let Some(names) = Names::parse(block, self.disk.is_sealed, self.disk.has_types) else {
            return take(Item::Lost(Loss::damage(format!("has a block that holds no names: {number}"))));
        };
        let start = number * self.disk.directory_block / UNIT as u64;
        for entry in names {
            if !give(entry, start, from, take) {
                return false;
            }
        }
        true
    }

    /// Looks up `name`, through the index if there is one, otherwise by reading all names.
    pub(super) fn find(&mut self, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        let (mut found, mut lost) = (None, None);
        let mut take = |item: Item<'_>| {
            match item {
                Item::Entry(entry) if entry.name == name => found = Some(entry.node),
                Item::Lost(Loss { reason, .. }) => lost = Some(reason),
                _ => {}
            }
            found.is_none()
        };
        match self.by_index(name)? {
            Some(numbers) => {
                let mut runs = Vec::new();
                for number in numbers {
                    // Parts of the tree of extents are read again for each block, so they are not claimed.
                    let mut claims = Claims::default();
                    let mut once = Listing { disk: self.disk, inode: self.inode, claims: &mut claims };
                    let block = match once.map(number..number + 1, &mut runs)? {
                        Some(reason) => Err(reason),
                        None => tolerate(self.block(&runs, number, seal::NAMES))?,
                    };
                    let goes_on = match block {
                        Ok(block) => self.each_of_block(&block, number, 0, &mut take),
                        Err(reason) => take(Item::Lost(Loss::damage(format!("has a block that {reason}")))),
                    };
                    if !goes_on {
                        break;
                    }
                }
            }
            None => self.each(0, &mut take)?,
        }
        match (found, lost) {
            (None, Some(reason)) => Err(damaged(reason)),
            (found, _) => Ok(found),
        }
    }

    /// The directory that it lies in.
    pub(super) fn parent(&mut self) -> Result<Option<u64>, VolumeError> {
        if let Some(short) = self.short()? {
            return Ok(Some(short.parent));
        }
        let mut runs = Vec::new();
        if let Some(reason) = self.map(0..1, &mut runs)? {
            return Err(damaged(reason));
        }
        let block = self.block(&runs, 0, seal::NAMES)?;
        let names = Names::parse(&block, self.disk.is_sealed, self.disk.has_types);
        let names = names.ok_or_else(|| damaged("has no names in its first block"))?;
        Ok(names.filter_map(Result::ok).find(|entry| entry.name == b"..").map(|entry| entry.ino))
    }
}

/// Gives `take` an entry, unless it lies before the position `from`. Positions in its block or inode follow `start`.
fn give(entry: Result<Entry<'_>, ()>, start: u64, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> bool {
    let Ok(entry) = entry else {
        return take(Item::Lost(Loss::damage("has nonsense among its names, behind which names are left out")));
    };
    if start + entry.place < from || matches!(entry.name, b"." | b"..") {
        return true;
    }
    take(Item::entry(entry.name, Node(entry.ino), file_type_of(entry.type_code), start + entry.next))
}
