//! Tests names and numbers that no honest client sends, and a host that changes meanwhile.

use std::os::unix::fs::symlink;

use super::*;

const NAMES: [&[u8]; 9] = [b"", b".", b"..", b"/", b"/etc", b"a/b", b"../x", b"a\0b", &[b'x'; 256]];

#[test]
fn no_name_leads_out_of_its_directory() {
    let scene = Scene::new();
    scene.file("a", "");
    let (root, a, layer) = (NodeId::ROOT, scene.node("a"), &scene.layer);
    for name in NAMES {
        let refused = [
            layer.lookup(&ME, root, name).map(|_| ()),
            layer.make_node(&ME, root, name, &NEW_FILE).map(|_| ()),
            layer.make_directory(&ME, root, name, &NEW_DIRECTORY).map(|_| ()),
            layer.make_symlink(&ME, root, name, b"target").map(|_| ()),
            layer.link(&ME, a, root, name).map(|_| ()),
            layer.unlink(&ME, root, name),
            layer.remove_directory(&ME, root, name),
            layer.rename(&ME, root, name, root, b"b", 0),
            layer.rename(&ME, root, b"a", root, name, 0),
            layer.create(&ME, root, name, &NEW_FILE, WRITE).map(|_| ()),
        ];
        for (number, result) in refused.into_iter().enumerate() {
            assert!(matches!(result, Err(Errno::INVAL | Errno::NAMETOOLONG)), "number {number}: {result:?}");
        }
    }
    assert_eq!(fs::read_dir(scene.path()).unwrap().count(), 1);
}

#[test]
fn a_symbolic_link_is_never_followed() {
    let scene = Scene::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    symlink(outside.path(), scene.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), scene.path().join("file")).unwrap();
    let (out, file) = (scene.node("out"), scene.node("file"));
    assert_eq!(scene.lookup(out, "secret").unwrap_err(), Errno::NOTDIR);
    assert_eq!(scene.layer.open(&ME, file, READ).unwrap_err(), Errno::LOOP);
    assert_eq!(scene.layer.create(&ME, NodeId::ROOT, b"file", &NEW_FILE, WRITE).unwrap_err(), Errno::EXIST);
    assert!(scene.set(file, SetAttributes { size: Some(0), ..SetAttributes::default() }).is_err());
    // A directory that becomes a link while it is known.
    fs::create_dir(scene.path().join("d")).unwrap();
    fs::create_dir(scene.path().join("d/e")).unwrap();
    let e = scene.node("d/e");
    fs::remove_dir(scene.path().join("d/e")).unwrap();
    symlink(outside.path(), scene.path().join("d/e")).unwrap();
    assert!(scene.lookup(e, "secret").is_err());
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
}

#[test]
fn unknown_numbers_are_errors() {
    let scene = Scene::new();
    scene.file("a", "");
    let a = scene.node("a");
    let handle = scene.open(a, READ);
    for number in [0, 2 + a.0, u64::MAX, 1 << 32, a.0 | 1 << 63] {
        let node = NodeId(number);
        assert_eq!(scene.lookup(node, "x").unwrap_err(), Errno::STALE);
        assert_eq!(scene.attributes(node).unwrap_err(), Errno::STALE);
        assert_eq!(scene.layer.open(&ME, node, READ).unwrap_err(), Errno::STALE);
        assert_eq!(scene.layer.read_link(&ME, node).unwrap_err(), Errno::STALE);
        assert_eq!(scene.layer.open_directory(&ME, node).unwrap_err(), Errno::STALE);
        assert_eq!(scene.read(node, handle, 0, 1).unwrap_err(), Errno::BADF);
        assert_eq!(scene.read(a, HandleId(number), 0, 1).unwrap_err(), Errno::BADF);
        scene.layer.forget(node, u64::MAX);
        scene.layer.release(node, handle, None);
        scene.layer.release(a, HandleId(number), None);
    }
    assert_eq!(scene.lookup(a, "x").unwrap_err(), Errno::NOTDIR);
    assert_eq!(scene.layer.open(&ME, NodeId::ROOT, READ).unwrap_err(), Errno::ISDIR);
    assert_eq!(scene.read(a, handle, u64::MAX, 9).unwrap_err(), Errno::INVAL);
    assert_eq!(scene.read(a, handle, 0, 9).unwrap(), b"");
    assert_eq!(Listing::of(&scene.layer, &ME, (a, handle), 0, (9, true)).err(), Some(Errno::NOTDIR));
    assert_eq!(scene.layer.rename(&ME, NodeId::ROOT, b"a", NodeId::ROOT, b"b", 0xff), Err(Errno::INVAL));
}

#[test]
fn forgetting_more_than_there_was_is_forgetting_all() {
    let scene = Scene::new();
    fs::create_dir(scene.path().join("d")).unwrap();
    scene.file("d/a", "");
    let (d, a) = (scene.node("d"), scene.node("d/a"));
    scene.layer.forget(NodeId::ROOT, u64::MAX);
    // The directory stays while something known lies in it.
    scene.layer.forget(d, u64::MAX);
    assert!(scene.attributes(a).is_ok());
    assert!(scene.attributes(d).is_ok());
    scene.layer.forget(a, u64::MAX);
    scene.layer.forget(a, 1);
    assert_eq!(scene.attributes(a).unwrap_err(), Errno::STALE);
    assert_eq!(scene.attributes(d).unwrap_err(), Errno::STALE);
    assert_eq!(read(&scene.layer.table).len(), 1);
    assert!(scene.attributes(NodeId::ROOT).is_ok());
    assert_ne!(scene.node("d"), d);
}

#[test]
fn a_client_that_is_gone_leaves_nothing() {
    let scene = Scene::with(HostOptions { locks: true, ..HostOptions::default() });
    fs::create_dir_all(scene.path().join("d/e")).unwrap();
    scene.file("d/e/a", "content");
    let a = scene.node("d/e/a");
    let handle = scene.open(a, READ);
    let lock = Lock { kind: crate::LockKind::Shared, start: 0, end: 9, pid: 1, whole_file: false };
    scene.layer.set_lock(&ME, a, handle, LockOwner(1), &lock, false).unwrap();
    scene.layer.open_directory(&ME, NodeId::ROOT).unwrap();
    scene.layer.disconnected();
    assert_eq!(read(&scene.layer.table).len(), 1);
    assert_eq!(scene.read(a, handle, 0, 1).unwrap_err(), Errno::BADF);
    assert_eq!(scene.attributes(a).unwrap_err(), Errno::STALE);
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    assert_eq!(open.filter(|path| path.starts_with(scene.path())).count(), 1);
    assert_ne!(scene.node("d/e/a"), a);
}

#[test]
fn directories_that_the_host_swaps_make_no_loop() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path().join("a/b/c")).unwrap();
    let (a, b) = (scene.node("a"), scene.node("a/b"));
    // So that there is a descriptor of it.
    scene.node("a/b/c");
    fs::rename(scene.path().join("a/b"), scene.path().join("b")).unwrap();
    fs::rename(scene.path().join("a"), scene.path().join("b/a")).unwrap();
    // By what is known, `b` still lies in `a`; now `a` is found in `b`.
    assert_eq!(scene.lookup(b, "a").unwrap().node, a);
    assert!(scene.lookup(a, "none").is_err());
    for node in [a, b, scene.node("b/c")] {
        scene.layer.forget(node, u64::MAX);
    }
    assert_eq!(read(&scene.layer.table).len(), 1);
}

#[test]
fn removed_directories_that_a_client_uses_leave_descriptors_for_others() {
    let scene = Scene::with(HostOptions { descriptors: Some(120), ..HostOptions::default() });
    let (layer, root) = (&scene.layer, NodeId::ROOT);
    let make = || layer.make_directory(&ME, root, b"d", &NEW_DIRECTORY).unwrap().node;
    let mut used = Vec::new();
    let refused = loop {
        used.push(make());
        if let Err(errno) = layer.remove_directory(&ME, root, b"d") {
            break errno;
        }
    };
    assert_eq!((refused, used.len()), (Errno::NFILE, 11));
    // What is used still is what it was, and what is forgotten makes room.
    assert!(used.iter().all(|node| scene.attributes(*node).is_ok()));
    layer.forget(used[3], 1);
    assert_eq!(layer.remove_directory(&ME, root, b"d"), Ok(()));
    assert_eq!(scene.layer.attributes(&ME, used[3], None).map(|_| ()), Err(Errno::STALE));
    make();
    assert_eq!(layer.remove_directory(&ME, root, b"d"), Err(Errno::NFILE));
}

#[test]
fn few_descriptors_are_enough_for_many_nodes() {
    for handles in [true, false] {
        let mut scene = Scene::with(HostOptions { descriptors: Some(100), ..HostOptions::default() });
        scene.layer.handles_work &= handles;
        for directory in 0..200 {
            let path = scene.path().join(format!("{directory}/x/y"));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("file"), directory.to_string()).unwrap();
        }
        let nodes: Vec<NodeId> = (0..200).map(|directory| scene.node(&format!("{directory}/x/y/file"))).collect();
        for (number, node) in nodes.iter().enumerate().rev() {
            let handle = scene.open(*node, READ);
            assert_eq!(scene.read(*node, handle, 0, 9).unwrap(), number.to_string().as_bytes());
            scene.layer.release(*node, handle, None);
        }
        let open =
            fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        let ours = open.filter(|path| path.starts_with(scene.path())).count();
        assert!(ours <= 52, "{ours} descriptors");
        // More open files than there may be.
        let opened: Vec<_> = nodes.iter().map(|node| scene.layer.open(&ME, *node, READ)).collect();
        assert!(opened.iter().filter(|result| result.is_ok()).count() >= 20);
        assert_eq!(*opened.last().unwrap(), Err(Errno::NFILE));
        assert!(scene.attributes(nodes[150]).is_ok());
    }
}
