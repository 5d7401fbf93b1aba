//! Limits how many descriptors of the server's process each client uses, so that no client keeps the others from opening files.
//!
//! [`Slots`] are for clients of one file system: each open file takes one. Any client may use most of them; the rest is
//! reserved in equal shares for the possible clients. [`DescriptorShares`] are for clients that have a file system
//! each, whose descriptors are its own: a client gets its share when it connects.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::hold;

/// One slot in this many is reserved in shares: one client alone can use nearly all slots.
const DIVIDED: usize = 16;

/// How many descriptors file systems may have in this process: `RLIMIT_NOFILE` without a reserve for all else.
pub fn descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(limit).unwrap_or(1 << 20).saturating_sub(64)
}

/// How many of them open files take; the rest is for directories and locks.
pub fn open_file_limit() -> usize {
    descriptor_limit() / 3
}

/// The open files of all clients.
#[derive(Debug)]
pub struct Slots {
    /// The slots reserved for each client.
    each: usize,
    /// The slots that all clients share beyond those.
    most: usize,
    used: AtomicUsize,
}

impl Slots {
    /// For `files` open files of `clients` clients.
    pub fn new(files: usize, clients: usize) -> Slots {
        let divided = files / DIVIDED;
        Slots { each: (divided / clients.max(1)).max(1), most: files - divided, used: AtomicUsize::new(0) }
    }
}

/// The open files of one client.
#[derive(Debug)]
pub struct ClientSlots {
    all: Arc<Slots>,
    own: AtomicUsize,
}

impl ClientSlots {
    /// No open files yet.
    pub fn new(all: &Arc<Slots>) -> Arc<ClientSlots> {
        Arc::new(ClientSlots { all: Arc::clone(all), own: AtomicUsize::new(0) })
    }

    /// A slot for one more file.
    ///
    /// # Errors
    /// `ENFILE`: this client can have no more.
    pub fn take(self: &Arc<ClientSlots>) -> Result<Slot, Errno> {
        let is_sure = self.own.fetch_add(1, Ordering::AcqRel) < self.all.each;
        if !is_sure && self.all.used.fetch_add(1, Ordering::AcqRel) >= self.all.most {
            self.give_back();
            return Err(Errno::NFILE);
        }
        Ok(Slot(Arc::clone(self)))
    }

    /// Shared slots are given back before the client's own.
    fn give_back(&self) {
        if self.own.fetch_sub(1, Ordering::AcqRel) > self.all.each {
            self.all.used.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A slot for one open file, given back on drop.
#[derive(Debug)]
pub struct Slot(Arc<ClientSlots>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// A client that would get less than this is refused: a build has as many files open at once.
const LEAST: usize = 64;

/// The descriptors of clients that have a file system each.
#[derive(Debug)]
pub struct DescriptorShares {
    /// What each client has at least.
    each: usize,
    /// What is left beyond those.
    free: Mutex<usize>,
}

impl DescriptorShares {
    /// Of `descriptors`, for `clients` at most.
    pub fn new(descriptors: usize, clients: usize) -> Arc<DescriptorShares> {
        let divided = descriptors / DIVIDED;
        Arc::new(DescriptorShares { each: divided / clients.max(1), free: Mutex::new(descriptors - divided) })
    }

    /// The share of one more client: what is its own, and half of what is left. `None` if that is too little.
    pub fn take(self: &Arc<DescriptorShares>) -> Option<DescriptorShare> {
        let mut free = hold(&self.free);
        let more = *free / 2;
        if self.each + more < LEAST {
            return None;
        }
        *free -= more;
        Some(DescriptorShare { all: Arc::clone(self), more })
    }
}

/// A client's descriptors, given back on drop.
#[derive(Debug)]
pub struct DescriptorShare {
    all: Arc<DescriptorShares>,
    more: usize,
}

impl DescriptorShare {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.each + self.more
    }
}

impl Drop for DescriptorShare {
    fn drop(&mut self) {
        *hold(&self.all.free) += self.more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_comes_late_has_descriptors_too() {
        let all = DescriptorShares::new(1 << 19, 64);
        let clients: Vec<_> = (0..64).map(|_| all.take().unwrap()).collect();
        let counts: Vec<_> = clients.iter().map(DescriptorShare::count).collect();
        assert!(counts[0] > (1 << 19) * 2 / 5 && counts.iter().all(|count| *count >= 512), "{counts:?}");
        assert!(counts.iter().sum::<usize>() <= 1 << 19);
        drop(clients);
        assert_eq!(all.take().unwrap().count(), counts[0]);
        // Where there are few, a client that could open next to nothing is refused.
        let few = DescriptorShares::new(960, 64);
        let clients: Vec<_> = std::iter::from_fn(|| few.take()).collect();
        assert!(clients.len() > 2 && clients.iter().all(|client| client.count() >= LEAST));
        assert!(clients.iter().map(DescriptorShare::count).sum::<usize>() <= 960);
    }

    #[test]
    fn a_client_that_takes_all_leaves_others_their_own() {
        let all = Arc::new(Slots::new(64, 2));
        let clients = [(); 3].map(|()| ClientSlots::new(&all));
        let take_all = |client: &Arc<ClientSlots>| -> Vec<Slot> { std::iter::from_fn(|| client.take().ok()).collect() };
        let mut greedy = take_all(&clients[0]);
        assert_eq!(greedy.len(), 62);
        assert_eq!((take_all(&clients[1]).len(), take_all(&clients[2]).len()), (2, 2));
        // A slot that one client gives back is available to the next.
        greedy.truncate(55);
        assert_eq!(take_all(&clients[1]).len(), 9);
        drop(greedy);
        assert_eq!(all.used.load(Ordering::Relaxed), 0);
        assert_eq!(take_all(&clients[1]).len(), 62);
    }
}
