//! [`VirtioDevice`]: the interface of a virtio device: features, configuration space, and execution of requests.

use virtio_queue::DescriptorChain;

use crate::deferred::Deferred;
use crate::memory::GuestMemory;
use crate::vring::Stop;

/// A virtio device: features, a configuration space, and the execution of requests. There is one for each connection,
/// so it can store what the driver negotiated.
pub trait VirtioDevice: Send + Sync + 'static {
    /// The virtio feature bits offered, without those of the connection itself.
    fn features(&self) -> u64;

    /// Sets the features that the driver accepted.
    fn set_features(&self, features: u64);

    /// Number of virtqueues.
    fn queues(&self) -> u16;

    /// Whether the front end asks us for the configuration space; otherwise it has its own.
    fn has_config(&self) -> bool {
        true
    }

    /// The device's configuration space; reads beyond it return zeros.
    fn config(&self) -> Vec<u8>;

    /// Handles the driver's write of `data` into the configuration space at `offset`. Returns false if the field is not
    /// writable.
    fn write_config(&self, offset: u32, data: &[u8]) -> bool;

    /// Whether the next request of `queue` can be handled now. Called before each request is taken, in that queue's
    /// thread; otherwise the request stays in the queue.
    fn is_ready(&self, _queue: u16) -> bool {
        true
    }

    /// Waits until [`VirtioDevice::is_ready`] may have become true for `queue`, or `stop` is set. Called in that
    /// queue's thread.
    fn wait_until_ready(&self, _queue: u16, _stop: &Stop) {}

    /// Makes [`VirtioDevice::wait_until_ready`] check its `stop` again.
    fn wake(&self);

    /// Executes the request in `chain`, whose buffers are in `memory`; returns the number of bytes written to the
    /// chain's buffers. Called when [`VirtioDevice::is_ready`], from several threads at once, one for each queue.
    fn handle<'a>(&self, queue: u16, chain: DescriptorChain<&'a GuestMemory>, memory: &'a GuestMemory) -> u32;

    /// Like [`VirtioDevice::handle`], but may defer the request if `_may_defer` is set: then
    /// [`VirtioDevice::answer_deferred`] is called, in the same thread, until there is an answer.
    ///
    /// # Errors
    /// The request is deferred.
    fn handle_or_defer<'a>(
        &self,
        queue: u16,
        chain: DescriptorChain<&'a GuestMemory>,
        memory: &'a GuestMemory,
        _may_defer: bool,
    ) -> Result<u32, Deferred> {
        Ok(self.handle(queue, chain, memory))
    }

    /// Answers a request that was deferred, and returns the number of bytes written; `None` if it still has to wait. If the
    /// queue `_ends`, the answer says that the request waited in vain.
    fn answer_deferred(
        &self,
        _queue: u16,
        _deferred: &mut Deferred,
        _memory: &GuestMemory,
        _ends: bool,
    ) -> Option<u32> {
        Some(0)
    }

    /// A counter that changes when a deferred request may have an answer.
    fn changes(&self) -> u64 {
        0
    }
}
