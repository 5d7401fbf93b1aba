//! Renders directory blocks, those of hash trees (htree) too.

use inarch_tree::InodeId;

use super::Renderer;
use crate::ext4::layout::ROOT_NODE;
use crate::ext4::layout::directory::{Directory, Hashed, LOST_AND_FOUND};
use crate::ext4::spec::directory::{IndexWriter, LeafWriter, NODE_LIMIT, type_code};
use crate::ext4::spec::{Block, LOST_AND_FOUND_INO, ROOT_INO};

impl Renderer {
    /// Block `index` of the added `lost+found`: the first has its dots, the others nothing.
    pub(super) fn render_lost_and_found(&self, index: u64, out: &mut Block) {
        let mut leaf = LeafWriter::new(out);
        if index == 0 {
            leaf.push_dots(LOST_AND_FOUND_INO, ROOT_INO);
        }
        leaf.finish(self.seed.inode(LOST_AND_FOUND_INO));
    }

    /// Block `index` of all directories.
    pub(super) fn render_directory(&self, index: u32, out: &mut Block) {
        let directories = &self.layout.measured.directories;
        let Some(place) = directories.containing(index) else { return };
        let Some(directory) = directories.list().get(place) else { return };
        let within = (index - directory.block) as usize;
        match directories.index(place) {
            None => self.render_linear(directory, out),
            Some(hashed) if within == 0 => self.render_index_root(directory, &hashed, out),
            Some(hashed) if within <= hashed.nodes => self.render_index_node(directory, &hashed, within - 1, out),
            Some(hashed) => self.render_leaf(directory, hashed.leaves.start + within - 1 - hashed.nodes, out),
        }
    }

    fn render_linear(&self, directory: &Directory, out: &mut Block) {
        let (own, parent) = self.dots(directory);
        let mut leaf = LeafWriter::new(out);
        leaf.push_dots(own, parent);
        if directory.inode == InodeId::ROOT && self.layout.measured.has_lost_and_found() {
            self.push_lost_and_found(&mut leaf);
        }
        for place in 0..self.tree.entries(directory.inode).len() {
            self.push_entry(directory.inode, place as u32, &mut leaf);
        }
        leaf.finish(self.seed.inode(own));
    }

    fn render_index_root(&self, directory: &Directory, hashed: &Hashed, out: &mut Block) {
        let (own, parent) = self.dots(directory);
        let leaves = self.layout.measured.directories.leaves().get(hashed.leaves.clone()).unwrap_or(&[]);
        let mut index = IndexWriter::root(out, own, parent, u8::from(hashed.nodes > 0));
        let span = if hashed.nodes > 0 { NODE_LIMIT } else { 1 };
        for (child, leaf) in leaves.iter().step_by(span).enumerate() {
            index.push(leaf.hash, 1 + child as u32);
        }
        index.finish(self.seed.inode(own));
    }

    fn render_index_node(&self, directory: &Directory, hashed: &Hashed, node: usize, out: &mut Block) {
        let leaves = self.layout.measured.directories.leaves().get(hashed.leaves.clone()).unwrap_or(&[]);
        let first = node * NODE_LIMIT;
        let mut index = IndexWriter::node(out);
        for (child, leaf) in leaves.iter().enumerate().skip(first).take(NODE_LIMIT) {
            index.push(leaf.hash, (1 + hashed.nodes + child) as u32);
        }
        index.finish(self.seed.inode(self.dots(directory).0));
    }

    fn render_leaf(&self, directory: &Directory, leaf: usize, out: &mut Block) {
        let mut writer = LeafWriter::new(out);
        for place in self.layout.measured.directories.leaf_entries(leaf) {
            self.push_entry(directory.inode, *place, &mut writer);
        }
        writer.finish(self.seed.inode(self.dots(directory).0));
    }

    /// Adds the name at `place` of the tree's listing of `directory`; the place after the last is `lost+found`.
    fn push_entry(&self, directory: InodeId, place: u32, leaf: &mut LeafWriter<'_>) {
        match self.tree.entries(directory).get(place as usize) {
            Some(entry) => {
                let ino = self.layout.nodes.target(directory, place, entry.inode);
                leaf.push(ino, entry.name, type_code(self.tree.inode(entry.inode).file_type()));
            }
            None => self.push_lost_and_found(leaf),
        }
    }

    fn push_lost_and_found(&self, leaf: &mut LeafWriter<'_>) {
        leaf.push(LOST_AND_FOUND_INO, LOST_AND_FOUND, type_code(inarch_tree::FileType::Directory));
    }

    /// The inode numbers of a directory and of the one that holds it.
    fn dots(&self, directory: &Directory) -> (u32, u32) {
        let nodes = &self.layout.nodes;
        let parent = if directory.inode.0 == ROOT_NODE { InodeId::ROOT } else { self.tree.parent(directory.inode) };
        (nodes.ino(directory.inode.0), nodes.ino(parent.0))
    }
}
