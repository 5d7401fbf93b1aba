//! A pass over all nodes, with a bound on the metadata that it reads.

use inarch_volume::{Body, Facts, Item, Node, Pass, Volume, VolumeError};

use super::compressed::data_ranges;
use super::damaged;
use super::kinds::Kind;
use super::volume::{Content, NtfsVolume};

/// A pass may read `TIMES` times the image's size and `SLACK` bytes of metadata. In a sound image it reads metadata a few times. In a
/// hostile one, many files may claim the same clusters for their attribute lists, indexes and streams.
const TIMES: u64 = 16;
const SLACK: u64 = 256 << 20;

/// Counts what is read.
pub(super) struct EveryNode<'a> {
    volume: &'a NtfsVolume,
    /// The most that the volume's count of metadata may reach.
    most: u64,
}

impl<'a> EveryNode<'a> {
    pub(super) fn new(volume: &'a NtfsVolume) -> EveryNode<'a> {
        let allowed = volume.mft.image_size().saturating_mul(TIMES).saturating_add(SLACK);
        EveryNode { volume, most: volume.mft.met().saturating_add(allowed) }
    }

    fn check(&self) -> Result<(), VolumeError> {
        match self.volume.mft.met() <= self.most {
            true => Ok(()),
            false => Err(damaged("the metadata up to this file is far larger than the image: files share parts of it")),
        }
    }
}

impl Pass for EveryNode<'_> {
    fn list(&mut self, directory: Node, take: &mut dyn FnMut(Item<'_>)) -> Result<(), VolumeError> {
        self.check()?;
        self.volume.list(directory, 0, &mut |item| {
            take(item);
            true
        })
    }

    fn facts(&mut self, node: Node, facts: &mut Facts) -> Result<(), VolumeError> {
        self.check()?;
        let volume = self.volume;
        let inode = volume.inode(node)?;
        let known = volume.known(&inode)?;
        facts.attributes = volume.attributes_of(&inode, &known)?;
        facts.xattrs = volume.xattrs_of(&inode, &mut |loss| facts.losses.push(loss))?;
        facts.body = match known.kind {
            Kind::Directory => Body::Directory,
            Kind::Special(..) => Body::Other,
            Kind::Symlink(target) => {
                facts.target = volume.target_of(node, &target)?;
                facts.attributes.size = facts.target.len() as u64;
                Body::Symlink
            }
            _ => match volume.content_of(&inode, known)? {
                Content::Nothing => Body::Extents,
                Content::Small(_) | Content::System(..) => Body::Packed,
                Content::Compressed(data) => {
                    data_ranges(&volume.mft, &inode, &data, 0, &mut facts.ranges)?;
                    Body::PackedSparse
                }
                Content::Plain(data) => {
                    inode.extents(&volume.mft, &data, 0..data.size(), &mut facts.extents)?;
                    Body::Extents
                }
            },
        };
        Ok(())
    }
}
