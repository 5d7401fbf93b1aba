//! [`adopt`]: makes the current generation of a remote the current one here. Names and digests come at once, the bytes of files when they are read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use inarch_tree::InodeId;
use inarch_tree::select::without;

use super::error::Damage;
use super::far::{Far, Head};
use super::generation::Generation;
use super::lazy::Chunks;
use super::store::{Cache, Next, Snapshot};
use super::synced::Synced;
use super::{CacheError, Stored};

/// What became of a remote's generation.
pub(crate) enum Adopted {
    /// There is none, or it is here already.
    Nothing,
    /// It is the generation with this number here.
    Copy(u64),
    /// Something was published here that it has not.
    Differs { head: Head, there: Box<Generation>, base: Box<Snapshot> },
}

/// Makes the current generation of a remote the current one here, if nothing was published here since both were the same, or `is_copy`: if this is nothing
/// but a copy of the remote.
pub(crate) fn adopt(cache: &Cache, far: &Far, is_copy: bool) -> Result<Adopted, CacheError> {
    let Some(current) = far.current()? else { return Ok(Adopted::Nothing) };
    let base = cache.snapshot()?;
    let number = base.generation.body.number;
    let synced = Synced::load(cache.dir(), far.location()).filter(|_| number > 0);
    if synced.as_ref().is_some_and(|synced| synced.there == current.head.generation) {
        return Ok(Adopted::Nothing);
    }
    let there = far.generation(&current.head)?;
    if !is_copy && number > 0 && synced.is_none_or(|synced| synced.here != Some(number)) {
        return Ok(Adopted::Differs { head: current.head, there: Box::new(there), base: Box::new(base) });
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let published = cache.lock()?.publish(cache.new_pack()?, (&there.body.made_by, time), &base, |now, _| {
        if now.body.number != number {
            return Ok(None);
        }
        make_packs(cache, &there)?;
        let lists = (*there.lists).clone();
        Ok(Some(Next { tree: Arc::clone(&there.tree), files: there.places(), lists, drops: true }))
    })?;
    // Otherwise another process has published meanwhile: most likely the same.
    let Some(number) = published else { return Ok(Adopted::Nothing) };
    let location = far.location().to_string();
    Synced { location, there: current.head.generation, here: Some(number) }.store(cache.dir())?;
    Ok(Adopted::Copy(number))
}

/// Makes the files of a remote's packs. The cache is locked, so that a concurrent sweep does not remove them as unused.
pub(crate) fn make_packs(cache: &Cache, there: &Generation) -> Result<(), CacheError> {
    for (name, number) in there.body.packs.iter().zip(0..) {
        let chunks = Chunks::of(there, number).map_err(|damage: Damage| CacheError::Disk(damage.to_string()))?;
        cache.make_lazy_pack(name, chunks.end())?;
    }
    Ok(())
}

/// A generation without the files whose bytes are only at a remote, and how many those are.
pub(crate) fn without_absent(cache: &Cache, generation: &Generation) -> Result<(Generation, u64), CacheError> {
    let is_absent =
        |(id, stored): &(InodeId, Stored)| !cache.has(generation, stored, generation.tree.inode(*id).size());
    let absent: BTreeSet<InodeId> = generation.remote_files().filter(is_absent).map(|(id, _)| id).collect();
    if absent.is_empty() {
        return Ok((generation.clone(), 0));
    }
    let selected = without(&generation.tree, &|id| absent.contains(&id))?;
    let files = selected.origins.iter().map(|id| generation.files.get(id.index()).copied().flatten()).collect();
    Ok((Generation { tree: Arc::new(selected.tree), files, ..generation.clone() }, absent.len() as u64))
}
