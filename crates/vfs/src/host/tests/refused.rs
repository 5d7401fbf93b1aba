//! Tests that clients leave no set-user-ID bits, file capabilities and devices on the host, in whichever way they try.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::SetTime;

const REFUSED: Refused = Refused { privileges: true, devices: true };

/// A value of `security.capability`: version 2, CAP_NET_RAW, effective (`struct vfs_cap_data` of include/uapi/linux/capability.h).
const CAPABILITIES: &[u8] = &[1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// An access ACL by which user 7 may read and run the file, and which gives the group class those rights.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 7, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 5, 0,
    255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

fn file(mode: u32) -> NewNode {
    NewNode { mode: libc::S_IFREG | mode, umask: 0, device: 0 }
}

fn set_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// A layer that refuses, and one that does not.
fn both() -> [(Scene, bool); 2] {
    [REFUSED, Refused::default()].map(|refused| {
        let scene = Scene::with(HostOptions { refused, ..HostOptions::default() });
        (scene, refused.privileges)
    })
}

impl Scene {
    fn mode(&self, name: &str) -> u32 {
        fs::symlink_metadata(self.path().join(name)).unwrap().mode() & 0o7777
    }

    /// A file of the host with these permissions.
    fn host_file(&self, name: &str, mode: u32) -> NodeId {
        self.file(name, "content");
        fs::set_permissions(self.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        self.node(name)
    }

    fn set_xattr(&self, node: NodeId, name: &str, value: &[u8]) -> Result<(), Errno> {
        self.layer.set_xattr(&ME, node, name.as_bytes(), value, 0, false)
    }

    fn capabilities(&self, name: &str) -> bool {
        rustix::fs::getxattr(self.path().join(name), "security.capability", &mut [0; 64]).is_ok()
    }
}

#[test]
fn what_is_made_has_no_bits_that_are_refused() {
    for (scene, refused) in both() {
        let layer = &scene.layer;
        let (created, opened) = layer.create(&ME, NodeId::ROOT, b"created", &file(0o6755), WRITE).unwrap();
        layer.make_node(&ME, NodeId::ROOT, b"made", &file(0o6755)).unwrap();
        let (unnamed, _) = layer.create_unnamed(&ME, NodeId::ROOT, &file(0o6755), WRITE).unwrap();
        layer.link(&ME, unnamed.node, NodeId::ROOT, b"unnamed").unwrap();
        let fifo = NewNode { mode: libc::S_IFIFO | 0o6755, ..NEW_FILE };
        layer.make_node(&ME, NodeId::ROOT, b"fifo", &fifo).unwrap();
        let directory = NewNode { mode: libc::S_IFDIR | 0o6755, ..NEW_FILE };
        let directory = layer.make_directory(&ME, NodeId::ROOT, b"directory", &directory).unwrap();
        for name in ["created", "made", "unnamed", "fifo"] {
            assert_eq!(scene.mode(name), if refused { 0o755 } else { 0o6755 }, "{name}");
        }
        // A client is told what there is.
        assert_eq!(created.attributes.mode & 0o7777, scene.mode("created"));
        // chmod(2), fchmod(2), and together with what a write does.
        let told = scene.set(created.node, set_mode(0o4711)).unwrap();
        assert_eq!(
            (scene.mode("created"), told.mode & 0o7777),
            if refused { (0o711, 0o711) } else { (0o4711, 0o4711) }
        );
        let all = SetAttributes { size: Some(0), atime: Some(SetTime::Now), ..set_mode(0o2751) };
        layer.set_attributes(&ME, created.node, Some(opened.handle), &all).unwrap();
        // To a server without privilege the kernel itself clears the bit with the content.
        assert_eq!(scene.mode("created"), if refused || !is_root() { 0o751 } else { 0o2751 });
        // A set-group-ID bit that means nothing yet, and a list that would give it a meaning.
        scene.set(created.node, set_mode(0o2640)).unwrap();
        assert_eq!(scene.mode("created"), if refused { 0o640 } else { 0o2640 });
        // Of a directory it is another thing.
        scene.set(directory.node, set_mode(0o7755)).unwrap();
        assert_eq!(scene.mode("directory"), if refused { 0o3755 } else { 0o7755 });
    }
}

#[test]
fn what_was_there_loses_its_bits_with_the_first_change() {
    type Change = fn(&Scene, NodeId) -> Result<(), Errno>;
    let changes: [(&str, Change); 12] = [
        ("chmod", |scene, node| scene.set(node, set_mode(0o6755)).map(drop)),
        ("chmod of another bit", |scene, node| scene.set(node, set_mode(0o6775)).map(drop)),
        ("chown to the same", |scene, node| {
            let gid = rustix::process::getegid().as_raw();
            let set = SetAttributes { gid: Some(gid), mode: Some(0o6755), ..SetAttributes::default() };
            scene.set(node, set).map(drop)
        }),
        ("truncate", |scene, node| {
            scene.set(node, SetAttributes { size: Some(0), ..SetAttributes::default() }).map(drop)
        }),
        ("truncate when it is opened", |scene, node| {
            scene.layer.open(&ME, node, WRITE | libc::O_TRUNC as u32).map(drop)
        }),
        ("write", |scene, node| scene.write(node, scene.open(node, WRITE), 0, "x").map(drop)),
        ("write from a cache", |scene, node| {
            let kind = WriteKind { cached: true, kill_privileges: false };
            scene.write_as(node, scene.open(node, WRITE), 0, "x", kind).map(drop)
        }),
        ("copy_file_range", |scene, node| {
            scene.file("source", "source");
            let (source, target) = (scene.node("source"), scene.open(node, WRITE));
            let from = scene.open(source, READ);
            scene.layer.copy_range(&ME, (source, from, 0), (node, target, 0), 6).map(drop)
        }),
        ("fallocate", |scene, node| scene.layer.fallocate(&ME, node, scene.open(node, WRITE), 0, 0, 4096)),
        ("link", |scene, node| scene.layer.link(&ME, node, NodeId::ROOT, b"further").map(drop)),
        ("rename", |scene, _| {
            scene.layer.rename(&ME, NodeId::ROOT, b"there", NodeId::ROOT, b"moved", 0)?;
            scene.layer.rename(&ME, NodeId::ROOT, b"moved", NodeId::ROOT, b"there", 0)
        }),
        ("exchange", |scene, _| {
            scene.file("other", "");
            let exchange = rustix::fs::RenameFlags::EXCHANGE.bits();
            let swap = || scene.layer.rename(&ME, NodeId::ROOT, b"other", NodeId::ROOT, b"there", exchange);
            swap().and_then(|()| swap())
        }),
    ];
    for (what, change) in changes {
        for (scene, refused) in both() {
            let node = scene.host_file("there", 0o6755);
            // Reading, and times, leave it as it is.
            scene.read(node, scene.open(node, READ), 0, 10).unwrap();
            scene.set(node, SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() }).unwrap();
            assert_eq!(scene.mode("there"), 0o6755, "{what}");
            change(&scene, node).unwrap();
            let has_bits = scene.mode("there") & 0o6000 != 0;
            // To a server without privilege the kernel itself does so where content is changed.
            let cleared =
                refused || (!is_root() && ["write", "trunc", "copy", "falloc"].iter().any(|w| what.starts_with(w)));
            assert_eq!(has_bits, !cleared, "{what}, refused: {refused}");
        }
    }
}

#[test]
fn the_second_name_of_an_exchange_is_looked_at_too() {
    let (scene, _) = &both()[0];
    scene.host_file("there", 0o4755);
    scene.file("other", "");
    scene.node("other");
    let exchange = rustix::fs::RenameFlags::EXCHANGE.bits();
    scene.layer.rename(&ME, NodeId::ROOT, b"other", NodeId::ROOT, b"there", exchange).unwrap();
    assert_eq!(scene.mode("other"), 0o755);
}

#[test]
fn a_list_of_permissions_wakes_no_set_group_id_bit() {
    for (scene, refused) in both() {
        let node = scene.host_file("there", 0o2640);
        match scene.set_xattr(node, "system.posix_acl_access", ACL) {
            Err(Errno::OPNOTSUPP) => {
                println!("skipped: a_list_of_permissions_wakes_no_set_group_id_bit: no access control lists in TMPDIR");
            }
            result => {
                result.unwrap();
                assert_eq!(scene.mode("there") & 0o2010, if refused { 0o010 } else { 0o2010 });
            }
        }
    }
}

#[test]
fn capabilities_are_left_out_and_end_with_the_first_change() {
    if !is_root() {
        return println!("skipped: capabilities_are_left_out_and_end_with_the_first_change: only root sets them");
    }
    for (scene, refused) in both() {
        let node = scene.create(NodeId::ROOT, "new").0;
        scene.set_xattr(node, "security.capability", CAPABILITIES).unwrap();
        assert_eq!(scene.capabilities("new"), !refused);
        type Change = fn(&Scene, NodeId) -> Result<(), Errno>;
        let changes: [(&str, Change); 4] = [
            ("set", |scene, node| scene.set_xattr(node, "security.capability", CAPABILITIES)),
            ("chmod", |scene, node| scene.set(node, set_mode(0o711)).map(drop)),
            ("link", |scene, node| scene.layer.link(&ME, node, NodeId::ROOT, b"further").map(drop)),
            ("rename", |scene, _| {
                scene.layer.rename(&ME, NodeId::ROOT, b"there", NodeId::ROOT, b"moved", 0)?;
                scene.layer.rename(&ME, NodeId::ROOT, b"moved", NodeId::ROOT, b"there", 0)
            }),
        ];
        for (what, change) in changes {
            let node = scene.host_file("there", 0o755);
            let path = scene.path().join("there");
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, "security.capability", CAPABILITIES, flags).unwrap();
            change(&scene, node).unwrap();
            assert_eq!(scene.capabilities("there"), !refused, "{what}");
            let _ = fs::remove_file(scene.path().join("further"));
            fs::remove_file(path).unwrap();
        }
        // What may be there can be taken away.
        let node = scene.host_file("there", 0o755);
        let path = scene.path().join("there");
        rustix::fs::setxattr(&path, "security.capability", CAPABILITIES, rustix::fs::XattrFlags::empty()).unwrap();
        scene.layer.remove_xattr(&ME, node, b"security.capability").unwrap();
        assert!(!scene.capabilities("there"));
    }
}

#[test]
fn nobody_writes_past_the_layer_to_what_has_power() {
    if !is_root() {
        return println!("skipped: nobody_writes_past_the_layer_to_what_has_power: only root sets capabilities");
    }
    for (scene, refused) in both() {
        let path = scene.path().join("there");
        let set_capabilities = || {
            rustix::fs::setxattr(&path, "security.capability", CAPABILITIES, rustix::fs::XattrFlags::empty()).unwrap();
        };
        let node = scene.host_file("there", 0o777);
        set_capabilities();
        for flags in [READ, WRITE] {
            let handle = scene.layer.open(&ME, node, flags).unwrap().handle;
            // On the host, too, a store to a mapped file leaves capabilities where they are.
            assert_eq!(scene.layer.host_file(node, handle).is_none(), refused, "{flags}");
            scene.layer.release(node, handle, None);
        }
        assert!(scene.capabilities("there"), "a file that is only opened keeps them");
        let handle = scene.layer.open(&ME, node, WRITE).unwrap().handle;
        scene.write(node, handle, 0, "x").unwrap();
        scene.layer.release(node, handle, None);
        assert!(!scene.capabilities("there"));

        // The host gives it power while it can be written to past the layer.
        let first = scene.layer.open(&ME, node, READ).unwrap().handle;
        assert!(scene.layer.host_file(node, first).is_some());
        set_capabilities();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
        let second = scene.layer.open(&ME, node, WRITE).unwrap().handle;
        assert_eq!((scene.capabilities("there"), scene.mode("there") == 0o4777), (!refused, !refused));
        for handle in [first, second] {
            scene.layer.release(node, handle, None);
        }
        // Not for ever.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
        scene.layer.open(&ME, node, WRITE).unwrap();
        assert_eq!(scene.mode("there"), 0o4777);
    }
}

#[test]
fn devices_are_neither_made_nor_opened_to_others() {
    if !is_root() {
        return println!("skipped: devices_are_neither_made_nor_opened_to_others: only root makes them");
    }
    let zero = rustix::fs::makedev(1, 5);
    for (scene, refused) in both() {
        let expected = |result: Result<(), Errno>, what: &str| {
            assert_eq!(result, if refused { Err(Errno::PERM) } else { Ok(()) }, "{what}");
        };
        let layer = &scene.layer;
        let make = |name: &str, kind: u32, device: u64| {
            let new = NewNode { mode: kind | 0o600, umask: 0, device };
            layer.make_node(&ME, NodeId::ROOT, name.as_bytes(), &new).map(drop)
        };
        expected(make("c", libc::S_IFCHR, zero), "a character device");
        expected(make("b", libc::S_IFBLK, zero), "a block device");
        expected(make("b0", libc::S_IFBLK, 0), "a block device 0:0");
        for (name, kind) in [("fifo", libc::S_IFIFO), ("socket", libc::S_IFSOCK), ("whiteout", libc::S_IFCHR)] {
            make(name, kind, 0).unwrap();
        }
        // One of the host's own.
        use rustix::fs::{CWD, FileType, Mode};
        let path = scene.path().join("there");
        rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, zero).unwrap();
        let node = scene.node("there");
        expected(scene.set(node, set_mode(0o666)).map(drop), "chmod");
        let owner = SetAttributes { uid: Some(65534), ..SetAttributes::default() };
        expected(scene.set(node, owner).map(drop), "chown");
        expected(scene.set_xattr(node, "system.posix_acl_access", ACL), "a list");
        expected(layer.link(&ME, node, NodeId::ROOT, b"further").map(drop), "link");
        expected(layer.rename(&ME, NodeId::ROOT, b"there", NodeId::ROOT, b"moved", 0), "rename");
        let now = if refused { "there" } else { "moved" };
        let found = fs::symlink_metadata(scene.path().join(now)).unwrap();
        assert_eq!((found.mode() & 0o7777 == 0o400, found.nlink() == 1), (refused, refused));
        layer.unlink(&ME, NodeId::ROOT, now.as_bytes()).unwrap();
    }
}
