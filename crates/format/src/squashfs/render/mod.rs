//! Renders any block of an uncompressed image on demand.

pub(crate) mod tables;
pub(crate) mod window;

use inarch_block::{BLOCK_SIZE, Metadata};
use inarch_tree::{FileType, InodeId};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::layout::blocks::Blocks;
use super::layout::{Layout, Part, Section, metadata_blocks};
use super::spec::inode::{Body, FileBody, NO_FRAGMENT};
use super::spec::{BLOCK_STORED, METADATA_HEADER, METADATA_SIZE, METADATA_STORED, xattr};
use window::Window;

/// Renders the metadata of one image. Holds no block: each is made from the tree and the layout's tables.
pub(crate) struct Renderer {
    layout: Layout,
}

impl Renderer {
    pub(crate) fn new(layout: Layout) -> Renderer {
        Renderer { layout }
    }

    /// Renders the part of a section in `window`, which counts from the image's start.
    fn render_section(&self, section: &Section, window: &mut Window<'_>) {
        if !section.framed {
            return self.render_index(section, window);
        }
        let framed = METADATA_SIZE + METADATA_HEADER;
        let mut bytes = [0; METADATA_SIZE];
        for block in window.items(section.start, framed, metadata_blocks(section.length)) {
            let at = section.start + block * framed as u64;
            let first = block * METADATA_SIZE as u64;
            let length = (section.length - first).min(METADATA_SIZE as u64) as usize;
            window.put(at, &(METADATA_STORED | length as u16).to_le_bytes());
            // Only those bytes of the metadata block that are in the window.
            let (start, range) = (at + METADATA_HEADER as u64, window.range());
            let from = (range.start.saturating_sub(start) as usize).min(length);
            let to = (range.end.saturating_sub(start) as usize).min(length);
            let Some(part) = bytes.get_mut(from..to) else { continue };
            part.fill(0);
            self.fill(section.part, &mut Window::new(first + from as u64, part));
            window.put(start + from as u64, part);
        }
    }

    fn fill(&self, part: Part, window: &mut Window<'_>) {
        let tables = &self.layout.tables;
        match part {
            Part::Inodes => self.fill_inodes(window),
            Part::Directories => self.fill_directories(window),
            Part::Exports => tables.fill_exports(window),
            Part::Ids => tables.fill_ids(window),
            Part::XattrPairs => tables.fill_pairs(window),
            Part::XattrSets => tables.fill_sets(window),
            Part::ExportIndex | Part::IdIndex | Part::XattrIndex => {}
        }
    }

    /// Where the metadata blocks of the section before are.
    fn render_index(&self, section: &Section, window: &mut Window<'_>) {
        let find = |part| self.layout.sections.iter().find(|section| section.part == part);
        let mut at = section.start;
        let of = match section.part {
            Part::ExportIndex => find(Part::Exports),
            Part::IdIndex => find(Part::Ids),
            _ => {
                let table = xattr::Table {
                    pairs: find(Part::XattrPairs).map_or(0, |section| section.start).into(),
                    sets: (self.layout.tables.inventory.xattrs.sets().len() as u32).into(),
                    unused: 0.into(),
                };
                window.put(at, table.as_bytes());
                at += size_of::<xattr::Table>() as u64;
                find(Part::XattrSets)
            }
        };
        let Some(of) = of else { return };
        for block in window.items(at, size_of::<U64>(), metadata_blocks(of.length)) {
            let start = of.start + block * (METADATA_SIZE + METADATA_HEADER) as u64;
            window.put(at + block * size_of::<U64>() as u64, &start.to_le_bytes());
        }
    }

    fn fill_inodes(&self, window: &mut Window<'_>) {
        let tables = &self.layout.tables;
        let range = window.range();
        let first = tables.positions.partition_point(|at| u64::from(*at) <= range.start).saturating_sub(1);
        let order = tables.inventory.numbers.order().get(first..).unwrap_or_default();
        let places = tables.positions.get(first..).unwrap_or_default();
        for (id, position) in order.iter().zip(places).take_while(|(_, at)| u64::from(**at) < range.end) {
            self.put_inode(*id, u64::from(*position), window);
        }
    }

    /// Puts an inode, and what follows it, at a byte of the inode table.
    fn put_inode(&self, id: InodeId, position: u64, window: &mut Window<'_>) {
        let tables = &self.layout.tables;
        match tables.tree.inode(id).file_type() {
            FileType::Regular => self.put_file(id, position, window),
            FileType::Directory => self.put_directory(id, position, window),
            kind => {
                let body = tables.inventory.special_body(&tables.tree, id);
                let inode = tables.inventory.inode(&tables.tree, id, body);
                let encoded = inode.encode();
                window.put(position, encoded.as_slice());
                if kind == FileType::Symlink {
                    let target = tables.tree.symlink_target(id);
                    let at = position + encoded.as_slice().len() as u64;
                    window.put(at, target);
                    if inode.is_extended() {
                        window.put(at + target.len() as u64, &inode.xattrs.to_le_bytes());
                    }
                }
            }
        }
    }

    fn put_directory(&self, id: InodeId, position: u64, window: &mut Window<'_>) {
        let tables = &self.layout.tables;
        let Some(place) = tables.listings.find(tables.inventory.numbers.of(id)) else { return };
        let Some(listing) = tables.listings.get(place) else { return };
        let encoded = tables.inventory.inode(&tables.tree, id, tables.directory_body(listing)).encode();
        window.put(position, encoded.as_slice());
        let mut at = position + encoded.as_slice().len() as u64;
        tables.encode_index(listing, tables.listings.runs_of(place), |index, name| {
            window.put(at, index);
            window.put(at + index.len() as u64, name);
            at += (index.len() + name.len()) as u64;
        });
    }

    fn put_file(&self, id: InodeId, position: u64, window: &mut Window<'_>) {
        let tables = &self.layout.tables;
        let blocks = Blocks::new(&tables.tree, id, self.layout.block_size);
        let place = (tables.inventory.numbers.of(id) as usize).wrapping_sub(1);
        let body = Body::File(FileBody {
            start: self.layout.content.get(place).copied().unwrap_or(0),
            size: tables.tree.inode(id).size(),
            sparse: blocks.sparse_bytes(),
            fragment: NO_FRAGMENT,
            offset: 0,
        });
        let encoded = tables.inventory.inode(&tables.tree, id, body).encode();
        window.put(position, encoded.as_slice());
        let at = position + encoded.as_slice().len() as u64;
        // A block without data has the size 0, as the window has.
        let wanted = window.items(at, size_of::<U32>(), blocks.count());
        for run in blocks.runs_from(wanted.start).take_while(|run| run.start < wanted.end) {
            for block in run.start.max(wanted.start)..run.end.min(wanted.end) {
                let size = BLOCK_STORED | blocks.length(block) as u32;
                window.put(at + block * size_of::<U32>() as u64, &size.to_le_bytes());
            }
        }
    }

    fn fill_directories(&self, window: &mut Window<'_>) {
        let tables = &self.layout.tables;
        let range = window.range();
        let mut bytes = Vec::with_capacity(METADATA_SIZE);
        let first = tables.listings.run_at(range.start);
        for (run, directory, entries) in (first..).map_while(|place| tables.listings.run(&tables.tree, place)) {
            if u64::from(run.position) >= range.end {
                return;
            }
            bytes.clear();
            tables.encode_run(directory, entries, &mut bytes);
            window.put(run.position.into(), &bytes);
        }
    }
}

impl Metadata for Renderer {
    fn render(&self, block: u64, out: &mut [u8; BLOCK_SIZE]) {
        let start = block * BLOCK_SIZE as u64;
        let mut window = Window::new(start, out);
        if block == 0 {
            window.put(0, self.layout.superblock.as_bytes());
        }
        let sections = &self.layout.sections;
        let first = sections.partition_point(|section| section.start <= start).saturating_sub(1);
        for section in sections.get(first..).unwrap_or_default() {
            if section.start >= start + BLOCK_SIZE as u64 {
                return;
            }
            self.render_section(section, &mut window);
        }
    }
}
