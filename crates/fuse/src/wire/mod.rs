//! Encodes and parses the FUSE protocol (Linux's include/uapi/linux/fuse.h): numbers, structures and their order in a
//! message. All numbers are in the host's byte order. Nothing here makes a system call.

pub mod extension;
pub mod listing;
pub mod operation;
pub mod reply;
pub mod request;
pub mod ring;
pub mod structs;

/// The protocol's major version; kernels with another one are not supported.
pub const KERNEL_VERSION: u32 = 7;

/// The minor version of these structures.
pub const KERNEL_MINOR_VERSION: u32 = 42;

/// The oldest minor version with these message formats: `FUSE_MAX_PAGES` came with Linux 4.20.
pub const OLDEST_MINOR_VERSION: u32 = 28;

/// The smallest buffer that a request may be read with (`FUSE_MIN_READ_BUFFER`), and the most bytes before a write's
/// data.
pub const MIN_READ_BUFFER: usize = 8192;

/// Opcodes (`enum fuse_opcode`) of the supported requests.
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

    /// The word for a request, in small letters; `other` for those that are unknown.
    pub fn name(code: u32) -> &'static str {
        match code {
            LOOKUP => "lookup",
            FORGET => "forget",
            GETATTR => "getattr",
            SETATTR => "setattr",
            READLINK => "readlink",
            SYMLINK => "symlink",
            MKNOD => "mknod",
            MKDIR => "mkdir",
            UNLINK => "unlink",
            RMDIR => "rmdir",
            RENAME => "rename",
            LINK => "link",
            OPEN => "open",
            READ => "read",
            WRITE => "write",
            STATFS => "statfs",
            RELEASE => "release",
            FSYNC => "fsync",
            SETXATTR => "setxattr",
            GETXATTR => "getxattr",
            LISTXATTR => "listxattr",
            REMOVEXATTR => "removexattr",
            FLUSH => "flush",
            INIT => "init",
            OPENDIR => "opendir",
            READDIR => "readdir",
            RELEASEDIR => "releasedir",
            FSYNCDIR => "fsyncdir",
            GETLK => "getlk",
            SETLK => "setlk",
            SETLKW => "setlkw",
            CREATE => "create",
            INTERRUPT => "interrupt",
            DESTROY => "destroy",
            BATCH_FORGET => "batch-forget",
            FALLOCATE => "fallocate",
            READDIRPLUS => "readdirplus",
            RENAME2 => "rename2",
            LSEEK => "lseek",
            COPY_FILE_RANGE => "copy-file-range",
            SYNCFS => "syncfs",
            TMPFILE => "tmpfile",
            STATX => "statx",
            COPY_FILE_RANGE_64 => "copy-file-range-64",
            // Not supported, but asked for.
            34 => "access",
            39 => "ioctl",
            40 => "poll",
            _ => "other",
        }
    }
}

/// Flags of `INIT` (`FUSE_*` flags of `struct fuse_init_in`). Those above bit 31 are in a field of their own, which
/// is valid with [`INIT_EXT`](init_flag::INIT_EXT).
pub mod init_flag {
    /// Concurrent reads of one file.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// The server keeps record locks, fcntl(2).
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// `OPEN` truncates.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// Writes of more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The server applies the umask.
    pub const DONT_MASK: u64 = 1 << 6;
    /// The server keeps whole-file locks, flock(2).
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// Cached pages are dropped when a file's mtime is found to have changed.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// Listings carry their entries' attributes.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// But only where the kernel expects them to be used.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Concurrent direct I/O of one file.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The kernel caches writes, sizes and times for a while.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// Concurrent look-ups in one directory.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel enforces access control lists.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// The answer says how many pages a request may have.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links are cached.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Cached pages stay when attributes change, because nobody else writes.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// The kernel mounts directories marked as submounts as file systems of their own.
    pub const SUBMOUNTS: u64 = 1 << 27;
    /// The server clears set-user-ID bits, set-group-ID bits and capabilities where requests say so.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// `SETXATTR` has the longer format.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// There are more than 32 flags.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Requests that create something name the directory's group, if the caller is in it.
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    /// Files opened for direct I/O may be mapped shared.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The kernel may read and write the host's files itself.
    pub const PASSTHROUGH: u64 = 1 << 37;
    /// Requests arrive through io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags of an open file (`FOPEN_*`).
pub mod open_flag {
    /// I/O bypasses the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Cached pages from earlier opens are still valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The entries of a directory may be cached.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// Direct writes to different ranges may run concurrently.
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
    /// Not an attribute: the request names an open handle.
    pub const FH: u32 = 1 << 6;
    /// The time of last read, to now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The time of last write, to now.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Not an attribute: clear set-user-id and set-group-id.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}
