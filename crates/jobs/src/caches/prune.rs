//! [`prune`]: frees what caches take.

use std::time::{Duration, SystemTime};

use inarch_cache::{Cache, CacheError, CachePlace, prune_images};
use serde::Serialize;

use super::disk_bytes;
use crate::JobError;

/// Which caches go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Those that no guest has had for so long.
    pub older_than: Option<Duration>,
    /// Those used longest ago, until all together take no more bytes.
    pub max_size: Option<u64>,
}

/// What was freed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Pruned {
    /// The caches that were removed, with their scopes.
    pub removed: Vec<(String, String)>,
    /// Bytes on the disk before.
    pub before: u64,
    /// Bytes on the disk afterwards.
    pub after: u64,
    /// What is wrong with caches that cannot be read or changed. They go only by the limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// Whether images of registries stay because another program uses some just now.
    pub images_in_use: bool,
}

/// The scope of an image of a registry, for users.
pub const OF_REGISTRIES: &str = "registry";

/// Removes the caches and the images of registries that `limits` select, each kind by itself. Removes from the others what is
/// not needed.
///
/// # Errors
/// One cannot be examined or removed.
pub fn prune_all(limits: Limits) -> Result<Pruned, JobError> {
    let mut pruned = prune(&super::all_places()?, limits)?;
    inarch_cache::sweep_removed()?;
    let images = prune_images(limits.older_than, limits.max_size)?;
    pruned.before += images.before;
    pruned.after += images.after;
    pruned.images_in_use = images.busy;
    pruned.removed.extend(images.removed.into_iter().map(|name| (OF_REGISTRIES.to_owned(), name)));
    Ok(pruned)
}

/// Removes the caches of `places` that `limits` select. Removes from the others what no generation needs.
///
/// # Errors
/// A cache cannot be examined or removed.
pub fn prune(places: &[CachePlace], limits: Limits) -> Result<Pruned, JobError> {
    let now = SystemTime::now();
    let mut pruned = Pruned::default();
    let mut caches = Vec::new();
    for place in places {
        let cache = match Cache::existing(place) {
            // It was removed just now.
            Err(CacheError::Missing { .. }) => continue,
            cache => cache?,
        };
        pruned.before += disk_bytes(cache.dir());
        // A faulty cache does not keep the others from being pruned.
        match cache.lock().and_then(|locked| locked.punch()) {
            Ok(()) => {}
            Err(CacheError::Removed { .. }) => continue,
            Err(error) => pruned.damaged.push(error.to_string()),
        }
        // The files of a live directory exist nowhere else. Without a time of use, they count as used now.
        let unknown = if cache.has_live_files() { now } else { SystemTime::UNIX_EPOCH };
        caches.push((cache.used().unwrap_or(unknown), disk_bytes(cache.dir()), cache));
    }
    // The one used last comes last.
    caches.sort_by_key(|(used, ..)| *used);
    let mut total: u64 = caches.iter().map(|(_, bytes, _)| bytes).sum();
    for (used, bytes, cache) in &caches {
        let is_old = limits.older_than.is_some_and(|limit| now.duration_since(*used).is_ok_and(|age| age > limit));
        let is_too_much = limits.max_size.is_some_and(|limit| total > limit);
        if !is_old && !is_too_much {
            continue;
        }
        match remove_unused(cache) {
            Ok(true) => {
                let place = cache.place();
                pruned.removed.push((place.scope.to_string(), place.name.clone()));
                total = total.saturating_sub(*bytes);
            }
            Ok(false) => {}
            Err(error) => pruned.damaged.push(error.to_string()),
        }
    }
    pruned.after = total;
    Ok(pruned)
}

/// Removes a cache if no process uses it. Returns whether it was removed.
fn remove_unused(cache: &Cache) -> Result<bool, CacheError> {
    let _locked = match cache.lock() {
        Err(CacheError::Removed { .. }) => return Ok(false),
        locked => locked?,
    };
    let Ok(_closed) = cache.close(false)? else { return Ok(false) };
    cache.place().remove()?;
    Ok(true)
}
