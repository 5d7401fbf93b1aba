//! Invalidates attributes in the kernel after a request failed with `ESTALE`.
//!
//! A file system answers `ESTALE` when the kernel decided by attributes that have since changed. The kernel then
//! repeats the request from the start of the path, looks up each name again, and so learns the new permissions. It
//! does not look up the start itself: the mount's root or a working directory. For those we invalidate the cached
//! attributes before we answer.

use std::os::fd::OwnedFd;

use inarch_vfs::NodeId;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::wire::reply;
use crate::wire::request::{Operation, Request};

/// Sends the invalidations.
pub(crate) struct Doubts {
    device: OwnedFd,
}

impl Doubts {
    /// For the connection of `device`.
    pub fn new(device: OwnedFd) -> Doubts {
        Doubts { device }
    }

    /// Handles a request that failed with `ESTALE`.
    pub fn refused(&self, request: &Request<'_>) {
        self.forget_attributes(NodeId(request.header.nodeid));
        match &request.operation {
            Operation::Rename(asked, ..) => self.forget_attributes(NodeId(asked.newdir)),
            Operation::Link(asked, _) => self.forget_attributes(NodeId(asked.oldnodeid)),
            _ => {}
        }
    }

    /// The kernel takes no lock for this that the request may hold (`fuse_reverse_inval_inode` of Linux's
    /// fs/fuse/inode.c).
    fn forget_attributes(&self, node: NodeId) {
        let (header, body) = reply::forget_attributes(node);
        let message = [header.as_bytes(), body.as_bytes()].concat();
        // If the kernel no longer knows the node (ENOENT), or is gone, there is nothing to invalidate.
        while rustix::io::write(&self.device, &message) == Err(Errno::INTR) {}
    }
}
