//! The protocol between the kernel and a FUSE server (Linux's include/uapi/linux/fuse.h): numbers, structures, and how
//! they follow each other in a message. All numbers are in the host's own byte order.

pub mod reply;
pub mod request;
pub mod structs;

/// The protocol's version; a kernel of another major version cannot be spoken with.
pub const KERNEL_VERSION: u32 = 7;

/// The minor version that these structures are of.
pub const KERNEL_MINOR_VERSION: u32 = 38;

/// The oldest minor version whose messages look like that: `FUSE_MAX_PAGES` came with Linux 4.20.
pub const OLDEST_MINOR_VERSION: u32 = 28;

/// The least that a request may be read with (`FUSE_MIN_READ_BUFFER`), and what goes before a write's data at most.
pub const MIN_READ_BUFFER: usize = 8192;

/// The node that is mounted (`FUSE_ROOT_ID`).
pub const ROOT_ID: u64 = 1;

/// Opcodes (`enum fuse_opcode`) of the requests that are understood.
pub mod opcode {
    #![allow(missing_docs, reason = "the kernel's names")]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const LSEEK: u32 = 46;
}

/// What kernel and server agree on at the start (`FUSE_*` flags of `struct fuse_init_in`).
pub mod init_flag {
    /// Reads of one file at once.
    pub const ASYNC_READ: u32 = 1 << 0;
    /// Writes of more than a page.
    pub const BIG_WRITES: u32 = 1 << 5;
    /// Directories are read with their entries' attributes.
    pub const DO_READDIRPLUS: u32 = 1 << 13;
    /// But only where that seems worth it.
    pub const READDIRPLUS_AUTO: u32 = 1 << 14;
    /// Direct requests of one file at once.
    pub const ASYNC_DIO: u32 = 1 << 15;
    /// Lookups in one directory at once.
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    /// The answer says how many pages a request may have.
    pub const MAX_PAGES: u32 = 1 << 22;
    /// Cached pages stay when attributes change: nobody else writes.
    pub const EXPLICIT_INVAL_DATA: u32 = 1 << 25;
}

/// What an opened file is like (`FOPEN_*`).
pub mod open_flag {
    /// Pages that are cached from before are still true.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// Direct writes to different parts may run at once.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Which attributes a `SETATTR` sets (`FATTR_*`).
pub mod set_attribute {
    /// The permissions.
    pub const MODE: u32 = 1 << 0;
    /// The owner.
    pub const UID: u32 = 1 << 1;
    /// The group.
    pub const GID: u32 = 1 << 2;
    /// The size.
    pub const SIZE: u32 = 1 << 3;
    /// The time of last write.
    pub const MTIME: u32 = 1 << 5;
    /// The time of last write, to now.
    pub const MTIME_NOW: u32 = 1 << 8;
}
