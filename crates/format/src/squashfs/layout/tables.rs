//! The tables that compressed and uncompressed images have in common.

use std::sync::Arc;

use inarch_tree::Tree;

use super::inventory::Inventory;
use super::listing::Listings;
use super::places::{Places, Starts};

/// A tree's inodes with their places.
pub(crate) struct Tables {
    pub(crate) tree: Arc<Tree>,
    pub(crate) inventory: Arc<Inventory>,
    /// For each inode, in the order of their numbers, the byte of the uncompressed inode table where it starts.
    pub(crate) positions: Vec<u32>,
    pub(crate) listings: Listings,
    pub(crate) inode_starts: Starts,
    pub(crate) directory_starts: Starts,
    pub(crate) pair_starts: Starts,
}

impl Tables {
    /// Where inodes are.
    pub(crate) fn places(&self) -> Places<'_> {
        Places { numbers: &self.inventory.numbers, positions: &self.positions }
    }
}
