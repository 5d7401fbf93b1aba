//! Negotiates version, flags and sizes with the kernel at the start of a connection (`INIT`).

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::MAX_DATA;
use crate::wire::structs::{InitIn, InitOut};
use crate::wire::{KERNEL_MINOR_VERSION, KERNEL_VERSION, OLDEST_MINOR_VERSION, init_flag};

const PAGE: u32 = 4096;

/// Marks the stored flags as negotiated (`FUSE_INIT_RESERVED`, which no kernel uses as a flag).
const AGREED: u64 = 1 << 31;

/// Whether a directory listing carries the attributes of its entries (`READDIRPLUS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDirPlus {
    /// Never: names and types only.
    Never,
    /// When the kernel expects the attributes to be used.
    Auto,
    /// Always.
    Always,
}

/// What a connection offers, beyond what every connection does.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOptions {
    /// How directories are read.
    pub readdirplus: ReadDirPlus,
    /// The client caches writes for a while (write-back). Only for a client that is the only writer.
    pub writeback: bool,
    /// Only the client changes the tree: it keeps cached pages when attributes change.
    pub exclusive: bool,
    /// The client keeps cached pages of a file that it has open while the size stays the same. Otherwise each read asks for the time
    /// of last write first, and a write makes the pages invalid because it changes that time: a client that reads and writes a file in
    /// turn then sends four requests for each pair.
    pub keeps_pages: bool,
    /// The file system keeps locks, so that clients see each other's. Otherwise each client keeps its own.
    pub locks: bool,
    /// The file system learns of each close(2) (`FLUSH`). Few file systems need that unless they keep locks.
    pub flush: bool,
    /// Files are opened and closed by requests. Otherwise the file system works with nodes alone.
    pub open: bool,
    /// The client caches targets of symbolic links until it forgets the node.
    pub cache_symlinks: bool,
    /// Files have extended attributes. Otherwise the client's kernel asks once, and never again.
    pub xattrs: bool,
    /// The client's kernel enforces access control lists.
    pub posix_acl: bool,
    /// The file system clears set-user-ID bits, set-group-ID bits and capabilities on request. That saves the client
    /// from looking for them before each write.
    pub kill_privileges: bool,
    /// The most readahead and direct I/O requests in flight.
    pub max_background: u16,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            readdirplus: ReadDirPlus::Auto,
            writeback: false,
            exclusive: false,
            keeps_pages: false,
            locks: false,
            flush: false,
            open: true,
            cache_symlinks: false,
            xattrs: true,
            posix_acl: false,
            kill_privileges: false,
            max_background: 64,
        }
    }
}

impl ConnectionOptions {
    /// The flags to ask for.
    fn flags(&self, transport: Transport) -> u64 {
        const ALWAYS: u64 = init_flag::ASYNC_READ
            | init_flag::BIG_WRITES
            | init_flag::DONT_MASK
            | init_flag::ASYNC_DIO
            | init_flag::PARALLEL_DIROPS
            | init_flag::MAX_PAGES
            | init_flag::SUBMOUNTS
            | init_flag::SETXATTR_EXT
            | init_flag::INIT_EXT
            | init_flag::CREATE_SUPP_GROUP
            | init_flag::DIRECT_IO_ALLOW_MMAP;
        let wanted = [
            (self.readdirplus != ReadDirPlus::Never, init_flag::DO_READDIRPLUS),
            (self.readdirplus == ReadDirPlus::Auto, init_flag::READDIRPLUS_AUTO),
            // Without `OPEN` requests nothing would truncate, so the kernel must not leave truncation to them.
            (self.open, init_flag::ATOMIC_O_TRUNC),
            (self.writeback, init_flag::WRITEBACK_CACHE),
            (self.exclusive, init_flag::EXPLICIT_INVAL_DATA),
            (!self.exclusive && !self.keeps_pages, init_flag::AUTO_INVAL_DATA),
            (self.locks, init_flag::POSIX_LOCKS | init_flag::FLOCK_LOCKS),
            (self.cache_symlinks, init_flag::CACHE_SYMLINKS),
            (self.posix_acl, init_flag::POSIX_ACL),
            (self.kill_privileges, init_flag::HANDLE_KILLPRIV_V2),
            // The kernel supports passthrough or write-back, not both.
            (transport.stack_depth > 0 && !self.writeback, init_flag::PASSTHROUGH),
            (transport.rings, init_flag::OVER_IO_URING),
        ];
        wanted.iter().filter(|(wanted, _)| *wanted).fold(ALWAYS, |flags, (_, flag)| flags | flag)
    }
}

/// What the transport can do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transport {
    /// The maximum depth of stacked file systems for passthrough, 1 or 2; 0 turns passthrough off.
    pub stack_depth: u32,
    /// Requests can arrive through io_uring.
    pub rings: bool,
}

/// The outcome of the negotiation.
#[derive(Debug, Default)]
pub struct Agreement {
    flags: AtomicU64,
    /// Version of a kernel that is too old: major and minor, 32 bits each.
    refused: AtomicU64,
}

impl Agreement {
    /// The negotiated flags; `None` before `INIT`.
    pub fn flags(&self) -> Option<u64> {
        let flags = self.flags.load(Ordering::Acquire);
        (flags & AGREED != 0).then_some(flags)
    }

    /// The version, major and minor, of a kernel that is too old.
    pub fn refused(&self) -> Option<(u32, u32)> {
        let refused = self.refused.load(Ordering::Acquire);
        (refused != 0).then_some(((refused >> 32) as u32, refused as u32))
    }

    /// Ends the connection; the next `INIT` starts a new one.
    pub fn end(&self) {
        self.flags.store(0, Ordering::Release);
    }

    /// Negotiates with the kernel. If the kernel speaks another major version, answers with ours, and the kernel
    /// tries again.
    ///
    /// # Errors
    /// `EPROTO` if the kernel is too old.
    pub fn agree(&self, asked: &InitIn, options: &ConnectionOptions, transport: Transport) -> Result<InitOut, Errno> {
        let (major, minor) = (asked.major, asked.minor);
        if major < KERNEL_VERSION || major == KERNEL_VERSION && minor < OLDEST_MINOR_VERSION {
            self.refused.store(u64::from(major) << 32 | u64::from(minor), Ordering::Release);
            return Err(Errno::PROTO);
        }
        let answer = InitOut { major: KERNEL_VERSION, minor: KERNEL_MINOR_VERSION, ..InitOut::default() };
        if major > KERNEL_VERSION {
            return Ok(answer);
        }
        let extended = u64::from(asked.flags) & init_flag::INIT_EXT != 0;
        let offered = u64::from(asked.flags) | if extended { u64::from(asked.flags2) << 32 } else { 0 };
        let flags = offered & options.flags(transport) & !AGREED;
        self.flags.store(flags | AGREED, Ordering::Release);
        tracing::debug!(
            major,
            minor,
            flags = format_args!("{flags:#x}"),
            "the kernel's version and flags are agreed on"
        );
        let background = options.max_background;
        Ok(InitOut {
            max_readahead: asked.max_readahead,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            max_background: background,
            congestion_threshold: background - background / 4,
            max_write: MAX_DATA,
            time_gran: 1,
            max_pages: (MAX_DATA / PAGE) as u16,
            max_stack_depth: if flags & init_flag::PASSTHROUGH != 0 { transport.stack_depth } else { 0 },
            ..answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSTHROUGH: Transport = Transport { stack_depth: 1, rings: false };

    fn asked(major: u32, minor: u32) -> InitIn {
        InitIn { major, minor, flags: u32::MAX, flags2: u32::MAX, ..InitIn::default() }
    }

    #[test]
    fn only_what_both_sides_have_is_agreed_on() {
        let agreement = Agreement::default();
        assert_eq!(agreement.flags(), None);
        let options = ConnectionOptions::default();
        let few = InitIn { flags: 1, flags2: u32::MAX, ..asked(7, 31) };
        let answer = agreement.agree(&few, &options, PASSTHROUGH).unwrap();
        assert_eq!((answer.flags, answer.flags2, answer.max_stack_depth), (1, 0, 0));
        let answer = agreement.agree(&asked(7, 45), &options, PASSTHROUGH).unwrap();
        assert_eq!(answer.flags2 & 1 << 5, 1 << 5);
        assert_eq!(answer.max_stack_depth, 1);
        assert_eq!(answer.flags & (1 << 31 | 1 << 16), 0);
        assert!(agreement.flags().is_some_and(|flags| flags & init_flag::PASSTHROUGH != 0));
        let options = ConnectionOptions { writeback: true, ..options };
        let answer = agreement.agree(&asked(7, 45), &options, PASSTHROUGH).unwrap();
        assert_eq!((answer.flags2 & 1 << 5, answer.max_stack_depth), (0, 0));
        agreement.end();
        assert_eq!(agreement.flags(), None);
    }

    #[test]
    fn kernels_of_other_versions_are_told() {
        let agreement = Agreement::default();
        let options = ConnectionOptions::default();
        assert_eq!(agreement.agree(&asked(7, 27), &options, Transport::default()).unwrap_err(), Errno::PROTO);
        assert_eq!(agreement.refused(), Some((7, 27)));
        assert_eq!(agreement.agree(&asked(6, 99), &options, Transport::default()).unwrap_err(), Errno::PROTO);
        let answer = agreement.agree(&asked(8, 0), &options, Transport::default()).unwrap();
        assert_eq!((answer.major, answer.flags), (KERNEL_VERSION, 0));
        assert_eq!(agreement.flags(), None);
    }
}
