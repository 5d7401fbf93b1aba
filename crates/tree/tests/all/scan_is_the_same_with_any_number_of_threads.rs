//! Ids, order, attributes and report do not depend on the number of threads.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::set_xattr;
use inarch_tree::scan::{Filter, Reason, Report, ScanOptions, scan};
use inarch_tree::{InodeId, Tree};

/// About 6,000 entries, uneven: some directories deep, some wide, many small.
fn make(root: &Path) {
    for i in 0..120 {
        let dir = root.join(format!("d{}/e{}/f{i}", i % 7, i % 31));
        fs::create_dir_all(&dir).unwrap();
        for j in 0..i % 50 {
            let file = dir.join(format!("{}.c", j * 7919 % 1000));
            fs::write(&file, "").unwrap();
            set_xattr(&file, "user.group", (i * j % 5).to_string().as_bytes());
        }
        fs::hard_link(dir.join("0.c"), root.join(format!("link {i}"))).unwrap_or_default();
        fs::write(dir.join("skip.o"), "").unwrap();
    }
}

/// Everything that a format could read from a tree, in order.
fn dump(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for (id, inode) in tree.inodes() {
        let path = tree.path(id);
        lines.push(format!("{id:?} {} {inode:?} {:?}", path.escape_ascii(), tree.xattrs(inode.xattrs())));
        lines.extend(tree.entries(id).map(|entry| format!("  {} {:?}", entry.name.escape_ascii(), entry.inode)));
    }
    lines
}

#[test]
fn one_to_nine_threads_make_one_tree() {
    let root = tempfile::tempdir().unwrap();
    make(root.path());
    let filter = Filter::builder().exclude("*.o").build().unwrap();
    // More left-out directories than a report lists.
    for i in 0..1200 {
        fs::create_dir(root.path().join(format!("d{}/left{i}", i % 7))).unwrap();
    }
    let leave_out = (0..1200).map(|i| format!("d{}/left{i}", i % 7).into_bytes()).collect();
    let mut options = ScanOptions { filter, leave_out, ..ScanOptions::default() };
    let mut first: Option<(Vec<String>, Report)> = None;
    // With a patience, as many further threads take over.
    for (threads, patience) in [(1, 0), (2, 0), (3, 0), (9, 0), (2, 1), (3, 2)] {
        options.threads = threads;
        options.patience = Duration::from_millis(patience);
        let scan = scan(root.path(), &options).unwrap();
        assert_eq!((scan.report.count(Reason::AskedFor), scan.report.filtered), (1200, 120));
        let now = (dump(&scan.tree), scan.report);
        match &first {
            None => first = Some(now),
            Some(first) => assert!(*first == now, "{threads} threads differ, patience {patience} ms"),
        }
    }
}

#[test]
fn inodes_are_numbered_in_the_order_of_a_sorted_walk() {
    let root = tempfile::tempdir().unwrap();
    make(root.path());
    let tree = scan(root.path(), &ScanOptions::default()).unwrap().tree;
    let mut next = 1;
    let mut stack = vec![InodeId::ROOT];
    while let Some(dir) = stack.pop() {
        let oldest = stack.len();
        let mut last: Option<&[u8]> = None;
        for entry in tree.entries(dir) {
            assert!(last < Some(entry.name));
            last = Some(entry.name);
            // A hard link's inode has the number of its first name.
            if entry.inode.0 >= next {
                assert_eq!(entry.inode.0, next);
                next += 1;
            }
            if tree.inode(entry.inode).file_type() == inarch_tree::FileType::Directory {
                stack.push(entry.inode);
            }
        }
        stack[oldest..].reverse();
    }
    assert_eq!(next, tree.inode_count());
}
