//! Writes that go on while their thread does something else: the kernel's asynchronous I/O, io_submit(2).
//!
//! Of the two interfaces for that, the older one: programs in containers are mostly refused io_uring.

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

/// A write that is going on, or is done.
pub(super) struct Write {
    /// Where it writes, in bytes.
    pub(super) offset: u64,
    /// What holds the bytes.
    pub(super) buffer: Buffer,
    /// Which of the buffer's bytes they are.
    pub(super) range: Range<usize>,
}

/// Writes that go on, at most so many at once.
pub(super) struct Writes {
    context: libc::c_ulong,
    /// Their memory is theirs until they are done.
    slots: Vec<Option<Write>>,
}

impl Writes {
    /// Room for so many writes at once.
    pub(super) fn new(depth: usize) -> io::Result<Writes> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes the context's number to where the second argument points, which is a number of that size.
        checked(unsafe { libc::syscall(libc::SYS_io_setup, depth as libc::c_long, &raw mut context) })?;
        Ok(Writes { context, slots: (0..depth).map(|_| None).collect() })
    }

    /// Whether another one may begin.
    pub(super) fn has_room(&self) -> bool {
        self.slots.iter().any(Option::is_none)
    }

    /// Whether any goes on.
    pub(super) fn any(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Begins to write; gives the write back with why it cannot begin.
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
        // SAFETY: the array holds one pointer to a request, which the kernel copies before it returns. The memory that the
        // request names belongs to `write`, which moves into its slot: a buffer's bytes stay where they are in memory, and are
        // touched by nobody until the write is done. `done` gives them back only then, and `drop` waits for that.
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

    /// One that is done, and how many bytes it wrote; waits for one if told so, else `None` where none is.
    pub(super) fn done(&mut self, wait: bool) -> io::Result<Option<(Write, io::Result<usize>)>> {
        if !self.any() {
            return Ok(None);
        }
        let (least, mut event) = (libc::c_long::from(wait), Event::default());
        let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = if wait { std::ptr::null() } else { &raw const no_time };
        let most: libc::c_long = 1;
        let got = loop {
            // SAFETY: the kernel writes one event at most to where the fourth argument points, and reads a time from where the
            // last one does, if it does.
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
        // SAFETY: the context is ours. The call returns when every write that went on is done (`io_destroy` of the kernel's
        // fs/aio.c), and only after it is their memory freed.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
