//! Why a tree cannot be mounted, or a mount not be taken away.

use std::io;
use std::path::PathBuf;

use crate::text::shown;

/// Why a tree cannot be mounted as was asked.
#[derive(Debug, thiserror::Error)]
pub enum NotMounted {
    /// The kernel was to serve it, and cannot.
    #[error("--via kernel: the kernel cannot do that by itself: {reason}")]
    NotByKernel {
        /// Why not, in a few words.
        reason: String,
    },
    /// There is nothing on this machine to lock, or nobody who could wait for a lock.
    #[error("--locks host {reason}")]
    Locks {
        /// Why not, as half a sentence.
        reason: &'static str,
    },
    /// There is no FUSE over io_uring.
    #[error("FUSE over io_uring: {missing}; or leave --io-uring on away")]
    Rings {
        /// What is missing, and what to do.
        missing: String,
    },
}

/// Why a mount is still there, or its server.
#[derive(Debug, thiserror::Error)]
pub enum NotUnmounted {
    /// It is not ours to take away, or somebody uses it.
    #[error("{}: cannot be unmounted: {reason}", shown(point))]
    Refused {
        /// The mount point.
        point: PathBuf,
        /// Why not.
        reason: String,
    },
    /// No mount of ours is there.
    #[error("{}: {reason}", shown(point))]
    NotOurs {
        /// The path that was named.
        point: PathBuf,
        /// What is there, and what to do.
        reason: String,
    },
    /// Its server could not be waited for.
    #[error("cannot wait for the server: {0}")]
    Wait(io::Error),
    /// It is unmounted, but its server goes on.
    #[error("{} is unmounted, but its server (process {process}) {why}", shown(point))]
    ServerStays {
        /// The mount point.
        point: PathBuf,
        /// The server.
        process: u32,
        /// What it does, as half a sentence.
        why: String,
    },
}
