//! Asynchronous writes by io_submit(2), so that a thread can fill the next buffer meanwhile.
//!
//! This is the older of two interfaces; most containers refuse io_uring.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::buffer::Buffer;

/// `IOCB_CMD_PWRITE` of the kernel's include/uapi/linux/aio_abi.h.
const PWRITE: u16 = 1;

/// `struct iocb` of the same file. The order of `key` and `flags` depends on the byte order; both are 0.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    memory: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    more_flags: u32,
    event_file: u32,
}

/// `struct io_event` of the same file.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// A write in progress, or a finished one.
pub(super) struct Write {
    /// Where it writes, in bytes.
    pub(super) offset: u64,
    /// What holds the bytes.
    pub(super) buffer: Buffer,
    /// The range of the buffer that is written.
    pub(super) range: Range<usize>,
}

/// A bounded number of concurrent writes.
pub(super) struct Writes {
    context: libc::c_ulong,
    /// Owns the memory of each write until it has finished.
    slots: Vec<Option<Write>>,
}

impl Writes {
    /// Room for `depth` concurrent writes.
    pub(super) fn new(depth: usize) -> io::Result<Writes> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes the context's number to where the second argument points, which is a number of that size.
        checked(unsafe { libc::syscall(libc::SYS_io_setup, depth as libc::c_long, &raw mut context) })?;
        Ok(Writes { context, slots: (0..depth).map(|_| None).collect() })
    }

    /// Whether another write can begin.
    pub(super) fn has_room(&self) -> bool {
        self.slots.iter().any(Option::is_none)
    }

    /// Whether a write is in progress.
    pub(super) fn any(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Begins a write; returns it with the error if it cannot begin.
    pub(super) fn begin(&mut self, file: BorrowedFd<'_>, write: Write) -> Result<(), (Write, io::Error)> {
        let Some(index) = self.slots.iter().position(Option::is_none) else {
            return Err((write, io::ErrorKind::WouldBlock.into()));
        };
        let bytes = write.buffer.range(write.range.clone());
        let mut request = Request {
            data: index as u64,
            opcode: PWRITE,
            file: file.as_raw_fd() as u32,
            memory: bytes.as_ptr() as u64,
            bytes: bytes.len() as u64,
            offset: write.offset as i64,
            ..Request::default()
        };
        let requests = [&raw mut request];
        // SAFETY: the array holds one pointer to a request, which the kernel copies before it returns. The memory that
        // the request names belongs to `write`, which moves into its slot: the buffer's bytes do not move, and nothing
        // accesses them until the write has finished. Only then does `done` return them, and `drop` waits for that.
        match checked(unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1 as libc::c_long, requests.as_ptr()) })
        {
            Ok(1..) => {
                if let Some(slot) = self.slots.get_mut(index) {
                    *slot = Some(write);
                }
                Ok(())
            }
            Ok(_) => Err((write, io::ErrorKind::WouldBlock.into())),
            Err(error) => Err((write, error)),
        }
    }

    /// A finished write and its result. If none has finished, waits for one if `wait` is set, else returns `None`.
    pub(super) fn done(&mut self, wait: bool) -> io::Result<Option<(Write, io::Result<usize>)>> {
        if !self.any() {
            return Ok(None);
        }
        let (least, mut event) = (libc::c_long::from(wait), Event::default());
        let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = if wait { std::ptr::null() } else { &raw const no_time };
        let most: libc::c_long = 1;
        let got = loop {
            // SAFETY: the kernel writes at most one event to where the fourth argument points, and reads a time from
            // where the last one points, unless that is null.
            let result = checked(unsafe {
                libc::syscall(libc::SYS_io_getevents, self.context, least, most, &raw mut event, limit)
            });
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if got == 0 {
            return Ok(None);
        }
        let write = self.slots.get_mut(event.data as usize).and_then(Option::take);
        let result = match event.result {
            failed @ ..0 => Err(io::Error::from_raw_os_error(-failed as i32)),
            written => Ok(written as usize),
        };
        Ok(write.map(|write| (write, result)))
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        // SAFETY: the context is ours. The call returns when every write has finished (`io_destroy` of the kernel's
        // fs/aio.c), and only after it is their memory freed.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
