//! Archives that we write are restored by GNU cpio and bsdtar as what was written.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::archive::{Capacity, is_root, run_with, sample, scanned, write};
use crate::common::compare::{assert_facts, facts_of_directory};
use crate::common::odd::odd_tree;
use crate::common::{attributes, builder, file};
use inarch_format::cpio::Cpio;
use inarch_format::{Format, ImageOptions};
use inarch_tree::{Attributes, Timestamp};

const HELD: Capacity = Capacity { xattrs: false, times: false, long_names: true, large_owners: true, devices: true };

#[test]
fn gnu_cpio_and_bsdtar_restore_everything() {
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    sample(&source, HELD);
    fs::write(source.join("TRAILER!!!"), "not the end").unwrap();
    let socket = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();
    let touch = ["-hd@1234567890", "TRAILER!!!", "socket", "."];
    run_with(Path::new("/dev/null"), &source, "touch", &touch);
    let archive = scratch.path().join("a.cpio");
    let (tree, content) = scanned(&source);
    assert_eq!(write(&Cpio, &tree, &*content, &archive), [""; 0]);
    drop(socket);
    assert_eq!(fs::metadata(&archive).unwrap().len() % 512, 0);

    let expected = facts_of_directory(&source);
    let programs = [
        ("cpio", &["-i", "-d", "-m", "--quiet", "--no-absolute-filenames"][..]),
        ("bsdtar", &["-x", "-p", "-f", "-", "--numeric-owner"][..]),
    ];
    for (program, arguments) in programs {
        let to = scratch.path().join(program);
        fs::create_dir(&to).unwrap();
        run_with(&archive, &to, program, arguments);
        let mut found = facts_of_directory(&to);
        if program == "bsdtar" {
            // It leaves the time of the directory that it extracts to, and makes a file of a socket.
            for name in [&b""[..], b"socket"] {
                found.insert(name.to_vec(), expected[name].clone());
            }
        }
        if program == "cpio" {
            // It sets the times of directories before it fills them, and those of symlinks not at all.
            let is_dated = |facts: &[String]| !facts[0].starts_with("4") && !facts[0].starts_with("12");
            for (name, facts) in found.iter_mut().filter(|(_, facts)| !is_dated(facts)) {
                facts[2].clone_from(&expected[name][2]);
            }
        }
        assert_facts(&found, &expected);
    }
}

#[test]
fn what_newc_cannot_hold_is_said_or_refused() {
    let tree = Arc::new(odd_tree());
    let error = Cpio.plan(&tree, &ImageOptions::default()).err().unwrap().to_string();
    assert_eq!(error, "cpio: 9sparse has 1099511627776 bytes; newc holds less than 4 GiB");

    let mut builder = builder();
    let set = builder.intern_xattrs(vec![crate::common::odd::xattr("user.x", b"1")]);
    builder.add(b"attributes", &Attributes { xattrs: set, ..attributes(0o100644) }).unwrap();
    builder.add(b"largest", &file(u32::MAX.into())).unwrap();
    let early = Timestamp { seconds: -1, nanoseconds: 0 };
    builder.add(b"early", &Attributes { mtime: early, ..attributes(0o100644) }).unwrap_err();
    builder.add(b"old", &Attributes { mtime: early, ..attributes(0o100644) }).unwrap();
    let tree = Arc::new(builder.finish().unwrap());
    let notes = Cpio.plan(&tree, &ImageOptions::default()).unwrap().notes;
    let expected = [
        "attributes: its extended attributes are left out, as newc has none",
        "old: its time becomes the nearest from 1970 to 2106, as newc has no other",
        "times are cut to whole seconds, as newc has no others",
    ];
    assert_eq!(notes, expected);
}
