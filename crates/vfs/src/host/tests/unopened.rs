//! Files that are used without being opened: they have no handle, and perhaps no name any more.

use super::*;

#[test]
fn what_nobody_changes_is_read_without_being_opened() {
    let scene = Scene::with(HostOptions { changes: Changes::None, ..HostOptions::default() });
    scene.file("a", "content");
    let a = scene.node("a");
    assert_eq!(scene.layer.open(&ME, a, READ).unwrap_err(), Errno::NOSYS);
    assert_eq!(scene.layer.open(&ME, a, WRITE).unwrap_err(), Errno::ROFS);
    for _ in 0..2 {
        assert_eq!(scene.read(a, HandleId::default(), 3, 100).unwrap(), b"tent");
    }
    assert_eq!(scene.layer.seek(&ME, a, HandleId::default(), 1, libc::SEEK_DATA as u32), Ok(1));
    assert!(scene.read(NodeId::ROOT, HandleId::default(), 0, 1).is_err());
}

#[test]
fn files_are_used_without_being_opened_even_when_their_names_are_gone() {
    let options = HostOptions { changes: Changes::Guest, without_opening: true, ..HostOptions::default() };
    // So few descriptors that none is kept for long.
    let scene = Scene::with(HostOptions { descriptors: Some(64), ..options });
    let none = HandleId::default();
    let (a, handle) = scene.create(NodeId::ROOT, "a");
    assert_eq!(handle, none);
    assert_eq!(scene.layer.open(&ME, a, WRITE).unwrap_err(), Errno::NOSYS);
    assert_eq!(scene.write(a, none, 3, "content"), Ok(7));
    assert_eq!(scene.read(a, none, 0, 100).unwrap(), b"\0\0\0content");
    assert_eq!(scene.layer.seek(&ME, a, none, 1, libc::SEEK_HOLE as u32), Ok(10));
    scene.layer.fallocate(&ME, a, none, 0, 0, 20).unwrap();
    scene.layer.fsync(&ME, a, none, false).unwrap();
    // Nothing stays open for writing: it could not be executed.
    assert!(fs::File::create_new(scene.path().join("b")).is_ok());
    let b = scene.node("b");
    assert_eq!(scene.layer.copy_range(&ME, (a, none, 3), (b, none, 0), 7), Ok(7));
    // By a user, whose changes of content clear privileges.
    fs::set_permissions(scene.path().join("b"), fs::Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(scene.layer.copy_range(&user(1, 1), (a, none, 3), (b, none, 0), 7), Ok(7));
    assert_eq!(scene.attributes(b).unwrap().mode & 0o7777, 0o755);
    fs::set_permissions(scene.path().join("b"), fs::Permissions::from_mode(0o4755)).unwrap();
    scene.layer.fallocate(&user(1, 1), b, none, 0, 0, 7).unwrap();
    assert_eq!(scene.attributes(b).unwrap().mode & 0o7777, 0o755);
    scene.layer.unlink(&ME, NodeId::ROOT, b"a").unwrap();
    assert_eq!(scene.write(b, none, 0, "over"), Ok(4));
    scene.file("c", "new");
    scene.layer.rename(&ME, NodeId::ROOT, b"c", NodeId::ROOT, b"b", 0).unwrap();
    let (unnamed, _) = scene.layer.create_unnamed(&ME, NodeId::ROOT, &NEW_FILE, WRITE).unwrap();
    for number in 0..200 {
        scene.file(&number.to_string(), "x");
        assert_eq!(scene.read(scene.node(&number.to_string()), none, 0, 9).unwrap(), b"x");
    }
    assert_eq!(scene.read(a, none, 3, 7).unwrap(), b"content");
    assert_eq!(scene.write(a, none, 0, "abc"), Ok(3));
    assert_eq!(scene.attributes(a).unwrap().links, 0);
    assert_eq!(scene.read(b, none, 0, 9).unwrap(), b"overent");
    assert_eq!(scene.write(unnamed.node, none, 0, "x"), Ok(1));
    assert_eq!(scene.read(unnamed.node, none, 0, 9).unwrap(), b"x");
    // Until nobody can use them any more.
    scene.layer.forget(a, 1);
    assert_eq!(scene.read(a, none, 0, 9).unwrap_err(), Errno::STALE);
    let open = || fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_a = |entry: &fs::DirEntry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        target.starts_with(scene.path()) && target.to_string_lossy().ends_with("/a (deleted)")
    };
    assert_eq!(open().filter(is_a).count(), 0);

    scene.layer.forget(unnamed.node, 1);
    // A file that gets its name later needs no descriptor of its own from then on.
    let (named, _) = scene.layer.create_unnamed(&ME, NodeId::ROOT, &NEW_FILE, WRITE).unwrap();
    assert_eq!(scene.write(named.node, none, 0, "named"), Ok(5));
    let is_unnamed = |entry: &fs::DirEntry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        target.starts_with(scene.path()) && target.to_string_lossy().contains("/#")
    };
    assert_eq!(open().filter(is_unnamed).count(), 1);
    scene.layer.link(&ME, named.node, NodeId::ROOT, b"named").unwrap();
    assert_eq!(open().filter(is_unnamed).count(), 0);
    assert_eq!(scene.read(named.node, none, 0, 9).unwrap(), b"named");

    assert!(scene.read(NodeId::ROOT, none, 0, 1).is_err());
    rustix::fs::mknodat(rustix::fs::CWD, scene.path().join("fifo"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    let fifo = scene.node("fifo");
    assert!(scene.read(fifo, none, 0, 1).is_err() && scene.write(fifo, none, 0, "x").is_err());
}
