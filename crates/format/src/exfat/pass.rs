//! A pass over all nodes of an exFAT.

use inarch_volume::{Body, Facts, Item, Node, Pass, VolumeError};

use super::volume::{ExfatVolume, Held, give};
use crate::fat::chains::Budget;
use crate::region::body;

/// Counts the clusters of all directories, and of files with chains.
pub(super) struct EveryNode<'a> {
    volume: &'a ExfatVolume,
    budget: Budget,
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a ExfatVolume) -> EveryNode<'a> {
        EveryNode { volume, budget: Budget::new(volume.chains.area()) }
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        self.budget.spend(0)?;
        let (region, _) = self.volume.directory(directory)?;
        self.budget.spend(self.volume.chains.clusters_of(region.bytes()))?;
        self.volume.entries(directory, 0, &mut |found| {
            give(found, &mut |item| {
                take(item);
                true
            })
        })
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        let held = self.volume.held(node)?;
        facts.attributes = self.volume.attributes_of(node, &held)?;
        facts.body = match held {
            Held::Entry(file, stream) if !file.is_directory() => {
                self.budget.spend(0)?;
                let content = self.volume.region(&stream)?;
                if !stream.is_contiguous() {
                    self.budget.spend(self.volume.chains.clusters_of(content.bytes()))?;
                }
                body(content.extents(0..stream.length(), stream.valid()), facts)?
            }
            _ => Body::Directory,
        };
        Ok(())
    }
}
