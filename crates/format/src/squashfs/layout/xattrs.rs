//! Sets of extended attributes: which the image holds, and where their pairs start.

use inarch_tree::{InodeId, Tree, Xattr, XattrSetId};

use super::path;
use crate::notes::counted;
use crate::squashfs::spec::inode::NO_XATTRS;
use crate::squashfs::spec::xattr::{NameHeader, ValueHeader, split_name};

/// The sets of a tree that squashfs can hold, in the order of their first use.
#[derive(Debug, Default)]
pub(crate) struct Xattrs {
    sets: Vec<PlacedSet>,
    /// For each set of the tree, its place in `sets`, [`NO_XATTRS`], or [`UNSEEN`].
    places: Vec<u32>,
    /// Bytes of all pairs.
    length: u64,
    /// Files with attributes that are left out, and the first of them.
    left_out: Option<(u32, InodeId)>,
    /// The sets of the tree that have such attributes.
    lossy: Vec<bool>,
}

/// A set of the tree that no inode had yet.
const UNSEEN: u32 = u32::MAX - 1;

/// A set, with the place of its pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedSet {
    pub(crate) set: XattrSetId,
    /// Bytes from the first pair of all.
    pub(crate) start: u64,
    /// Bytes of its pairs.
    pub(crate) length: u32,
    /// Number of its pairs.
    pub(crate) count: u32,
}

/// An attribute as it is held: the number of its namespace, the rest of its name, and its value.
pub(crate) type Pair<'a> = (u16, &'a [u8], &'a [u8]);

/// The pairs of a set of the tree; attributes of namespaces that squashfs lacks are left out.
pub(crate) fn pairs(tree: &Tree, set: XattrSetId) -> impl Iterator<Item = Pair<'_>> {
    tree.xattrs(set)
        .iter()
        .filter_map(|Xattr { name, value }| split_name(name).map(|(kind, name)| (kind, name, &**value)))
}

/// Bytes of a pair.
pub(crate) fn pair_length((_, name, value): &Pair<'_>) -> usize {
    size_of::<NameHeader>() + name.len() + size_of::<ValueHeader>() + value.len()
}

impl Xattrs {
    pub(super) fn add(&mut self, tree: &Tree, id: InodeId) {
        let set = tree.inode(id).xattrs();
        if set == XattrSetId::NONE {
            return;
        }
        let index = set.0 as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, UNSEEN);
            self.lossy.resize(index + 1, false);
        }
        if self.places.get(index) == Some(&UNSEEN) {
            let place = self.place(tree, set);
            let lossy = pairs(tree, set).count() != tree.xattrs(set).len();
            self.places.get_mut(index).into_iter().for_each(|slot| *slot = place);
            self.lossy.get_mut(index).into_iter().for_each(|slot| *slot = lossy);
        }
        if self.lossy.get(index) == Some(&true) {
            self.left_out.get_or_insert((0, id)).0 += 1;
        }
    }

    fn place(&mut self, tree: &Tree, set: XattrSetId) -> u32 {
        let (count, length) = pairs(tree, set).fold((0, 0), |(n, sum), pair| (n + 1, sum + pair_length(&pair)));
        if count == 0 {
            return NO_XATTRS;
        }
        self.sets.push(PlacedSet { set, start: self.length, length: length as u32, count });
        self.length += length as u64;
        self.sets.len() as u32 - 1
    }

    /// The place of a set of the tree, or [`NO_XATTRS`].
    pub(super) fn set_of(&self, set: XattrSetId) -> u32 {
        self.places.get(set.0 as usize).copied().filter(|place| *place != UNSEEN).unwrap_or(NO_XATTRS)
    }

    /// The sets, in their order.
    pub(crate) fn sets(&self) -> &[PlacedSet] {
        &self.sets
    }

    /// Bytes of all pairs.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn notes(&self, tree: &Tree) -> Option<String> {
        self.left_out.map(|(count, first)| {
            format!(
                "squashfs holds attributes of user, trusted and security alone: others (POSIX ACLs) of {} are left out, the first is {}",
                counted(count, "file", "files"),
                path(tree, first)
            )
        })
    }
}
