//! A selection gives the same tree whether the scan applies it or `select` does on the whole tree.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use crate::support::{names, nodes_of, set_xattr};
use inarch_tree::scan::{Scan, ScanOptions, scan};
use inarch_tree::select::{
    FileContexts, Filter, FilterBuilder, IdRange, OwnerMap, Owners, PathList, Selected, Selection, beneath, select,
    with_directories,
};
use inarch_tree::{FileType, InodeId, Timestamp, Tree};
use proptest::prelude::*;

fn whole(root: &Path) -> Scan {
    scan(root, &ScanOptions::default()).unwrap()
}

/// Selects from the whole tree of `root`, whose files can be read.
fn selected(root: &Path, selection: &Selection) -> (Scan, Selected) {
    let scan = whole(root);
    let read = |inode: InodeId, most: u64| {
        use std::os::unix::ffi::OsStrExt;
        let mut text = fs::read(root.join(OsStr::from_bytes(&scan.tree.path(inode)))).ok()?;
        text.truncate(most as usize);
        Some(text)
    };
    let selected = select(&scan.tree, selection, &read).unwrap();
    (scan, selected)
}

/// Like [`selected`], with a scan that applies what it can.
fn scanned(root: &Path, selection: &Selection) -> (Scan, Selected) {
    let scan = scan(root, &selection.scan_options()).unwrap();
    let selected = select(&scan.tree, &selection.after_scan(), &|_, _| None).unwrap();
    (scan, selected)
}

#[track_caller]
fn assert_agree(root: &Path, selection: &Selection) -> Vec<String> {
    let (_, selected) = selected(root, selection);
    let (scan, scanned) = scanned(root, selection);
    assert_eq!(nodes_of(&selected.tree), nodes_of(&scanned.tree));
    let order = |tree: &Tree| tree.inodes().map(|(id, _)| tree.path(id)).collect::<Vec<_>>();
    assert_eq!(order(&selected.tree), order(&scanned.tree), "inodes are numbered in another order");
    assert_eq!(selected.filtered, scan.report.filtered + scanned.filtered);
    assert_eq!(selected.missing, scanned.missing);
    names(&selected.tree)
}

fn with_filter(filter: FilterBuilder) -> Selection {
    Selection { filter: filter.build().unwrap(), ..Selection::default() }
}

fn only(text: &str) -> Selection {
    Selection { only: Some(Arc::new(PathList::parse(text.as_bytes()))), ..Selection::default() }
}

/// A tree with hard links across directories, symlinks, a hole and ignore files.
fn example() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    for directory in ["usr/bin", "usr/lib/deep/er", "etc", "src/out"] {
        fs::create_dir_all(path.join(directory)).unwrap();
    }
    for file in
        ["usr/bin/tool", "usr/lib/a.so.1", "usr/lib/deep/er/x", "etc/conf", "src/a.o", "src/keep.o", "src/out/b"]
    {
        fs::write(path.join(file), file).unwrap();
    }
    fs::hard_link(path.join("src/a.o"), path.join("usr/lib/a.o")).unwrap();
    fs::hard_link(path.join("usr/bin/tool"), path.join("usr/bin/alias")).unwrap();
    symlink("usr/lib", path.join("lib")).unwrap();
    symlink("a.so.1", path.join("usr/lib/a.so")).unwrap();
    symlink("/usr/bin/tool", path.join("etc/tool")).unwrap();
    symlink("loop", path.join("etc/loop")).unwrap();
    symlink("nowhere", path.join("etc/dangling")).unwrap();
    fs::write(path.join("src/.gitignore"), "*.o\n!keep.o\n/out\n").unwrap();
    let sparse = fs::File::create(path.join("usr/lib/sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (1 << 20) - 3).unwrap();
    root
}

#[test]
fn filters_agree() {
    let root = example();
    let path = root.path();
    let all = assert_agree(path, &Selection::default());
    assert_eq!(all.len(), 24);
    for (filter, gone) in [
        (Filter::builder().exclude("*.o"), &["src/a.o", "src/keep.o", "usr/lib/a.o"][..]),
        (Filter::builder().include("/src/*.o").exclude("*.o"), &["usr/lib/a.o"]),
        (Filter::builder().exclude_regex("^usr/lib/.*er$"), &["usr/lib/deep/er", "usr/lib/deep/er/x"]),
        (Filter::builder().include("a.o").exclude_regex(r"\.o$"), &["src/keep.o"]),
        (Filter::builder().ignore_file(OsStr::new(".gitignore")), &["src/a.o", "src/out", "src/out/b"]),
        (Filter::builder().exclude_list(b"*.o\n!/src/a.o\n# no comment\n"), &["src/keep.o", "usr/lib/a.o"]),
        (
            // The command line takes precedence over a list, and a list over an ignore file.
            Filter::builder().include("a.o").exclude_list(b"a.o\n!out\n").ignore_file(OsStr::new(".gitignore")),
            &[],
        ),
    ] {
        let expected: Vec<_> = all.iter().filter(|name| !gone.contains(&name.as_str())).cloned().collect();
        assert_eq!(assert_agree(path, &with_filter(filter)), expected);
    }
}

#[test]
fn wrong_patterns_are_named() {
    let error = Filter::builder().exclude("ok").exclude_regex("a(b").build().unwrap_err().to_string();
    assert_eq!(error, "the pattern \"a(b\" is not a regular expression: unclosed group");
}

#[test]
fn a_list_of_paths_takes_them_their_directories_and_what_links_lead_to() {
    let root = example();
    let path = root.path();
    let taken = |text: &str| assert_agree(path, &only(text));
    assert_eq!(taken("etc/conf"), ["etc", "etc/conf"]);
    assert_eq!(taken("/etc/conf\n\nusr/bin"), ["etc", "etc/conf", "usr", "usr/bin"]);
    assert_eq!(taken("usr/lib/deep/"), ["usr", "usr/lib", "usr/lib/deep", "usr/lib/deep/er", "usr/lib/deep/er/x"]);
    assert_eq!(taken("/lib/a.so"), ["lib", "usr", "usr/lib", "usr/lib/a.so", "usr/lib/a.so.1"]);
    assert_eq!(taken("/etc/tool"), ["etc", "etc/tool", "usr", "usr/bin", "usr/bin/tool"]);
    assert_eq!(taken("etc/../lib/../bin/alias"), ["etc", "lib", "usr", "usr/bin", "usr/bin/alias", "usr/lib"]);
    assert_eq!(taken("etc/conf\0a\nb\0"), ["etc", "etc/conf"], "names with line breaks");
    assert_eq!(taken("etc/loop\netc/dangling\n"), ["etc", "etc/dangling", "etc/loop"]);
    assert_eq!(taken("/").len(), 24);
    assert_eq!(taken(""), Vec::<String>::new());
    let (_, selected) = selected(path, &only("nothing\netc/conf/x\netc/dangling\netc/dangling/x\nusr"));
    let missing: Vec<_> = selected.missing.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    assert_eq!(missing, ["nothing", "etc/conf/x", "etc/dangling/x"]);
    // A link to something excluded leads nowhere.
    let selection = Selection { only: only("/lib/a.so").only, ..with_filter(Filter::builder().exclude("/lib")) };
    assert_eq!(assert_agree(path, &selection), Vec::<String>::new());
}

#[test]
fn paths_of_this_host_count_from_the_tree() {
    let list = PathList::parse(b"/home/me/src/a\n/usr/bin/cc\nb\n/home/me/src\n/home/me/srcs/a\n");
    let beneath = PathList::parse(b"/a\n/usr/bin/cc\nb\n/\n/home/me/srcs/a\n");
    assert_eq!(list.beneath(b"/home/me/src"), beneath);
    assert_eq!(list.beneath(b"/home/me/src/"), beneath);
    assert_eq!(list.beneath(b"/"), list);
}

#[test]
fn owners_times_and_labels_agree() {
    let root = example();
    let path = root.path();
    let acl = |user: u32| {
        let entries = [(1u16, 7u16, u32::MAX), (2, 6, user), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        value
    };
    set_xattr(&path.join("etc/conf"), "system.posix_acl_access", &acl(1005));
    let range: IdRange = "1000:70000:10".parse().unwrap();
    let uid = whole(path).tree.inode(InodeId::ROOT).uid();
    let own: IdRange = format!("{uid}:500:1").parse().unwrap();
    for owners in [
        Owners::from(OwnerMap::Fixed { uid: 7, gid: 8 }),
        Owners::from(OwnerMap::Squash { uid: 3, gid: 4 }),
        Owners { users: vec![range, own], groups: vec![range], map: OwnerMap::Fixed { uid: 7, gid: 8 } },
    ] {
        assert_agree(path, &Selection { owners, ..Selection::default() });
    }
    let owners = Owners { users: vec![range, own], ..Owners::default() };
    let (_, mapped) = selected(path, &Selection { owners, ..Selection::default() });
    let conf = mapped.tree.inode(mapped.tree.lookup(b"etc/conf").unwrap());
    assert_eq!(conf.uid(), 500);
    let xattrs: BTreeMap<_, _> =
        mapped.tree.xattrs(conf.xattrs()).iter().map(|x| (&x.name[..], &x.value[..])).collect();
    assert_eq!(xattrs[&b"system.posix_acl_access"[..]], acl(70005));

    let epoch = Some(1_000_000_000);
    assert_agree(path, &Selection { epoch, ..Selection::default() });
    let (_, old) = selected(path, &Selection { epoch, ..Selection::default() });
    let clamped = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };
    assert!(old.tree.inodes().all(|(_, inode)| inode.mtime() == clamped && inode.ctime() == clamped));
}

#[test]
fn wrong_ranges_are_refused() {
    for wrong in ["", "1:2", "1:2:3:4", "a:1:1", "1:1:0", "4294967295:0:1", "0:4294967290:6", "-1:0:1"] {
        let error = wrong.parse::<IdRange>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{wrong:?} is not a range of ids; write FROM:TO:COUNT")), "{error}");
    }
    let owners = Owners { users: vec!["10:0:5".parse().unwrap(), "0:100:20".parse().unwrap()], ..Owners::default() };
    assert_eq!([0, 9, 10, 14, 15, 20].map(|uid| owners.uid(uid)), [100, 109, 0, 4, 115, 20]);
    assert_eq!(owners.gid(3), 3);
}

const CONTEXTS: &str = r"
# rules of a policy
/.*                             u:r:default:s0
/usr(/.*)?                      u:r:usr:s0
/usr/lib(/.*)?      -d          u:r:libdir:s0
/usr/bin/alias      --          u:r:tool:s0
/usr/bin/.*                     u:r:bin:s0
/etc/(tool|loop)    -l          u:r:link:s0
/etc/conf                       <<none>>
/src/a\.o                       u:r:object:s0
";

#[test]
fn labels_are_those_of_the_last_rule_that_matches() {
    let root = example();
    let path = root.path();
    set_xattr(&path.join("etc/conf"), "user.kept", b"x");
    let contexts = Some(Arc::new(FileContexts::parse(CONTEXTS).unwrap()));
    let selection = Selection { contexts, ..Selection::default() };
    assert_agree(path, &selection);
    let (_, labelled) = selected(path, &selection);
    let tree = labelled.tree;
    let label = |path: &str| {
        let set = tree.inode(tree.lookup(path.as_bytes()).unwrap()).xattrs();
        let label = tree.xattrs(set).iter().find(|xattr| &*xattr.name == b"security.selinux");
        label.map(|xattr| String::from_utf8(xattr.value.to_vec()).unwrap())
    };
    for (path, expected) in [
        ("", Some("u:r:default:s0\0")),
        ("lib", Some("u:r:default:s0\0")),
        ("usr", Some("u:r:usr:s0\0")),
        ("usr/lib", Some("u:r:libdir:s0\0")),
        ("usr/lib/a.so", Some("u:r:usr:s0\0")),
        // A plain path takes precedence over every expression, wherever it is; of several names the first counts.
        ("usr/bin/alias", Some("u:r:tool:s0\0")),
        ("usr/bin/tool", Some("u:r:tool:s0\0")),
        ("etc/tool", Some("u:r:link:s0\0")),
        ("etc/dangling", Some("u:r:default:s0\0")),
        ("etc/conf", None),
        ("src/a.o", Some("u:r:object:s0\0")),
        ("src/keep.o", Some("u:r:default:s0\0")),
    ] {
        assert_eq!(label(path).as_deref(), expected, "{path}");
    }
    let conf = tree.inode(tree.lookup(b"etc/conf").unwrap()).xattrs();
    assert_eq!(tree.xattrs(conf).len(), 1, "the other attributes stay");
}

#[test]
fn contexts_that_are_none_are_told_by_line() {
    for (text, error) in [
        ("/a u:r:x:s0\n/b\n", "line 2: not a regular expression, maybe a file type, and a context"),
        ("/a -x u:r:x:s0", "line 1: \"-x\" is not a file type; --, -d, -l, -c, -b, -p and -s are"),
        ("\n\n/a( u:r:x:s0", "line 3: \"/a(\" is not a regular expression: unclosed group"),
    ] {
        assert_eq!(FileContexts::parse(text).unwrap_err().to_string(), error);
    }
}

/// A random tree as a few files, links and directories in a directory.
fn build(root: &Path, parts: &[(Vec<u8>, u8)]) {
    let mut files = Vec::new();
    for (path, kind) in parts {
        let path = root
            .join(path.iter().map(|part| ["a", "b", "c.o", "d"][usize::from(*part) % 4]).collect::<Vec<_>>().join("/"));
        if path.parent().is_none_or(|parent| fs::create_dir_all(parent).is_err()) || path.symlink_metadata().is_ok() {
            continue;
        }
        match (kind % 4, files.last()) {
            (0, Some(file)) => fs::hard_link(file, &path).unwrap(),
            (1, _) => symlink(["a", "../b", "/d", "c.o/a"][usize::from(*kind) / 4 % 4], &path).unwrap(),
            (2, _) => fs::create_dir(&path).unwrap(),
            _ => {
                fs::write(&path, [*kind]).unwrap();
                files.push(path);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_trees_agree_and_keep_what_files_hold(
        parts in prop::collection::vec((prop::collection::vec(0..4u8, 1..5), any::<u8>()), 1..40),
        rules in prop::collection::vec((any::<bool>(), 0..8usize), 0..4),
        listed in prop::option::of(prop::collection::vec(prop::collection::vec(0..4usize, 1..4), 0..4)),
    ) {
        let root = tempfile::tempdir().unwrap();
        build(root.path(), &parts);
        let globs = ["a", "/b", "*.o", "a/*", "d/", "**/c.o/*", "b/**", "?"];
        let filter = rules.iter().fold(Filter::builder(), |filter, (include, glob)| {
            if *include { filter.include(globs[*glob]) } else { filter.exclude(globs[*glob]) }
        });
        let listed = listed.map(|paths| {
            let path = |parts: &Vec<usize>| parts.iter().map(|part| ["a", "b", "c.o", "d"][*part]).collect::<Vec<_>>().join("/");
            Arc::new(PathList::parse(paths.iter().map(path).collect::<Vec<_>>().join("\n").as_bytes()))
        });
        let selection = Selection { only: listed, ..with_filter(filter) };
        assert_agree(root.path(), &selection);
        let (scan, selected) = selected(root.path(), &selection);
        prop_assert_eq!(selected.origins.len(), selected.tree.inode_count() as usize);
        for (id, inode) in selected.tree.inodes() {
            let origin = scan.tree.inode(selected.origins[id.index()]);
            prop_assert_eq!((inode.source_ino(), inode.size(), inode.mode()), (origin.source_ino(), origin.size(), origin.mode()));
            // Its path now leads to it in the old tree as well.
            let path = selected.tree.path(id);
            prop_assert_eq!(scan.tree.lookup(&path), Some(selected.origins[id.index()]));
            if inode.file_type() == FileType::Directory {
                let directories = selected.tree.entries(id).filter(|entry| selected.tree.inode(entry.inode).file_type() == FileType::Directory);
                prop_assert_eq!(inode.links() as usize, 2 + directories.count());
            }
        }
    }
}

#[test]
fn a_directory_can_become_the_root() {
    let root = example();
    let scan = whole(root.path());
    for name in ["usr", "usr/lib", "etc"] {
        let taken = beneath(&scan.tree, scan.tree.lookup(name.as_bytes()).unwrap()).unwrap();
        let alone = whole(&root.path().join(name));
        assert_eq!(nodes_of(&taken.tree), nodes_of(&alone.tree), "{name}");
        assert_eq!(taken.tree.inode(InodeId::ROOT).mode(), alone.tree.inode(InodeId::ROOT).mode());
        for (id, inode) in taken.tree.inodes() {
            assert_eq!(scan.tree.inode(taken.origins[id.index()]).source_ino(), inode.source_ino());
        }
    }
}

#[test]
fn directories_can_be_added() {
    let root = example();
    let scan = whole(root.path());
    let wanted = ["dev", "usr/bin", "usr/lib/a/b", "usr/lib/z", "zz", "lib/below", "etc/conf/below", "usr/lib/a"];
    let wanted: Vec<Vec<u8>> = wanted.iter().map(|path| path.as_bytes().to_vec()).collect();
    let added = with_directories(&scan.tree, &wanted).unwrap();
    let before = nodes_of(&scan.tree);
    let found = nodes_of(&added.tree);
    let new: Vec<_> = found.keys().filter(|path| !before.contains_key(*path)).cloned().collect();
    assert_eq!(new, ["dev", "usr/lib/a", "usr/lib/a/b", "usr/lib/z", "zz"].map(|path| path.as_bytes().to_vec()));
    for path in &new {
        let inode = added.tree.inode(added.tree.lookup(path).unwrap());
        assert_eq!((inode.mode(), inode.uid(), inode.gid()), (0o040_755, 0, 0));
    }
    // Nothing else changed, except how many subdirectories a directory has.
    for (id, inode) in scan.tree.inodes().filter(|(_, inode)| inode.file_type() != FileType::Directory) {
        let new = added.tree.lookup(&scan.tree.path(id)).unwrap();
        assert_eq!((added.origins[new.index()], added.tree.inode(new).links()), (id, inode.links()));
    }
    assert_eq!(found.len(), before.len() + new.len());
}
