//! Limits how many files clients have open at once, so that no client keeps the others from opening files.
//!
//! Each open file takes a descriptor of the server's process. Any client may use most of the slots; the rest is
//! reserved in equal shares for the possible clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

/// One slot in this many is reserved in shares: one client alone can use nearly all slots.
const DIVIDED: usize = 16;

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

    /// A slot for one more file; `ENFILE` if this client can have none.
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

#[cfg(test)]
mod tests {
    use super::*;

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
