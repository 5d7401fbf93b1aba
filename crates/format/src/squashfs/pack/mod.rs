//! Writes compressed images, where the place of each byte depends on the content before it.
//!
//! 1. `jobs` cuts the content of all files into pieces, in the order of inode numbers.
//! 2. Threads (`pipeline`) take pieces, read them and compress their blocks (`work`), a bounded number of pieces
//!    ahead.
//! 3. The caller's thread (`writer`) takes the results in order, finds files that are stored already (`duplicates`),
//!    collects the tails of files into `fragments`, which the threads compress too, and adds inodes and listings to
//!    compressed tables in memory (`metadata`).
//! 4. After the last file it writes the tables, and finally the superblock.

mod duplicates;
mod fragments;
mod jobs;
mod metadata;
mod output;
mod pipeline;
mod work;
mod writer;

use std::collections::VecDeque;
use std::io;
use std::num::NonZero;
use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, Content, Progress};
use inarch_tree::Tree;
use zerocopy::IntoBytes;

use super::codec::{Encoder, Settings};
use super::layout::Error;
use super::layout::inventory::Inventory;
use super::layout::listing::Listings;
use super::layout::tables::Tables;
use super::spec::METADATA_STORED;
use super::spec::superblock::{Superblock, flags};
use crate::{Pack, Sink};
use duplicates::{Duplicates, Stored};
use fragments::Fragments;
use jobs::Jobs;
use metadata::{MetadataWriter, no_blocks};
use output::Output;
use pipeline::{Pipeline, StopOnDrop};
use work::Shared;
use writer::Writer;

/// More threads than this do not share one image well.
const MAX_THREADS: usize = 64;

/// An image that is to be packed.
pub(super) struct Image {
    tree: Arc<Tree>,
    inventory: Arc<Inventory>,
    settings: Settings,
    block_size: u32,
    mtime: u32,
    threads: usize,
}

impl Image {
    /// Plans an image whose own time is `mtime`, in seconds since 1970. 0 threads are as many as there are processors.
    pub(super) fn plan(
        tree: &Arc<Tree>,
        settings: Settings,
        block_size: u32,
        mtime: Option<u32>,
        threads: usize,
    ) -> Result<Image, Error> {
        let inventory = Inventory::new(tree)?;
        super::layout::check_inode_table(tree, &inventory, block_size)?;
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get),
            threads => threads,
        };
        Ok(Image {
            tree: Arc::clone(tree),
            mtime: mtime.unwrap_or(inventory.newest_mtime),
            inventory: Arc::new(inventory),
            settings,
            block_size,
            threads: threads.min(MAX_THREADS),
        })
    }

    /// What the user should know, a line each.
    pub(super) fn notes(&self) -> Vec<String> {
        self.inventory.notes(&self.tree)
    }

    fn superblock(&self) -> Superblock {
        let no_xattrs = if self.inventory.xattrs.sets().is_empty() { flags::NO_XATTRS } else { 0 };
        let options = if self.settings.options().is_some() { flags::COMPRESSOR_OPTIONS } else { 0 };
        let kind = flags::EXPORTABLE | flags::DUPLICATES | flags::ALWAYS_FRAGMENTS;
        Superblock {
            mtime: self.mtime.into(),
            compressor: self.settings.number().into(),
            flags: (kind | no_xattrs | options).into(),
            ids: (self.inventory.ids.len() as u16).into(),
            ..Superblock::new(self.inventory.numbers.count(), self.block_size)
        }
    }

    fn tables(&self) -> Tables {
        Tables {
            tree: Arc::clone(&self.tree),
            inventory: Arc::clone(&self.inventory),
            positions: Vec::with_capacity(self.inventory.numbers.count() as usize),
            listings: Listings::default(),
            inode_starts: no_blocks(),
            directory_starts: no_blocks(),
            pair_starts: no_blocks(),
        }
    }

    /// Writes everything but the superblock; gives where it ends.
    fn write(&self, superblock: &mut Superblock, shared: Shared<'_>, sink: &dyn Sink) -> io::Result<u64> {
        let pipeline =
            Pipeline::new(Jobs::new(&self.tree, self.inventory.numbers.order(), self.block_size), self.threads);
        let mut output = Output::new(sink, size_of::<Superblock>() as u64);
        if let Some(options) = self.settings.options() {
            output.write(&(METADATA_STORED | options.len() as u16).to_le_bytes())?;
            output.write(&options)?;
        }
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&pipeline);
            for _ in 0..self.threads {
                let thread = std::thread::Builder::new().name("squashfs".to_owned());
                thread.spawn_scoped(scope, || pipeline.run(shared))?;
            }
            let mut writer = Writer {
                pipeline: &pipeline,
                duplicates: shared.duplicates,
                progress: shared.progress,
                output,
                encoder: Encoder::new(&self.settings)?,
                tables: self.tables(),
                block_size: self.block_size,
                fragments: Fragments::new(self.block_size),
                stored: Stored::default(),
                inodes: MetadataWriter::new(),
                directories: MetadataWriter::new(),
                ready: VecDeque::new(),
            };
            writer.run(superblock)?;
            let end = writer.output.position();
            // Disks are read in blocks.
            let padding = end.next_multiple_of(BLOCK_SIZE as u64) - end;
            writer.output.write(&vec![0; padding as usize])?;
            writer.output.flush()?;
            Ok(end + padding)
        })
    }
}

impl Pack for Image {
    fn pack(&self, content: &dyn Content, sink: &dyn Sink, progress: &dyn Progress) -> io::Result<u64> {
        let duplicates = Duplicates::new(&self.tree);
        let shared = Shared {
            content,
            progress,
            duplicates: &duplicates,
            settings: &self.settings,
            block_size: self.block_size,
        };
        let mut superblock = self.superblock();
        let length = self.write(&mut superblock, shared, sink)?;
        // Last of all: until then it is no image.
        sink.write_at(0, superblock.as_bytes())?;
        Ok(length)
    }
}
