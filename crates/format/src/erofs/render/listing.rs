//! Renders directory blocks and long symlink targets.

use inarch_tree::{FileType, InodeId};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U64};

use super::Renderer;
use crate::erofs::spec::Block;
use crate::erofs::spec::directory::{DIRENT_SIZE, Dirent};
use crate::erofs::spec::inode::entry_type;

impl Renderer {
    /// Renders block `block` of the region for listings.
    pub(super) fn render_listing(&self, block: u64, out: &mut Block) {
        let layout = &self.layout;
        let first = |id: &InodeId| layout.first_blocks.get(id.index()).map_or(0, |first| u64::from(*first));
        let next = layout.listed.partition_point(|id| first(id) <= block);
        let Some(id) = next.checked_sub(1).and_then(|at| layout.listed.get(at)) else { return };
        match self.tree.inode(*id).file_type() {
            FileType::Directory => self.render_names(*id, block - first(id), out),
            _ => {
                for (to, from) in out.iter_mut().zip(self.tree.symlink_target(*id)) {
                    *to = *from;
                }
            }
        }
    }

    /// Renders block `block` of a directory.
    pub(super) fn render_names(&self, id: InodeId, block: u64, out: &mut Block) {
        let names = self.layout.tables.directories.block(&self.tree, id, block);
        let mut name_at = names.clone().count() * DIRENT_SIZE;
        for (place, entry) in names.enumerate() {
            let dirent = Dirent {
                nid: U64::new(self.layout.nids.get(entry.inode.index()).copied().unwrap_or_default().into()),
                name_offset: U16::new(name_at as u16),
                file_type: entry_type(self.tree.inode(entry.inode).file_type()),
                reserved: 0,
            };
            put(out, place * DIRENT_SIZE, dirent.as_bytes());
            put(out, name_at, entry.name);
            name_at += entry.name.len();
        }
    }
}

fn put(out: &mut Block, at: usize, bytes: &[u8]) {
    if let Some(to) = out.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}
