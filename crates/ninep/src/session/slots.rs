//! How many files clients have open at once: no client can keep the others from opening any.
//!
//! Each open file takes a descriptor of the server's process. Most of those that may be open are for whichever client comes;
//! the rest is divided among as many clients as may be connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

/// One in so many is kept for clients that have none yet: one client alone can use nearly all.
const DIVIDED: usize = 16;

/// The open files of all clients.
#[derive(Debug)]
pub struct Slots {
    /// How many a client may have in any case.
    each: usize,
    /// How many all clients may have beyond that.
    most: usize,
    used: AtomicUsize,
}

impl Slots {
    /// For so many open files of so many clients.
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
    /// None yet.
    pub fn new(all: &Arc<Slots>) -> Arc<ClientSlots> {
        Arc::new(ClientSlots { all: Arc::clone(all), own: AtomicUsize::new(0) })
    }

    /// Room for one more; `ENFILE` if there is none for this client.
    pub fn take(self: &Arc<ClientSlots>) -> Result<Slot, Errno> {
        let is_sure = self.own.fetch_add(1, Ordering::AcqRel) < self.all.each;
        if !is_sure && self.all.used.fetch_add(1, Ordering::AcqRel) >= self.all.most {
            self.give_back();
            return Err(Errno::NFILE);
        }
        Ok(Slot(Arc::clone(self)))
    }

    /// The ones beyond the client's own go first.
    fn give_back(&self) {
        if self.own.fetch_sub(1, Ordering::AcqRel) > self.all.each {
            self.all.used.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Room for one open file, given back at its end.
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
        // What one gives back is there for the next one.
        greedy.truncate(55);
        assert_eq!(take_all(&clients[1]).len(), 9);
        drop(greedy);
        assert_eq!(all.used.load(Ordering::Relaxed), 0);
        assert_eq!(take_all(&clients[1]).len(), 62);
    }
}
