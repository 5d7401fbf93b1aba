//! [`publish_from`]: publishes what a guest that another program runs wrote to a cache's disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use inarch_cache::{Cache, CacheError, CachePlace, Rules};
use inarch_confine::Parse;
use inarch_format::disk::DiskFormat;
use inarch_kept::{GuestDisk, Layered, WrittenDisk};
use inarch_source::{CacheSource, Source};
use inarch_tree::select::Selection;

use super::{Change, Newer, Published};
use crate::JobError;
use crate::device::{Recipe, Writes};

/// Publishes what is in an overlay that a server of the cache's disk left (`inarch serve blk cache:NAME --overlay FILE`), as a run does with its own. The
/// overlay stays as it is.
///
/// # Errors
/// There is no such cache or overlay, the overlay is in use or belongs to another generation, what is in it cannot be read, or the cache cannot be written.
pub fn publish_from(place: &CachePlace, overlay: &Path) -> Result<Published, JobError> {
    // It is not made here.
    std::fs::metadata(overlay).map_err(|error| JobError::path(overlay, "cannot read the overlay", error))?;
    let store = Cache::existing(place)?;
    let source = CacheSource::new(place.clone(), None, false);
    // As the servers have it.
    let recipe = Recipe {
        source: Source::Cache(Box::new(source.clone())),
        selection: Selection::default(),
        patience: Duration::ZERO,
        format: DiskFormat::Ext4,
        writes: Writes::Kept(overlay.to_owned()),
        ordinal: 0,
        disks: 1,
        kept: None,
        mount_points: Vec::new(),
        trace: None,
    };
    let prepared = recipe.prepare()?;
    let (Some(base), Some(numbering)) = (source.snapshot().cloned(), prepared.numbering) else {
        return Ok(Published::default());
    };
    let layered = Arc::new(Layered::plain(&base.generation.tree));
    let written = WrittenDisk { layered, host: base.content(), device: prepared.device, numbering };
    let rules = Rules::of(&place.name);
    let mut pack = store.new_pack()?;
    let find = |parsing| {
        let disk = GuestDisk::read(parsing, written).map_err(CacheError::Disk)?;
        let newer = Newer {
            same: &|new| disk.planned(new).filter(|planned| disk.is_untouched(*planned, new)),
            removes: true,
            ..Newer::new(disk.guest(), &*disk.image.opened.content, &disk)
        };
        Change::find(&newer, &base.generation, &rules, Some(&mut pack))
    };
    let change = Parse::new().run(find, || {}).map_err(CacheError::from)??;
    Ok(change.publish((&store, &base), pack, &rules, None, "inarch cache publish")?)
}
