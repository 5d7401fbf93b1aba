//! Cuts directory listings into runs of entries, and places them.

use std::ops::Range;

use inarch_tree::{InodeId, Tree};

use super::places::Places;
use super::{Error, path};
use crate::squashfs::spec::METADATA_SIZE;
use crate::squashfs::spec::directory::{HEADER_LENGTH, MAX_RUN, entry_length, index_length};
use crate::squashfs::spec::inode::DOTS;

/// A header and the entries below it, no more than a metadata block of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Of the header, in uncompressed bytes from the directory table's start.
    pub(crate) position: u32,
    /// The first entry's place in the directory.
    pub(crate) entry: u32,
}

/// One directory's listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listing {
    /// The directory's inode number.
    pub(crate) number: u32,
    /// The directory.
    pub(crate) inode: InodeId,
    /// Where it starts, in uncompressed bytes from the directory table's start.
    pub(crate) position: u32,
    /// Bytes.
    pub(crate) length: u32,
    /// Its first run; where the next listing's begin there too, it has none.
    pub(crate) first_run: u32,
    /// Runs in its index.
    pub(crate) indexes: u16,
    /// Bytes of its index.
    pub(crate) index_bytes: u32,
}

impl Listing {
    /// The size in the directory's inode.
    pub(crate) fn size(&self) -> u32 {
        self.length + DOTS
    }
}

/// All listings, in the order of the directories' inode numbers.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    list: Vec<Listing>,
    runs: Vec<Run>,
    end: u32,
}

impl Listings {
    /// Plans the listing of `inode`, whose entries have their places.
    pub(crate) fn push(&mut self, tree: &Tree, places: &Places<'_>, inode: InodeId) -> Result<Listing, Error> {
        let first_run = self.runs.len();
        let position = self.end;
        let too_large = || Error::DirectoriesTooLarge { path: path(tree, inode) };
        let mut at = position;
        let mut current: Option<(u32, u32, Run)> = None;
        for (entry, place) in tree.entries(inode).zip(0u32..) {
            let (number, block) = (places.number(entry.inode), places.block(entry.inode));
            let length = entry_length(entry.name) as u32;
            let fits = current.is_some_and(|(base, in_block, run)| {
                in_block == block
                    && ((place - run.entry) as usize) < MAX_RUN
                    && i16::try_from(i64::from(number) - i64::from(base)).is_ok()
                    && (at - run.position + length) as usize <= METADATA_SIZE
            });
            if !fits {
                let run = Run { position: at, entry: place };
                self.runs.push(run);
                current = Some((number, block, run));
                at = at.checked_add(HEADER_LENGTH as u32).ok_or_else(too_large)?;
            }
            at = at.checked_add(length).ok_or_else(too_large)?;
        }
        // The inode's size counts three bytes more.
        self.end = Some(at).filter(|end| *end <= u32::MAX - DOTS).ok_or_else(too_large)?;
        let mut listing = Listing {
            number: places.number(inode),
            inode,
            position,
            length: at - position,
            first_run: first_run as u32,
            indexes: 0,
            index_bytes: 0,
        };
        let runs = self.runs.get(first_run..).unwrap_or_default();
        for (_, entry) in indexed(runs, position) {
            listing.indexes = listing.indexes.checked_add(1).ok_or_else(too_large)?;
            listing.index_bytes += first_name(tree, inode, entry).map_or(0, index_length) as u32;
        }
        self.list.push(listing);
        Ok(listing)
    }

    /// Bytes of all listings, uncompressed.
    pub(crate) fn length(&self) -> u32 {
        self.end
    }

    /// The listing of the directory with an inode number.
    pub(crate) fn find(&self, number: u32) -> Option<usize> {
        self.list.binary_search_by_key(&number, |listing| listing.number).ok()
    }

    pub(crate) fn get(&self, place: usize) -> Option<&Listing> {
        self.list.get(place)
    }

    /// The runs of a listing.
    pub(crate) fn runs_of(&self, place: usize) -> &[Run] {
        let first = self.list.get(place).map_or(0, |listing| listing.first_run as usize);
        let end = self.list.get(place + 1).map_or(self.runs.len(), |next| next.first_run as usize);
        self.runs.get(first..end).unwrap_or_default()
    }

    /// The place of the last run that starts at or before a byte of the directory table.
    pub(crate) fn run_at(&self, position: u64) -> usize {
        self.runs.partition_point(|run| u64::from(run.position) <= position).saturating_sub(1)
    }

    /// A run by its place among all, with its directory and its entries.
    pub(crate) fn run(&self, tree: &Tree, place: usize) -> Option<(Run, InodeId, Range<u32>)> {
        let run = *self.runs.get(place)?;
        let next = self.list.partition_point(|listing| listing.first_run as usize <= place);
        let listing = self.list.get(next.checked_sub(1)?)?;
        let runs_end = self.list.get(next).map_or(self.runs.len(), |next| next.first_run as usize);
        let follower = self.runs.get(place + 1).filter(|_| place + 1 < runs_end);
        let end = follower.map_or_else(|| tree.entries(listing.inode).len() as u32, |run| run.entry);
        Some((run, listing.inode, run.entry..end))
    }

    /// Drops the listings so far, whose bytes were written, and continues after them.
    pub(crate) fn forget(&mut self) {
        self.list.clear();
        self.runs.clear();
    }
}

/// The runs in a listing's index, as (bytes from the listing's start, first entry): the first run that starts in each
/// stretch of a metadata block's length, except the first stretch.
pub(crate) fn indexed(runs: &[Run], position: u32) -> impl Iterator<Item = (u32, u32)> {
    let stretch = move |run: &Run| (run.position - position) / METADATA_SIZE as u32;
    let pairs = runs.iter().zip(runs.iter().skip(1));
    pairs
        .filter(move |(before, run)| stretch(run) > stretch(before))
        .map(move |(_, run)| (run.position - position, run.entry))
}

/// The name of a directory's entry.
pub(crate) fn first_name(tree: &Tree, directory: InodeId, entry: u32) -> Option<&[u8]> {
    tree.entries(directory).get(entry as usize).map(|entry| entry.name)
}
