//! A connection's fids.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::opened::Use;
use super::place::Place;

/// What a fid stands for. Requests take a copy and keep to it, whatever becomes of the fid meanwhile.
#[derive(Clone)]
pub struct Fid {
    /// The node.
    pub place: Arc<Place>,
    /// What it is open as.
    pub usage: Option<Arc<Use>>,
    /// Who attached.
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

/// Tables that the fids are spread over, so that one that grows holds up few requests, and those not for long.
const SHARDS: usize = 16;

/// All fids. No lock is held while the file system is called, nor while something is given back to it.
pub struct Fids {
    shards: [Mutex<HashMap<u32, Fid>>; SHARDS],
    count: AtomicUsize,
    most: usize,
}

impl Fids {
    /// None yet, and never more than `most`.
    pub fn new(most: usize) -> Fids {
        Fids { shards: Default::default(), count: AtomicUsize::new(0), most }
    }

    fn shard(&self, fid: u32) -> MutexGuard<'_, HashMap<u32, Fid>> {
        let [first, ..] = &self.shards;
        let shard = self.shards.get(fid as usize % SHARDS).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of what the fid stands for; `EBADF` if there is no such.
    pub fn get(&self, fid: u32) -> Result<Fid, Errno> {
        self.shard(fid).get(&fid).cloned().ok_or(Errno::BADF)
    }

    /// Whether there is such a fid.
    pub fn contains(&self, fid: u32) -> bool {
        self.shard(fid).contains_key(&fid)
    }

    /// Adds a fid; `EBADF` if there is one already, `ENFILE` if there are too many.
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

    /// Has the fid stand for something else, if it is still what `old` is a copy of; `EBUSY` if not.
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

    /// Takes the fid away; `EBADF` if there is no such.
    pub fn remove(&self, fid: u32) -> Result<Fid, Errno> {
        let removed = self.shard(fid).remove(&fid).ok_or(Errno::BADF)?;
        self.count.fetch_sub(1, Ordering::AcqRel);
        Ok(removed)
    }

    /// Takes all away.
    pub fn clear(&self) {
        for shard in &self.shards {
            let fids = std::mem::take(&mut *shard.lock().unwrap_or_else(PoisonError::into_inner));
            self.count.fetch_sub(fids.len(), Ordering::AcqRel);
        }
    }
}
