//! The virtio file system device: executes FUSE messages in descriptor chains.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use inarch_fuse::{Dispatcher, Scratch};
use inarch_vfs::FileSystem;
use rustix::io::Errno;
use virtio_queue::DescriptorChain;
use vm_memory::VolatileSlice;
use zerocopy::IntoBytes;

use super::FsOptions;
use super::config::FsConfig;
use crate::buffers::Buffers;
use crate::deferred::Deferred;
use crate::device::VirtioDevice;
use crate::memory::GuestMemory;

/// The device that one driver uses.
pub struct VirtioFs {
    dispatcher: Dispatcher<dyn FileSystem>,
    options: FsOptions,
    /// One for each queue, used by that queue's thread only.
    scratch: Vec<Mutex<Scratch>>,
    requests: Arc<AtomicU64>,
}

impl VirtioFs {
    /// A device before its driver has sent anything.
    pub fn new(file_system: Arc<dyn FileSystem>, options: FsOptions) -> VirtioFs {
        let queues = usize::from(options.queues.max(1)) + 1;
        let scratch = (0..queues).map(|_| Mutex::default()).collect();
        let dispatcher = Dispatcher::new(file_system, options.connection, queues);
        VirtioFs { dispatcher, options, scratch, requests: Arc::default() }
    }

    /// Adds its requests to `requests`.
    pub(super) fn count_in(mut self, requests: Arc<AtomicU64>) -> VirtioFs {
        self.requests = requests;
        self
    }
}

impl Drop for VirtioFs {
    fn drop(&mut self) {
        self.dispatcher.disconnect();
    }
}

impl VirtioDevice for VirtioFs {
    fn features(&self) -> u64 {
        0
    }

    fn set_features(&self, _features: u64) {
        // A machine that was stopped and continues sets them again, and its kernel's state must stay valid. A kernel
        // that starts anew shows that by its first message.
    }

    fn queues(&self) -> u16 {
        self.options.queues.max(1).saturating_add(1)
    }

    fn has_config(&self) -> bool {
        self.options.tag.is_some()
    }

    fn config(&self) -> Vec<u8> {
        FsConfig::new(self.options.tag, self.options.queues.max(1)).as_bytes().to_vec()
    }

    fn write_config(&self, _offset: u32, _data: &[u8]) -> bool {
        false
    }

    fn wake(&self) {
        self.dispatcher.file_system().interrupted();
    }

    fn changes(&self) -> u64 {
        self.dispatcher.lock_changes()
    }

    /// A request that waits for a lock is deferred.
    fn handle_or_defer<'a>(
        &self,
        queue: u16,
        chain: DescriptorChain<&'a GuestMemory>,
        memory: &'a GuestMemory,
        may_defer: bool,
    ) -> Result<u32, Deferred> {
        if !self.options.connection.locks {
            return Ok(self.handle(queue, chain, memory));
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let buffers = Buffers::gather(chain.clone(), memory);
        let Some(scratch) = self.scratch.get(usize::from(queue)).filter(|_| buffers.well_formed) else {
            let length = self.dispatcher.refuse(&buffers.readable, &buffers.writable, Errno::INVAL);
            return Ok(u32::try_from(length).unwrap_or(u32::MAX));
        };
        let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let (message, out) = (&buffers.readable, &buffers.writable);
        match self.dispatcher.execute_or_park(usize::from(queue), message, out, &mut scratch) {
            Some(length) => Ok(u32::try_from(length).unwrap_or(u32::MAX)),
            None if may_defer => Err(Deferred::new(chain, &buffers.readable)),
            None => Ok(self.dispatcher.refuse_parked(message, out, Errno::NOLCK) as u32),
        }
    }

    fn answer_deferred(&self, queue: u16, deferred: &mut Deferred, memory: &GuestMemory, ends: bool) -> Option<u32> {
        let out = deferred.out(memory);
        let message = [VolatileSlice::from(&mut deferred.message[..])];
        if ends {
            return Some(self.dispatcher.refuse_parked(&message, &out, Errno::INTR) as u32);
        }
        let scratch = self.scratch.get(usize::from(queue))?;
        let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = self.dispatcher.execute_or_park(usize::from(queue), &message, &out, &mut scratch);
        answered.map(|length| u32::try_from(length).unwrap_or(u32::MAX))
    }

    fn handle<'a>(&self, queue: u16, chain: DescriptorChain<&'a GuestMemory>, memory: &'a GuestMemory) -> u32 {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let buffers = Buffers::gather(chain, memory);
        let index = usize::from(queue);
        let length = match self.scratch.get(index) {
            Some(scratch) if buffers.well_formed => {
                let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
                self.dispatcher.execute(index, &buffers.readable, &buffers.writable, &mut scratch)
            }
            _ => self.dispatcher.refuse(&buffers.readable, &buffers.writable, Errno::INVAL),
        };
        // A reply is a header and at most the largest data.
        u32::try_from(length).unwrap_or(u32::MAX)
    }
}
