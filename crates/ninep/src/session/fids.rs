//! [`Fids`]: what each fid of a connection refers to.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::place::Place;
use super::usage::Use;

/// What a fid refers to. A request works with a copy, whatever happens to the fid meanwhile.
#[derive(Clone)]
pub struct Fid {
    /// The node.
    pub place: Arc<Place>,
    /// How it is open.
    pub usage: Option<Arc<Use>>,
    /// The user who attached.
    pub uid: u32,
}

impl Fid {
    /// A fid that is not open.
    pub fn new(place: Arc<Place>, uid: u32) -> Fid {
        Fid { place, usage: None, uid }
    }

    /// Whether nothing has changed since `old` was copied.
    fn is(&self, old: &Fid) -> bool {
        Arc::ptr_eq(&self.place, &old.place)
            && self.usage.as_ref().map(Arc::as_ptr) == old.usage.as_ref().map(Arc::as_ptr)
    }
}

/// The number of tables over which fids are distributed: a table that grows delays few requests, and not for long.
const SHARDS: usize = 16;

/// All fids. No lock is held during calls to the file system, nor when nodes are given back to it.
pub struct Fids {
    shards: [Mutex<HashMap<u32, Fid>>; SHARDS],
    count: AtomicUsize,
    most: usize,
}

impl Fids {
    /// No fids yet, and never more than `most`.
    pub fn new(most: usize) -> Fids {
        Fids { shards: Default::default(), count: AtomicUsize::new(0), most }
    }

    fn shard(&self, fid: u32) -> MutexGuard<'_, HashMap<u32, Fid>> {
        let [first, ..] = &self.shards;
        let shard = self.shards.get(fid as usize % SHARDS).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the fid; `EBADF` if it does not exist.
    pub fn get(&self, fid: u32) -> Result<Fid, Errno> {
        self.shard(fid).get(&fid).cloned().ok_or(Errno::BADF)
    }

    /// Whether the fid exists.
    pub fn contains(&self, fid: u32) -> bool {
        self.shard(fid).contains_key(&fid)
    }

    /// Adds a fid; `EBADF` if it exists already, `ENFILE` if there are too many.
    pub fn insert(&self, fid: u32, new: Fid) -> Result<(), Errno> {
        if self.count.fetch_add(1, Ordering::AcqRel) >= self.most {
            self.count.fetch_sub(1, Ordering::AcqRel);
            return Err(Errno::NFILE);
        }
        match self.shard(fid).entry(fid) {
            Entry::Vacant(vacant) => {
                vacant.insert(new);
                return Ok(());
            }
            Entry::Occupied(_) => {}
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
        Err(Errno::BADF)
    }

    /// Replaces what the fid refers to, if it is still `old`; otherwise `EBUSY`.
    pub fn replace(&self, fid: u32, old: &Fid, new: Fid) -> Result<(), Errno> {
        let mut shard = self.shard(fid);
        let current = shard.get_mut(&fid).ok_or(Errno::BADF)?;
        if !current.is(old) {
            drop(shard);
            return Err(Errno::BUSY);
        }
        let replaced = std::mem::replace(current, new);
        drop(shard);
        drop(replaced);
        Ok(())
    }

    /// Removes the fid; `EBADF` if it does not exist.
    pub fn remove(&self, fid: u32) -> Result<Fid, Errno> {
        let removed = self.shard(fid).remove(&fid).ok_or(Errno::BADF)?;
        self.count.fetch_sub(1, Ordering::AcqRel);
        Ok(removed)
    }

    /// Removes all fids.
    pub fn clear(&self) {
        for shard in &self.shards {
            let fids = std::mem::take(&mut *shard.lock().unwrap_or_else(PoisonError::into_inner));
            self.count.fetch_sub(fids.len(), Ordering::AcqRel);
        }
    }
}
