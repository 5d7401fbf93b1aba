//! A format refuses a name that it has no room for, and names the file; what has room takes it.

use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_format::squashfs::Squashfs;
use inarch_format::{Damage, Format, ImageOptions, Layout, format_by_name};
use inarch_tree::Tree;

use crate::common::{builder, file, reader};
use crate::squashfs::{Pattern, compressed};

fn tree(length: usize) -> Arc<Tree> {
    let mut b = builder();
    b.add(b"short", &file(3)).unwrap();
    b.add(&vec![b'x'; length], &file(5)).unwrap();
    Arc::new(b.finish().unwrap())
}

#[test]
fn names_beyond_what_a_format_holds_are_refused() {
    for (format, most) in [("ext4", 255), ("erofs", 255), ("squashfs", 256)] {
        let planner = format_by_name(format).unwrap();
        assert!(planner.plan(&tree(most), &ImageOptions::default()).is_ok(), "{format}");
        for length in [most + 1, 1024] {
            let error = planner.plan(&tree(length), &ImageOptions::default()).err().unwrap().to_string();
            assert!(error.contains("xxx: a name of it has more than the"), "{error}");
        }
    }
    let options = compressed(inarch_format::Algorithm::Gzip, None, 4096);
    assert!(Squashfs.plan(&tree(257), &options).is_err());
}

#[test]
fn a_name_of_256_bytes_comes_back_from_squashfs() {
    let tree = tree(256);
    let Layout::Blocks(map) = Squashfs.plan(&tree, &ImageOptions::default()).unwrap().layout else {
        panic!("no blocks")
    };
    let blocks = map.blocks();
    let device = inarch_block::Device::new(map, Arc::new(Pattern::new(&tree)), None, blocks);
    let opened = reader("squashfs").walk(Parsing::unconfined(), Arc::new(device), Damage::Refused).unwrap();
    assert!(opened.tree.lookup(&[b'x'; 256]).is_some());
    assert_eq!(opened.tree.longer_name(255), opened.tree.lookup(&[b'x'; 256]));
}
