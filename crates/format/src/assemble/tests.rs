//! Members and layers become the tree that unpacking them would leave.

use inarch_tree::{InodeId, Tree};

use super::*;

const fn file(at: u64) -> Kind<'static> {
    Kind::Regular { size: 1, bytes: Bytes::Whole { at, backing: 0 } }
}

fn assembly(paths: &[&str]) -> Assembly {
    let mut assembly = Assembly::new();
    add(&mut assembly, paths);
    assembly
}

/// Adds a directory for each path that ends with a slash, a symlink for each with an arrow, and else a file.
fn add(assembly: &mut Assembly, paths: &[&str]) {
    for (at, path) in paths.iter().enumerate() {
        let (path, kind) = match path.split_once("->") {
            Some((path, target)) => (path, Kind::Symlink { target: target.as_bytes() }),
            None if path.ends_with('/') => (*path, Kind::Directory),
            None => (*path, file(at as u64)),
        };
        let facts = Facts { permissions: 0o700 + at as u32, ..Facts::default() };
        assembly.add(path.as_bytes(), kind, facts).unwrap_or_else(|refusal| panic!("{path}: {refusal}"));
    }
}

fn tree(assembly: Assembly) -> Tree {
    assembly.finish().unwrap().0
}

/// Every path, in the order of inode numbers, a slash behind a directory's.
fn paths(assembly: Assembly) -> Vec<String> {
    let tree = tree(assembly);
    let mut all = Vec::new();
    let mut pending = vec![(String::new(), InodeId::ROOT)];
    while let Some((prefix, dir)) = pending.pop() {
        for entry in tree.entries(dir) {
            let path = format!("{prefix}{}", String::from_utf8_lossy(entry.name));
            match tree.inode(entry.inode).mode() & 0o170000 {
                0o040000 => {
                    all.push(format!("{path}/"));
                    pending.push((format!("{path}/"), entry.inode));
                }
                _ => all.push(path),
            }
        }
    }
    all.sort();
    all
}

fn mode(tree: &Tree, path: &str) -> u32 {
    tree.inode(tree.lookup(path.as_bytes()).unwrap()).mode()
}

fn refused(assembly: &mut Assembly, path: &str) -> Refusal {
    assembly.add(path.as_bytes(), file(0), Facts::default()).unwrap_err()
}

#[test]
fn missing_parents_are_made_and_described_later() {
    let mut assembly = assembly(&["./a/b/c", "/x", ".//a/./b/"]);
    assembly.add(b"./", Kind::Directory, Facts { permissions: 0o1777, ..Facts::default() }).unwrap();
    let tree = tree(assembly);
    assert_eq!(tree.inode(InodeId::ROOT).mode(), 0o041777);
    assert_eq!((mode(&tree, "a"), mode(&tree, "a/b"), mode(&tree, "a/b/c")), (0o040755, 0o040702, 0o100700));
    assert_eq!(tree.inode(tree.lookup(b"a").unwrap()).mtime(), Timestamp::default());
}

#[test]
fn the_last_of_a_name_wins() {
    let assembly = assembly(&["a", "d/", "d/x", "a", "d/", "e/", "e/y", "e", "f", "f/", "f/z"]);
    let (tree, extents) = assembly.finish().unwrap();
    assert_eq!(extents.of(tree.lookup(b"a").unwrap())[0].at, 3);
    assert_eq!(mode(&tree, "d"), 0o040704);
    assert!(tree.lookup(b"d/x").is_some());
    assert_eq!(mode(&tree, "e"), 0o100707);
    assert!(tree.lookup(b"f/z").is_some());
    assert_eq!(tree.inode_count(), 1 + 6);
}

#[test]
fn a_replaced_file_keeps_its_other_names() {
    let mut assembly = assembly(&["a"]);
    assembly.link(b"b", b"./a").unwrap();
    add(&mut assembly, &["x", "a"]);
    assembly.link(b"c", b"a").unwrap();
    let (tree, extents) = assembly.finish().unwrap();
    let at = |path: &[u8]| extents.of(tree.lookup(path).unwrap())[0].at;
    assert_eq!((at(b"a"), at(b"b"), at(b"c")), (1, 0, 1));
    assert_eq!(tree.inode(tree.lookup(b"c").unwrap()).links(), 2);
}

#[test]
fn symlinks_on_the_way_are_followed_inside_of_the_tree() {
    let assembly = assembly(&[
        "usr/lib/",
        "lib->usr/lib",
        "lib/a",
        "usr/up->../../../../etc/./x",
        "usr/up/b",
        "abs->/usr",
        "abs/lib/c",
        "lib->elsewhere",
        "lib/d",
    ]);
    let expected = [
        "abs",
        "elsewhere/",
        "elsewhere/d",
        "etc/",
        "etc/x/",
        "etc/x/b",
        "lib",
        "usr/",
        "usr/lib/",
        "usr/lib/a",
        "usr/lib/c",
        "usr/up",
    ];
    assert_eq!(paths(assembly), expected);
}

#[test]
fn what_cannot_be_unpacked_is_refused() {
    let mut assembly = assembly(&["f", "l->l", "m->n", "n->m"]);
    assert_eq!(refused(&mut assembly, "../x"), Refusal::DotDot);
    assert_eq!(refused(&mut assembly, "a/.."), Refusal::DotDot);
    assert_eq!(refused(&mut assembly, "f/x"), Refusal::NotADirectory);
    assert_eq!(refused(&mut assembly, "l/x"), Refusal::Loop);
    assert_eq!(refused(&mut assembly, "m/x"), Refusal::Loop);
    assert_eq!(refused(&mut assembly, "/"), Refusal::Root);
    assert_eq!(refused(&mut assembly, ""), Refusal::Root);
    assert_eq!(refused(&mut assembly, "a\0b"), Refusal::BadName);
    assert_eq!(refused(&mut assembly, &"n".repeat(1025)), Refusal::BadName);
    assert_eq!(refused(&mut assembly, &"n/".repeat(2048)), Refusal::LongPath);
    assert_eq!(assembly.link(b"x", b"gone"), Err(Refusal::NoTarget));
    assert_eq!(assembly.link(b"x", b"f/gone"), Err(Refusal::NotADirectory));
    assert_eq!(assembly.link(b"x", b"/"), Err(Refusal::LinkedDirectory));
    assert_eq!(assembly.link(b"x", b"../f"), Err(Refusal::DotDot));
    let target = |target| Kind::Symlink { target };
    assert_eq!(assembly.add(b"s", target(b""), Facts::default()), Err(Refusal::BadTarget));
    assert_eq!(assembly.add(b"s", target(&[b'a'; 4096]), Facts::default()), Err(Refusal::BadTarget));
    assert_eq!(paths(assembly), ["f", "l", "m", "n"]);
}

#[test]
fn depth_is_bounded_whatever_leads_there() {
    let mut assembly = Assembly::new();
    let deep = "d/".repeat(2000);
    assembly.add(deep.as_bytes(), Kind::Directory, Facts::default()).unwrap();
    assembly.add(b"s", Kind::Symlink { target: deep.as_bytes() }, Facts::default()).unwrap();
    assert_eq!(refused(&mut assembly, &format!("s/{deep}x")), Refusal::TooDeep);
    assert!(tree(assembly).inode_count() <= 2 + MAX_DEPTH);
}

#[test]
fn whiteouts_remove_what_lower_layers_have_and_nothing_else() {
    let mut assembly = assembly(&["a", "d/", "d/x", "d/e/y", "k/z"]);
    assembly.next_layer();
    assembly.remove(b"a").unwrap();
    assembly.remove(b"gone/too").unwrap();
    // The layer's own come before its whiteouts, and after.
    add(&mut assembly, &["d/e/new", "k", "own/x"]);
    assembly.remove(b"d").unwrap();
    assembly.remove(b"own").unwrap();
    assembly.remove(b"k").unwrap();
    add(&mut assembly, &["d/late"]);
    assert_eq!(paths(assembly), ["d/", "d/e/", "d/e/new", "d/late", "k", "own/", "own/x"]);
}

#[test]
fn opaque_directories_hide_lower_layers_whatever_the_order() {
    let lower = ["d/", "d/x", "d/e/y", "d/e/z/w"];
    for opaque_first in [false, true] {
        let mut assembly = assembly(&lower);
        assembly.next_layer();
        if opaque_first {
            assembly.clear(b"d").unwrap();
        }
        add(&mut assembly, &["d/", "d/e/new", "d/e/z/"]);
        if !opaque_first {
            assembly.clear(b"d").unwrap();
        }
        assembly.next_layer();
        add(&mut assembly, &["top"]);
        assert_eq!(paths(assembly), ["d/", "d/e/", "d/e/new", "d/e/z/", "top"]);
    }
}

#[test]
fn a_directory_that_comes_back_is_empty() {
    let mut assembly = assembly(&["d/", "d/x"]);
    assembly.next_layer();
    add(&mut assembly, &["d"]);
    assembly.next_layer();
    add(&mut assembly, &["d/", "d/y"]);
    assert_eq!(paths(assembly), ["d/", "d/y"]);
}

#[test]
fn sparse_files_and_attributes_arrive() {
    let mut assembly = Assembly::new();
    let ranges = [DataRange { offset: 10, length: 5 }, DataRange { offset: 90, length: 10 }];
    let xattr = |name: &[u8], value: &[u8]| Xattr { name: name.into(), value: value.into() };
    let facts = Facts { xattrs: [xattr(b"user.b", b"2"), xattr(b"user.a", b"1")].into(), ..Facts::default() };
    let bytes = Bytes::Sparse { at: 1000, backing: 3, ranges: ranges.into() };
    assembly.add(b"s", Kind::Regular { size: 100, bytes }, facts.clone()).unwrap();
    assembly.add(b"c", Kind::CharDevice { major: 1, minor: 3 }, facts.clone()).unwrap();
    // Another one that is equal, and an order that is not.
    let equal = Facts { xattrs: facts.xattrs.iter().rev().cloned().collect(), ..Facts::default() };
    assembly.add(b"p", Kind::Fifo, equal).unwrap();
    assembly.add(b"q", Kind::Fifo, Facts::default()).unwrap();
    assembly.add(b"", Kind::Directory, facts).unwrap();
    assert_eq!(assembly.xattr_sets.len(), 2, "each set once, and the empty one");
    let (tree, extents) = assembly.finish().unwrap();
    let sparse = tree.lookup(b"s").unwrap();
    assert_eq!(tree.sparse_ranges(sparse), Some(&ranges[..]));
    assert_eq!(tree.inode(sparse).size(), 100);
    let ats: Vec<_> = extents.of(sparse).iter().map(|extent| (extent.offset, extent.at, extent.backing)).collect();
    assert_eq!(ats, [(10, 1000, 3), (90, 1005, 3)]);
    assert_eq!(tree.inode(tree.lookup(b"c").unwrap()).device(), (1, 3));
    for inode in [InodeId::ROOT, sparse] {
        let set = tree.xattrs(tree.inode(inode).xattrs());
        assert_eq!(set, [xattr(b"user.a", b"1"), xattr(b"user.b", b"2")]);
    }
}

#[test]
fn a_name_may_be_as_long_as_a_trees() {
    let (short, long) = ("n".repeat(255), "n".repeat(1024));
    let (directory, link) = (format!("{long}/"), format!("{long}/{long}"));
    assert_eq!(paths(assembly(&[&short, &directory, &link])), [short, directory, link]);
}
