//! Errors of mounting and unmounting.

use std::io;
use std::path::PathBuf;

use inarch_lifecycle::shown;

/// Why a tree cannot be mounted as requested.
#[derive(Debug, thiserror::Error)]
pub enum NotMounted {
    /// `--via kernel`, and the kernel cannot serve it.
    #[error("--via kernel: the kernel cannot do that by itself: {reason}")]
    NotByKernel {
        /// Why not, in a few words.
        reason: String,
    },
    /// `--locks host`, and the host has no files to lock, or no thread can wait for a lock.
    #[error("--locks host {reason}")]
    Locks {
        /// The reason, as the rest of a sentence.
        reason: &'static str,
    },
    /// `--io-uring on`, and this machine has no FUSE over io_uring.
    #[error("FUSE over io_uring: {missing}; or leave out --io-uring on")]
    Rings {
        /// What is missing, and what to do.
        missing: String,
    },
}

/// Why a mount, or its server, is still there.
#[derive(Debug, thiserror::Error)]
pub enum NotUnmounted {
    /// Another user mounted it, or it is in use.
    #[error("{}: cannot be unmounted: {reason}", shown(point))]
    Refused {
        /// The mount point.
        point: PathBuf,
        /// Why not.
        reason: String,
    },
    /// There is no mount of Inarch's.
    #[error("{}: {reason}", shown(point))]
    NotOurs {
        /// The path that was named.
        point: PathBuf,
        /// What is there instead, and what to do.
        reason: String,
    },
    /// Waiting for its server failed.
    #[error("cannot wait for the server: {0}")]
    Wait(io::Error),
    /// It is unmounted, but its server still runs.
    #[error("{} is unmounted, but its server (process {process}) {why}", shown(point))]
    ServerStays {
        /// The mount point.
        point: PathBuf,
        /// The server's process number.
        process: u32,
        /// What it does, as the rest of a sentence.
        why: String,
    },
}
