//! A pass over all nodes of an ISO 9660 image.

use inarch_tree::FileType;
use inarch_volume::{Body, Facts, Item, Node, Pass, VolumeError};

use super::damaged;
use super::volume::{IsoVolume, give};
use crate::region::body;

/// Bytes of metadata beyond what the image's size allows.
const SLACK: u64 = 16 << 20;

/// Counts the bytes of all directories and continuation areas: they do not overlap, so together they are no more than the
/// image.
pub(super) struct EveryNode<'a> {
    volume: &'a IsoVolume,
    /// Bytes that may still be read; none if there were too many.
    left: Option<u64>,
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a IsoVolume) -> EveryNode<'a> {
        // The areas are read twice: for a name, and for a file.
        EveryNode { volume, left: Some(volume.pages.size().saturating_mul(2).saturating_add(SLACK)) }
    }

    fn spend(&mut self, bytes: u64) -> Result<(), VolumeError> {
        self.left = self.left.and_then(|left| left.checked_sub(bytes));
        let too_many = "the directories up to this one are larger than the image: they overlap";
        self.left.map(|_| ()).ok_or_else(|| damaged(too_many))
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        let volume = self.volume;
        self.spend(volume.directory(directory)?.size())?;
        let mut spent = Ok(());
        volume.entries(directory, 0, &mut |found| {
            spent = self.spend(found.as_ref().map_or(0, |found| found.cost));
            spent.is_ok()
                && give(&found, &mut |item| {
                    take(item);
                    true
                })
        })?;
        spent
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        self.spend(0)?;
        let held = self.volume.held(node)?;
        self.spend(held.cost())?;
        facts.attributes = held.attributes;
        facts.body = match held.attributes.file_type() {
            Some(FileType::Directory) => Body::Directory,
            Some(FileType::Symlink) => {
                facts.target.extend_from_slice(held.target()?);
                Body::Symlink
            }
            Some(FileType::Regular) => body(self.volume.extents_of(&held, 0, u64::MAX), facts)?,
            _ => Body::Other,
        };
        Ok(())
    }
}
