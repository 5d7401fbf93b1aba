//! The caches of a run: gives the guest a disk of each, and publishes what the guest added when its command has ended well.
//!
//! 1. [`RunCache::source`] is the source of the cache's disk: its current generation, all of it the command's user's.
//! 2. After the command, the guest's file system is read from the disk and compared with that generation, as for a kept run. A thread
//!    that is confined to parsing does this. New bytes go into a new pack.
//! 3. The cache is locked. Where another run has published meanwhile, the cache's rules decide who wins. Then both are merged, and published.

use inarch_confine::Parse;

use super::attempt::LiveDisk;
use super::request::{Publish, RunCache};
use super::{RunEvent, RunReport};
use crate::cache::{Cache, CacheError, Rules};
use crate::caches::{Change, Newer, Published};
use crate::events::Events;
use crate::kept::GuestDisk;
use crate::source::{CacheSource, Source};

impl RunCache {
    /// The source of its disk.
    pub(super) fn source(&self) -> Source {
        Source::Cache(Box::new(CacheSource::new(self.place.clone(), Some(self.owner), true)))
    }
}

/// Publishes what the guest of a run changed of its caches. What fails is reported, and the run is as it was.
pub(super) fn publish(
    caches: &[RunCache],
    disks: &[LiveDisk],
    report: &RunReport,
    words: &str,
    events: &Events<RunEvent>,
) {
    for cache in caches {
        let is_wanted = match cache.publish {
            Publish::Never => false,
            Publish::OnSuccess => report.status() == Some(0),
            Publish::Always => report.status().is_some(),
        };
        let source = cache.source();
        let Some(disk) = disks.iter().find(|disk| is_wanted && disk.is_of(&source) && !disk.is_untouched()) else {
            continue;
        };
        let name = &cache.place.name;
        match of_disk(cache, disk, words) {
            Ok(Published { generation: None, .. }) => {}
            Ok(Published { generation: Some(number), files, bytes, lost }) => {
                events.emit(RunEvent::Cache { name: name.clone(), generation: number, files, bytes, lost });
            }
            Err(error) => events.emit(RunEvent::Fault(format!("cache {name}: nothing is published: {error}"))),
        }
    }
}

fn of_disk(cache: &RunCache, disk: &LiveDisk, words: &str) -> Result<Published, CacheError> {
    let (Some(snapshot), Some(written)) = (disk.cache_snapshot(), disk.written()) else {
        return Ok(Published::default());
    };
    let store = Cache::existing(&cache.place)?;
    let rules = Rules::of(&cache.place.name);
    let mut pack = store.new_pack()?;
    let find = |parsing| {
        let disk = GuestDisk::read(parsing, written).map_err(CacheError::Disk)?;
        let newer = Newer {
            tree: disk.guest(),
            content: &*disk.image.opened.content,
            lineage: &disk,
            same: &|new| disk.planned(new).filter(|planned| disk.is_untouched(*planned, new)),
            removes: true,
        };
        Change::find(&newer, &snapshot, &rules, &mut pack)
    };
    let change = Parse::new().run(find, || {})??;
    change.publish(&store, pack, &rules, Some(cache.owner), words)
}
