//! What is mounted beneath the directory.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::super::ahead::{Ahead, Bounds};
use super::*;

/// A mount that ends with the test.
struct Mount(PathBuf);

impl Mount {
    fn new(arguments: &[&str], point: PathBuf) -> Mount {
        let status = Command::new("mount").args(arguments).arg(&point).status().unwrap();
        assert!(status.success(), "mount {arguments:?}: {status}");
        Mount(point)
    }

    fn end(self) {
        // Not lazily: nothing of ours may keep it. But a process that another test starts has our descriptors until it runs its program.
        let ended = (0..50).any(|attempt| {
            thread::sleep(Duration::from_millis(attempt * 4));
            Command::new("umount").arg(&self.0).output().is_ok_and(|output| output.status.success())
        });
        assert!(ended, "{:?} cannot be unmounted", self.0);
        std::mem::forget(self);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A directory with a tmpfs at `other`, and its own `source` once more at `bind`.
fn scene(changes: Changes, submounts: Submounts) -> Option<(Scene, Mount, Mount)> {
    if !is_root() {
        println!("skipped: {}: only root mounts", std::thread::current().name().unwrap_or("a test"));
        return None;
    }
    let scene = Scene::with(HostOptions { changes, submounts, ..HostOptions::default() });
    for name in ["source", "other", "bind"] {
        fs::create_dir(scene.path().join(name)).unwrap();
    }
    scene.file("source/file", "x");
    let other = Mount::new(&["-t", "tmpfs", "-o", "mode=711", "tmpfs"], scene.path().join("other"));
    scene.file("other/inside", "x");
    let source = scene.path().join("source");
    let bind = Mount::new(&["--bind", source.to_str().unwrap()], scene.path().join("bind"));
    Some((scene, other, bind))
}

#[test]
fn a_mount_point_is_an_empty_directory_that_nobody_changes() {
    for changes in [Changes::Host, Changes::Guest, Changes::None] {
        let Some((scene, other, bind)) = scene(changes, Submounts::Empty) else { return };
        let names = |node| {
            let mut names: Vec<_> = scene.list(node, 9, true).into_iter().map(|(name, _)| name).collect();
            names.sort();
            names
        };
        assert_eq!(names(scene.node("source")), [".", "..", "file"]);
        for name in ["other", "bind"] {
            let node = scene.node(name);
            assert_eq!(names(node), [".", ".."], "{name}");
            assert_eq!(scene.lookup(node, "file").unwrap_err(), Errno::NOENT);
            assert_eq!(scene.lookup(node, "inside").unwrap_err(), Errno::NOENT);
            let attributes = scene.attributes(node).unwrap();
            assert!(!attributes.is_submount && attributes.mode & libc::S_IFMT == libc::S_IFDIR);
            let layer = &scene.layer;
            let refused = [
                layer.create(&ME, node, b"new", &NEW_FILE, WRITE).map(|_| ()),
                layer.make_directory(&ME, node, b"new", &NEW_DIRECTORY).map(|_| ()),
                layer.unlink(&ME, node, b"inside"),
                layer.rename(&ME, node, b"file", NodeId::ROOT, b"file", 0),
                scene.set(node, SetAttributes { mode: Some(0o700), ..SetAttributes::default() }).map(|_| ()),
                layer.set_xattr(&ME, node, b"user.a", b"b", 0, false),
                layer.remove_xattr(&ME, node, b"user.a"),
            ];
            assert_eq!(refused, [Err(Errno::ROFS); 7], "{name}");
            let gone = if changes == Changes::None { Errno::ROFS } else { Errno::BUSY };
            assert_eq!(layer.remove_directory(&ME, NodeId::ROOT, name.as_bytes()), Err(gone));
            assert_eq!(layer.get_xattr(&ME, node, b"user.a"), Err(Errno::NODATA));
            assert_eq!(layer.list_xattrs(&ME, node), Ok(Vec::new()));
            assert_eq!(layer.parent(&ME, node).unwrap().node, NodeId::ROOT);
            let blocks = |node| layer.statistics(&ME, node).unwrap().blocks;
            assert_eq!(blocks(node), blocks(NodeId::ROOT));
            assert_eq!(layer.fsync(&ME, node, HandleId::default(), false), Ok(()));
        }
        assert_eq!(scene.attributes(scene.node("other")).unwrap().mode & 0o7777, 0o711);
        // Nothing keeps them mounted. Afterwards the covered directories show.
        other.end();
        bind.end();
        assert_eq!(names(scene.node("bind")), [".", ".."]);
        if changes == Changes::Host {
            scene.create(scene.node("other"), "new");
            assert!(scene.path().join("other/new").exists());
        }
    }
}

#[test]
fn what_is_mounted_is_shown_where_that_is_asked_for() {
    for submounts in [Submounts::Merged, Submounts::Separate] {
        let Some((scene, _other, _bind)) = scene(Changes::Host, submounts) else { return };
        let is_submount = |path: &str| scene.attributes(scene.node(path)).unwrap().is_submount;
        let told = submounts == Submounts::Separate;
        assert_eq!((is_submount("other"), is_submount("bind")), (told, told));
        assert!(!is_submount("source") && !is_submount("other/inside") && !is_submount("bind/file"));
        // One file, found twice; and two directories, each with a parent of its own, that the host shows as one.
        assert_eq!(scene.node("source/file"), scene.node("bind/file"));
        assert_ne!(scene.node("source"), scene.node("bind"));
        let inode = |path: &str| scene.attributes(scene.node(path)).unwrap().inode;
        assert_eq!(inode("source"), inode("bind"));
        scene.create(scene.node("other"), "new");
        assert!(scene.path().join("other/new").exists());
        let link = scene.layer.link(&ME, scene.node("other/new"), NodeId::ROOT, b"link");
        assert_eq!(link.map(|_| ()), Err(Errno::XDEV));
    }
}

#[test]
fn nobody_looks_ahead_into_a_mount() {
    for submounts in [Submounts::Empty, Submounts::Merged] {
        let Some((mut scene, other, bind)) = scene(Changes::Host, submounts) else { return };
        let bounds = Bounds { at_hand: 0, ..Bounds::default() };
        scene.layer.ahead = Ahead::new(bounds, scene.layer.stat_flags);
        scene.list(NodeId::ROOT, usize::MAX, true);
        // `source` is the only subdirectory that is no mount point.
        let source = fs::metadata(scene.path().join("source")).unwrap().ino();
        assert_eq!(scene.layer.ahead.looked_at(), [(source, 3)]);
        scene.layer.disconnected();
        other.end();
        bind.end();
    }
}
