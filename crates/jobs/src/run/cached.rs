//! The caches of a run: gives the guest a disk of each, and publishes what the guest added when its command has ended well.
//!
//! 1. [`take_turns`] waits for caches in mode `locked`.
//! 2. [`RunCache::source`] is the source of the cache's disk: its current generation, with the command's user as the owner of all files. With a remote, its
//!    newer generation is taken first (`freshen.rs`); bytes come when the guest reads them.
//! 3. After the command, the guest's file system is read from the disk and compared with that generation, as for a kept run. A thread
//!    that is confined to parsing does this. New bytes go into a new pack.
//! 4. The cache is locked. Where another run has published meanwhile, the cache's rules decide who wins. Then both are merged, and published.
//!    A branch without its own cache first gets a copy of the default branch's.
//! 5. With a remote, the new generation is pushed.

use std::sync::Arc;
use std::time::Instant;

use inarch_cache::{Cache, CacheError, Rules, Snapshot, Turn};
use inarch_confine::Parse;
use inarch_kept::{GuestDisk, now};
use inarch_source::{CacheSource, Source, of_owner};
use inarch_tree::compare::Lineage;

use super::failure::DiskFailure;
use super::live_disk::LiveDisk;
use super::request::{Mode, Publish, RunCache};
use super::{CacheUse, RunEvent, RunFault, RunReport};
use crate::JobError;
use crate::caches::{Change, Newer, Published, Unrelated, push};

impl RunCache {
    /// The source of its disk.
    pub(super) fn source(&self) -> Source {
        Source::Cache(Box::new(
            CacheSource::new(self.place.clone(), Some(self.owner), true).with_remote(self.remote.clone()),
        ))
    }
}

/// Waits until no other run has a cache that this one asks for as locked, and makes the directories of those that are shared live. The turns end with the result.
///
/// # Errors
/// A cache cannot be made or locked, or the run was stopped.
pub(super) fn take_turns(caches: &[RunCache], words: &str, failure: &DiskFailure) -> Result<Vec<Turn>, JobError> {
    let mut locked: Vec<&RunCache> = caches.iter().filter(|cache| cache.mode == Mode::Locked).collect();
    // In one order, so that no two runs wait for each other.
    locked.sort_by_key(|cache| cache.place.directory());
    let who = format!("process {}, {words}", std::process::id());
    let turn = |cache: &RunCache| {
        let mut told = None;
        let wait = |holder: &str| {
            if told.as_deref() != Some(holder) {
                let (name, holder) = (cache.place.name.clone(), holder.to_owned());
                told = Some(holder.clone());
                failure.events().emit(RunEvent::Waits { name, holder });
            }
            !failure.is_set()
        };
        let turn = Cache::make(&cache.place).and_then(|store| store.turn(&who, wait));
        turn.map_err(JobError::from)?.ok_or_else(|| failure.take().unwrap_or(JobError::Stopped))
    };
    let mut turns = locked.into_iter().map(turn).collect::<Result<Vec<_>, _>>()?;
    for cache in caches.iter().filter(|cache| cache.live) {
        turns.push(Cache::make(&cache.place)?.take_live()?);
    }
    Ok(turns)
}

/// Pushes what is new: what was published just now, or by a run without the remote.
fn push_new(cache: &RunCache, is_published: bool) -> Result<(), CacheError> {
    let Some(far) = cache.remote.as_ref().map(|remote| &remote.0) else { return Ok(()) };
    // The user knows already that it is out of reach; the next run pushes.
    if far.is_read_only() || far.is_lost() {
        return Ok(());
    }
    let store = Cache::existing(&cache.place)?.with_far(Some(Arc::clone(far)));
    if !is_published && store.is_pushed(far)? {
        return Ok(());
    }
    push(&store, far).map(drop)
}

/// Publishes what the guest of a run changed in its caches, and returns how each was used. A failure is reported, and does not change the run's result.
pub(super) fn publish(
    caches: &[RunCache],
    disks: &[LiveDisk],
    report: &RunReport,
    words: &str,
    failure: &DiskFailure,
) -> Vec<CacheUse> {
    let mut uses = Vec::new();
    for cache in caches {
        let is_wanted = match cache.publish {
            Publish::Never => false,
            Publish::OnSuccess => report.status() == Some(0),
            Publish::Always => report.status().is_some(),
        };
        let source = cache.source();
        let Some(disk) = disks.iter().find(|disk| disk.is_of(&source)) else { continue };
        let mut usage = CacheUse::new(cache.place.name.clone(), cache.place.scope.to_string());
        (usage.files_read, usage.bytes_read) = disk.cache_reads();
        if is_wanted && !disk.is_untouched() {
            let began = Instant::now();
            match of_disk(cache, disk, words) {
                Ok(published) => usage.add(published, began.elapsed()),
                Err(error) => {
                    let (cache, reason) = (cache.place.name.clone(), error.to_string());
                    usage.error = Some(reason.clone());
                    failure.tell_fault(RunFault::NotPublished { cache, reason });
                }
            }
        }
        if is_wanted
            && usage.error.is_none()
            && let Err(error) = push_new(cache, usage.generation.is_some())
        {
            let (cache, reason) = (cache.place.name.clone(), error.to_string());
            failure.tell_fault(RunFault::NotPushed { cache, reason });
        }
        if usage.error.is_none() {
            failure.events().emit(RunEvent::Cache(usage.clone()));
        }
        uses.push(usage);
    }
    uses
}

fn of_disk(cache: &RunCache, disk: &LiveDisk, words: &str) -> Result<Published, CacheError> {
    let (Some(read), Some(written)) = (disk.cache_snapshot(), disk.written()) else {
        return Ok(Published::default());
    };
    let store = Cache::existing(&cache.place)?;
    let rules = Rules::of(&cache.place.name);
    let rules = if cache.mode == Mode::Private { rules.unmixed() } else { rules };
    let mut pack = store.new_pack()?;
    let mut begun = None;
    let mut is_copy = true;
    if read.is_parent_s {
        is_copy = store.begin_with(&read, ("a copy of the default branch's", now()))?;
        let mut current = store.snapshot()?;
        // Another machine's may have replaced the copy already.
        is_copy &= current.generation.body.number == 1;
        current.generation = of_owner(&current.generation, cache.owner)?;
        begun = Some(current);
    }
    let base: &Snapshot = begun.as_ref().unwrap_or(&read);
    if !is_copy && !rules.mixes() {
        return Ok(Published { lost: 1, ..Published::default() });
    }
    let find = |parsing| {
        let disk = GuestDisk::read(parsing, written).map_err(CacheError::Disk)?;
        let own = base.content();
        // Another run of the branch began the cache meanwhile: its generation has nothing to do with the disk.
        let unrelated =
            Unrelated { old: (&base.generation.tree, &*own), new: (disk.guest(), &*disk.image.opened.content) };
        let lineage: &(dyn Lineage + Sync) = if is_copy { &disk } else { &unrelated };
        let newer = Newer {
            same: &|new| disk.planned(new).filter(|planned| is_copy && disk.is_untouched(*planned, new)),
            removes: is_copy,
            ..Newer::new(disk.guest(), &*disk.image.opened.content, lineage)
        };
        Change::find(&newer, &base.generation, &rules, Some(&mut pack))
    };
    let change = Parse::new().run(find, || {})??;
    change.publish((&store, base), pack, &rules, Some(cache.owner), words)
}
