//! What kernel and server share where requests come by io_uring (`FUSE_OVER_IO_URING`; Linux's
//! Documentation/filesystems/fuse-io-uring.rst and include/uapi/linux/fuse.h).
//!
//! A request's parts lie apart: its header and the structure of its kind at fixed places, all else in the payload.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The command that gives the kernel memory for requests, and waits for the first one (`FUSE_IO_URING_CMD_REGISTER`).
pub const REGISTER: u32 = 1;

/// The command that answers a request, and waits for the next one (`FUSE_IO_URING_CMD_COMMIT_AND_FETCH`).
pub const COMMIT_AND_FETCH: u32 = 2;

/// Where the header of a request, and then of its answer, is: the start of `struct fuse_uring_req_header`.
pub const HEADER_AT: usize = 0;

/// Where the first structure behind the header is.
pub const OPERATION_AT: usize = 128;

/// Most bytes of that structure.
pub const OPERATION_SIZE: usize = 128;

/// Where [`EntryInOut`] is.
pub const ENTRY_AT: usize = 256;

/// Bytes of `struct fuse_uring_req_header`.
pub const HEADERS_SIZE: usize = ENTRY_AT + size_of::<EntryInOut>();

/// How much of the payload counts (`struct fuse_uring_ent_in_out`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntryInOut {
    /// None are known.
    pub flags: u64,
    /// What the answer's command must name.
    pub commit_id: u64,
    /// Bytes of the request's payload, or of the answer's.
    pub payload_size: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub reserved: u64,
}

/// The part of a command that is the file's own (`struct fuse_uring_cmd_req`, and zeros).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandArea {
    /// None are known.
    pub flags: u64,
    /// Of the request that is answered.
    pub commit_id: u64,
    /// The queue: the number of a processor.
    pub queue: u16,
    /// Zeros.
    pub padding: [u8; 62],
}

impl CommandArea {
    /// For a command on `queue`, which answers the request `commit_id`, if it answers one.
    pub fn new(queue: u16, commit_id: u64) -> CommandArea {
        CommandArea { flags: 0, commit_id, queue, padding: [0; 62] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        assert_eq!(HEADERS_SIZE, 288);
        assert_eq!(size_of::<CommandArea>(), 80);
        let area = CommandArea::new(0x102, 7);
        assert_eq!(area.as_bytes()[..18], [0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 1]);
    }
}
