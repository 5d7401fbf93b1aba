//! What is said between the server and the child that lists directories.

use std::fmt;

use inarch_vfs::NAME_MAX;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A directory that is to be listed.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Order {
    /// Its node number, or that of the directory that it is in.
    pub node: u64,
    /// Where the listing begins.
    pub offset: u64,
    /// Bytes of the name; 0 means the directory with that node number itself.
    length: u64,
    name: [u8; NAME_MAX + 1],
}

impl Order {
    /// To list a directory from an offset on.
    pub fn of(node: u64, offset: u64) -> Order {
        Order { node, offset, length: 0, name: [0; NAME_MAX + 1] }
    }

    /// To list what has this name in a directory. `None` if no name is as long.
    pub fn beneath(node: u64, name: &[u8]) -> Option<Order> {
        let mut order = Order { length: name.len() as u64, ..Order::of(node, 0) };
        order.name.get_mut(..NAME_MAX)?.get_mut(..name.len())?.copy_from_slice(name);
        Some(order)
    }

    /// The name in the directory, if that itself is not meant.
    pub fn name(&self) -> Option<&[u8]> {
        self.name.get(..usize::try_from(self.length).ok()?).filter(|name| !name.is_empty())
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} ({:?})", self.node, self.offset, self.name().map(String::from_utf8_lossy))
    }
}

/// What the child says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Report {
    /// [`READY`], [`LISTED`] or [`WALKED`].
    pub kind: u64,
    /// `READY`: the thread's number (gettid(2)). `LISTED`: the directory's.
    pub number: u64,
    /// `LISTED`: where the listing ended.
    pub offset: u64,
}

/// One thread can do its work.
pub(super) const READY: u64 = 1;

/// A directory has been listed that was ordered by its own number.
pub(super) const LISTED: u64 = 2;

/// One has been listed, or not, that was ordered by its name.
pub(super) const WALKED: u64 = 3;

/// The offset behind the last entry.
pub(super) const END: u64 = u64::MAX;
