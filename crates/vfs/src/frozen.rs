//! What never changes: the layers that show archives and images lie over this.

use std::time::Duration;

use rustix::io::Errno;

use crate::{Attributes, Context, Entry, FileSystem, HandleId, NewNode, NodeId, Opened, SetAttributes};

/// What never changes needs never be asked for again: a year.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Refuses what would change it with `EROFS`, and not as something that nobody knows.
pub(crate) struct Frozen;

impl FileSystem for Frozen {
    fn set_attributes(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Option<HandleId>,
        _: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        Err(Errno::ROFS)
    }

    fn make_node(&self, _: &Context<'_>, _: NodeId, _: &[u8], _: &NewNode) -> Result<Entry, Errno> {
        Err(Errno::ROFS)
    }

    fn make_directory(&self, _: &Context<'_>, _: NodeId, _: &[u8], _: &NewNode) -> Result<Entry, Errno> {
        Err(Errno::ROFS)
    }

    fn make_symlink(&self, _: &Context<'_>, _: NodeId, _: &[u8], _: &[u8]) -> Result<Entry, Errno> {
        Err(Errno::ROFS)
    }

    fn link(&self, _: &Context<'_>, _: NodeId, _: NodeId, _: &[u8]) -> Result<Entry, Errno> {
        Err(Errno::ROFS)
    }

    fn unlink(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn remove_directory(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn rename(&self, _: &Context<'_>, _: NodeId, _: &[u8], _: NodeId, _: &[u8], _: u32) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn create(&self, _: &Context<'_>, _: NodeId, _: &[u8], _: &NewNode, _: u32) -> Result<(Entry, Opened), Errno> {
        Err(Errno::ROFS)
    }

    fn set_xattr(&self, _: &Context<'_>, _: NodeId, _: &[u8], _: &[u8], _: u32, _: bool) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn remove_xattr(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn sync(&self, _: &Context<'_>) -> Result<(), Errno> {
        Ok(())
    }
}
