//! Any bytes in place of a stored tree: they are refused, or a tree that stores as what was loaded.

#![no_main]

use inarch_tree::Tree;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A right checksum, so that inputs get past it.
    let mut stored = b"INARCHTR\x01\0\0\0".to_vec();
    stored.extend_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
    stored.extend_from_slice(bytes);
    if let Ok(tree) = Tree::load(&stored) {
        let again = Tree::load(&tree.store()).expect("what was stored can be loaded");
        assert_eq!((tree.inode_count(), tree.entry_count()), (again.inode_count(), again.entry_count()));
        for (id, _) in tree.inodes() {
            assert!(tree.entries(id).eq(again.entries(id)));
            let _ = tree.path(id);
        }
    }
});
