//! Logical addresses: which bytes of this device they are (`fs/btrfs/volumes.c`, `btrfs_map_block`).

use inarch_volume::VolumeError;
use zerocopy::FromBytes;

use super::spec::chunk::{Chunk as DiskChunk, STRIPE, Stripe, profile};
use super::spec::kind;
use super::spec::tree::{DiskKey, Key};
use super::{damaged, unsupported};

/// A run of logical addresses.
struct Chunk {
    start: u64,
    length: u64,
    /// The bits of [`profile`].
    kind: u64,
    layout: Layout,
    /// Where each stripe starts, if it is on this device.
    stripes: Vec<Option<u64>>,
}

#[derive(Clone, Copy)]
enum Layout {
    /// Each stripe is all of the chunk: single, DUP, RAID1.
    Copies,
    /// Elements of 64 KiB take turns; each has so many copies: RAID0, RAID10.
    Striped(usize),
    /// RAID5, RAID6.
    Parity,
}

/// Logical bytes that are contiguous on the device.
pub(super) struct Run<'a> {
    stripes: &'a [Option<u64>],
    within: u64,
    /// Bytes up to the end of the stripe element, or of the chunk.
    pub(super) length: u64,
}

impl Run<'_> {
    /// Where the bytes are on this device: one place for each copy.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        self.stripes.iter().flatten().filter_map(|start| start.checked_add(self.within))
    }

    /// The first copy.
    pub(super) fn place(&self) -> Result<u64, VolumeError> {
        let missing = || unsupported("needs the other devices of its file system: a part of it is not on this one");
        self.places().next().ok_or_else(missing)
    }
}

/// The chunks of a file system, without overlap, in ascending order.
pub(super) struct Chunks {
    device: u64,
    list: Vec<Chunk>,
}

impl Chunks {
    /// The chunks of the superblock's array, with those that hold the chunk tree.
    pub(super) fn of_array(device: u64, mut array: &[u8]) -> Result<Chunks, VolumeError> {
        let mut chunks = Chunks { device, list: Vec::new() };
        while !array.is_empty() {
            let wrong = || damaged("the superblock's list of chunks is cut off or makes no sense");
            let (key, rest) = DiskKey::read_from_prefix(array).map_err(|_| wrong())?;
            let (header, _) = DiskChunk::read_from_prefix(rest).map_err(|_| wrong())?;
            let size = size_of::<DiskChunk>() + usize::from(header.stripes.get()) * size_of::<Stripe>();
            let (item, rest) = rest.split_at_checked(size).ok_or_else(wrong)?;
            let key = key.key();
            if key.kind != kind::CHUNK_ITEM {
                return Err(wrong());
            }
            chunks.add(&key, item)?;
            array = rest;
        }
        chunks.sort()?;
        Ok(chunks)
    }

    /// Adds a chunk; [`Chunks::sort`] has to follow, which drops a chunk that the array had already.
    pub(super) fn add(&mut self, key: &Key, item: &[u8]) -> Result<(), VolumeError> {
        let start = key.offset;
        let wrong = |what: &str| damaged(format!("the chunk at logical byte {start} {what}"));
        let (chunk, stripes) = DiskChunk::read_from_prefix(item).map_err(|_| wrong("is cut off"))?;
        let count = usize::from(chunk.stripes.get());
        let length = chunk.length.get();
        if count == 0 || stripes.len() < count * size_of::<Stripe>() {
            return Err(wrong("has no stripes, or more than are there"));
        }
        if length == 0 || start.checked_add(length).is_none() {
            return Err(wrong("is empty, or reaches beyond 2^64 bytes"));
        }
        let kind = chunk.kind.get();
        let layout = if kind & profile::PARITY != 0 {
            Layout::Parity
        } else if kind & profile::RAID10 != 0 {
            Layout::Striped(usize::from(chunk.copies.get()))
        } else if kind & profile::RAID0 != 0 {
            Layout::Striped(1)
        } else {
            Layout::Copies
        };
        if let Layout::Striped(copies) = layout
            && (copies == 0 || !count.is_multiple_of(copies) || chunk.stripe_length.get() != STRIPE)
        {
            return Err(wrong("is striped in a way that does not work out"));
        }
        let place = |bytes: &[u8]| {
            let stripe = Stripe::read_from_bytes(bytes).ok()?;
            (stripe.device.get() == self.device).then_some(stripe.offset.get())
        };
        let stripes = stripes.chunks_exact(size_of::<Stripe>()).take(count).map(place).collect();
        self.list.push(Chunk { start, length, kind, layout, stripes });
        Ok(())
    }

    /// Sorts what was added.
    pub(super) fn sort(&mut self) -> Result<(), VolumeError> {
        self.list.sort_by_key(|chunk| chunk.start);
        self.list.dedup_by(|b, a| a.start == b.start && a.length == b.length && a.stripes == b.stripes);
        let overlap = self.list.array_windows().find(|[a, b]| a.start + a.length > b.start);
        match overlap {
            Some([a, b]) => {
                let (first, second) = (a.start, b.start);
                Err(damaged(format!("the chunks at logical bytes {first} and {second} overlap")))
            }
            None => Ok(()),
        }
    }

    /// The logical address, the length and the kind of each.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.list.iter().map(|chunk| (chunk.start, chunk.length, chunk.kind))
    }

    /// The contiguous bytes from a logical address on.
    pub(super) fn run(&self, address: u64) -> Result<Run<'_>, VolumeError> {
        let after = self.list.partition_point(|chunk| chunk.start <= address);
        let chunk = after.checked_sub(1).and_then(|index| self.list.get(index));
        let chunk = chunk.filter(|chunk| address - chunk.start < chunk.length);
        let nowhere = || damaged(format!("something is at the logical byte {address}, which is in no chunk"));
        let chunk = chunk.ok_or_else(nowhere)?;
        let offset = address - chunk.start;
        let rest = chunk.length - offset;
        match chunk.layout {
            Layout::Copies => Ok(Run { stripes: &chunk.stripes, within: offset, length: rest }),
            Layout::Striped(copies) => {
                let groups = (chunk.stripes.len() / copies.max(1)).max(1) as u64;
                let (element, within) = (offset / STRIPE, offset % STRIPE);
                let first = (element % groups) as usize * copies;
                let stripes = chunk.stripes.get(first..first + copies).ok_or_else(nowhere)?;
                // One group takes no turns.
                let length = if groups == 1 { rest } else { rest.min(STRIPE - within) };
                Ok(Run { stripes, within: element / groups * STRIPE + within, length })
            }
            Layout::Parity => Err(unsupported("is in a RAID5 or RAID6, which is not supported; mount its devices")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk's item: its length, kind, copies, and stripes as device and offset.
    fn item(length: u64, kind: u64, copies: u16, stripes: &[(u64, u64)]) -> Vec<u8> {
        let mut item = Vec::new();
        [length, 2, STRIPE, kind].iter().for_each(|number| item.extend(number.to_le_bytes()));
        [4096u32; 3].iter().for_each(|number| item.extend(number.to_le_bytes()));
        [stripes.len() as u16, copies].iter().for_each(|number| item.extend(number.to_le_bytes()));
        for (device, offset) in stripes {
            item.extend(device.to_le_bytes());
            item.extend(offset.to_le_bytes());
            item.extend([0; 16]);
        }
        item
    }

    fn chunks(list: &[(u64, Vec<u8>)]) -> Result<Chunks, VolumeError> {
        let mut chunks = Chunks { device: 1, list: Vec::new() };
        for (start, item) in list {
            chunks.add(&Key::new(256, kind::CHUNK_ITEM, *start), item)?;
        }
        chunks.sort()?;
        Ok(chunks)
    }

    fn places(chunks: &Chunks, address: u64) -> (Vec<u64>, u64) {
        let run = chunks.run(address).unwrap();
        (run.places().collect(), run.length)
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn every_layout_has_its_bytes_where_the_kernel_has_them() {
        let dup = item(MIB, 1 << 5, 1, &[(1, 100 * MIB), (1, 200 * MIB)]);
        let raid1 = item(MIB, 1 << 4, 1, &[(2, 0), (1, 300 * MIB)]);
        let raid0 = item(4 * MIB, 1 << 3, 1, &[(1, 400 * MIB), (2, 0)]);
        let raid10 = item(4 * MIB, 1 << 6, 2, &[(2, 0), (1, 500 * MIB), (3, 0), (1, 600 * MIB)]);
        let raid5 = item(MIB, 1 << 7, 1, &[(1, 0), (2, 0)]);
        let list = [dup, raid1, raid0, raid10, raid5];
        let list: Vec<_> = list.into_iter().enumerate().map(|(n, item)| (10 * n as u64 * MIB, item)).collect();
        let chunks = chunks(&list).unwrap();
        assert_eq!(places(&chunks, 5), (vec![100 * MIB + 5, 200 * MIB + 5], MIB - 5));
        assert_eq!(places(&chunks, 10 * MIB + 5), (vec![300 * MIB + 5], MIB - 5));
        assert_eq!(places(&chunks, 20 * MIB + 7), (vec![400 * MIB + 7], STRIPE - 7));
        assert_eq!(places(&chunks, 20 * MIB + STRIPE + 7), (vec![], STRIPE - 7));
        assert_eq!(places(&chunks, 20 * MIB + 2 * STRIPE + 7), (vec![400 * MIB + STRIPE + 7], STRIPE - 7));
        assert!(matches!(chunks.run(20 * MIB + STRIPE).unwrap().place(), Err(VolumeError::Unsupported(_))));
        assert_eq!(places(&chunks, 30 * MIB), (vec![500 * MIB], STRIPE));
        assert_eq!(places(&chunks, 30 * MIB + 3 * STRIPE), (vec![600 * MIB + STRIPE], STRIPE));
        assert!(matches!(chunks.run(40 * MIB), Err(VolumeError::Unsupported(_))));
        for nowhere in [MIB, 9 * MIB, 41 * MIB, u64::MAX] {
            assert!(matches!(chunks.run(nowhere), Err(VolumeError::Damaged(_))));
        }
    }

    #[test]
    fn chunks_that_overlap_or_make_no_sense_are_refused() {
        let good = || item(MIB, 0, 1, &[(1, 0)]);
        assert!(chunks(&[(0, good()), (MIB, good()), (0, good())]).is_ok());
        assert!(chunks(&[(0, good()), (MIB - 1, good())]).is_err());
        assert!(chunks(&[(0, good()), (0, item(MIB, 0, 1, &[(1, 4096)]))]).is_err());
        assert!(chunks(&[(u64::MAX - 5, good())]).is_err());
        for bad in [
            item(0, 0, 1, &[(1, 0)]),
            item(MIB, 0, 1, &[]),
            item(MIB, 1 << 6, 0, &[(1, 0), (1, 0)]),
            item(MIB, 1 << 6, 2, &[(1, 0), (1, 0), (1, 0)]),
            good()[..60].to_vec(),
            good()[..20].to_vec(),
        ] {
            assert!(chunks(&[(0, bad)]).is_err());
        }
    }

    #[test]
    fn the_superblocks_array_ends_where_it_says() {
        let entry = [&256u64.to_le_bytes()[..], &[kind::CHUNK_ITEM], &MIB.to_le_bytes(), &item(MIB, 0, 1, &[(1, 7)])];
        let entry = entry.concat();
        let chunks = Chunks::of_array(1, &entry).unwrap();
        assert_eq!(places(&chunks, MIB), (vec![7], MIB));
        for cut in [1, 16, 17, 40, entry.len() - 1] {
            assert!(Chunks::of_array(1, &entry[..cut]).is_err(), "{cut}");
        }
    }
}
