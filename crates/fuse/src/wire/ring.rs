//! The memory layout that kernel and server share for io_uring (`FUSE_OVER_IO_URING`; Linux's
//! Documentation/filesystems/fuse-io-uring.rst and include/uapi/linux/fuse.h).
//!
//! A request is split: its header and the structure of its operation are at fixed offsets, the rest is in the
//! payload.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The command that registers memory for requests and waits for the first one (`FUSE_IO_URING_CMD_REGISTER`).
pub const REGISTER: u32 = 1;

/// The command that answers a request, and waits for the next one (`FUSE_IO_URING_CMD_COMMIT_AND_FETCH`).
pub const COMMIT_AND_FETCH: u32 = 2;

/// The offset of the header of a request and its answer: the start of `struct fuse_uring_req_header`.
pub const HEADER_AT: usize = 0;

/// The offset of the operation's structure.
pub const OPERATION_AT: usize = 128;

/// The most bytes of that structure.
pub const OPERATION_SIZE: usize = 128;

/// The offset of [`EntryInOut`].
pub const ENTRY_AT: usize = 256;

/// Bytes of `struct fuse_uring_req_header`.
pub const HEADERS_SIZE: usize = ENTRY_AT + size_of::<EntryInOut>();

/// Describes the payload (`struct fuse_uring_ent_in_out`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntryInOut {
    /// No flags are defined.
    pub flags: u64,
    /// The ID that the answering command must name.
    pub commit_id: u64,
    /// Bytes of the request's payload, or of the answer's.
    pub payload_size: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub reserved: u64,
}

/// The file-specific part of a command (`struct fuse_uring_cmd_req`, and zeros).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandArea {
    /// No flags are defined.
    pub flags: u64,
    /// The commit ID of the request being answered.
    pub commit_id: u64,
    /// The queue: a CPU number.
    pub queue: u16,
    /// Zeros.
    pub padding: [u8; 62],
}

impl CommandArea {
    /// For a command on `queue` that answers the request `commit_id`, or none.
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
