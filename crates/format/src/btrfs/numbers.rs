//! The numbers of nodes: an inode's number is unique only within its subvolume.

use inarch_volume::{Node, VolumeError};

use super::unsupported;

/// Bits of an inode's number, or of a missing subvolume's. The next bit tells which it is.
const INODE_BITS: u32 = 39;
const MISSING: u64 = 1 << INODE_BITS;
/// The subvolume's number is above these bits.
const SUBVOLUME_SHIFT: u32 = INODE_BITS + 1;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) subvolume: u64,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The inode with this number.
    Inode(u64),
    /// An empty directory, where this subvolume would be if it were linked here.
    Missing(u64),
}

/// Gives nodes their numbers. Within the subvolume that is the root, a node's number is the inode's. In others, the number
/// of the subvolume is in the upper 24 bits.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    /// The subvolume that is the root.
    pub(super) root: u64,
}

impl Numbers {
    pub(super) fn node(self, place: Place) -> Result<Node, VolumeError> {
        let (number, flag) = match place.what {
            What::Inode(number) => (number, 0),
            What::Missing(number) => (number, MISSING),
        };
        let subvolume = if place.subvolume == self.root { 0 } else { place.subvolume };
        if number >= MISSING || subvolume >> (u64::BITS - SUBVOLUME_SHIFT) != 0 {
            return Err(unsupported(format!(
                "has number {number} in subvolume {subvolume}, which is too high for this reader"
            )));
        }
        Ok(Node(subvolume << SUBVOLUME_SHIFT | flag | number))
    }

    pub(super) fn place(self, node: Node) -> Place {
        let subvolume = match node.0 >> SUBVOLUME_SHIFT {
            0 => self.root,
            other => other,
        };
        let number = node.0 & (MISSING - 1);
        let what = if node.0 & MISSING == 0 { What::Inode(number) } else { What::Missing(number) };
        Place { subvolume, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_its_number() {
        let numbers = Numbers { root: 300 };
        for subvolume in [5, 256, 300, (1 << 24) - 1] {
            for what in [What::Inode(256), What::Inode((1 << 39) - 1), What::Missing(257)] {
                let place = Place { subvolume, what };
                assert_eq!(numbers.place(numbers.node(place).unwrap()), place);
            }
        }
        assert_eq!(numbers.node(Place { subvolume: 300, what: What::Inode(257) }).unwrap(), Node(257));
        assert!(numbers.node(Place { subvolume: 1 << 24, what: What::Inode(256) }).is_err());
        assert!(numbers.node(Place { subvolume: 5, what: What::Inode(1 << 39) }).is_err());
    }
}
