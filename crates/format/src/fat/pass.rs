//! A pass over all nodes of a FAT.

use inarch_volume::{Body, Facts, Item, Node, Pass, VolumeError};

use super::chains::Budget;
use super::volume::{FatVolume, Held, give};
use crate::region::body;

/// Counts the clusters of all directories and files.
pub(super) struct EveryNode<'a> {
    volume: &'a FatVolume,
    budget: Budget,
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a FatVolume) -> EveryNode<'a> {
        EveryNode { volume, budget: Budget::new(volume.chains.area()) }
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        self.budget.spend(0)?;
        let bytes = self.volume.directory(directory)?.bytes();
        self.budget.spend(self.volume.chains.clusters_of(bytes))?;
        self.volume.entries(directory, 0, &mut |found| {
            give(&found, &mut |item| {
                take(item);
                true
            })
        })
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let held = self.volume.item(node)?;
        facts.attributes = self.volume.attributes_of(node, &held);
        facts.body = match held {
            Held::Entry(entry) if !entry.is_directory() => {
                self.budget.spend(0)?;
                let content = self.volume.content(&entry)?;
                self.budget.spend(self.volume.chains.clusters_of(content.bytes()))?;
                body(content.extents(0..entry.size(), entry.size()), facts)?
            }
            _ => Body::Directory,
        };
        Ok(())
    }
}
