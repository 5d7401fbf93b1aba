//! Fingerprints of trees: a kept overlay records the fingerprint of the tree that it belongs to.

use inarch_format::ext4;
use sha2::{Digest, Sha256};

use super::hashed::{add_tree, bytes};
use crate::Opened;

/// SHA-256 over every name, attribute, target, hole and extended attribute of the tree, over the same of the whole source if the tree is
/// a selection, and over the options of the layout. Another tree, or another state of the same source, gives another value.
pub fn identity(opened: &Opened, options: &ext4::Options) -> [u8; 32] {
    let mut hash = Sha256::new();
    // The version changes whenever the planner lays out the same tree differently.
    hash.update(b"inarch ext4 layout 2\0");
    for number in [options.free_bytes, u64::from(options.free_inodes), options.journal.unwrap_or(0)] {
        hash.update(number.to_le_bytes());
    }
    hash.update(options.uuid);
    add_opened(&mut hash, opened);
    hash.finalize().into()
}

/// The same without a layout, for a tree that is offered as files.
pub fn files_identity(opened: &Opened) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"inarch files 1\0");
    add_opened(&mut hash, opened);
    hash.finalize().into()
}

/// The fingerprint of an image that is read on demand: of its format, its state, and whether damaged parts are shown.
pub fn image_identity(format: &str, stamp: &[u8], salvage: bool) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"inarch image 1\0");
    bytes(&mut hash, format.as_bytes());
    bytes(&mut hash, stamp);
    hash.update([u8::from(salvage)]);
    hash.finalize().into()
}

fn add_opened(hash: &mut Sha256, opened: &Opened) {
    if !opened.stamp.is_empty() {
        bytes(hash, &opened.stamp);
    }
    for tree in [Some(&opened.tree), opened.original.as_ref()].into_iter().flatten() {
        add_tree(hash, tree);
    }
}
