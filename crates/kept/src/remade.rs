//! Makes the disk of a kept run again, without a machine.

use std::path::Path;
use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, Device, Overlay};
use inarch_format::disk::{ANNOUNCED_BYTES, uuid};
use inarch_format::ext4;
use inarch_source::Opened;
use inarch_source::identity::identity;

use super::KeptError;
use super::guest_disk::WrittenDisk;
use super::layered::KeptBase;
use crate::room::Room;

/// Makes the disk of a kept run again from the stored host tree, the run's earlier changes, and the overlay `file`.
/// Does not look at the host's current tree.
pub(super) fn remake(source: &Path, kept: &KeptBase, file: &Path, ordinal: u8) -> Result<WrittenDisk, KeptError> {
    let laid = kept.lay_over(Opened::at(source, kept.files.load_base()?)?)?;
    let gone = || KeptError::path(file, "cannot open the overlay of the kept run", std::io::ErrorKind::NotFound);
    let options = Room::noted(Overlay::note(file)?.ok_or_else(gone)?).options(uuid(ordinal));
    let plan = ext4::plan(Arc::clone(&laid.opened.tree), &options)
        .map_err(|error| KeptError::Plan { source_path: source.to_owned(), error })?;
    let overlay = Overlay::open(file, plan.map.blocks(), identity(&laid.opened, &options))?;
    let device = Device::new(plan.map, laid.opened.content, Some(overlay), ANNOUNCED_BYTES / BLOCK_SIZE as u64);
    Ok(WrittenDisk { layered: laid.layered, host: laid.host, device: Arc::new(device), numbering: plan.numbering })
}
