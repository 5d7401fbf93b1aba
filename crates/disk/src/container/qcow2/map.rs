//! L1 and L2 tables (sections "Cluster mapping" and "Extended L2 Entries").

use std::io;
use std::sync::Arc;

use inarch_block::{Backing, read_backing};

use super::super::mapped::{Map, Piece};
use super::super::tables::{Tables, damaged};
use super::super::unpack::{Method, unpack};
use super::header::Header;

/// Where a table or cluster is in the file: bits 9 to 55 of an entry.
const OFFSET: u64 = 0x00FF_FFFF_FFFF_FE00;
/// A compressed cluster.
const COMPRESSED: u64 = 1 << 62;
/// A cluster with a reference count of 1. With an external data file, this bit tells a cluster at byte 0 from no
/// cluster.
const COPIED: u64 = 1 << 63;
/// A cluster of zeros, in an entry that is not extended.
const ZEROS: u64 = 1;
/// Subclusters of a cluster, with extended entries.
const SUBCLUSTERS: u64 = 32;

/// The map of an image.
pub(super) struct Clusters {
    tables: Tables,
    l1: u64,
    cluster_bits: u32,
    l2_bits: u32,
    method: Method,
    marks_zeros: bool,
    extended: bool,
    external: bool,
}

impl Clusters {
    /// `tables` reads the image.
    pub(super) fn new(header: &Header, tables: Tables) -> Clusters {
        Clusters {
            tables,
            l1: header.l1,
            cluster_bits: header.cluster_bits,
            l2_bits: header.l2_bits(),
            method: header.method,
            marks_zeros: header.marks_zeros,
            extended: header.extended_l2,
            external: header.data_file.is_some(),
        }
    }

    /// The L2 table's place for an offset of the disk; none if there is no such table.
    fn l2(&self, offset: u64) -> io::Result<Option<u64>> {
        let at = self.l1 + (offset >> (self.cluster_bits + self.l2_bits)) * 8;
        let table = u64::from_be_bytes(self.tables.array(at)?) & OFFSET;
        if !table.is_multiple_of(1 << self.cluster_bits) {
            return Err(damaged(format!(
                "the L1 entry at byte {at} of the file has a table at byte {table}, within a cluster"
            )));
        }
        Ok((table != 0).then_some(table))
    }

    /// What one cluster, or with extended entries one subcluster, is.
    fn unit_at(&self, table: u64, offset: u64) -> io::Result<Piece> {
        let cluster = (offset >> self.cluster_bits) & ((1 << self.l2_bits) - 1);
        let at = table + (cluster << if self.extended { 4 } else { 3 });
        let entry = u64::from_be_bytes(self.tables.array(at)?);
        let within = offset & ((1 << self.cluster_bits) - 1);
        if entry & COMPRESSED != 0 {
            return Ok(Piece::Packed { cluster: entry & !(COMPRESSED | COPIED), within });
        }
        let host = entry & OFFSET;
        if !host.is_multiple_of(1 << self.cluster_bits) {
            return Err(damaged(format!(
                "the L2 entry at byte {at} of the file has a cluster at byte {host}, within another"
            )));
        }
        let is_there = host != 0 || (self.external && entry & COPIED != 0);
        let data = Piece::At(host + within);
        if self.extended {
            let bitmap = u64::from_be_bytes(self.tables.array(at + 8)?);
            let subcluster = within >> (self.cluster_bits - SUBCLUSTERS.ilog2());
            let bit = |of: u64| bitmap >> of & 1 == 1;
            return match (bit(subcluster), bit(subcluster + SUBCLUSTERS)) {
                (false, false) => Ok(Piece::Below),
                (false, true) => Ok(Piece::Zeros),
                (true, false) if is_there => Ok(data),
                _ => Err(damaged(format!("the bitmap of the L2 entry at byte {at} of the file contradicts itself"))),
            };
        }
        Ok(match () {
            () if entry & ZEROS != 0 && self.marks_zeros => Piece::Zeros,
            () if is_there => data,
            () => Piece::Below,
        })
    }
}

impl Map for Clusters {
    fn unit(&self) -> u64 {
        1 << self.cluster_bits
    }

    fn piece(&self, offset: u64, count: u64) -> io::Result<(Piece, u64)> {
        let table_bits = self.cluster_bits + self.l2_bits;
        let Some(table) = self.l2(offset)? else {
            return Ok((Piece::Below, count.min((1 << table_bits) - (offset & ((1 << table_bits) - 1)))));
        };
        let unit =
            if self.extended { 1u64 << (self.cluster_bits - SUBCLUSTERS.ilog2()) } else { 1 << self.cluster_bits };
        // What follows is in the same table.
        let count = count.min((1 << table_bits) - (offset & ((1 << table_bits) - 1)));
        Piece::run(offset, count, unit, &|at| self.unit_at(table, at))
    }

    fn unpack(&self, cluster: u64) -> io::Result<Arc<[u8]>> {
        if self.external {
            return Err(damaged("a compressed cluster in an image with an external data file"));
        }
        // The lower bits are where it begins; the others, how many sectors it has beside the first.
        let bits = 62 - (self.cluster_bits - 8);
        let at = cluster & ((1 << bits) - 1);
        let sectors = (cluster >> bits) + 1;
        self.tables.unpacked(cluster, |file: &dyn Backing| {
            let length = (sectors * 512 - at % 512).min(file.size().saturating_sub(at));
            let mut packed = vec![0; length as usize];
            read_backing(file, at, &mut packed)?;
            let unpacked = unpack(self.method, &packed, 1 << self.cluster_bits);
            let whole = unpacked.filter(|bytes| bytes.len() == 1 << self.cluster_bits);
            whole.ok_or_else(|| damaged(format!("the compressed cluster at byte {at} of the file does not decompress")))
        })
    }
}
