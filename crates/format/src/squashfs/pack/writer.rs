//! Writes the image: takes files in order, and makes inodes and listings along the way.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use inarch_tree::{FileType, InodeId};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::duplicates::{Duplicates, FileHash, Stored};
use super::fragments::Fragments;
use super::metadata::MetadataWriter;
use super::output::Output;
use super::pipeline::Pipeline;
use super::work::Done;
use crate::Progress;
use crate::squashfs::codec::Encoder;
use crate::squashfs::layout::metadata_blocks;
use crate::squashfs::layout::places::{Places, Starts};
use crate::squashfs::layout::tables::Tables;
use crate::squashfs::render::window::Window;
use crate::squashfs::spec::inode::{Body, FileBody, Inode, NO_FRAGMENT};
use crate::squashfs::spec::superblock::{FragmentEntry, Superblock};
use crate::squashfs::spec::{BLOCK_STORED, METADATA_SIZE, NO_TABLE, xattr};

/// Where a file's content is.
#[derive(Clone)]
pub(super) struct Location {
    /// As in the inode.
    body: FileBody,
    /// Its list of blocks, as (blocks, size of each).
    sizes: Arc<[(u64, u32)]>,
}

/// A file that is being written.
#[derive(Default)]
struct Current {
    sizes: Vec<(u64, u32)>,
    hash: FileHash,
    sparse: u64,
    blocks: u64,
}

pub(super) struct Writer<'a> {
    pub(super) pipeline: &'a Pipeline<'a>,
    pub(super) duplicates: &'a Duplicates,
    pub(super) progress: &'a dyn Progress,
    pub(super) output: Output<'a>,
    pub(super) encoder: Encoder,
    pub(super) tables: Tables,
    pub(super) block_size: u32,
    pub(super) fragments: Fragments,
    pub(super) stored: Stored,
    pub(super) inodes: MetadataWriter,
    pub(super) directories: MetadataWriter,
    /// Pieces that came and are not written yet.
    pub(super) ready: VecDeque<Done>,
}

/// The planner contradicted itself.
fn internal(what: &str) -> io::Error {
    io::Error::other(format!("internal: {what}"))
}

impl Writer<'_> {
    /// Writes everything behind the superblock, whose fields it sets.
    pub(super) fn run(&mut self, superblock: &mut Superblock) -> io::Result<()> {
        for place in 0..self.tables.inventory.numbers.order().len() {
            if self.progress.cancelled() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let Some(id) = self.tables.inventory.numbers.order().get(place).copied() else { break };
            match self.tables.tree.inode(id).file_type() {
                FileType::Regular => self.add_file(id)?,
                FileType::Directory => self.add_directory(id)?,
                _ => self.add_special(id)?,
            }
        }
        self.fragments.finish(self.pipeline, &mut self.output)?;
        self.write_tables(superblock)
    }

    fn add_file(&mut self, id: InodeId) -> io::Result<()> {
        let size = self.tables.tree.inode(id).size();
        let start = self.output.position();
        let mut current = Current::default();
        let mut tail = Vec::new();
        let mut last = size == 0;
        while !last {
            let piece = self.next_piece(id)?;
            last = piece.last;
            self.add_piece(&piece, size, &mut current)?;
            tail = piece.tail;
        }
        let (fragments, pipeline) = (&mut self.fragments, self.pipeline);
        let Current { sizes, hash, sparse, .. } = current;
        let store = || {
            let (fragment, offset) = if tail.is_empty() { (NO_FRAGMENT, 0) } else { fragments.add(&tail, pipeline) };
            let has_blocks = sizes.iter().any(|(_, size)| *size != 0);
            let body = FileBody { start: if has_blocks { start } else { 0 }, size, sparse, fragment, offset };
            Ok::<_, io::Error>(Location { body, sizes: sizes.into() })
        };
        let location = if size > 0 && self.duplicates.may_have(id) {
            let (location, known) = self.stored.find_or(hash, size, store)?;
            if known {
                self.output.rewind(start);
            }
            location
        } else {
            store()?
        };
        self.fragments.write_due(self.pipeline, &mut self.output)?;
        let inode = self.tables.inventory.inode(&self.tables.tree, id, Body::File(location.body));
        self.push_inode(&inode)?;
        for (count, size) in location.sizes.iter() {
            for _ in 0..*count {
                self.inodes.push(&size.to_le_bytes(), &mut self.encoder, &mut self.tables.inode_starts)?;
            }
        }
        self.progress.advance(0, 1);
        Ok(())
    }

    fn next_piece(&mut self, id: InodeId) -> io::Result<Done> {
        if self.ready.is_empty() {
            self.ready.extend(self.pipeline.next()?.unwrap_or_default());
        }
        let piece = self.ready.pop_front().filter(|piece| piece.inode == id);
        piece.ok_or_else(|| internal("pieces of files come out of order"))
    }

    /// Writes the blocks of a piece.
    fn add_piece(&mut self, piece: &Done, size: u64, current: &mut Current) -> io::Result<()> {
        let block_size = u64::from(self.block_size);
        if piece.holes > 0 {
            (0..if piece.hashed { piece.holes } else { 0 }).for_each(|_| current.hash.push(&[0; 32]));
            current.push(piece.holes, 0, size, block_size);
        }
        for size_on_disk in &piece.sizes {
            current.push(1, *size_on_disk, size, block_size);
        }
        piece.hashes.iter().for_each(|hash| current.hash.push(hash));
        self.output.write(&piece.bytes)
    }

    fn add_directory(&mut self, id: InodeId) -> io::Result<()> {
        let tables = &mut self.tables;
        let number = tables.inventory.numbers.of(id);
        // Its own place follows its index, whose length depends on the places of its content.
        let places = Places { numbers: &tables.inventory.numbers, positions: &tables.positions };
        let listing = tables.listings.push(&tables.tree, &places, id).map_err(io::Error::other)?;
        let place = tables.listings.find(number).ok_or_else(|| internal("a listing is not there"))?;
        let mut bytes = Vec::new();
        for run in listing.first_run as usize..listing.first_run as usize + tables.listings.runs_of(place).len() {
            let Some((_, directory, entries)) = tables.listings.run(&tables.tree, run) else { break };
            bytes.clear();
            tables.encode_run(directory, entries, &mut bytes);
            self.directories.push(&bytes, &mut self.encoder, &mut tables.directory_starts)?;
        }
        bytes.clear();
        tables.encode_index(&listing, tables.listings.runs_of(place), |index, name| {
            bytes.extend_from_slice(index);
            bytes.extend_from_slice(name);
        });
        let body = tables.directory_body(&listing);
        let inode = tables.inventory.inode(&tables.tree, id, body);
        tables.listings.forget();
        self.push_inode(&inode)?;
        self.push(&bytes)
    }

    fn add_special(&mut self, id: InodeId) -> io::Result<()> {
        let body = self.tables.inventory.special_body(&self.tables.tree, id);
        let inode = self.tables.inventory.inode(&self.tables.tree, id, body);
        self.push_inode(&inode)?;
        if matches!(body, Body::Symlink { .. }) {
            let tree = Arc::clone(&self.tables.tree);
            self.push(tree.symlink_target(id))?;
            if inode.is_extended() {
                self.push(&inode.xattrs.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Adds to the inode table what follows an inode.
    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inodes.push(bytes, &mut self.encoder, &mut self.tables.inode_starts)
    }

    fn push_inode(&mut self, inode: &Inode) -> io::Result<()> {
        let position = u32::try_from(self.inodes.position());
        self.tables.positions.push(position.map_err(|_| internal("the inode table exceeds 4 GiB"))?);
        self.push(inode.encode().as_slice())
    }

    /// Writes what follows the content.
    fn write_tables(&mut self, superblock: &mut Superblock) -> io::Result<()> {
        let new = MetadataWriter::new;
        superblock.inode_table = self.output.position().into();
        let inodes = std::mem::replace(&mut self.inodes, new()).finish(&mut self.encoder)?;
        self.output.write(&inodes)?;
        superblock.directory_table = self.output.position().into();
        let directories = std::mem::replace(&mut self.directories, new()).finish(&mut self.encoder)?;
        self.output.write(&directories)?;
        let root = self.tables.places().position(InodeId::ROOT);
        superblock.root = self.tables.inode_starts.reference(root.into()).0.into();

        let entries = std::mem::take(&mut self.fragments.entries);
        superblock.fragments = (entries.len() as u32).into();
        let blocks = self.write_table((entries.len() * size_of::<FragmentEntry>()) as u64, |_, window| {
            window.put(0, entries.as_bytes());
        })?;
        superblock.fragment_table = self.write_offsets(&blocks)?.into();
        let count = self.tables.positions.len() * size_of::<U64>();
        let blocks = self.write_table(count as u64, Tables::fill_exports)?;
        superblock.export_table = self.write_offsets(&blocks)?.into();
        let blocks = self.write_table((self.tables.inventory.ids.len() * 4) as u64, Tables::fill_ids)?;
        superblock.id_table = self.write_offsets(&blocks)?.into();
        superblock.xattr_table = self.write_xattrs()?.into();
        superblock.bytes_used = self.output.position().into();
        Ok(())
    }

    fn write_xattrs(&mut self) -> io::Result<u64> {
        let sets = self.tables.inventory.xattrs.sets().len();
        if sets == 0 {
            return Ok(NO_TABLE);
        }
        let start = self.output.position();
        let blocks = self.write_table(self.tables.inventory.xattrs.length(), Tables::fill_pairs)?;
        self.tables.pair_starts = Starts::Packed(blocks.iter().map(|at| at - start).collect());
        let blocks = self.write_table((sets * size_of::<xattr::Set>()) as u64, Tables::fill_sets)?;
        let table = xattr::Table { pairs: start.into(), sets: (sets as u32).into(), unused: 0.into() };
        let at = self.output.position();
        self.output.write(table.as_bytes())?;
        self.write_offsets(&blocks)?;
        Ok(at)
    }

    /// Writes a table of `length` bytes in metadata blocks; gives where they start.
    fn write_table(&mut self, length: u64, fill: impl Fn(&Tables, &mut Window<'_>)) -> io::Result<Vec<u64>> {
        let mut starts = Vec::new();
        let mut block = [0; METADATA_SIZE];
        for number in 0..metadata_blocks(length) {
            let first = number * METADATA_SIZE as u64;
            let part = block.get_mut(..(length - first).min(METADATA_SIZE as u64) as usize).unwrap_or_default();
            fill(&self.tables, &mut Window::new(first, part));
            starts.push(self.output.position());
            let mut one = MetadataWriter::new();
            one.push(part, &mut self.encoder, &mut Starts::Stored)?;
            let bytes = one.finish(&mut self.encoder)?;
            self.output.write(&bytes)?;
        }
        Ok(starts)
    }

    /// Writes where the metadata blocks of a table are; gives where that is.
    fn write_offsets(&mut self, blocks: &[u64]) -> io::Result<u64> {
        let at = self.output.position();
        for start in blocks {
            self.output.write(&start.to_le_bytes())?;
        }
        Ok(at)
    }
}

impl Current {
    /// Counts blocks of one size on disk.
    fn push(&mut self, count: u64, size_on_disk: u32, file_size: u64, block_size: u64) {
        if size_on_disk & !BLOCK_STORED == 0 {
            let end = (self.blocks + count).saturating_mul(block_size).min(file_size);
            self.sparse += end - self.blocks * block_size;
        }
        self.blocks += count;
        match self.sizes.last_mut() {
            Some((known, size)) if *size == size_on_disk => *known += count,
            _ => self.sizes.push((count, size_on_disk)),
        }
    }
}
