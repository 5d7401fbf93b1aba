//! [`verify`]: reads every file of a cache, and compares its digest.

use inarch_cache::{Cache, CachePlace, content_digest, has_bytes, without_absent};
use serde::Serialize;

use crate::JobError;

/// What was found in a cache.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    /// How many files were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many were not read: their bytes are only at a remote.
    pub absent: u64,
    /// Paths whose bytes are not what was published, or cannot be read.
    pub damaged: Vec<String>,
}

/// Reads every file of a cache's current generation.
///
/// # Errors
/// There is no such cache, or its generation cannot be read.
pub fn verify(place: &CachePlace) -> Result<Verified, JobError> {
    let cache = Cache::existing(place)?;
    let snapshot = cache.snapshot()?;
    let content = snapshot.content();
    let mut verified = Verified::default();
    let generation = &snapshot.generation;
    let (present, absent) = without_absent(&cache, generation)?;
    let (generation, content) =
        if absent == 0 { (generation, content) } else { (&present, snapshot.content_of(&present)) };
    verified.absent = absent;
    for (id, inode) in generation.tree.inodes().filter(|(id, _)| has_bytes(&generation.tree, *id)) {
        let stored = generation.files.get(id.index()).copied().flatten();
        let read = content_digest(&*content, id, inode.size()).ok();
        verified.files += 1;
        verified.bytes += inode.size();
        if read.is_none() || read != stored.map(|stored| stored.digest) {
            verified.damaged.push(String::from_utf8_lossy(&generation.tree.path(id)).into_owned());
        }
    }
    Ok(verified)
}
