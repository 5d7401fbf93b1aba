//! A bounded cache of descriptors with the clock algorithm: those not used for a while go first.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cached descriptors of nodes.
#[derive(Debug)]
pub struct DescriptorCache {
    slots: Vec<Slot>,
    free: Vec<u32>,
    hand: usize,
    limit: usize,
}

#[derive(Debug)]
struct Slot {
    node: u32,
    descriptor: Option<Arc<OwnedFd>>,
    used: AtomicBool,
}

/// An evicted descriptor.
#[derive(Debug)]
pub struct Evicted {
    /// The node that it was of.
    pub node: u32,
    /// The descriptor.
    pub descriptor: Arc<OwnedFd>,
}

impl DescriptorCache {
    /// At most `limit` descriptors, at least one.
    pub fn new(limit: usize) -> DescriptorCache {
        DescriptorCache { slots: Vec::new(), free: Vec::new(), hand: 0, limit: limit.max(1) }
    }

    /// The descriptor in `slot`.
    pub fn get(&self, slot: u32) -> Option<&Arc<OwnedFd>> {
        let slot = self.slots.get(slot as usize)?;
        slot.used.store(true, Ordering::Relaxed);
        slot.descriptor.as_ref()
    }

    /// Caches a descriptor of `node`. Returns its slot, and the descriptor evicted for it.
    pub fn insert(&mut self, node: u32, descriptor: Arc<OwnedFd>) -> (u32, Option<Evicted>) {
        let new = Slot { node, descriptor: Some(descriptor), used: AtomicBool::new(true) };
        if let Some(free) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(free as usize)
        {
            *slot = new;
            return (free, None);
        }
        if self.slots.len() < self.limit {
            self.slots.push(new);
            return ((self.slots.len() - 1) as u32, None);
        }
        loop {
            let at = self.hand % self.slots.len();
            self.hand = at + 1;
            let slot = &mut self.slots[at];
            if !std::mem::take(slot.used.get_mut()) {
                let old = std::mem::replace(slot, new);
                let evicted = old.descriptor.map(|descriptor| Evicted { node: old.node, descriptor });
                return (at as u32, evicted);
            }
        }
    }

    /// Evicts half of them.
    pub fn give_up_half(&mut self) -> Vec<Evicted> {
        let half = (self.slots.len() - self.free.len()).div_ceil(2);
        let taken = self.slots.iter_mut().zip(0..).filter_map(|(slot, at)| {
            let descriptor = slot.descriptor.take()?;
            Some((at, Evicted { node: slot.node, descriptor }))
        });
        let (slots, evicted): (Vec<u32>, Vec<Evicted>) = taken.take(half).unzip();
        self.free.extend(slots);
        evicted
    }

    /// Removes what is in `slot`.
    pub fn remove(&mut self, slot: u32) -> Option<Arc<OwnedFd>> {
        let descriptor = self.slots.get_mut(slot as usize)?.descriptor.take()?;
        self.free.push(slot);
        Some(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn what_is_used_stays() {
        let mut kept = DescriptorCache::new(3);
        let slots: Vec<u32> = (0..3).map(|node| kept.insert(node, descriptor()).0).collect();
        // All were used at first; later only node 1.
        assert_eq!(kept.insert(3, descriptor()).1.unwrap().node, 0);
        for node in 4..10 {
            assert!(kept.get(slots[1]).is_some());
            assert_ne!(kept.insert(node, descriptor()).1.unwrap().node, 1);
        }
    }

    #[test]
    fn a_free_slot_is_used_first() {
        let mut kept = DescriptorCache::new(2);
        let (first, _) = kept.insert(0, descriptor());
        kept.insert(1, descriptor());
        assert!(kept.remove(first).is_some());
        assert!(kept.remove(first).is_none());
        assert!(kept.get(first).is_none());
        assert!(kept.insert(2, descriptor()).1.is_none());
    }
}
