//! Renders listings and tables, which compressed and uncompressed images have in common.

use std::ops::Range;

use inarch_tree::InodeId;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::window::Window;
use crate::squashfs::layout::listing::{Listing, Run, first_name, indexed};
use crate::squashfs::layout::tables::Tables;
use crate::squashfs::layout::xattrs::{PlacedSet, pair_length, pairs};
use crate::squashfs::spec::directory::{Entry, Header, Index};
use crate::squashfs::spec::inode::{Body, DirectoryBody, basic_kind};
use crate::squashfs::spec::xattr::{NameHeader, Set, ValueHeader};

impl Tables {
    /// What a directory's inode says of its listing.
    pub(crate) fn directory_body(&self, listing: &Listing) -> Body {
        let place = self.directory_starts.reference(listing.position.into());
        let parent = match listing.inode {
            // As mksquashfs numbers it: one more than there are.
            InodeId::ROOT => self.inventory.numbers.count() + 1,
            inode => self.inventory.numbers.of(self.tree.parent(inode)),
        };
        Body::Directory(DirectoryBody {
            block: place.block() as u32,
            offset: place.offset(),
            size: listing.size(),
            parent,
            indexes: listing.indexes,
        })
    }

    /// A run of a listing.
    pub(crate) fn encode_run(&self, directory: InodeId, entries: Range<u32>, out: &mut Vec<u8>) {
        let places = self.places();
        let listed = self.tree.entries(directory);
        let Some(first) = listed.get(entries.start as usize) else { return };
        let base = places.number(first.inode);
        let block = self.inode_starts.of(places.block(first.inode).into());
        let count = (entries.end - entries.start).saturating_sub(1);
        let header = Header { count: count.into(), block: (block as u32).into(), number: base.into() };
        out.extend_from_slice(header.as_bytes());
        for entry in entries.filter_map(|place| listed.get(place as usize)) {
            let kind = basic_kind(self.tree.inode(entry.inode).file_type());
            let fixed = Entry {
                offset: places.offset(entry.inode).into(),
                // Its low half: the difference fits 16 bits with a sign.
                delta: (places.number(entry.inode).wrapping_sub(base) as u16).into(),
                kind: kind.into(),
                name_size: (entry.name.len().saturating_sub(1) as u16).into(),
            };
            out.extend_from_slice(fixed.as_bytes());
            out.extend_from_slice(entry.name);
        }
    }

    /// The index of a listing that is cut into `runs`; calls `put` for each of its entries.
    pub(crate) fn encode_index(&self, listing: &Listing, runs: &[Run], mut put: impl FnMut(&[u8], &[u8])) {
        for (position, entry) in indexed(runs, listing.position) {
            let Some(name) = first_name(&self.tree, listing.inode, entry) else { continue };
            let place = self.directory_starts.reference(u64::from(listing.position) + u64::from(position));
            let index = Index {
                position: position.into(),
                block: (place.block() as u32).into(),
                name_size: (name.len().saturating_sub(1) as u32).into(),
            };
            put(index.as_bytes(), name);
        }
    }

    /// The table of inodes by their numbers.
    pub(crate) fn fill_exports(&self, window: &mut Window<'_>) {
        for place in window.items(0, size_of::<U64>(), self.positions.len() as u64) {
            let position = self.positions.get(place as usize).copied().unwrap_or(0);
            let reference = U64::new(self.inode_starts.reference(position.into()).0);
            window.put(place * size_of::<U64>() as u64, reference.as_bytes());
        }
    }

    /// The table of owners and groups.
    pub(crate) fn fill_ids(&self, window: &mut Window<'_>) {
        for place in window.items(0, size_of::<U32>(), self.inventory.ids.len() as u64) {
            let id = U32::new(self.inventory.ids.get(place as usize).copied().unwrap_or(0));
            window.put(place * size_of::<U32>() as u64, id.as_bytes());
        }
    }

    /// The names and values of extended attributes.
    pub(crate) fn fill_pairs(&self, window: &mut Window<'_>) {
        let range = window.range();
        let sets = self.inventory.xattrs.sets();
        let first = sets.partition_point(|set| set.start + u64::from(set.length) <= range.start);
        for set in sets.get(first..).unwrap_or_default().iter().take_while(|set| set.start < range.end) {
            let mut at = set.start;
            for pair in pairs(&self.tree, set.set) {
                let (kind, name, value) = pair;
                let header = NameHeader { kind: kind.into(), length: (name.len() as u16).into() };
                let value_header = ValueHeader { length: (value.len() as u32).into() };
                let mut part = at;
                for bytes in [header.as_bytes(), name, value_header.as_bytes(), value] {
                    window.put(part, bytes);
                    part += bytes.len() as u64;
                }
                at += pair_length(&pair) as u64;
            }
        }
    }

    /// The sets of extended attributes.
    pub(crate) fn fill_sets(&self, window: &mut Window<'_>) {
        let sets = self.inventory.xattrs.sets();
        for place in window.items(0, size_of::<Set>(), sets.len() as u64) {
            let Some(PlacedSet { start, length, count, .. }) = sets.get(place as usize) else { continue };
            let pairs = self.pair_starts.reference(*start);
            let set = Set { pairs: pairs.0.into(), count: (*count).into(), size: (*length).into() };
            window.put(place * size_of::<Set>() as u64, set.as_bytes());
        }
    }
}
