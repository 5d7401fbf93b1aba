//! The adapter over a file system in memory, and over a directory of the host.

use std::fs;
use std::sync::Arc;

use inarch_tree::Timestamp;

use super::*;
use crate::listing::Listing;
use crate::{HostDirectory, HostOptions, Identity, MemoryFiles, Overlay};

const ME: Context<'static> = Context::SERVER;
const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };
const READ: u32 = libc::O_RDONLY as u32;

/// A file system with `d/a`, `d/b`, `d/e/c` and `other`.
fn below() -> Arc<MemoryFiles> {
    let files = MemoryFiles::new(1 << 20);
    let d = files.make_directory(&ME, NodeId::ROOT, b"d", &DIRECTORY).unwrap().node;
    let e = files.make_directory(&ME, d, b"e", &DIRECTORY).unwrap().node;
    for (directory, name) in [(d, &b"a"[..]), (d, b"b"), (e, b"c"), (NodeId::ROOT, b"other")] {
        files.make_node(&ME, directory, name, &FILE).unwrap();
    }
    Arc::new(files)
}

fn names(layer: &dyn FileSystem, directory: NodeId) -> Vec<String> {
    let mut names: Vec<String> =
        Listing::whole(layer, directory, (1, true)).into_iter().map(|(name, _)| name).collect();
    names.retain(|name| !matches!(&**name, "." | ".."));
    names.sort();
    names
}

fn find(layer: &dyn FileSystem, path: &str) -> Result<Entry, Errno> {
    let root = layer.attributes(&ME, NodeId::ROOT, None)?;
    let start = Entry { node: NodeId::ROOT, generation: 0, attributes: root, valid: root.valid };
    path.split('/').try_fold(start, |entry, name| layer.lookup(&ME, entry.node, name.as_bytes()))
}

#[test]
fn only_what_is_shown_is_there() {
    let mut shown = Shown::nothing();
    shown.show(b"/d/a");
    shown.hide(b"/d/e/x");
    let only = Only::of(below(), shown);
    let d = find(&only, "d").unwrap().node;
    assert!(find(&only, "d/a").is_ok());
    for path in ["d/b", "d/e", "other", "none", "d/none"] {
        assert_eq!(find(&only, path).map(|entry| entry.node), Err(Errno::NOENT), "{path}");
    }
    assert_eq!(only.lookup(&ME, d, b"..").map(|entry| entry.node), Err(Errno::INVAL));
    assert_eq!(only.lookup(&ME, d, &[b'x'; 256]).map(|entry| entry.node), Err(Errno::NAMETOOLONG));
    assert_eq!((names(&only, NodeId::ROOT), names(&only, d)), (vec!["d".to_owned()], vec!["a".to_owned()]));
    // What is nowhere is not missed.
    assert_eq!(only.missed(), [&b"/d/b"[..], b"/d/e", b"/other"]);
    assert_eq!(only.absence_valid(d), only.below.absence_valid(d));
}

#[test]
fn others_are_shown_if_asked_for() {
    let mut shown = Shown::nothing().and_all_others();
    shown.show(b"/d/a");
    shown.hide(b"d/e/");
    let only = Only::of(below(), shown);
    let d = find(&only, "d").unwrap().node;
    assert_eq!(names(&only, NodeId::ROOT), ["d", "other"]);
    assert_eq!(names(&only, d), ["a", "b"]);
    assert_eq!(find(&only, "d/e").map(|entry| entry.node), Err(Errno::NOENT));
    assert!(find(&only, "d/b").is_ok() && find(&only, "other").is_ok());
    assert_eq!(only.missed(), [[0; 0]; 0]);
}

#[test]
fn a_listing_has_the_names_that_were_recorded() {
    let mut shown = Shown::nothing();
    shown.show(b"/d/a");
    shown.hide(b"/d/e");
    shown.list(b"/d", [&b"b"[..], b"e", b"gone"].into_iter());
    let d = |only: &Only| find(only, "d").unwrap().node;
    let only = Only::of(below(), shown.clone());
    // `b` is listed, but was not looked up.
    assert_eq!(names(&only, d(&only)), ["a", "b"]);
    assert!(find(&only, "d/b").is_err());
    let all = Only::of(below(), shown.and_all_others());
    assert_eq!(names(&all, d(&all)), ["a", "b"]);
    let mut none = Shown::nothing();
    none.show(b"/d");
    none.list(b"/d", [].into_iter());
    let only = Only::of(below(), none);
    assert_eq!(names(&only, d(&only)), [""; 0]);
}

#[test]
fn a_directory_has_the_time_that_was_recorded() {
    let mtime = Timestamp { seconds: 5, nanoseconds: 6 };
    let was = Identity { inode: 1, mode: libc::S_IFDIR | 0o755, size: 7, mtime };
    let mut shown = Shown::nothing();
    for path in [&b"/d"[..], b"/d/a", b""] {
        shown.show_directory(path, &was);
    }
    let only = Only::of(below(), shown);
    let d = find(&only, "d").unwrap();
    for attributes in [
        d.attributes,
        only.attributes(&ME, d.node, None).unwrap(),
        only.peek_attributes(&ME, NodeId::ROOT, None).unwrap(),
        only.parent(&ME, d.node).unwrap().attributes,
    ] {
        assert_eq!((attributes.mtime, attributes.size), (mtime, 7));
    }
    assert_eq!(find(&only, "d/a").unwrap().attributes.size, 0);
}

#[test]
fn nothing_is_changed() {
    let only = Only::of(below(), Shown::nothing().and_all_others());
    let a = find(&only, "d/a").unwrap().node;
    assert_eq!(only.open(&ME, a, libc::O_RDWR as u32).map(drop), Err(Errno::ROFS));
    assert_eq!(only.open(&ME, a, READ | libc::O_TRUNC as u32).map(drop), Err(Errno::ROFS));
    assert_eq!(only.create(&ME, NodeId::ROOT, b"x", &FILE, READ).map(drop), Err(Errno::ROFS));
    assert_eq!(only.create_unnamed(&ME, NodeId::ROOT, &FILE, READ).map(drop), Err(Errno::ROFS));
    assert_eq!(only.unlink(&ME, NodeId::ROOT, b"other"), Err(Errno::ROFS));
    assert_eq!(only.fallocate(&ME, a, HandleId::default(), 0, 0, 1), Err(Errno::ROFS));
    assert!(find(&only, "other").is_ok());
}

#[test]
fn look_ups_are_counted_below() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("d/e")).unwrap();
    fs::write(dir.path().join("d/hidden"), "x").unwrap();
    let host = Arc::new(HostDirectory::new(dir.path(), HostOptions::default()).unwrap());
    let mut shown = Shown::nothing();
    shown.show(b"/d/e");
    let only = Only::of(host.clone(), shown);
    let d = only.lookup(&ME, NodeId::ROOT, b"d").unwrap().node;
    assert_eq!(only.lookup(&ME, NodeId::ROOT, b"d").unwrap().node, d);
    let e = only.lookup(&ME, d, b"e").unwrap().node;
    assert_eq!(only.parent(&ME, e).unwrap().node, d);
    // The adapter's own look-up is dropped.
    assert!(only.lookup(&ME, d, b"hidden").is_err());
    only.forget(e, 1);
    assert_eq!(host.attributes(&ME, e, None).map(drop), Err(Errno::STALE));
    only.forget(d, 2);
    assert_eq!((only.spot(d).is_some(), only.lookup(&ME, d, b"e").map(drop).is_ok()), (true, true));
    only.disconnected();
    assert_eq!((only.spot(d), host.attributes(&ME, d, None).map(drop)), (None, Err(Errno::STALE)));
}

#[test]
fn an_overlay_takes_the_changes() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["seen", "hidden"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let lower = HostDirectory::new(dir.path(), HostOptions { read_only: true, ..HostOptions::default() }).unwrap();
    let mut shown = Shown::nothing();
    shown.show(b"/seen");
    let only = Arc::new(Only::of(Arc::new(lower), shown));
    let overlay = Overlay::new(only.clone(), Arc::new(MemoryFiles::new(1 << 20)), true).unwrap();
    // What is hidden can be made anew.
    let (made, opened) = overlay.create(&ME, NodeId::ROOT, b"hidden", &FILE, libc::O_RDWR as u32).unwrap();
    assert_eq!(made.attributes.size, 0);
    overlay.release(made.node, opened.handle, None);
    overlay.unlink(&ME, NodeId::ROOT, b"seen").unwrap();
    assert_eq!(names(&overlay, NodeId::ROOT), ["hidden"]);
    overlay.unlink(&ME, NodeId::ROOT, b"hidden").unwrap();
    assert_eq!(names(&overlay, NodeId::ROOT), [""; 0]);
    for name in ["seen", "hidden"] {
        assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), name);
    }
    assert_eq!(only.missed(), [b"/hidden"]);
}
