//! One thread's io_uring, for one request at a time.
//!
//! A command waits in the kernel for a request. The kernel puts the request into the memory that the ring registered,
//! and completes the command. The next command sends the answer from the same memory and waits again. This takes one
//! system call for each request, where `/dev/fuse` takes two.

#![allow(unsafe_code, reason = "the kernel is told addresses of memory")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::squeue::{Entry128, EntryMarker};
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};
use zerocopy::{FromBytes, IntoBytes};

use crate::dispatch::MAX_DATA;
use crate::wire::reply;
use crate::wire::ring::{
    COMMIT_AND_FETCH, CommandArea, ENTRY_AT, EntryInOut, HEADER_AT, HEADERS_SIZE, OPERATION_AT, OPERATION_SIZE,
    REGISTER,
};
use crate::wire::structs::{InHeader, OutHeader};

/// Where the payload begins: on a page of its own.
const PAYLOAD_AT: usize = 4096;

/// The offset of the number of buffers in a `struct io_uring_sqe` (Linux's include/uapi/linux/io_uring.h).
const SQE_LEN_AT: usize = 24;

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A request is in the ring's memory.
    Request,
    /// The connection has ended.
    Ended,
}

/// See the module. Only the thread that made it can use it.
pub(super) struct Ring<'d> {
    device: BorrowedFd<'d>,
    queue: u16,
    // Dropped before the memory, which cancels a pending command.
    uring: IoUring<Entry128>,
    memory: MmapRegion,
    /// The commit ID of the request in memory.
    commit_id: u64,
}

impl<'d> Ring<'d> {
    /// A ring for `queue` of the connection of `device`.
    ///
    /// # Errors
    /// The kernel has no io_uring, it is forbidden (kernel.io_uring_disabled, seccomp), or memory is short.
    pub fn new(device: BorrowedFd<'d>, queue: u16) -> io::Result<Ring<'d>> {
        // With DEFER_TASKRUN the kernel writes to the memory only during this thread's own system calls.
        let uring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2)?;
        let memory = MmapRegion::new(PAYLOAD_AT + MAX_DATA as usize).map_err(io::Error::other)?;
        Ok(Ring { device, queue, uring, memory, commit_id: 0 })
    }

    /// Registers the memory with the kernel. After this, the first request can be waited for.
    pub fn register(&mut self) -> io::Result<()> {
        let start = self.memory.as_ptr();
        let buffers = [
            libc::iovec { iov_base: start.cast(), iov_len: HEADERS_SIZE },
            libc::iovec { iov_base: start.wrapping_add(PAYLOAD_AT).cast(), iov_len: MAX_DATA as usize },
        ];
        let area = CommandArea::new(self.queue, 0);
        // The kernel reads the list of buffers when it takes the command, before `submit` returns.
        self.push(REGISTER, area, Some(&buffers))?;
        self.uring.submit()?;
        Ok(())
    }

    /// Sends the answer, if there is one, and waits for the next request.
    pub fn wait(&mut self) -> io::Result<Arrival> {
        loop {
            if let Some(completion) = self.uring.completion().next() {
                return match completion.result() {
                    0 => Ok(Arrival::Request),
                    error => match Errno::from_raw_os_error(error.saturating_neg()) {
                        Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED => Ok(Arrival::Ended),
                        // The switch was turned off after the kernel's offer: requests still arrive through the
                        // device (`process_init_reply`, fs/fuse/inode.c).
                        Errno::OPNOTSUPP => Ok(Arrival::Ended),
                        errno => Err(errno.into()),
                    },
                };
            }
            match self.uring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => drop(result?),
            }
        }
    }

    /// The request in memory, and the memory for its answer. `None` if its sizes contradict each other.
    pub fn request(&mut self) -> Option<([VolatileSlice<'_>; 3], [VolatileSlice<'_>; 2])> {
        let memory = self.memory.as_volatile_slice();
        let mut entry = [0; size_of::<EntryInOut>()];
        memory.offset(ENTRY_AT).ok()?.copy_to(&mut entry[..]);
        let entry = EntryInOut::read_from_bytes(&entry).ok()?;
        self.commit_id = entry.commit_id;
        let mut header = [0; size_of::<InHeader>()];
        memory.offset(HEADER_AT).ok()?.copy_to(&mut header[..]);
        let header = InHeader::read_from_bytes(&header).ok()?;
        let payload = entry.payload_size as usize;
        let operation = (header.len as usize).checked_sub(size_of::<InHeader>())?.checked_sub(payload)?;
        if operation > OPERATION_SIZE || payload > MAX_DATA as usize {
            return None;
        }
        let part = |at, length| memory.subslice(at, length).ok();
        let message =
            [part(HEADER_AT, size_of::<InHeader>())?, part(OPERATION_AT, operation)?, part(PAYLOAD_AT, payload)?];
        let answer = [part(HEADER_AT, size_of::<OutHeader>())?, part(PAYLOAD_AT, MAX_DATA as usize)?];
        Some((message, answer))
    }

    /// Schedules the answer of `length` bytes, header included, for the next wait. 0 bytes mean `EIO`.
    pub fn answer(&mut self, length: usize) -> io::Result<()> {
        let memory = self.memory.as_volatile_slice();
        let payload_size = match length.checked_sub(size_of::<OutHeader>()) {
            Some(payload) => payload as u32,
            None => {
                let header = reply::error(self.commit_id, Errno::IO);
                memory.offset(HEADER_AT).map_err(io::Error::other)?.copy_from(header.as_bytes());
                0
            }
        };
        let entry = EntryInOut { commit_id: self.commit_id, payload_size, ..EntryInOut::default() };
        memory.offset(ENTRY_AT).map_err(io::Error::other)?.copy_from(entry.as_bytes());
        self.push(COMMIT_AND_FETCH, CommandArea::new(self.queue, self.commit_id), None)
    }

    /// Queues a command for the next system call.
    fn push(&mut self, code: u32, area: CommandArea, buffers: Option<&[libc::iovec; 2]>) -> io::Result<()> {
        let command = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), code).cmd(zerocopy::transmute!(area));
        let command = match buffers {
            Some(buffers) => with_buffers(command.addr(Some(buffers.as_ptr() as u64)).build(), buffers.len() as u32),
            None => command.build(),
        };
        // SAFETY: the descriptor is borrowed for longer than the ring lives. The buffers of `register` are the ring's
        // memory, which is mapped until the ring is dropped; the kernel writes there in this thread's system calls
        // only, in none of which a slice of it is in use: `request` borrows the ring.
        unsafe { self.uring.submission().push(&command) }.map_err(io::Error::other)
    }
}

/// Sets the number of buffers, which the crate cannot do.
fn with_buffers(mut command: Entry128, count: u32) -> Entry128 {
    const { assert!(size_of::<Entry128>() == 128 && <Entry128 as EntryMarker>::BUILD_FLAGS == 1 << 10) };
    // SAFETY: the type is a `struct io_uring_sqe` of 128 bytes (it is repr(C) for that), and a u32 of it, aligned, is
    // written; any value is valid there.
    unsafe { (&raw mut command).byte_add(SQE_LEN_AT).cast::<u32>().write(count) };
    command
}
