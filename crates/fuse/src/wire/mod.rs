//! The protocol between the kernel and a FUSE server (Linux's include/uapi/linux/fuse.h): numbers, structures, and how
//! they follow each other in a message. All numbers are in the host's own byte order.

pub mod extension;
pub mod listing;
pub mod operation;
pub mod reply;
pub mod request;
pub mod ring;
pub mod structs;

/// The protocol's version; a kernel of another major version cannot be spoken with.
pub const KERNEL_VERSION: u32 = 7;

/// The minor version that these structures are of.
pub const KERNEL_MINOR_VERSION: u32 = 42;

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
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// What kernel and server agree on at the start (`FUSE_*` flags of `struct fuse_init_in`). Those above bit 31 are in a
/// field of their own, which counts with [`INIT_EXT`](init_flag::INIT_EXT).
pub mod init_flag {
    /// Reads of one file at once.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// Locks as fcntl(2) has them are the server's.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// `OPEN` truncates.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// Writes of more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The server applies the umask.
    pub const DONT_MASK: u64 = 1 << 6;
    /// Locks as flock(2) has them are the server's.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// Cached pages go when a file's time of last write is seen to have changed.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// Directories are read with their entries' attributes.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// But only where that seems worth it.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Direct requests of one file at once.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Writes stay in the kernel's cache for a while, and so do size and times.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// Lookups in one directory at once.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// Access control lists are the kernel's to enforce.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// The answer says how many pages a request may have.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links are cached.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Cached pages stay when attributes change: nobody else writes.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// What is said to be another file system is mounted as one.
    pub const SUBMOUNTS: u64 = 1 << 27;
    /// The server clears set-user-id, set-group-id and capabilities where requests say so.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// `SETXATTR` is longer.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// There are more than 32 flags.
    pub const INIT_EXT: u64 = 1 << 30;
    /// A request that makes something says which group of the maker the directory has.
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    /// Files that are read and written past the kernel's cache may be mapped shared.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The kernel may read and write the host's files itself.
    pub const PASSTHROUGH: u64 = 1 << 37;
    /// Requests come by io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// What an opened file is like (`FOPEN_*`).
pub mod open_flag {
    /// Past the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Pages that are cached from before are still true.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The entries of a directory may be cached.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// Direct writes to different parts may run at once.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    /// The kernel reads and writes a file of the host itself.
    pub const PASSTHROUGH: u32 = 1 << 7;
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
    /// The time of last read.
    pub const ATIME: u32 = 1 << 4;
    /// The time of last write.
    pub const MTIME: u32 = 1 << 5;
    /// Not an attribute: the request is by an open handle.
    pub const FH: u32 = 1 << 6;
    /// The time of last read, to now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The time of last write, to now.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Not an attribute: clear set-user-id and set-group-id.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}
