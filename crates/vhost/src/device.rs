//! What a virtio device is to the connection that serves it.

use virtio_queue::DescriptorChain;

use crate::memory::GuestMemory;
use crate::vring::Stop;

/// A virtio device: features, a configuration space, and what to do with a request. One for each connection, so that
/// it can hold what the driver negotiated.
pub trait VirtioDevice: Send + Sync + 'static {
    /// The virtio feature bits offered, without those that the connection itself adds.
    fn features(&self) -> u64;

    /// The features that the driver accepted.
    fn set_features(&self, features: u64);

    /// Number of virtqueues.
    fn queues(&self) -> u16;

    /// Largest number of descriptors in a virtqueue: a power of 2, at most 32768.
    fn queue_size(&self) -> u16;

    /// Whether the front end is to ask us for the configuration space; else it has one of its own.
    fn has_config(&self) -> bool {
        true
    }

    /// The device's configuration space; reads beyond it give zeros.
    fn config(&self) -> Vec<u8>;

    /// The driver writes `data` into the configuration space at `offset`. False if that field is not writable.
    fn write_config(&self, offset: u32, data: &[u8]) -> bool;

    /// Whether the next request of `queue` can be handled now. Asked before each is taken, from that queue's thread; what is
    /// not ready stays in the queue.
    fn is_ready(&self, _queue: u16) -> bool {
        true
    }

    /// Waits until [`VirtioDevice::is_ready`] may have become true for `queue`, or `stop` is set. Called from that queue's
    /// thread.
    fn wait_until_ready(&self, _queue: u16, _stop: &Stop) {}

    /// Makes [`VirtioDevice::wait_until_ready`] look at its `stop` again.
    fn wake(&self);

    /// Executes the request in `chain`, whose buffers lie in `memory`, and gives the number of bytes written into the
    /// chain's buffers. Called from several threads at once, one a queue, when [`VirtioDevice::is_ready`].
    fn handle<'a>(&self, queue: u16, chain: DescriptorChain<&'a GuestMemory>, memory: &'a GuestMemory) -> u32;
}
