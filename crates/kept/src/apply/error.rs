//! Why something of the host cannot be made or changed.

use rustix::io::Errno;

/// Why something cannot be made or changed.
#[derive(Debug)]
pub(super) enum MakeError {
    /// The guest's content cannot be read, because the host's file that has a part of it changed.
    Read,
    /// The host has something else there by now.
    Changed,
    /// What came there meanwhile has this temporary name, and could not be put back.
    Kept(Vec<u8>),
    /// The new object is in its place, and the host refused to remove the old one.
    NotDropped(Errno),
    /// The host refused.
    Host(&'static str, Errno),
}

/// The host's answer to `action` as an error.
pub(super) fn host(action: &'static str) -> impl Fn(Errno) -> MakeError {
    move |errno| MakeError::Host(action, errno)
}
