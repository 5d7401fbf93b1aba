//! Brings a cache up to date with its remote, before a run uses it.

use std::sync::Arc;

use inarch_cache::Cache;
use inarch_source::Source;

use super::RunFault;
use super::failure::DiskFailure;
use crate::caches::pull;

/// Takes what a cache's remote has new. What fails is told, and the run goes on with what is here.
pub(super) fn freshen(source: &Source, failure: &Arc<DiskFailure>) {
    let Source::Cache(cache) = source else { return };
    let Some(far) = cache.far() else { return };
    let events = Arc::clone(failure);
    far.on_line(move |line| events.tell_fault(RunFault::Remote(line.to_owned())));
    if cache.is_tree() {
        // A tree at a remote is not merged: it is pulled when it is opened.
        return;
    }
    let pulled = Cache::make(&cache.place).and_then(|store| pull(&store.with_far(Some(Arc::clone(far))), far));
    if let Err(error) = pulled {
        far.lose();
        let (cache, reason) = (cache.place.name.clone(), error.to_string());
        failure.tell_fault(RunFault::NoRemote { cache, reason });
    }
}
