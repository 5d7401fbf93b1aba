//! Devices of our own planner.

use inarch_format::ext4::Options;
use inarch_tree::InodeId;

use super::made::scratch;
use super::same::{assert_as_mounted, open};
use crate::common::odd::odd_tree;
use crate::common::*;

#[test]
fn every_odd_thing_is_read() {
    for journal in [None, Some(8 << 20)] {
        let scratch = scratch();
        dump(&planned(odd_tree(), &Options { journal, ..small() }).map, &scratch.path("image"), fill_pattern);
        assert_eq!(assert_as_mounted(&scratch.path("image"), "loop,ro"), [""; 0]);
    }
}

#[test]
fn fifty_thousand_directories_one_in_the_other() {
    const DEPTH: usize = 50_000;
    let mut b = builder();
    let mut at = InodeId::ROOT;
    for depth in 0..DEPTH {
        if depth > 0 {
            b.list(at).unwrap();
        }
        at = b.add(b"d", &directory()).unwrap();
    }
    b.list(at).unwrap();
    b.add(b"end", &file(5)).unwrap();
    let scratch = scratch();
    dump(&planned(b.finish().unwrap(), &small()).map, &scratch.path("image"), fill_pattern);
    let tree = open(&scratch.path("image")).opened.tree;
    let below = |at, name: &[u8]| tree.entries(at).find(|entry| entry.name == name).map(|entry| entry.inode);
    let chain = std::iter::successors(Some(InodeId::ROOT), |at| below(*at, b"d"));
    assert_eq!(chain.clone().count(), DEPTH + 1);
    let end = chain.last().and_then(|last| below(last, b"end")).unwrap();
    assert_eq!(tree.inode(end).size(), 5);
}
