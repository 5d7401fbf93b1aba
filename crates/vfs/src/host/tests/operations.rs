//! Each operation has the same effect as on the host itself.

use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

use super::*;
use crate::SetTime;

#[test]
fn a_file_is_made_written_read_and_removed() {
    let scene = Scene::new();
    let (node, handle) = scene.create(NodeId::ROOT, "a");
    assert_eq!(scene.write(node, handle, 0, "hello").unwrap(), 5);
    assert_eq!(scene.write(node, handle, 10, "x").unwrap(), 1);
    assert_eq!(fs::read(scene.path().join("a")).unwrap(), b"hello\0\0\0\0\0x");
    assert_eq!(scene.read(node, handle, 2, 100).unwrap(), b"llo\0\0\0\0\0x");
    assert_eq!(scene.attributes(node).unwrap().size, 11);
    assert_eq!(scene.lookup(NodeId::ROOT, "a").unwrap().node, node);
    scene.layer.unlink(&ME, NodeId::ROOT, b"a").unwrap();
    assert_eq!(scene.lookup(NodeId::ROOT, "a").unwrap_err(), Errno::NOENT);
    // Still open.
    assert_eq!(scene.read(node, handle, 0, 5).unwrap(), b"hello");
    assert_eq!(scene.attributes(node).unwrap().links, 0);
    let again = scene.open(node, READ);
    assert_eq!(scene.read(node, again, 0, 5).unwrap(), b"hello");
    for handle in [handle, again] {
        scene.layer.release(node, handle, None);
    }
    assert_eq!(scene.read(node, handle, 0, 5).unwrap_err(), Errno::BADF);
    scene.layer.forget(node, 2);
    assert_eq!(scene.attributes(node).unwrap_err(), Errno::STALE);
}

#[test]
fn directories_are_made_listed_and_removed() {
    for changes in [Changes::Host, Changes::Guest] {
        let scene = Scene::with(HostOptions { changes, ..HostOptions::default() });
        let made = scene.layer.make_directory(&ME, NodeId::ROOT, b"d", &NEW_DIRECTORY).unwrap();
        for number in 0..500 {
            scene.file(&format!("d/{number}"), "");
        }
        for (room, plus) in [(7, false), (7, true), (1000, true), (1, false)] {
            let mut names: Vec<String> = scene.list(made.node, room, plus).into_iter().map(|(name, _)| name).collect();
            names.sort();
            let mut expected: Vec<String> = (0..500).map(|number| number.to_string()).collect();
            expected.extend([".".to_owned(), "..".to_owned()]);
            expected.sort();
            assert_eq!(names, expected);
        }
        for (name, node) in scene.list(made.node, 100, true) {
            // A client that is the only one to change them has them cached already.
            let is_told = !name.starts_with('.') && changes == Changes::Host;
            assert_eq!(node.is_some(), is_told);
            if let Some(node) = node {
                assert_eq!(scene.lookup(made.node, &name).unwrap().node, node);
            }
        }
        assert_eq!(scene.layer.remove_directory(&ME, NodeId::ROOT, b"d").unwrap_err(), Errno::NOTEMPTY);
        for number in 0..500 {
            scene.layer.unlink(&ME, made.node, number.to_string().as_bytes()).unwrap();
        }
        scene.layer.remove_directory(&ME, NodeId::ROOT, b"d").unwrap();
        assert_eq!(scene.lookup(NodeId::ROOT, "d").unwrap_err(), Errno::NOENT);
        assert_eq!(scene.lookup(made.node, "0").unwrap_err(), Errno::NOENT);
    }
}

#[test]
fn nodes_of_every_kind_are_made() {
    let scene = Scene::new();
    let special = |name: &[u8], mode| {
        scene.layer.make_node(&ME, NodeId::ROOT, name, &NewNode { mode, umask: 0o022, device: 0x103 })
    };
    assert_eq!(special(b"file", libc::S_IFREG | 0o666).unwrap().attributes.mode, libc::S_IFREG | 0o644);
    special(b"fifo", libc::S_IFIFO | 0o600).unwrap();
    special(b"socket", libc::S_IFSOCK | 0o600).unwrap();
    assert!(fs::symlink_metadata(scene.path().join("fifo")).unwrap().file_type().is_fifo());
    if is_root() {
        let device = special(b"null", libc::S_IFCHR | 0o666).unwrap();
        assert_eq!(device.attributes.device, 0x103);
        assert_eq!(scene.layer.open(&ME, device.node, READ).unwrap_err(), Errno::NXIO);
    }
    for mode in [libc::S_IFDIR, libc::S_IFLNK] {
        assert_eq!(special(b"wrong", mode | 0o600).unwrap_err(), Errno::INVAL);
    }
    let link = scene.layer.make_symlink(&ME, NodeId::ROOT, b"link", b"/etc/../passwd").unwrap();
    assert_eq!(scene.layer.read_link(&ME, link.node).unwrap(), b"/etc/../passwd");
    assert_eq!(scene.layer.read_link(&ME, scene.node("file")).unwrap_err(), Errno::INVAL);
    for name in ["fifo", "socket", "link"] {
        let error = scene.layer.open(&ME, scene.node(name), WRITE).unwrap_err();
        assert!(matches!(error, Errno::NXIO | Errno::LOOP), "{name}: {error}");
    }
}

#[test]
fn attributes_are_set() {
    let scene = Scene::new();
    scene.file("a", "content");
    symlink("nowhere", scene.path().join("link")).unwrap();
    let (a, link) = (scene.node("a"), scene.node("link"));
    let time = |seconds| Some(SetTime::To(inarch_tree::Timestamp { seconds, nanoseconds: 5 }));
    let set = SetAttributes { mode: Some(0o4711), size: Some(3), mtime: time(-7), ..SetAttributes::default() };
    let attributes = scene.set(a, set).unwrap();
    assert_eq!((attributes.mode & 0o7777, attributes.size, attributes.mtime.seconds), (0o4711, 3, -7));
    let host = fs::metadata(scene.path().join("a")).unwrap();
    assert_eq!((host.mtime(), host.mtime_nsec(), host.len()), (-7, 5, 3));
    scene.set(a, SetAttributes { kill_privileges: true, ..SetAttributes::default() }).unwrap();
    assert_eq!(scene.attributes(a).unwrap().mode & 0o7777, 0o711);
    let now = SetAttributes { atime: Some(SetTime::Now), ..SetAttributes::default() };
    assert!(scene.set(a, now).unwrap().atime.seconds > 1_000_000_000);
    assert_eq!(scene.attributes(a).unwrap().mtime.seconds, -7);
    assert_eq!(scene.set(link, SetAttributes { mtime: time(9), ..SetAttributes::default() }).unwrap().mtime.seconds, 9);
    if is_root() {
        let owner = SetAttributes { uid: Some(77), gid: Some(88), ..SetAttributes::default() };
        for node in [a, link] {
            let attributes = scene.set(node, owner).unwrap();
            assert_eq!((attributes.uid, attributes.gid), (77, 88));
        }
    }
    assert_eq!(
        scene.set(a, SetAttributes { size: Some(u64::MAX), ..SetAttributes::default() }).unwrap_err(),
        Errno::FBIG
    );
    assert!(scene.set(NodeId::ROOT, SetAttributes { size: Some(1), ..SetAttributes::default() }).is_err());
}

#[test]
fn a_renamed_node_is_found_at_its_new_place() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path().join("d/e")).unwrap();
    scene.file("d/e/a", "a");
    scene.file("b", "b");
    let (d, e, a, b) = (scene.node("d"), scene.node("d/e"), scene.node("d/e/a"), scene.node("b"));
    let rename = |from: (NodeId, &str), to: (NodeId, &str), flags| {
        scene.layer.rename(&ME, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags)
    };
    rename((d, "e"), (NodeId::ROOT, "f"), 0).unwrap();
    assert_eq!(scene.node("f"), e);
    assert_eq!(scene.attributes(a).unwrap().size, 1);
    assert_eq!(scene.node("f/a"), a);
    assert_eq!(rename((NodeId::ROOT, "b"), (e, "a"), libc::RENAME_NOREPLACE).unwrap_err(), Errno::EXIST);
    rename((NodeId::ROOT, "b"), (e, "a"), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((scene.node("b"), scene.node("f/a")), (a, b));
    let handle = scene.open(a, READ);
    rename((e, "a"), (NodeId::ROOT, "b"), 0).unwrap();
    assert_eq!(scene.node("b"), b);
    assert_eq!(scene.read(a, handle, 0, 9).unwrap(), b"a");
    assert_eq!(scene.attributes(a).unwrap().links, 0);
    assert_eq!(rename((e, "none"), (d, "x"), 0).unwrap_err(), Errno::NOENT);
    assert_eq!(scene.layer.parent(&ME, e).unwrap().node, NodeId::ROOT);
    assert_eq!(scene.layer.parent(&ME, NodeId::ROOT).unwrap().node, NodeId::ROOT);
}

#[test]
fn hard_links_are_one_node_and_each_name_reaches_it() {
    let scene = Scene::new();
    scene.file("a", "content");
    let a = scene.node("a");
    for name in ["b", "c"] {
        let entry = scene.layer.link(&ME, a, NodeId::ROOT, name.as_bytes()).unwrap();
        assert_eq!(entry.node, a);
    }
    assert_eq!(scene.attributes(a).unwrap().links, 3);
    scene.layer.unlink(&ME, NodeId::ROOT, b"c").unwrap();
    assert_eq!(scene.attributes(a).unwrap().links, 2);
    // By somebody else: the name that was found last is gone, another one is not.
    scene.node("a");
    fs::remove_file(scene.path().join("a")).unwrap();
    let handle = scene.open(a, READ);
    assert_eq!(scene.read(a, handle, 0, 100).unwrap(), b"content");
}

#[test]
fn a_file_without_a_name_gets_one() {
    let scene = Scene::new();
    let (entry, opened) = scene.layer.create_unnamed(&ME, NodeId::ROOT, &NEW_FILE, WRITE).unwrap();
    scene.write(entry.node, opened.handle, 0, "late").unwrap();
    assert_eq!(entry.attributes.links, 0);
    scene.layer.link(&ME, entry.node, NodeId::ROOT, b"named").unwrap();
    assert_eq!(fs::read(scene.path().join("named")).unwrap(), b"late");
    assert_eq!(scene.node("named"), entry.node);
}

#[test]
fn content_has_holes_and_can_be_allocated_copied_and_appended_to() {
    let scene = Scene::new();
    let (a, handle) = scene.create(NodeId::ROOT, "a");
    let block = 1 << 16;
    scene.layer.fallocate(&ME, a, handle, 0, 0, 3 * block).unwrap();
    assert_eq!(scene.attributes(a).unwrap().size, 3 * block);
    scene.write(a, handle, 0, &"x".repeat(3 * block as usize)).unwrap();
    let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
    scene.layer.fallocate(&ME, a, handle, punch, block, block).unwrap();
    let seek = |offset, whence: i32| scene.layer.seek(&ME, a, handle, offset, whence as u32);
    assert_eq!(seek(0, libc::SEEK_HOLE), Ok(block));
    assert_eq!(seek(block, libc::SEEK_DATA), Ok(2 * block));
    assert_eq!(seek(9 * block, libc::SEEK_DATA), Err(Errno::NXIO));
    assert_eq!(seek(0, libc::SEEK_END), Err(Errno::INVAL));
    let (b, other) = scene.create(NodeId::ROOT, "b");
    assert_eq!(scene.layer.copy_range(&ME, (a, handle, 2 * block), (b, other, 5), 10), Ok(10));
    assert_eq!(scene.read(b, other, 0, 100).unwrap(), b"\0\0\0\0\0xxxxxxxxxx");
    scene.layer.fsync(&ME, b, other, false).unwrap();
    scene.layer.fsync(&ME, NodeId::ROOT, HandleId::default(), true).unwrap();
    scene.layer.sync(&ME).unwrap();

    let appending = scene.open(b, WRITE | libc::O_APPEND as u32);
    scene.write(b, appending, 0, "end").unwrap();
    assert_eq!(scene.attributes(b).unwrap().size, 18);
    scene.write_as(b, appending, 0, "front", WriteKind { cached: true, ..WriteKind::default() }).unwrap();
    assert_eq!(scene.read(b, other, 0, 100).unwrap(), b"frontxxxxxxxxxxend");
}

#[test]
fn extended_attributes_are_kept_on_every_kind_of_node() {
    let scene = Scene::new();
    scene.file("a", "");
    symlink("nowhere", scene.path().join("link")).unwrap();
    let a = scene.node("a");
    let set = |node, name: &[u8], flags| scene.layer.set_xattr(&ME, node, name, b"value", flags, false);
    set(a, b"user.x", libc::XATTR_CREATE as u32).unwrap();
    assert_eq!(set(a, b"user.x", libc::XATTR_CREATE as u32), Err(Errno::EXIST));
    assert_eq!(scene.layer.get_xattr(&ME, a, b"user.x").unwrap(), b"value");
    assert_eq!(scene.layer.list_xattrs(&ME, a).unwrap(), b"user.x\0");
    scene.layer.remove_xattr(&ME, a, b"user.x").unwrap();
    assert_eq!(scene.layer.get_xattr(&ME, a, b"user.x").unwrap_err(), Errno::NODATA);
    if is_root() {
        let link = scene.node("link");
        set(link, b"trusted.x", 0).unwrap();
        assert_eq!(scene.layer.get_xattr(&ME, link, b"trusted.x").unwrap(), b"value");
    }
    for name in [&b""[..], b"user.\0", b"nonsense", &[b'x'; 300]] {
        assert!(scene.layer.get_xattr(&ME, a, name).is_err());
        assert!(set(a, name, 0).is_err());
    }
}

#[test]
fn files_belong_to_who_makes_them() {
    if !is_root() {
        return println!("skipped: files_belong_to_who_makes_them: only root gives files to others");
    }
    let scene = Scene::new();
    let file = |context: &Context<'_>, parent, name: &[u8], mode, umask| {
        let new = NewNode { mode: libc::S_IFREG | mode, umask, device: 0 };
        scene.layer.create(context, parent, name, &new, WRITE).unwrap().0.attributes
    };
    let mine = file(&user(1000, 100), NodeId::ROOT, b"mine", 0o6777, 0o027);
    assert_eq!((mine.uid, mine.gid, mine.mode & 0o7777), (1000, 100, 0o6750));
    let theirs = file(&ME, NodeId::ROOT, b"theirs", 0o666, 0);
    assert_eq!((theirs.uid, theirs.gid, theirs.mode & 0o7777), (0, 0, 0o666));

    // A directory whose group new files inherit: a creator who is not a member does not get the set-group-ID bit.
    let shared = scene.layer.make_directory(&ME, NodeId::ROOT, b"shared", &NEW_DIRECTORY).unwrap().node;
    let set = SetAttributes { gid: Some(200), ..SetAttributes::default() };
    scene.set(shared, set).unwrap();
    scene.set(shared, SetAttributes { mode: Some(0o2777), ..SetAttributes::default() }).unwrap();
    let stranger = file(&user(1000, 100), shared, b"stranger", 0o2777, 0);
    assert_eq!((stranger.gid, stranger.mode & 0o7777), (200, 0o777));
    let member = Context { supplementary_group: Some(200), ..user(1000, 100) };
    assert_eq!(file(&member, shared, b"member", 0o2777, 0).mode & 0o7777, 0o2777);
    let inner = scene.layer.make_directory(&user(1000, 100), shared, b"inner", &NEW_DIRECTORY).unwrap();
    assert_eq!((inner.attributes.uid, inner.attributes.gid), (1000, 200));
    assert_eq!(inner.attributes.mode & 0o7777, 0o2755);
    let link = scene.layer.make_symlink(&user(7, 8), NodeId::ROOT, b"link", b"x").unwrap().attributes;
    assert_eq!((link.uid, link.gid), (7, 8));
}

#[test]
fn a_default_acl_decides_instead_of_the_umask() {
    let scene = Scene::new();
    let directory = scene.layer.make_directory(&ME, NodeId::ROOT, b"d", &NEW_DIRECTORY).unwrap().node;
    // Version 2: user::rwx, group::rwx, other::---.
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions) in [(1u16, 7u16), (4, 7), (0x20, 0)] {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&permissions.to_le_bytes());
        acl.extend_from_slice(&u32::MAX.to_le_bytes());
    }
    match scene.layer.set_xattr(&ME, directory, b"system.posix_acl_default", &acl, 0, false) {
        Err(Errno::OPNOTSUPP) => {
            return println!(
                "skipped: a_default_acl_decides_instead_of_the_umask: no ACLs on the file system of temporary files"
            );
        }
        result => result.unwrap(),
    }
    let new = NewNode { mode: libc::S_IFREG | 0o666, umask: 0o077, device: 0 };
    let made = scene.layer.create(&ME, directory, b"f", &new, WRITE).unwrap().0;
    assert_eq!(made.attributes.mode & 0o777, 0o660);
    let plain = scene.layer.create(&ME, NodeId::ROOT, b"f", &new, WRITE).unwrap().0;
    assert_eq!(plain.attributes.mode & 0o777, 0o600);
}

#[test]
fn a_read_only_directory_is_not_changed() {
    let scene = Scene::with(HostOptions { read_only: true, ..HostOptions::default() });
    scene.file("a", "content");
    let a = scene.node("a");
    let refused = [
        scene.layer.create(&ME, NodeId::ROOT, b"b", &NEW_FILE, WRITE).map(|_| ()),
        scene.layer.make_directory(&ME, NodeId::ROOT, b"b", &NEW_DIRECTORY).map(|_| ()),
        scene.layer.make_node(&ME, NodeId::ROOT, b"b", &NEW_FILE).map(|_| ()),
        scene.layer.make_symlink(&ME, NodeId::ROOT, b"b", b"x").map(|_| ()),
        scene.layer.link(&ME, a, NodeId::ROOT, b"b").map(|_| ()),
        scene.layer.unlink(&ME, NodeId::ROOT, b"a"),
        scene.layer.remove_directory(&ME, NodeId::ROOT, b"a"),
        scene.layer.rename(&ME, NodeId::ROOT, b"a", NodeId::ROOT, b"b", 0),
        scene.layer.open(&ME, a, WRITE).map(|_| ()),
        scene.layer.open(&ME, a, READ | libc::O_TRUNC as u32).map(|_| ()),
        scene.set(a, SetAttributes { size: Some(0), ..SetAttributes::default() }).map(|_| ()),
        scene.layer.set_xattr(&ME, a, b"user.x", b"", 0, false),
        scene.layer.remove_xattr(&ME, a, b"user.x"),
        scene.layer.create_unnamed(&ME, NodeId::ROOT, &NEW_FILE, WRITE).map(|_| ()),
    ];
    for (number, result) in refused.into_iter().enumerate() {
        assert_eq!(result, Err(Errno::ROFS), "number {number}");
    }
    // Nor by what a refused change of content clears.
    fs::set_permissions(scene.path().join("a"), fs::Permissions::from_mode(0o6755)).unwrap();
    let handle = scene.open(a, READ);
    let kill = WriteKind { cached: false, kill_privileges: true };
    let somebody = user(1, 1);
    let refused = [
        scene.write(a, handle, 0, "x").map(|_| ()),
        scene.write_as(a, handle, 0, "x", kill).map(|_| ()),
        scene.layer.copy_range(&somebody, (a, handle, 0), (a, handle, 0), 3).map(|_| ()),
    ];
    assert_eq!(refused, [Err(Errno::BADF); 3]);
    assert_eq!(scene.layer.fallocate(&somebody, a, handle, 0, 0, 20), Err(Errno::ROFS));
    assert_eq!(scene.read(a, handle, 0, 9).unwrap(), b"content");
    let unopened = Scene::with(HostOptions { changes: Changes::None, ..HostOptions::default() });
    unopened.file("a", "content");
    fs::set_permissions(unopened.path().join("a"), fs::Permissions::from_mode(0o6755)).unwrap();
    let (a, none) = (unopened.node("a"), HandleId::default());
    assert_eq!(unopened.write_as(a, none, 0, "x", kill), Err(Errno::ROFS));
    assert_eq!(unopened.layer.copy_range(&somebody, (a, none, 0), (a, none, 0), 3), Err(Errno::ROFS));
    assert_eq!(unopened.layer.fallocate(&somebody, a, none, 0, 0, 20), Err(Errno::ROFS));
    for scene in [scene, unopened] {
        let there = fs::metadata(scene.path().join("a")).unwrap();
        assert_eq!((there.mode() & 0o7777, there.len()), (0o6755, 7));
    }
}

#[test]
fn who_alone_changes_a_directory_is_not_told_again_what_it_knows() {
    for (changes, told) in [(Changes::Guest, 2), (Changes::Host, 3)] {
        let scene = Scene::with(HostOptions { changes, ..HostOptions::default() });
        for name in ["a", "b", "c"] {
            scene.file(name, "");
        }
        let a = scene.node("a");
        let count = |list: &[(String, Option<NodeId>)]| list.iter().filter(|(_, node)| node.is_some()).count();
        let listed = scene.list(NodeId::ROOT, 10, true);
        assert_eq!((listed.len(), count(&listed)), (5, told), "{changes:?}");
        // One that it has forgotten is news.
        scene.layer.forget(a, if changes == Changes::Host { 2 } else { 1 });
        let listed = scene.list(NodeId::ROOT, 10, true);
        assert_eq!((listed.len(), count(&listed)), (5, if changes == Changes::Host { 3 } else { 1 }), "{changes:?}");
    }
}

#[test]
fn a_directory_is_used_when_its_name_is_gone() {
    for changes in [Changes::Host, Changes::Guest] {
        let scene = Scene::with(HostOptions { changes, ..HostOptions::default() });
        for name in ["removed", "replaced", "other"] {
            fs::create_dir(scene.path().join(name)).unwrap();
        }
        let (removed, replaced) = (scene.node("removed"), scene.node("replaced"));
        scene.layer.remove_directory(&ME, NodeId::ROOT, b"removed").unwrap();
        scene.layer.rename(&ME, NodeId::ROOT, b"other", NodeId::ROOT, b"replaced", 0).unwrap();
        for node in [removed, replaced] {
            assert_eq!(scene.attributes(node).unwrap().links, 0);
            assert_eq!(scene.lookup(node, "file").unwrap_err(), Errno::NOENT);
            assert_eq!(scene.layer.create(&ME, node, b"file", &NEW_FILE, WRITE).unwrap_err(), Errno::NOENT);
            scene.layer.forget(node, 1);
            assert_eq!(scene.attributes(node).unwrap_err(), Errno::STALE);
        }
    }
}

#[test]
fn what_the_host_changes_is_seen() {
    let scene = Scene::new();
    fs::create_dir(scene.path().join("d")).unwrap();
    scene.file("d/a", "old");
    let (d, a) = (scene.node("d"), scene.node("d/a"));
    // Another file in its place; no descriptor of it was kept.
    scene.file("new", "newer");
    fs::rename(scene.path().join("new"), scene.path().join("d/a")).unwrap();
    assert_eq!(scene.attributes(a).unwrap_err(), Errno::STALE);
    let new = scene.node("d/a");
    assert_ne!(new, a);
    assert_eq!(scene.attributes(new).unwrap().size, 5);
    // A directory that was renamed stays what it is, by its kept descriptor.
    fs::rename(scene.path().join("d"), scene.path().join("e")).unwrap();
    assert_eq!(scene.lookup(d, "a").unwrap().node, new);
    assert_eq!(scene.node("e"), d);
    fs::remove_file(scene.path().join("e/a")).unwrap();
    assert_eq!(scene.lookup(d, "a").unwrap_err(), Errno::NOENT);
}

#[test]
fn one_file_stands_for_all_handles_of_a_node() {
    let scene = Scene::new();
    scene.file("a", "content");
    let a = scene.node("a");
    let (first, second) = (scene.open(a, READ), scene.open(a, WRITE));
    let shared = scene.layer.host_file(a, first).unwrap();
    assert!(Arc::ptr_eq(&shared, &scene.layer.host_file(a, second).unwrap()));
    assert!(scene.layer.host_file(NodeId::ROOT, first).is_none());
    assert!(scene.layer.statistics(&ME, a).unwrap().blocks > 0);
}
