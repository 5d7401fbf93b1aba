//! A front end and a driver without a virtual machine: the other end of the socket and of the rings.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

pub mod disk;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use inarch_vhost::blk::{BlkOptions, BlkServer, BlockDevice};
use inarch_vhost::{Event, Pending, ServeError};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Bytes of each of the two adjacent regions that the guest's memory consists of.
pub const REGION: u64 = 4 << 20;
/// Where guest memory for requests begins; the rings lie below.
pub const BUFFERS: u64 = 1 << 20;
/// The difference between the front end's addresses and the guest's.
pub const USER_BASE: u64 = 0x7f00_0000_0000;
/// Distance of the rings of two queues.
const QUEUE_STRIDE: u64 = 1 << 16;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub const VERSION_1: u64 = 1 << 32;
pub const EVENT_IDX: u64 = 1 << 29;
pub const INDIRECT_DESC: u64 = 1 << 28;
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
pub const FLUSH: u64 = 1 << 9;
pub const DRIVER_FEATURES: u64 = VERSION_1 | EVENT_IDX | INDIRECT_DESC | PROTOCOL_FEATURES | FLUSH;

/// A timeout for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A descriptor in the driver's format.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub length: u32,
    pub flags: u16,
    pub next: u16,
}

/// A readable (for the device) buffer, not yet chained.
pub fn readable(address: u64, length: u32) -> Descriptor {
    Descriptor { address, length, flags: 0, next: 0 }
}

/// A writable (for the device) buffer, not yet chained.
pub fn writable(address: u64, length: u32) -> Descriptor {
    Descriptor { address, length, flags: WRITE, next: 0 }
}

/// Two adjacent regions of shared memory, so that a buffer can cross from one into the other.
pub fn guest_memory() -> GuestMemoryMmap<()> {
    let ranges = [0, REGION].map(|start| {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, REGION).unwrap();
        (GuestAddress(start), REGION as usize, Some(FileOffset::new(file.into(), 0)))
    });
    GuestMemoryMmap::from_ranges_with_files(ranges).unwrap()
}

/// A virtqueue from the driver's side.
pub struct DriverQueue {
    memory: GuestMemoryMmap<()>,
    pub base: u64,
    pub size: u16,
    pub kick: EventFd,
    pub call: EventFd,
    next_avail: u16,
    last_used: u16,
}

impl DriverQueue {
    pub fn new(memory: &GuestMemoryMmap<()>, index: u16, size: u16) -> DriverQueue {
        DriverQueue {
            memory: memory.clone(),
            base: u64::from(index) * QUEUE_STRIDE,
            size,
            kick: EventFd::new(EFD_NONBLOCK).unwrap(),
            call: EventFd::new(EFD_NONBLOCK).unwrap(),
            next_avail: 0,
            last_used: 0,
        }
    }

    pub fn table(&self) -> u64 {
        self.base
    }

    pub fn avail(&self) -> u64 {
        self.base + 0x4000
    }

    pub fn used(&self) -> u64 {
        self.base + 0x8000
    }

    pub fn put_descriptor(&self, table: u64, index: u16, descriptor: Descriptor) {
        let at = table + 16 * u64::from(index);
        self.memory.write_obj(descriptor.address, GuestAddress(at)).unwrap();
        self.memory.write_obj(descriptor.length, GuestAddress(at + 8)).unwrap();
        self.memory.write_obj(descriptor.flags, GuestAddress(at + 12)).unwrap();
        self.memory.write_obj(descriptor.next, GuestAddress(at + 14)).unwrap();
    }

    /// Writes `buffers` as one chain into `table` from descriptor `first` on.
    pub fn put_chain(&self, table: u64, first: u16, buffers: &[Descriptor]) {
        for (i, buffer) in buffers.iter().enumerate() {
            let index = first + i as u16;
            let last = i + 1 == buffers.len();
            let flags = buffer.flags | if last { 0 } else { NEXT };
            self.put_descriptor(table, index, Descriptor { flags, next: index + 1, ..*buffer });
        }
    }

    /// Makes the chain that begins at `head` available, without telling the device.
    pub fn offer(&mut self, head: u16) {
        let slot = self.avail() + 4 + 2 * u64::from(self.next_avail % self.size);
        self.memory.write_obj(head, GuestAddress(slot)).unwrap();
        self.next_avail = self.next_avail.wrapping_add(1);
        self.set_avail_index(self.next_avail);
    }

    pub fn set_avail_index(&self, index: u16) {
        self.memory.store(index, GuestAddress(self.avail() + 2), std::sync::atomic::Ordering::SeqCst).unwrap();
    }

    pub fn used_index(&self) -> u16 {
        self.memory.load(GuestAddress(self.used() + 2), std::sync::atomic::Ordering::SeqCst).unwrap()
    }

    /// Asks the device to interrupt after entry `index` of the used ring.
    pub fn set_used_event(&self, index: u16) {
        let at = self.avail() + 4 + 2 * u64::from(self.size);
        self.memory.store(index, GuestAddress(at), std::sync::atomic::Ordering::SeqCst).unwrap();
    }

    pub fn kick(&self) {
        self.kick.write(1).unwrap();
    }

    /// The next entry of the used ring: head and length. Waits for it.
    pub fn take_used(&mut self) -> (u32, u32) {
        self.try_take_used(PATIENCE).expect("the device did not answer in time")
    }

    pub fn try_take_used(&mut self, patience: Duration) -> Option<(u32, u32)> {
        let deadline = Instant::now() + patience;
        while self.used_index() == self.last_used {
            if Instant::now() > deadline {
                return None;
            }
            thread::sleep(Duration::from_micros(50));
        }
        let at = self.used() + 4 + 8 * u64::from(self.last_used % self.size);
        let head = self.memory.read_obj(GuestAddress(at)).unwrap();
        let length = self.memory.read_obj(GuestAddress(at + 4)).unwrap();
        self.last_used = self.last_used.wrapping_add(1);
        Some((head, length))
    }

    /// Waits for the next entry of the used ring without giving up the processor.
    pub fn spin_for_used(&mut self) {
        while self.used_index() == self.last_used {
            std::hint::spin_loop();
        }
        self.last_used = self.last_used.wrapping_add(1);
    }

    /// Offers the chain at `head`, kicks, and waits; returns the used length.
    pub fn run(&mut self, head: u16) -> u32 {
        self.offer(head);
        self.kick();
        let (used_head, length) = self.take_used();
        assert_eq!(used_head, u32::from(head));
        length
    }

    /// Runs one chain of these buffers.
    pub fn run_chain(&mut self, buffers: &[Descriptor]) -> u32 {
        self.put_chain(self.table(), 0, buffers);
        self.run(0)
    }
}

/// Sends a message as it is, with these files.
pub fn send_raw(stream: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    assert_eq!(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap(), bytes.len());
}

/// A connected front end with its guest memory and started queues.
pub struct FrontEnd {
    pub control: Frontend,
    pub memory: GuestMemoryMmap<()>,
    pub queues: Vec<DriverQueue>,
}

impl FrontEnd {
    /// Negotiates `features` over `stream` and shares the memory, but starts no queue.
    pub fn negotiate(stream: UnixStream, features: u64) -> FrontEnd {
        Self::negotiate_protocol(stream, features, VhostUserProtocolFeatures::CONFIG)
    }

    /// Like [`FrontEnd::negotiate`]; accepts the protocol features `further` in addition to those of every device.
    pub fn negotiate_protocol(stream: UnixStream, features: u64, further: VhostUserProtocolFeatures) -> FrontEnd {
        let mut control = Frontend::from_stream(stream, 64);
        control.set_owner().unwrap();
        let offered = control.get_features().unwrap();
        assert_eq!(features & !offered, 0, "a needed feature is not offered");
        let protocol = control.get_protocol_features().unwrap();
        let wanted = further
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        assert!(protocol.contains(wanted));
        control.set_protocol_features(wanted).unwrap();
        control.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        control.set_features(features).unwrap();
        let memory = guest_memory();
        control.set_mem_table(&regions(&memory)).unwrap();
        FrontEnd { control, memory, queues: Vec::new() }
    }

    /// Negotiates and starts `count` queues of `size` descriptors.
    pub fn start(stream: UnixStream, features: u64, count: u16, size: u16) -> FrontEnd {
        FrontEnd::negotiate(stream, features).with_queues(count, size)
    }

    /// Starts `count` queues of `size` descriptors.
    pub fn with_queues(mut self, count: u16, size: u16) -> FrontEnd {
        let front_end = &mut self;
        for index in 0..count {
            front_end.queues.push(DriverQueue::new(&front_end.memory, index, size));
            front_end.start_queue(usize::from(index), 0);
        }
        self
    }

    /// Sets up and enables queue `index`, whose next available entry is `base`.
    pub fn start_queue(&mut self, index: usize, base: u16) {
        let queue = &self.queues[index];
        let config = VringConfigData {
            queue_max_size: queue.size,
            queue_size: queue.size,
            flags: 0,
            desc_table_addr: USER_BASE + queue.table(),
            used_ring_addr: USER_BASE + queue.used(),
            avail_ring_addr: USER_BASE + queue.avail(),
            log_addr: None,
        };
        self.control.set_vring_num(index, queue.size).unwrap();
        self.control.set_vring_base(index, base).unwrap();
        self.control.set_vring_addr(index, &config).unwrap();
        self.control.set_vring_call(index, &queue.call).unwrap();
        self.control.set_vring_kick(index, &queue.kick).unwrap();
        self.control.set_vring_enable(index, true).unwrap();
    }

    /// Empties the rings of queue `index` and starts it again, as a driver that resets its device does.
    pub fn reset_queue(&mut self, index: usize) {
        let queue = &self.queues[index];
        for at in [queue.table(), queue.avail(), queue.used()] {
            self.memory.write_slice(&[0; 0x2000], GuestAddress(at)).unwrap();
        }
        self.queues[index] = DriverQueue::new(&self.memory, index as u16, queue.size);
        self.start_queue(index, 0);
    }

    /// `size` bytes of the configuration space from `offset`.
    pub fn config(&mut self, offset: u32, size: u32) -> Vec<u8> {
        let zeros = vec![0; size as usize];
        self.control.get_config(offset, size, VhostUserConfigFlags::empty(), &zeros).unwrap().1
    }

    pub fn set_config(&mut self, offset: u32, data: &[u8]) {
        self.control.set_config(offset, VhostUserConfigFlags::WRITABLE, data).unwrap();
    }

    /// Writes a request header at `at`.
    pub fn put_header(&self, at: u64, kind: u32, sector: u64) {
        self.memory.write_obj(kind, GuestAddress(at)).unwrap();
        self.memory.write_obj(0u32, GuestAddress(at + 4)).unwrap();
        self.memory.write_obj(sector, GuestAddress(at + 8)).unwrap();
    }

    pub fn put(&self, at: u64, data: &[u8]) {
        self.memory.write_slice(data, GuestAddress(at)).unwrap();
    }

    pub fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.memory.read_slice(&mut data, GuestAddress(at)).unwrap();
        data
    }

    pub fn byte(&self, at: u64) -> u8 {
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }
}

/// The front end's description of each region of its memory.
pub fn regions(memory: &GuestMemoryMmap<()>) -> Vec<VhostUserMemoryRegionInfo> {
    memory
        .iter()
        .map(|region| {
            let file = region.file_offset().unwrap();
            VhostUserMemoryRegionInfo {
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: USER_BASE + region.start_addr().0,
                mmap_offset: file.start(),
                mmap_handle: file.file().as_raw_fd(),
            }
        })
        .collect()
}

/// A server of one connection, in a thread of its own.
pub struct Served {
    pub stream: UnixStream,
    pub thread: JoinHandle<Result<(), ServeError>>,
}

/// Serves `device` on one end of a socket pair; returns the other.
pub fn serve<D: BlockDevice>(device: Arc<Pending<D>>, options: BlkOptions) -> Served {
    serve_with_events(device, options, |_| {})
}

/// Like [`serve`]; `sink` receives events.
pub fn serve_with_events<D: BlockDevice>(
    device: Arc<Pending<D>>,
    options: BlkOptions,
    sink: impl Fn(Event) + Send + Sync + 'static,
) -> Served {
    let (stream, ours) = UnixStream::pair().unwrap();
    let server = BlkServer::new(device, options).on_event(sink);
    let thread = thread::spawn(move || server.serve_stream(ours));
    Served { stream, thread }
}
