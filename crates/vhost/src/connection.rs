//! Handles one front end's control messages: features, configuration, memory and rings. Starts and stops the
//! virtqueues.
//!
//! Follows QEMU's docs/interop/vhost-user.rst. The `vhost` crate encodes and decodes the messages.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg, VhostUserSingleMemoryRegion,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestAddressSpace, GuestMemoryBackend, GuestMemoryRegion};

use crate::call::LeftBehind;
use crate::device::VirtioDevice;
use crate::event::EventSink;
use crate::faults::Control;
use crate::memory::{GuestMemory, Region, SharedMemory};
use crate::vring::{Context, Vring};

/// The most memory regions that a front end may add one by one.
const MAX_MEMORY_SLOTS: u64 = 64;

/// The virtio features of the connection itself, independent of the device.
const TRANSPORT_FEATURES: u64 = 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_RING_F_INDIRECT_DESC
    | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

fn protocol_features(device: &impl VirtioDevice) -> VhostUserProtocolFeatures {
    // We send the front end no requests. But without this feature the kernel of User-Mode Linux has no interrupt for
    // the device (`vhost_user_init_slave_req` of Linux's arch/um/drivers/virtio_uml.c).
    let features = VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
    if device.has_config() { features | VhostUserProtocolFeatures::CONFIG } else { features }
}

/// Where a region of guest memory lies in the front end's address space, whose addresses the front end uses for rings.
struct Mapping {
    user_address: u64,
    guest_address: u64,
    size: u64,
}

/// One front end's connection.
pub(crate) struct Connection<D: VirtioDevice> {
    context: Context<D>,
    control: Arc<Control>,
    mappings: Vec<Mapping>,
    vrings: Vec<Vring>,
    owned: bool,
    /// The channel for requests to the front end. Unused, but open: the front end takes its end for the device's.
    requests: Option<Backend>,
}

impl<D: VirtioDevice> Connection<D> {
    /// A connection to the front end at the other end of `control`.
    pub(crate) fn new(
        device: Arc<D>,
        control: Control,
        events: EventSink,
        left_behind: &LeftBehind,
    ) -> std::result::Result<Self, virtio_queue::Error> {
        let vrings =
            (0..device.queues()).map(|index| Vring::new(index, left_behind)).collect::<std::result::Result<_, _>>()?;
        let memory = SharedMemory::new(GuestMemory::default());
        let context = Context { device, memory, events };
        Ok(Connection {
            context,
            control: Arc::new(control),
            mappings: Vec::new(),
            vrings,
            owned: false,
            requests: None,
        })
    }

    /// Whether the front end has truncated memory that it shares.
    pub(crate) fn has_lost_memory(&self) -> bool {
        self.context.memory.memory().iter().any(Region::is_lost)
    }

    fn offered(&self) -> u64 {
        self.context.device.features() | TRANSPORT_FEATURES
    }

    /// Stops ring `index`, calls `change` on it, and starts it again if it can still run.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Vring) -> Result<()>) -> Result<()> {
        let vring = vring(&mut self.vrings, index)?;
        vring.stop(&*self.context.device).map_err(from_queue)?;
        change(vring)?;
        vring.start(&self.context).map_err(Error::ReqHandlerError)
    }

    /// Like [`Connection::change`], for the queue of ring `index`.
    fn change_queue(&mut self, index: u32, change: impl FnOnce(&mut Queue) -> Result<()>) -> Result<()> {
        let vring = vring(&mut self.vrings, index)?;
        change(vring.stop(&*self.context.device).map_err(from_queue)?)?;
        vring.start(&self.context).map_err(Error::ReqHandlerError)
    }

    fn guest_address(&self, user_address: u64) -> Result<GuestAddress> {
        self.mappings
            .iter()
            .find_map(|m| {
                let offset = user_address.checked_sub(m.user_address).filter(|offset| *offset < m.size)?;
                m.guest_address.checked_add(offset).map(GuestAddress)
            })
            .ok_or(Error::InvalidParam)
    }

    /// Replaces the guest's memory: requests that come from then on are read and answered by the new one.
    fn replace_memory(&self, memory: GuestMemory) -> Result<()> {
        self.context.memory.lock().map_err(|_| Error::BackendInternalError)?.replace(memory);
        Ok(())
    }

    /// Stops every ring.
    pub(crate) fn stop(&mut self) {
        for vring in &mut self.vrings {
            // If the queue cannot be made again, it does not matter: the connection ends.
            let _ = vring.stop(&*self.context.device);
        }
    }
}

impl<D: VirtioDevice> Drop for Connection<D> {
    fn drop(&mut self) {
        self.stop();
    }
}

fn vring(vrings: &mut [Vring], index: u32) -> Result<&mut Vring> {
    usize::try_from(index).ok().and_then(|i| vrings.get_mut(i)).ok_or(Error::InvalidParam)
}

fn from_queue(error: virtio_queue::Error) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

fn map_region(region: &VhostUserMemoryRegion, file: File, control: &Arc<Control>) -> Result<(Region, Mapping)> {
    let mapped = Region::map(region, file, control).map_err(Error::ReqHandlerError)?;
    let mapping = Mapping { user_address: region.user_addr, guest_address: region.guest_phys_addr, size: mapped.len() };
    Ok((mapped, mapping))
}

const UNSUPPORTED: Error = Error::InvalidOperation("not supported");

impl<D: VirtioDevice> VhostUserBackendReqHandlerMut for Connection<D> {
    fn set_owner(&mut self) -> Result<()> {
        if self.owned {
            return Err(Error::InvalidOperation("already owned"));
        }
        self.owned = true;
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.owned = false;
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered() != 0 {
            return Err(Error::FeatureMismatch);
        }
        tracing::debug!(features = format_args!("{features:#x}"), "the driver accepts features");
        self.context.device.set_features(features);
        let event_idx = features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        for vring in &mut self.vrings {
            vring.stop(&*self.context.device).map_err(from_queue)?.set_event_idx(event_idx);
            // Without protocol features there is no message to enable a ring, so all rings are enabled.
            if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
                vring.set_enabled(true);
            }
            vring.start(&self.context).map_err(Error::ReqHandlerError)?;
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        if postcopy_listening.is_some() {
            return Err(UNSUPPORTED);
        }
        let (mapped, mappings): (Vec<_>, Vec<_>) = regions
            .iter()
            .zip(files)
            .map(|(region, file)| map_region(region, file, &self.control))
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .unzip();
        let memory =
            GuestMemory::from_regions(mapped).map_err(|error| Error::ReqHandlerError(io::Error::other(error)))?;
        self.replace_memory(memory)?;
        self.mappings = mappings;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        self.change_queue(index, |queue| queue.try_set_size(size).map_err(from_queue))
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let descriptor = self.guest_address(descriptor)?;
        let used = self.guest_address(used)?;
        let available = self.guest_address(available)?;
        let memory = self.context.memory.memory();
        let vring = vring(&mut self.vrings, index)?;
        let queue = vring.stop(&*self.context.device).map_err(from_queue)?;
        queue.try_set_desc_table_address(descriptor).map_err(from_queue)?;
        queue.try_set_used_ring_address(used).map_err(from_queue)?;
        queue.try_set_avail_ring_address(available).map_err(from_queue)?;
        // SET_VRING_BASE restores only the available index; the used index is in the ring.
        let used_index = queue.used_idx(&*memory, std::sync::atomic::Ordering::Acquire).map_err(from_queue)?;
        queue.set_next_used(used_index.0);
        vring.set_addressed();
        vring.start(&self.context).map_err(Error::ReqHandlerError)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.change_queue(index, |queue| {
            queue.set_next_avail(base);
            Ok(())
        })
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let vring = vring(&mut self.vrings, index)?;
        let base = vring.stop(&*self.context.device).map_err(from_queue)?.next_avail();
        vring.set_kick(None).and_then(|()| vring.set_call(None)).map_err(Error::ReqHandlerError)?;
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        self.change(u32::from(index), |vring| vring.set_kick(kick).map_err(Error::ReqHandlerError))
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        vring(&mut self.vrings, u32::from(index))?.set_call(call).map_err(Error::ReqHandlerError)
    }

    fn set_vring_err(&mut self, index: u8, _err: Option<File>) -> Result<()> {
        vring(&mut self.vrings, u32::from(index)).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(protocol_features(&*self.context.device))
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !protocol_features(&*self.context.device).bits() != 0 {
            return Err(Error::FeatureMismatch);
        }
        Ok(())
    }

    fn set_backend_req_fd(&mut self, requests: Backend) {
        self.requests = Some(requests);
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change(index, |vring| {
            vring.set_enabled(enable);
            Ok(())
        })
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let config = self.context.device.config();
        let offset = usize::try_from(offset).map_err(|_| Error::InvalidParam)?;
        let size = usize::try_from(size).map_err(|_| Error::InvalidParam)?;
        // The protocol limits the message's size, and so `size`. A front end may know more fields than we do.
        let mut window: Vec<u8> = config.into_iter().skip(offset).take(size).collect();
        window.resize(size, 0);
        Ok(window)
    }

    fn set_config(&mut self, offset: u32, data: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // If a driver writes a read-only field, the guest is wrong: no reason to end the connection.
        let _ = self.context.device.write_config(offset, data);
        Ok(())
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(UNSUPPORTED)
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(UNSUPPORTED)
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_MEMORY_SLOTS)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        postcopy_listening: Option<bool>,
    ) -> Result<Option<u64>> {
        if postcopy_listening.is_some() {
            return Err(UNSUPPORTED);
        }
        if self.mappings.len() as u64 >= MAX_MEMORY_SLOTS {
            return Err(Error::InvalidOperation("no memory slot is left"));
        }
        let (mapped, mapping) = map_region(region, file, &self.control)?;
        let memory = self.context.memory.memory().insert_region(Arc::new(mapped));
        self.replace_memory(memory.map_err(|error| Error::ReqHandlerError(io::Error::other(error)))?)?;
        self.mappings.push(mapping);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory =
            self.context.memory.memory().remove_region(GuestAddress(region.guest_phys_addr), region.memory_size);
        let (memory, _) = memory.map_err(|error| Error::ReqHandlerError(io::Error::other(error)))?;
        self.replace_memory(memory)?;
        self.mappings.retain(|mapping| mapping.guest_address != region.guest_phys_addr);
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(UNSUPPORTED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(UNSUPPORTED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(UNSUPPORTED)
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(UNSUPPORTED)
    }
}
