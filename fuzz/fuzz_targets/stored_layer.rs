//! Any bytes in place of a stored layer: they are refused, or a layer that stores as what was loaded and goes over a tree.

#![no_main]

use inarch_tree::layer::{Layer, merge};
use inarch_tree::{Attributes, Builder, InodeId, Tree};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A right checksum, so that inputs get past it.
    let mut stored = b"INARCHLY\x01\0\0\0".to_vec();
    stored.extend_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
    stored.extend_from_slice(bytes);
    let Ok(layer) = Layer::load(&stored) else { return };
    let again = Layer::load(&layer.store()).expect("what was stored can be loaded");
    assert_eq!(layer.counts(), again.counts());
    for (id, _) in layer.tree().inodes() {
        for extent in layer.extents().of(id) {
            assert!(layer.place(extent.backing).is_some());
        }
    }
    if let Ok(merged) = merge(&lower(), &layer) {
        assert_eq!(merged.origins.len(), merged.tree.inode_count() as usize);
    }
});

/// A tree with directories `a` and `a/b` and files in them.
fn lower() -> Tree {
    let directory = Attributes { mode: 0o040_755, source_ino: 1, ..Attributes::default() };
    let file = Attributes { mode: 0o100_644, size: 9, source_ino: 2, ..Attributes::default() };
    let mut builder = Builder::new(&directory).expect("a root");
    let mut add = |at, names: [(&[u8], &Attributes); 2]| {
        builder.list(at).expect("a directory");
        names.map(|(name, attributes)| builder.add(name, attributes).expect("a name"))
    };
    let [a, _] = add(InodeId::ROOT, [(b"a", &directory), (b"b", &file)]);
    let [b, _] = add(a, [(b"b", &directory), (b"c", &file)]);
    add(b, [(b"a", &file), (b"b", &file)]);
    builder.finish().expect("a tree")
}
