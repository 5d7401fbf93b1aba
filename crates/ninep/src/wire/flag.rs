//! Flags and small numbers in messages.

/// Flags of `Tlopen` and `Tlcreate` (`P9_DOTL_*`): the octal numbers of Linux's generic `O_*`, whatever the machine.
pub mod open {
    /// The bits of the access mode.
    pub const ACCESS: u32 = 0o3;
    /// For writing only.
    pub const WRITE_ONLY: u32 = 0o1;
    /// For reading and writing.
    pub const READ_WRITE: u32 = 0o2;
    /// It must not exist.
    pub const EXCLUSIVE: u32 = 0o200;
    /// It is truncated.
    pub const TRUNCATE: u32 = 0o1000;
    /// Every write appends.
    pub const APPEND: u32 = 0o2000;
    /// A write returns when its data is durable.
    pub const DATA_SYNC: u32 = 0o10000;
    /// It must be a directory.
    pub const DIRECTORY: u32 = 0o200_000;
    /// A write returns when data and attributes are durable; this bit is in addition to `DATA_SYNC`.
    pub const SYNC: u32 = 0o4_000_000;
}

/// Bits of the masks of `Tgetattr` and `Rgetattr` (`P9_STATS_*`).
pub mod attribute {
    /// All that stat(2) returns.
    pub const BASIC: u64 = 0x7ff;
    /// Time of creation.
    pub const BIRTH: u64 = 0x800;
    /// The number that grows with each change of content.
    pub const DATA_VERSION: u64 = 0x2000;
}

/// Bits of `Tsetattr` (`P9_ATTR_*`).
pub mod set {
    /// Permissions.
    pub const MODE: u32 = 1 << 0;
    /// Owner.
    pub const UID: u32 = 1 << 1;
    /// Group.
    pub const GID: u32 = 1 << 2;
    /// Bytes.
    pub const SIZE: u32 = 1 << 3;
    /// Access time: now, unless `ATIME_SET`.
    pub const ATIME: u32 = 1 << 4;
    /// Modification time: now, unless `MTIME_SET`.
    pub const MTIME: u32 = 1 << 5;
    /// Change time, which Linux sends with every other attribute; it cannot be set.
    pub const CTIME: u32 = 1 << 6;
    /// The access time is in the message.
    pub const ATIME_SET: u32 = 1 << 7;
    /// The modification time is in the message.
    pub const MTIME_SET: u32 = 1 << 8;
    /// All flags.
    pub const ALL: u32 = 0x1ff;
}

/// Numbers of `Tlock` and `Tgetlock` (`P9_LOCK_*`).
pub mod lock {
    /// A shared lock.
    pub const SHARED: u8 = 0;
    /// An exclusive lock.
    pub const EXCLUSIVE: u8 = 1;
    /// No lock.
    pub const UNLOCK: u8 = 2;
    /// Flag of `Tlock`: wait for it.
    pub const BLOCK: u32 = 1;
    /// Flag of `Tlock`: reserved, for a client that reclaims its locks after a server's restart.
    pub const RECLAIM: u32 = 2;
    /// Status of `Rlock`: done.
    pub const SUCCESS: u8 = 0;
    /// Status of `Rlock`: another lock conflicts.
    pub const BLOCKED: u8 = 1;
}

/// Flags of `Tunlinkat` (`P9_DOTL_AT_*`).
pub mod unlink {
    /// The name is a directory.
    pub const REMOVE_DIRECTORY: u32 = 0x200;
}
