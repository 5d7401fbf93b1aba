//! Follows chains of clusters in a table, of FAT12, FAT16, FAT32 and exFAT.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use inarch_block::Backing;
use inarch_volume::{Pages, VolumeError};

use crate::region::Region;

/// Pages of the table that are kept: 1 MiB.
const PAGES: usize = 256;
/// Bytes of the table that are read at once to count what is free.
const COUNTED: usize = 1 << 18;
/// Regions that are kept.
const KEPT: usize = 16;
/// Pieces of all of them: 8 MiB.
const KEPT_PIECES: usize = 1 << 18;

/// Bits of an entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// FAT12.
    Twelve,
    /// FAT16.
    Sixteen,
    /// FAT32, whose upper four bits are reserved.
    ThirtyTwo,
    /// exFAT.
    Exfat,
}

impl Width {
    /// Bits of an entry in the table.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Width::Twelve => 12,
            Width::Sixteen => 16,
            Width::ThirtyTwo | Width::Exfat => 32,
        }
    }

    /// What marks a bad cluster; larger numbers end a chain.
    fn bad(self) -> u32 {
        match self {
            Width::Twelve => 0xFF7,
            Width::Sixteen => 0xFFF7,
            Width::ThirtyTwo => 0x0FFF_FFF7,
            Width::Exfat => 0xFFFF_FFF7,
        }
    }
}

/// Where the table and the clusters are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) width: Width,
    /// The table's first byte.
    pub(crate) table_at: u64,
    /// The first byte of cluster 2, the first one.
    pub(crate) heap_at: u64,
    /// Bytes of a cluster.
    pub(crate) cluster: u64,
    /// How many clusters there are.
    pub(crate) clusters: u32,
}

/// What follows a cluster.
enum Next {
    Cluster(u32),
    End,
    Free,
    Bad,
}

/// The chains of a volume.
pub(crate) struct Chains {
    pages: Pages,
    area: Area,
    kept: Mutex<Vec<Kept>>,
    free: OnceLock<u64>,
}

/// A region that was mapped: its first cluster, and how many clusters were wanted.
struct Kept {
    first: u32,
    wanted: Option<u64>,
    region: Arc<Region>,
}

impl Chains {
    pub(crate) fn new(image: Arc<dyn Backing>, area: Area) -> Chains {
        Chains { pages: Pages::new(image, PAGES), area, kept: Mutex::default(), free: OnceLock::new() }
    }

    /// Where the table and the clusters are.
    pub(crate) fn area(&self) -> &Area {
        &self.area
    }

    /// How many clusters are free by the table of a FAT, which is read once for it; 0 if it cannot be read.
    pub(crate) fn free(&self) -> u64 {
        *self.free.get_or_init(|| self.count_free().unwrap_or(0))
    }

    fn count_free(&self) -> Result<u64, VolumeError> {
        let clusters = u64::from(self.area.clusters);
        let size = match self.area.width {
            Width::Twelve => {
                let next = |cluster| self.next(cluster).map(|next| u64::from(matches!(next, Next::Free)));
                return (2..self.area.clusters.saturating_add(2)).map(next).sum();
            }
            Width::Sixteen => 2,
            Width::ThirtyTwo | Width::Exfat => 4,
        };
        let is_free = |entry: &[u8]| match *entry {
            // The upper four bits of FAT32 are reserved.
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]) & 0x0FFF_FFFF == 0,
            _ => entry.iter().all(|byte| *byte == 0),
        };
        let mut piece = vec![0; COUNTED];
        let (mut done, mut free) = (0, 0);
        while done < clusters * size {
            let count = (clusters * size - done).min(COUNTED as u64);
            let piece = piece.get_mut(..count as usize).unwrap_or_default();
            self.pages.read(self.area.table_at + 2 * size + done, piece)?;
            free += piece.chunks_exact(size as usize).filter(|entry| is_free(entry)).count() as u64;
            done += count;
        }
        Ok(free)
    }

    /// Clusters for that many bytes.
    pub(crate) fn clusters_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.area.cluster.max(1))
    }

    /// The first byte of a cluster, if it is one of the volume and within the image.
    fn at(&self, cluster: u32) -> Option<u64> {
        let index = cluster.checked_sub(2).filter(|index| *index < self.area.clusters)?;
        let at = self.area.heap_at.checked_add(u64::from(index).checked_mul(self.area.cluster)?)?;
        self.pages.holds(at, self.area.cluster).then_some(at)
    }

    fn next(&self, cluster: u32) -> Result<Next, VolumeError> {
        let number = u64::from(cluster);
        let table = self.area.table_at;
        let value = match self.area.width {
            Width::Twelve => {
                let pair = u16::from_le_bytes(self.pages.array(table + number + number / 2)?);
                u32::from(if cluster % 2 == 1 { pair >> 4 } else { pair & 0xFFF })
            }
            Width::Sixteen => u32::from(u16::from_le_bytes(self.pages.array(table + number * 2)?)),
            Width::ThirtyTwo => u32::from_le_bytes(self.pages.array(table + number * 4)?) & 0x0FFF_FFFF,
            Width::Exfat => u32::from_le_bytes(self.pages.array(table + number * 4)?),
        };
        Ok(match value {
            0 => Next::Free,
            value if value == self.area.width.bad() => Next::Bad,
            value if value > self.area.width.bad() => Next::End,
            value => Next::Cluster(value),
        })
    }

    /// The clusters of a chain from `first` on, as many as `wanted`, or all.
    pub(crate) fn region(&self, first: u32, wanted: Option<u64>) -> Result<Arc<Region>, VolumeError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|kept| (kept.first, kept.wanted) == (first, wanted)) {
            if let Some(rest) = kept.get_mut(at..) {
                rest.rotate_left(1);
            }
            return kept.last().map(|kept| Arc::clone(&kept.region)).ok_or(VolumeError::WrongType);
        }
        drop(kept);
        let region = Arc::new(self.follow(first, wanted)?);
        kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(Kept { first, wanted, region: Arc::clone(&region) });
        while kept.len() > KEPT || kept.iter().map(|kept| kept.region.pieces()).sum::<usize>() > KEPT_PIECES {
            kept.remove(0);
        }
        Ok(region)
    }

    fn follow(&self, first: u32, wanted: Option<u64>) -> Result<Region, VolumeError> {
        let mut region = Region::default();
        let (mut cluster, mut count) = (first, 0);
        // A cycle is found by a mark that moves on after 1, 2, 4, ... clusters (Brent's algorithm). So one among the wanted
        // clusters is found before three times as many were followed.
        let (mut mark, mut marked, mut until) = (first, 0, 1);
        let most = wanted.map_or(u64::MAX, |wanted| wanted.saturating_mul(3).saturating_add(4));
        let flaw = loop {
            let is_whole = wanted.is_some_and(|wanted| count >= wanted);
            match self.at(cluster) {
                _ if is_whole && count > most => return Ok(region),
                Some(at) if !is_whole => region.push(at, self.area.cluster),
                None if !is_whole => break format!("has cluster {cluster}, which is not in the volume"),
                Some(_) => {}
                None => return Ok(region),
            }
            count += 1;
            let is_whole = wanted.is_some_and(|wanted| count >= wanted);
            match self.next(cluster)? {
                Next::Cluster(next) if next == mark => {
                    let length = self.until_repeated(first, count - marked)?;
                    if wanted.is_some_and(|wanted| length >= wanted) {
                        return Ok(region);
                    }
                    region.truncate(length.saturating_mul(self.area.cluster));
                    break format!("has a chain of clusters that returns to itself after {length} clusters");
                }
                Next::Cluster(next) => {
                    if count == until {
                        (mark, marked, until) = (next, count, until * 2);
                    }
                    cluster = next;
                }
                _ if is_whole => return Ok(region),
                Next::End => match wanted {
                    None => return Ok(region),
                    Some(wanted) => break format!("has {count} clusters where its size takes {wanted}"),
                },
                Next::Free => break format!("has cluster {cluster}, which the table says is free"),
                Next::Bad => break format!("has a bad cluster after cluster {cluster}"),
            }
        };
        region.end_early(flaw);
        Ok(region)
    }

    /// How many clusters a chain has before one repeats, in a chain with a cycle of `length` clusters.
    fn until_repeated(&self, first: u32, length: u64) -> Result<u64, VolumeError> {
        let step = |cluster| match self.next(cluster)? {
            Next::Cluster(next) => Ok(next),
            _ => Err(VolumeError::Damaged("changed while it was read".to_owned())),
        };
        let (mut behind, mut before, mut lead) = (first, first, 0);
        for _ in 0..length {
            before = step(before)?;
        }
        while behind != before {
            (behind, before, lead) = (step(behind)?, step(before)?, lead + 1);
        }
        Ok(lead + length)
    }

    /// Clusters one after the other from `first` on, which need no chain.
    pub(crate) fn contiguous(&self, first: u32, count: u64) -> Region {
        let mut region = Region::default();
        let index = u64::from(first.saturating_sub(2));
        let there = u64::from(self.area.clusters).saturating_sub(index).min(count);
        let bytes = there.saturating_mul(self.area.cluster);
        match self.at(first).filter(|at| there == count && self.pages.holds(*at, bytes)) {
            Some(at) => region.push(at, bytes),
            None => region
                .end_early(format!("has {count} clusters from cluster {first} on, which are not all in the volume")),
        }
        region
    }

    /// Whether that byte is within the clusters.
    pub(crate) fn is_in_clusters(&self, at: u64) -> bool {
        let bytes = u64::from(self.area.clusters).saturating_mul(self.area.cluster);
        at.checked_sub(self.area.heap_at).is_some_and(|within| within < bytes)
    }

    /// The cluster with that byte.
    pub(crate) fn cluster_at(&self, at: u64) -> Option<u32> {
        let within = at.checked_sub(self.area.heap_at).filter(|_| self.is_in_clusters(at))?;
        u32::try_from(within / self.area.cluster.max(1)).ok()?.checked_add(2)
    }

    /// The first byte of the cluster after `cluster` in its chain.
    pub(crate) fn after(&self, cluster: u32) -> Result<Option<u64>, VolumeError> {
        Ok(match self.next(cluster)? {
            Next::Cluster(next) => self.at(next),
            _ => None,
        })
    }
}

/// Bounds a walk: chains do not share clusters, so all of them together are no longer than the volume.
pub(crate) struct Budget {
    /// Clusters that may still be followed; none if there were too many.
    clusters: Option<u64>,
}

impl Budget {
    pub(crate) fn new(area: &Area) -> Budget {
        // A little more, so that a damaged volume of a few shared clusters is read.
        Budget { clusters: Some(u64::from(area.clusters).saturating_mul(2).saturating_add(1024)) }
    }

    /// Takes clusters that were followed. Once there were too many, nothing more can be taken, not even 0.
    pub(crate) fn spend(&mut self, clusters: u64) -> Result<(), VolumeError> {
        self.clusters = self.clusters.and_then(|left| left.checked_sub(clusters));
        let too_many = "the files up to this one have more clusters than the volume: they share them";
        self.clusters.map(|_| ()).ok_or_else(|| VolumeError::Damaged(too_many.to_owned()))
    }
}
