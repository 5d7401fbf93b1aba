//! Decides the size and place of everything in an EROFS image.

use std::sync::Arc;

use inarch_block::{BlockMap, FileExtent};
use inarch_tree::{FileType, InodeId, Tree};

use super::layout::chunks::data_runs;
use super::layout::shape::Shape;
use super::layout::{INODES_START, Layout, Regions, refuse, refuse_file};
use super::render::Renderer;
use super::spec::inode::{DataLayout, encode_device};
use super::spec::superblock::LABEL_MAX;
use super::spec::{BLOCK_SIZE, NULL_BLOCK, SLOT_SIZE};
use crate::{Algorithm, Compression, FormatError, ImageOptions};

/// A laid-out image, without the content of compressed files.
pub(crate) struct Laid {
    pub(crate) layout: Layout,
    /// The parts of files that are not compressed, ascending by block.
    pub(crate) files: Vec<FileExtent>,
}

impl Laid {
    /// Lays out an image that holds `tree`. Opens no file; the same tree and options give the same bytes.
    pub(crate) fn new(tree: &Tree, options: &ImageOptions) -> Result<Laid, FormatError> {
        check_options(options)?;
        let mut layout = Layout::new(tree, options)?;
        let mut placer = Placer { inodes_end: INODES_START, listing_blocks: 0, data_blocks: 0, files: Vec::new() };
        for (id, _) in tree.inodes() {
            placer.place(tree, id, &mut layout)?;
        }
        layout.regions = placer.regions(&layout)?;
        let mut files = placer.files;
        for file in &mut files {
            file.start += layout.regions.data.start;
        }
        Ok(Laid { layout, files })
    }

    /// The files to be compressed, ascending.
    pub(crate) fn compressed_files(&self, tree: &Tree) -> Vec<InodeId> {
        let is_compressed = |id: &InodeId| {
            let shape = Shape::new(tree, *id, &self.layout.tables);
            shape.layout == DataLayout::CompressedFull
        };
        tree.inodes().map(|(id, _)| id).filter(is_compressed).collect()
    }

    /// The block map of the image, without the content of compressed files.
    pub(crate) fn into_map(self, tree: &Arc<Tree>, options: &ImageOptions) -> Result<BlockMap, FormatError> {
        let blocks = device_blocks(options, self.layout.regions.packed.end)?;
        let metadata = 0..self.layout.regions.listings.end;
        let renderer = Arc::new(Renderer::new(tree.clone(), self.layout));
        let map = BlockMap::new(blocks, vec![metadata], self.files, renderer);
        map.map_err(|error| refuse(format!("internal: the planned block map is out of order: {error}")))
    }
}

fn check_options(options: &ImageOptions) -> Result<(), FormatError> {
    if options.label.len() > LABEL_MAX || options.label.contains('\0') {
        let label = &options.label;
        return Err(refuse(format!("the label {label:?} is longer than {LABEL_MAX} bytes, or has a NUL")));
    }
    if options.free_bytes > 0 {
        return Err(refuse("it is read-only, and has no free space; leave the free space out".to_owned()));
    }
    if let Some(size) = options.block_size.filter(|size| *size as usize != BLOCK_SIZE) {
        return Err(refuse(format!("blocks of {size} bytes were asked for, and only {BLOCK_SIZE} are supported")));
    }
    match options.compression {
        Some(Compression { algorithm: Algorithm::Lz4, level: Some(level) }) => {
            Err(refuse(format!("compression by lz4 has no level {level}: leave it out")))
        }
        None | Some(Compression { algorithm: Algorithm::Lz4, level: None }) => Ok(()),
        Some(other) => {
            let name = other.algorithm.name();
            Err(refuse(format!("compression by {name} is not supported: choose lz4, or squashfs")))
        }
    }
}

/// Blocks of the whole device: those in use, or as many as were asked for.
fn device_blocks(options: &ImageOptions, used: u64) -> Result<u64, FormatError> {
    let needed = used * BLOCK_SIZE as u64;
    match options.size {
        Some(size) if size < needed => {
            Err(refuse(format!("the image needs {needed} bytes, more than the {size} asked for")))
        }
        Some(size) => Ok(size / BLOCK_SIZE as u64),
        None => Ok(used),
    }
}

/// Assigns places to inodes, listings and data, inode by inode.
struct Placer {
    /// Bytes from the device's start.
    inodes_end: u64,
    listing_blocks: u64,
    data_blocks: u64,
    /// Counted from the start of the data.
    files: Vec<FileExtent>,
}

impl Placer {
    fn place(&mut self, tree: &Tree, id: InodeId, layout: &mut Layout) -> Result<(), FormatError> {
        check_inode(tree, id)?;
        layout.tables.directories.add(tree, id);
        layout.tables.chunks.add(tree, id)?;
        let shape = Shape::new(tree, id, &layout.tables);
        let start = shape.fit(self.inodes_end);
        let nid = u32::try_from(start / SLOT_SIZE);
        layout.nids.push(nid.map_err(|_| refuse_file(tree, id, "the inodes up to this one exceed 128 GiB"))?);
        self.inodes_end = start + shape.size_in_inodes();
        let too_large = || refuse_file(tree, id, "what the image holds up to this file exceeds 16 TiB");
        let is_data = tree.inode(id).file_type() == FileType::Regular;
        let next = if is_data { &mut self.data_blocks } else { &mut self.listing_blocks };
        let first = u32::try_from(*next).map_err(|_| too_large())?;
        layout.first_blocks.push(first);
        *next = next.checked_add(shape.blocks).filter(|end| *end < u64::from(NULL_BLOCK)).ok_or_else(too_large)?;
        if is_data && shape.layout != DataLayout::CompressedFull {
            self.add_extents(tree, id, u64::from(first), &shape, layout);
        } else if shape.blocks > 0 {
            layout.listed.push(id);
        }
        Ok(())
    }

    /// Maps the parts of a file that hold data; the rest of its chunks is zeros.
    fn add_extents(&mut self, tree: &Tree, id: InodeId, first: u64, shape: &Shape, layout: &Layout) {
        let Some(map) = layout.tables.chunks.of(id) else {
            if shape.blocks > 0 {
                // Files of more than 2^32 blocks were refused.
                self.files.push(FileExtent { start: first, blocks: shape.blocks as u32, first: 0, inode: id });
            }
            return;
        };
        let mut mapped = map.runs(tree);
        let mut chunks = mapped.next().unwrap_or_default();
        // Device block of the current run of chunks.
        let mut start = first;
        for (block, blocks) in data_runs(tree, id) {
            while block >= (chunks.0 + chunks.1) << map.bits {
                start += chunks.1 << map.bits;
                let Some(next) = mapped.next() else { return };
                chunks = next;
            }
            let start = start + (block - (chunks.0 << map.bits));
            self.files.push(FileExtent { start, blocks: blocks as u32, first: block as u32, inode: id });
        }
    }

    fn regions(&self, layout: &Layout) -> Result<Regions, FormatError> {
        let mut end = INODES_START / BLOCK_SIZE as u64;
        let mut region = |blocks: u64| {
            let start = end;
            end += blocks;
            start..end
        };
        let inode_bytes = self.inodes_end - INODES_START;
        let regions = Regions {
            inodes: region(inode_bytes.div_ceil(BLOCK_SIZE as u64)),
            xattrs: region(layout.tables.xattrs.shared_bytes().div_ceil(BLOCK_SIZE as u64)),
            listings: region(self.listing_blocks),
            data: region(self.data_blocks),
            packed: region(0),
        };
        if regions.data.end >= u64::from(NULL_BLOCK) {
            let bytes = regions.data.end * BLOCK_SIZE as u64;
            return Err(refuse(format!("the image would have {bytes} bytes, more than the 16 TiB of EROFS")));
        }
        Ok(regions)
    }
}

/// Refuses what no inode of EROFS holds.
fn check_inode(tree: &Tree, id: InodeId) -> Result<(), FormatError> {
    let inode = tree.inode(id);
    let (major, minor) = inode.device();
    if encode_device(major, minor).is_none() {
        return Err(refuse_file(tree, id, format!("the device number {major}:{minor} cannot be stored")));
    }
    let greatest = u64::from(NULL_BLOCK) * BLOCK_SIZE as u64;
    if inode.size() > greatest {
        let size = inode.size();
        return Err(refuse_file(tree, id, format!("{size} bytes exceed the greatest file size, {greatest}")));
    }
    Ok(())
}
