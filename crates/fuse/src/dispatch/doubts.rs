//! What the kernel decided by and is no longer so.
//!
//! A request of which a file system says so (`ESTALE`) the kernel makes once more, from the path on: it looks up what
//! has a name in it, and so learns of new permissions. What it does not look up is where the path begins, the mount's root or a
//! working directory: of that it is told to forget the attributes, before it has the answer.

use std::os::fd::OwnedFd;

use inarch_vfs::NodeId;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::wire::reply;
use crate::wire::request::{Operation, Request};

/// Tells the kernel.
pub(crate) struct Doubts {
    device: OwnedFd,
}

impl Doubts {
    /// For the connection that `device` is of.
    pub fn new(device: OwnedFd) -> Doubts {
        Doubts { device }
    }

    /// A request was refused with `ESTALE`.
    pub fn refused(&self, request: &Request<'_>) {
        self.forget_attributes(NodeId(request.header.nodeid));
        match &request.operation {
            Operation::Rename(asked, ..) => self.forget_attributes(NodeId(asked.newdir)),
            Operation::Link(asked, _) => self.forget_attributes(NodeId(asked.oldnodeid)),
            _ => {}
        }
    }

    /// Takes no lock in the kernel that the request may hold (`fuse_reverse_inval_inode` of Linux's fs/fuse/inode.c).
    fn forget_attributes(&self, node: NodeId) {
        let (header, body) = reply::forget_attributes(node);
        let message = [header.as_bytes(), body.as_bytes()].concat();
        // A node that the kernel knows no longer (ENOENT), or a kernel that is gone, has nothing to forget.
        while rustix::io::write(&self.device, &message) == Err(Errno::INTR) {}
    }
}
