//! Archives that we write are restored by other programs as what was written.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use crate::common::archive::{ALL, is_root, run, run_in, sample, scanned, write};
use crate::common::compare::{assert_facts, assert_same, facts_of_directory};
use crate::common::forest::{forest, grow};
use crate::common::odd::odd_tree;
use crate::common::{attributes, builder, file, pattern};
use inarch_block::{Content, read_content};
use inarch_confine::Parsing;
use inarch_format::tar::Tar;
use inarch_format::{Compression, Damage, Format, ImageOptions, Layout, Piece, Stream, ThisHost, TreeAndContent, oci};
use inarch_tree::{Attributes, DataRange, FileType, InodeId, Tree};
use proptest::prelude::*;

fn extract(locale: &str, program: &str, options: &[&str], archive: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    arguments.extend(["-xpf".as_ref(), archive.as_os_str(), "-C".as_ref(), to.as_os_str()]);
    run_in(locale, program, &arguments);
}

/// Writes an archive whose members' content is left to be holes.
fn write_without_content(stream: &dyn Stream, path: &Path) {
    let archive = File::create(path).unwrap();
    archive.set_len(stream.length()).unwrap();
    let mut at = 0;
    for piece in stream.pieces() {
        if let Piece::Bytes(bytes) = &piece {
            archive.write_all_at(bytes, at).unwrap();
        }
        at += piece.length();
    }
}

#[test]
fn gnu_tar_and_bsdtar_restore_everything() {
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    sample(&source, ALL);
    let archive = scratch.path().join("a.tar");
    let (tree, content) = scanned(&source);
    assert_eq!(write(&Tar, &tree, &*content, &archive), [""; 0]);
    assert_eq!(fs::metadata(&archive).unwrap().len() % 10_240, 0);
    let expected = facts_of_directory(&source);
    let opened = oci::open_tar_file(
        Parsing::unconfined(),
        File::open(&archive).unwrap(),
        &archive,
        &ThisHost::new(scratch.path()),
        Damage::Refused,
    )
    .unwrap();
    assert_same(&opened, &source);
    assert_eq!(opened.notes, [""; 0]);

    let to = scratch.path().join("to");
    let gnu = ["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner"];
    for (locale, program, options) in [
        ("C.UTF-8", "tar", &gnu[..]),
        ("C", "tar", &gnu[..]),
        ("C.UTF-8", "bsdtar", &["--acls", "--xattrs", "--numeric-owner"][..]),
    ] {
        extract(locale, program, options, &archive, &to);
        let mut found = facts_of_directory(&to);
        if program == "bsdtar" {
            // It leaves the time of the directory that it extracts to, and the names of attributes encoded.
            found.insert(Vec::new(), expected[&b""[..]].clone());
            let encoded = found.values_mut().flatten().filter(|fact| fact.starts_with("user.a%3Db%253D"));
            encoded.for_each(|fact| *fact = fact.replace("a%3Db%253D", "a=b%3D"));
        }
        assert_facts(&found, &expected);
        for name in ["sparse", "sparse-end", "hole"] {
            let (before, after) = (fs::metadata(source.join(name)).unwrap(), fs::metadata(to.join(name)).unwrap());
            assert!(after.blocks() <= before.blocks() + 16, "{program} fills the holes of {name}");
        }
    }
}

#[test]
fn names_are_those_of_gnu_tar() {
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    sample(&source, ALL);
    let (ours, theirs) = (scratch.path().join("ours.tar"), scratch.path().join("theirs.tar"));
    let (tree, content) = scanned(&source);
    write(&Tar, &tree, &*content, &ours);
    let options = ["--sort=name", "--format=pax", "-cf"].map(OsStr::new);
    run("tar", &[&options[..], &[theirs.as_os_str(), "-C".as_ref(), source.as_os_str(), ".".as_ref()]].concat());
    let list = |archive: &Path| {
        let listing = run("tar", &["-tf".as_ref(), archive.as_os_str()]);
        let mut lines: Vec<String> = listing.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(list(&ours), list(&theirs));
}

#[test]
fn sockets_are_left_out_and_odd_things_are_kept() {
    let scratch = tempfile::tempdir().unwrap();
    let tree = Arc::new(odd_tree());
    let planned = Tar.plan(&tree, &ImageOptions::default()).unwrap();
    assert_eq!(planned.notes, ["5socket: it is left out, as a tar has no sockets"]);
    let Layout::Stream(stream) = planned.layout else { panic!("an archive is a stream") };
    let path = scratch.path().join("odd.tar");
    write_without_content(&*stream, &path);
    let opened = oci::open_tar_file(
        Parsing::unconfined(),
        File::open(&path).unwrap(),
        &path,
        &ThisHost::new(scratch.path()),
        Damage::Refused,
    )
    .unwrap();
    assert_eq!(opened.notes, [""; 0]);
    for (id, inode) in tree.inodes() {
        let path = tree.path(id);
        if path == b"5socket" {
            assert_eq!(opened.tree.lookup(&path), None);
            continue;
        }
        let id2 = opened.tree.lookup(&path).unwrap_or_else(|| panic!("{}", path.escape_ascii()));
        let found = opened.tree.inode(id2);
        let has_list = tree.xattrs(inode.xattrs()).iter().any(|xattr| *xattr.name == *b"system.posix_acl_access");
        // Permissions follow the access list, as the kernel lets them.
        let mode = if has_list { inode.mode() & !0o777 | 0o750 } else { inode.mode() };
        assert_eq!(
            (found.mode(), found.uid(), found.gid(), found.size()),
            (mode, inode.uid(), inode.gid(), inode.size())
        );
        assert_eq!((found.mtime().seconds, found.device()), (inode.mtime().seconds, inode.device()));
        assert_eq!(found.mtime().nanoseconds, inode.mtime().nanoseconds.min(999_999_999));
        assert_eq!((found.links(), opened.tree.symlink_target(id2)), (inode.links(), tree.symlink_target(id)));
        assert_eq!(opened.tree.xattrs(found.xattrs()), tree.xattrs(inode.xattrs()), "{}", path.escape_ascii());
        assert_eq!(opened.tree.sparse_ranges(id2), tree.sparse_ranges(id));
    }
}

/// Content that depends on the file and the place in it.
struct Pattern;

impl Content for Pattern {
    fn read(&self, inode: InodeId, at: u64, count: u64, out: &mut inarch_block::Cursor<'_, '_>) -> std::io::Result<()> {
        let bytes: Vec<u8> = (at..at + count).map(|offset| pattern(inode, offset)).collect();
        out.copy_from(&bytes);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, max_shrink_iters: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_trees_read_back(forest in forest()) {
        let scratch = tempfile::tempdir().unwrap();
        let mut b = builder();
        grow(&mut b, forest, &mut Vec::new());
        let tree = Arc::new(b.finish().unwrap());
        let path = scratch.path().join("random.tar");
        write(&Tar, &tree, &Pattern, &path);
        let opened = oci::open_tar_file(Parsing::unconfined(), File::open(&path).unwrap(), &path, &ThisHost::new(scratch.path()), Damage::Refused).unwrap();
        prop_assert_eq!(&opened.notes, &[""; 0]);
        compare_trees(&tree, &opened);
        let listing = run("bsdtar", &["-tf".as_ref(), path.as_os_str()]);
        prop_assert!(listing.lines().count() >= opened.tree.entry_count() as usize);
    }
}

/// Fails where a tree that was written differs from what was read.
fn compare_trees(tree: &Tree, opened: &TreeAndContent) {
    let mut sockets = 0;
    let mut pending = vec![(InodeId::ROOT, Vec::new())];
    while let Some((directory, prefix)) = pending.pop() {
        for entry in tree.entries(directory) {
            let path = [&prefix[..], entry.name].concat();
            let inode = tree.inode(entry.inode);
            if inode.file_type() == FileType::Socket {
                sockets += 1;
                continue;
            }
            let found = opened.tree.lookup(&path).unwrap_or_else(|| panic!("{} is missing", path.escape_ascii()));
            let read = opened.tree.inode(found);
            assert_eq!(
                (read.mode(), read.uid(), read.gid(), read.size()),
                (inode.mode(), inode.uid(), inode.gid(), inode.size())
            );
            assert_eq!((read.mtime(), read.links(), read.device()), (inode.mtime(), inode.links(), inode.device()));
            assert_eq!(opened.tree.symlink_target(found), tree.symlink_target(entry.inode));
            assert_eq!(opened.tree.xattrs(read.xattrs()), tree.xattrs(inode.xattrs()));
            let mut bytes = vec![0; inode.size() as usize];
            read_content(&*opened.content, found, 0, &mut bytes).unwrap();
            let whole = [DataRange { offset: 0, length: inode.size() }];
            let mut expected = vec![0; bytes.len()];
            for range in tree.sparse_ranges(entry.inode).unwrap_or(&whole) {
                for offset in range.offset..range.offset + range.length {
                    expected[offset as usize] = pattern(entry.inode, offset);
                }
            }
            assert!(bytes == expected, "{} differs", path.escape_ascii());
            if inode.size() > 0 {
                assert_eq!(opened.tree.sparse_ranges(found), tree.sparse_ranges(entry.inode));
            }
            pending.push((entry.inode, [&path[..], b"/"].concat()));
        }
    }
    assert_eq!(opened.tree.entry_count() + sockets, tree.entry_count());
}

#[test]
fn files_beyond_8_gib_have_their_size() {
    let scratch = tempfile::tempdir().unwrap();
    let mut builder = builder();
    builder.add(b"huge", &file(9 << 30)).unwrap();
    builder.add(b"next", &Attributes { uid: 3_000_000, ..attributes(0o010600) }).unwrap();
    let tree = Arc::new(builder.finish().unwrap());
    let Layout::Stream(stream) = Tar.plan(&tree, &ImageOptions::default()).unwrap().layout else { panic!() };
    let path = scratch.path().join("huge.tar");
    write_without_content(&*stream, &path);
    for program in ["tar", "bsdtar"] {
        let listing = run(program, &["--numeric-owner".as_ref(), "-tvf".as_ref(), path.as_os_str()]);
        assert!(listing.contains(" 9663676416 ") && listing.contains("3000000"), "{program}: {listing}");
    }
    let opened = oci::open_tar_file(
        Parsing::unconfined(),
        File::open(&path).unwrap(),
        &path,
        &ThisHost::new(scratch.path()),
        Damage::Refused,
    )
    .unwrap();
    assert_eq!(opened.tree.inode(opened.tree.lookup(b"huge").unwrap()).size(), 9 << 30);
}

#[test]
fn the_same_tree_gives_the_same_bytes_and_odd_options_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let mut builder = builder();
    let first = builder.add(b"a", &file(10)).unwrap();
    builder.link(b"b", first).unwrap();
    let tree = Arc::new(builder.finish().unwrap());
    let archives = ["1", "2"].map(|name| {
        let path = scratch.path().join(name);
        write(&Tar, &tree, &Pattern, &path);
        fs::read(path).unwrap()
    });
    assert_eq!(archives[0], archives[1]);
    let options = ImageOptions::default();
    let refused = [
        ImageOptions { label: "x".into(), ..options.clone() },
        ImageOptions { uuid: Some([1; 16]), ..options.clone() },
        ImageOptions { size: Some(1 << 30), ..options.clone() },
        ImageOptions { block_size: Some(4096), ..options.clone() },
        ImageOptions {
            compression: Some(Compression { algorithm: inarch_format::Algorithm::Zstd, level: None }),
            ..options
        },
    ];
    for options in refused {
        assert!(Tar.plan(&tree, &options).is_err(), "{options:?}");
    }
}
