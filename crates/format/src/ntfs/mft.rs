//! The master file table: finds records by their numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use inarch_volume::{Pages, VolumeError};

use super::geometry::Geometry;
use super::inode::{AttributeList, parts_of};
use super::record::{Form, Record};
use super::runs::{Run, each_run};
use super::spec::{NUMBER, kind, record};
use super::{about, damaged};

/// The table, and the image that it is in.
pub(super) struct Mft {
    pages: Pages,
    pub(super) geometry: Geometry,
    /// Its runs, ascending and without gaps.
    runs: Vec<Run>,
    /// Bytes of it that were written.
    size: u64,
    /// Bytes of metadata that were read so far.
    met: AtomicU64,
}

impl Mft {
    /// Finds all of the table. `from` is the cluster of its first record, or of that record's copy.
    pub(super) fn open(pages: Pages, geometry: Geometry, from: u64) -> Result<Mft, VolumeError> {
        let mut mft = Mft { pages, geometry, runs: Vec::new(), size: 0, met: AtomicU64::new(0) };
        let mut bytes = vec![0; geometry.record_size];
        mft.read(from << geometry.cluster_bits, &mut bytes)?;
        let base = Record::new(record::MFT, bytes)?;
        mft.add_runs(&base, 0, None)?;
        if let Some(list) = AttributeList::of(&mft, &base)? {
            for part in parts_of(&list, kind::DATA, &[])?.into_iter().filter(|part| part.first > 0) {
                // A record that lies in what is not found yet is an error.
                let more = mft.record(part.reference & NUMBER)?;
                if more.base() != base.reference() {
                    return Err(damaged("the MFT's list of attributes leads to a record of another file"));
                }
                mft.add_runs(&more, part.first, Some(part.instance))?;
            }
        }
        let mapped = mft.end().saturating_mul(geometry.cluster());
        if mapped < mft.size {
            return Err(damaged(format!("the MFT has {} bytes, but its runs {mapped}", mft.size)));
        }
        Ok(mft)
    }

    /// The first cluster of the table that is not found yet.
    fn end(&self) -> u64 {
        self.runs.last().map_or(0, Run::end)
    }

    /// Adds the runs of its own attribute of content, or of a part of that which begins with cluster `first`.
    fn add_runs(&mut self, record: &Record, first: u64, instance: Option<u16>) -> Result<(), VolumeError> {
        for attribute in record.attributes() {
            let attribute = attribute?;
            let is_it = attribute.kind == kind::DATA && attribute.name.is_empty();
            if !is_it || instance.is_some_and(|instance| instance != attribute.instance) {
                continue;
            }
            let Form::Mapped(mapping) = attribute.form else { break };
            if mapping.first != first || self.end() != first {
                return Err(damaged(format!("the MFT's runs do not go on at cluster {first}")));
            }
            if first == 0 {
                self.size = mapping.size.min(mapping.initialized);
            }
            let (clusters, runs) = (self.geometry.clusters, &mut self.runs);
            return each_run(&mapping, clusters, &mut |run| {
                if run.place.is_none() {
                    return Err(damaged("the MFT has a hole"));
                }
                // No cluster is in it twice, so that it cannot be larger than the image.
                if run.end() > clusters {
                    return Err(damaged("the MFT has more clusters than the volume"));
                }
                runs.push(run);
                Ok(true)
            });
        }
        Err(damaged(format!("record {} has no runs of the MFT", record.number)))
    }

    /// How many records there are.
    pub(super) fn count(&self) -> u64 {
        self.size / self.geometry.record_size as u64
    }

    /// The record with that number.
    pub(super) fn record(&self, number: u64) -> Result<Record, VolumeError> {
        if number >= self.count() {
            return Err(damaged(format!("there is no MFT record {number}; there are {}", self.count())));
        }
        let mut bytes = vec![0; self.geometry.record_size];
        let (mut at, mut rest) = (number * self.geometry.record_size as u64, &mut *bytes);
        let bits = self.geometry.cluster_bits;
        while !rest.is_empty() {
            let cluster = at >> bits;
            let index = self.runs.partition_point(|run| run.end() <= cluster);
            let run = self.runs.get(index).and_then(|run| Some((*run, run.place?)));
            let (run, place) = run.ok_or_else(|| damaged(format!("MFT record {number} is nowhere")))?;
            let start = (place << bits) + (at - (run.first << bits));
            let left = (run.end() << bits) - at;
            let (now, later) = rest.split_at_mut(left.min(rest.len() as u64) as usize);
            self.read(start, now).map_err(|error| about(&format!("MFT record {number}"), error))?;
            (at, rest) = (at + now.len() as u64, later);
        }
        Record::new(number, bytes)
    }

    /// Whether bytes are within the image.
    pub(super) fn holds(&self, at: u64, length: u64) -> bool {
        self.pages.holds(at, length)
    }

    /// Bytes of the image.
    pub(super) fn image_size(&self) -> u64 {
        self.pages.size()
    }

    /// Reads metadata from byte `at` of the image.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        self.met.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.pages.read(at, out)
    }

    /// Bytes of metadata that were read so far, by everybody.
    pub(super) fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }
}
