//! Every file system checks again what a client's kernel decided by: a change on the host gives nobody access.
//!
//! The pattern: a client looks something up, then the host changes it, then the request arrives.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_tree::Timestamp;
use inarch_tree::select::Owners;
use rustix::fs::{RenameFlags, XattrFlags};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::listing::Listing;
use crate::{
    Changes, Context, Entry, FileSystem, HostDirectory, HostOptions, MappedOwners, MemoryFiles, NewNode, NodeId,
    OneClient, Overlay, RecordLevel, Recorder, Recording, SetAttributes, SetTime,
};

/// A user other than root. The server runs as root or as this user.
const USER: Context<'static> = Context { uid: 65534, gid: 65534, ..Context::SERVER };
const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };
const READ: u32 = libc::O_RDONLY as u32;
const WRITE: u32 = libc::O_RDWR as u32;
const SECRET: &str = "secret";

/// What is attempted, in words, and the attempt.
type AttemptByName<'a> = (&'a str, &'a dyn Fn() -> Result<(), Errno>);
type AttemptByNode<'a> = (&'a str, &'a dyn Fn(NodeId) -> Result<(), Errno>);

/// A file system, and the host directory below it that changes.
struct Scene {
    name: &'static str,
    directory: TempDir,
    layer: Arc<dyn FileSystem>,
}

impl Scene {
    fn new(name: &'static str, over: impl FnOnce(&Path, Arc<dyn FileSystem>) -> Arc<dyn FileSystem>) -> Scene {
        Scene::with(name, Changes::Host, over)
    }

    fn with(
        name: &'static str,
        changes: Changes,
        over: impl FnOnce(&Path, Arc<dyn FileSystem>) -> Arc<dyn FileSystem>,
    ) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        for name in ["host", "upper"] {
            fs::create_dir(directory.path().join(name)).unwrap();
            fs::set_permissions(directory.path().join(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
        let options = HostOptions { changes, ..HostOptions::default() };
        let host = HostDirectory::new(&directory.path().join("host"), options).unwrap();
        let layer = over(directory.path(), Arc::new(host));
        Scene { name, directory, layer }
    }

    fn host(&self, name: &str) -> PathBuf {
        self.directory.path().join("host").join(name)
    }

    /// The host makes a file, replacing what is there.
    fn file(&self, name: &str, content: &str) {
        let new = self.host("new");
        fs::write(&new, content).unwrap();
        fs::rename(new, self.host(name)).unwrap();
    }

    fn permit(&self, name: &str, mode: u32) {
        fs::set_permissions(self.host(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A client knows all of a directory that everybody may change; then the host gives it this `mode`.
    fn directory_permitted(&self, name: &str, mode: u32) -> Directory {
        let _ = fs::remove_dir_all(self.host(name));
        fs::create_dir_all(self.host(name).join("empty")).unwrap();
        self.permit(name, 0o777);
        let node = self.look_up(name).unwrap().node;
        for file in ["f", "g"] {
            fs::write(self.host(name).join(file), SECRET).unwrap();
        }
        let [file, _, _] =
            ["f", "g", "empty"].map(|name| self.layer.lookup(&USER, node, name.as_bytes()).unwrap().node);
        self.permit(name, mode);
        Directory { node, file }
    }

    /// Whether a client sees all that is in such a directory, and nothing else.
    fn is_unchanged(&self, name: &str) -> bool {
        let node = self.layer.lookup(&Context::SERVER, NodeId::ROOT, name.as_bytes()).unwrap().node;
        let mut listed = Listing::whole(&*self.layer, node, (100, false));
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        let contents = ["f", "g"].map(|file| fs::read_to_string(self.host(name).join(file)));
        let names: Vec<_> = listed.into_iter().map(|(name, _)| name).collect();
        names == [".", "..", "empty", "f", "g"]
            && contents.iter().flatten().filter(|content| *content == SECRET).count() == 2
    }

    fn look_up(&self, name: &str) -> Result<Entry, Errno> {
        self.layer.lookup(&USER, NodeId::ROOT, name.as_bytes())
    }

    /// A file that a client knows and that has since been replaced.
    fn replaced(&self, name: &str) -> NodeId {
        self.file(name, "mine");
        let entry = self.look_up(name).unwrap();
        self.file(name, SECRET);
        entry.node
    }

    fn assert_unharmed(&self, name: &str) {
        let what = self.name;
        assert_eq!(fs::read_to_string(self.host(name)).unwrap(), SECRET, "{what}: {name}");
        let entry = self.look_up(name).unwrap_or_else(|errno| panic!("{what}: {name}: {errno}"));
        assert_eq!(entry.attributes.size, SECRET.len() as u64, "{what}: {name}");
    }
}

/// A directory, and a file in it.
#[derive(Clone, Copy)]
struct Directory {
    node: NodeId,
    file: NodeId,
}

/// All file systems, over a host that changes.
fn scenes() -> Vec<Scene> {
    let overlay = |lower, upper: Arc<dyn FileSystem>| {
        let overlay = Overlay::new(lower, upper, rustix::process::geteuid().is_root()).unwrap();
        Arc::new(overlay.changed_by(Changes::Host)) as Arc<dyn FileSystem>
    };
    vec![
        Scene::new("host", |_, host| host),
        Scene::with("host of one guest", Changes::Guest, |_, host| host),
        Scene::new("one client", |_, host| Arc::new(OneClient::of(host))),
        Scene::new("recorder", |_, host| {
            let recording = Recording::new(RecordLevel::Process);
            Arc::new(Recorder::new(host, recording, |thread, _| thread))
        }),
        Scene::new("overlay in a directory", |directory, host| {
            let upper = HostDirectory::new(&directory.join("upper"), HostOptions::default()).unwrap();
            overlay(host, Arc::new(upper))
        }),
        Scene::new("overlay in memory", |_, host| overlay(host, Arc::new(MemoryFiles::new(1 << 20)))),
        Scene::new("overlay that one kernel changes", |_, host| {
            let upper = Arc::new(MemoryFiles::new(1 << 20));
            let overlay = Overlay::new(host, upper, rustix::process::geteuid().is_root()).unwrap();
            Arc::new(overlay.changed_by(Changes::Guest))
        }),
        Scene::new("owners", |_, host| owned_by_one(host)),
        Scene::new("owners over an overlay", |_, host| {
            owned_by_one(overlay(host, Arc::new(MemoryFiles::new(1 << 20))))
        }),
    ]
}

/// The adapter that shows all owners but the user as one; new files belong to the server's user.
fn owned_by_one(below: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
    let user = || vec!["65534:65534:1".parse().unwrap()];
    let owners = Owners { map: "squash".parse().unwrap(), users: user(), groups: user() };
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    MappedOwners::over(below, &owners, (uid.as_raw(), gid.as_raw()))
}

/// If nobody else may change anything, permissions are not compared.
fn scenes_that_compare() -> impl Iterator<Item = Scene> {
    scenes().into_iter().filter(|scene| scene.name != "host of one guest")
}

#[test]
fn what_is_there_is_never_opened_as_new() {
    for scene in scenes() {
        let (layer, name) = (&scene.layer, scene.name);
        for flags in [WRITE, READ, WRITE | libc::O_TRUNC as u32, WRITE | libc::O_EXCL as u32] {
            assert_eq!(scene.look_up("x").map(|_| ()), Err(Errno::NOENT), "{name}");
            scene.file("x", SECRET);
            let created = layer.create(&USER, NodeId::ROOT, b"x", &FILE, flags);
            assert_eq!(created.map(|_| ()), Err(Errno::EXIST), "{name}, {flags:o}");
            scene.assert_unharmed("x");
            fs::remove_file(scene.host("x")).unwrap();
        }
        scene.file("x", SECRET);
        scene.file("mine", "mine");
        let mine = scene.look_up("mine").unwrap().node;
        let made = [
            layer.make_node(&USER, NodeId::ROOT, b"x", &FILE),
            layer.make_directory(&USER, NodeId::ROOT, b"x", &DIRECTORY),
            layer.make_symlink(&USER, NodeId::ROOT, b"x", b"target"),
            layer.link(&USER, mine, NodeId::ROOT, b"x"),
        ];
        for (number, made) in made.into_iter().enumerate() {
            assert_eq!(made.map(|_| ()), Err(Errno::EXIST), "{name}, number {number}");
        }
        scene.assert_unharmed("x");
    }
    let memory = MemoryFiles::new(1 << 20);
    let create = |flags| memory.create(&USER, NodeId::ROOT, b"x", &FILE, flags).map(|_| ());
    assert_eq!(create(WRITE), Ok(()));
    assert_eq!([WRITE, WRITE | libc::O_TRUNC as u32].map(create), [Err(Errno::EXIST); 2]);
}

#[test]
fn a_name_that_leads_elsewhere_by_now_is_neither_removed_nor_moved() {
    for scene in scenes() {
        let (layer, name, root) = (&scene.layer, scene.name, NodeId::ROOT);
        let exchange = RenameFlags::EXCHANGE.bits();
        let attempts: [AttemptByName; 5] = [
            ("unlink", &|| layer.unlink(&USER, root, b"x")),
            ("rename of it", &|| layer.rename(&USER, root, b"x", root, b"y", 0)),
            ("rename onto it", &|| layer.rename(&USER, root, b"mine", root, b"x", 0)),
            ("exchange of it", &|| layer.rename(&USER, root, b"x", root, b"mine", exchange)),
            ("exchange with it", &|| layer.rename(&USER, root, b"mine", root, b"x", exchange)),
        ];
        for (what, attempt) in attempts {
            scene.file("mine", "mine");
            scene.look_up("mine").unwrap();
            scene.replaced("x");
            assert_eq!(attempt(), Err(Errno::STALE), "{name}: {what}");
            scene.assert_unharmed("x");
        }
        // A client that has looked again may remove it.
        assert_eq!(layer.unlink(&USER, root, b"x"), Ok(()), "{name}");
        assert_eq!(scene.look_up("x").map(|_| ()), Err(Errno::NOENT), "{name}");

        fs::create_dir(scene.host("d")).unwrap();
        scene.look_up("d").unwrap();
        fs::rename(scene.host("d"), scene.host("e")).unwrap();
        fs::create_dir(scene.host("d")).unwrap();
        assert_eq!(layer.remove_directory(&USER, root, b"d"), Err(Errno::STALE), "{name}");
        assert!(scene.look_up("d").is_ok(), "{name}");
    }
}

#[test]
fn another_file_is_never_used_in_the_place_of_a_node() {
    for scene in scenes() {
        let (layer, name) = (&scene.layer, scene.name);
        let mode = SetAttributes { mode: Some(0o4777), ..SetAttributes::default() };
        let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let owner = SetAttributes { uid: Some(USER.uid), gid: Some(USER.gid), ..SetAttributes::default() };
        let attempts: [AttemptByNode; 9] = [
            ("open", &|node| layer.open(&USER, node, READ).map(|_| ())),
            ("open to write", &|node| layer.open(&USER, node, WRITE).map(|_| ())),
            ("open to truncate", &|node| layer.open(&USER, node, WRITE | libc::O_TRUNC as u32).map(|_| ())),
            ("mode", &|node| layer.set_attributes(&USER, node, None, &mode).map(|_| ())),
            ("size", &|node| layer.set_attributes(&USER, node, None, &size).map(|_| ())),
            ("owner", &|node| layer.set_attributes(&USER, node, None, &owner).map(|_| ())),
            ("extended attribute", &|node| layer.set_xattr(&USER, node, b"user.x", b"", 0, false)),
            ("removal of an extended attribute", &|node| layer.remove_xattr(&USER, node, b"user.x")),
            ("link", &|node| layer.link(&USER, node, NodeId::ROOT, b"link").map(|_| ())),
        ];
        for (what, attempt) in attempts {
            let node = scene.replaced("x");
            assert_eq!(attempt(node), Err(Errno::STALE), "{name}: {what}");
            scene.assert_unharmed("x");
            assert_ne!(scene.look_up("x").unwrap().attributes.mode & 0o7777, 0o4777, "{name}: {what}");
        }
    }
}

#[test]
fn permissions_that_were_taken_away_are_not_used() {
    for scene in scenes_that_compare() {
        let (layer, name, root) = (&scene.layer, scene.name, NodeId::ROOT);
        let mode = SetAttributes { mode: Some(0o4755), ..SetAttributes::default() };
        let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let to_now = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
        let owner = SetAttributes { uid: Some(USER.uid), gid: Some(USER.gid), ..SetAttributes::default() };
        let attempts: [AttemptByNode; 12] = [
            ("open", &|node| layer.open(&USER, node, READ).map(|_| ())),
            ("open to write", &|node| layer.open(&USER, node, WRITE).map(|_| ())),
            ("owner", &|node| layer.set_attributes(&USER, node, None, &owner).map(|_| ())),
            ("removal of an extended attribute", &|node| layer.remove_xattr(&USER, node, b"user.y")),
            ("mode", &|node| layer.set_attributes(&USER, node, None, &mode).map(|_| ())),
            ("size", &|node| layer.set_attributes(&USER, node, None, &size).map(|_| ())),
            ("extended attribute", &|node| layer.set_xattr(&USER, node, b"user.x", b"", 0, false)),
            ("times", &|node| layer.set_attributes(&USER, node, None, &to_now).map(|_| ())),
            ("value of an extended attribute", &|node| layer.get_xattr(&USER, node, b"user.y").map(|_| ())),
            ("link", &|node| layer.link(&USER, node, root, b"link").map(|_| ())),
            ("unlink", &|_| layer.unlink(&USER, root, b"x")),
            ("rename", &|_| layer.rename(&USER, root, b"x", root, b"y", 0)),
        ];
        for (what, attempt) in attempts {
            scene.file("x", SECRET);
            scene.permit("x", 0o666);
            rustix::fs::setxattr(scene.host("x"), c"user.y", b"secret", XattrFlags::empty()).unwrap();
            let node = scene.look_up("x").unwrap().node;
            scene.permit("x", 0o600);
            assert_eq!(attempt(node), Err(Errno::STALE), "{name}: {what}");
            scene.assert_unharmed("x");
        }
        // A client that was told of them may.
        let node = scene.look_up("x").unwrap().node;
        let opened = layer.open(&USER, node, READ).unwrap_or_else(|errno| panic!("{name}: {errno}"));
        layer.release(node, opened.handle, None);
        fs::set_permissions(scene.host("x"), fs::Permissions::from_mode(0o640)).unwrap();
        layer.attributes(&USER, node, None).unwrap();
        assert!(layer.open(&USER, node, READ).is_ok(), "{name}");
    }
}

#[test]
fn a_name_that_the_client_believes_absent_is_not_replaced() {
    for scene in scenes_that_compare() {
        scene.file("mine", "mine");
        scene.look_up("mine").unwrap();
        scene.file("x", SECRET);
        let rename = || scene.layer.rename(&USER, NodeId::ROOT, b"mine", NodeId::ROOT, b"x", 0);
        assert_eq!(rename(), Err(Errno::STALE), "{}", scene.name);
        // Which looks the name up: a client that has looked may.
        scene.assert_unharmed("x");
        assert_eq!(rename(), Ok(()), "{}", scene.name);
    }
}

#[test]
fn in_a_sticky_directory_a_name_that_was_forgotten_is_looked_up_again() {
    for scene in scenes_that_compare() {
        let (layer, name, root) = (&scene.layer, scene.name, NodeId::ROOT);
        let exchange = RenameFlags::EXCHANGE.bits();
        for directory in ["d", "e"] {
            fs::create_dir(scene.host(directory)).unwrap();
        }
        scene.permit("d", 0o1777);
        scene.permit("e", 0o777);
        scene.file("mine", "mine");
        scene.look_up("mine").unwrap();
        let [d, e] = ["d", "e"].map(|directory| scene.look_up(directory).unwrap().node);
        let attempts: [AttemptByName; 5] = [
            ("unlink", &|| layer.unlink(&USER, d, b"f")),
            ("rename in it", &|| layer.rename(&USER, d, b"f", d, b"g", 0)),
            ("rename out of it", &|| layer.rename(&USER, d, b"f", e, b"g", 0)),
            ("rename onto it", &|| layer.rename(&USER, root, b"mine", d, b"f", 0)),
            ("exchange", &|| layer.rename(&USER, root, b"mine", d, b"f", exchange)),
        ];
        for (what, attempt) in attempts {
            scene.file("d/f", "mine");
            layer.lookup(&USER, d, b"f").unwrap();
            scene.file("d/f", SECRET);
            // One thread has checked the first file. Another one looks the name up, and its kernel drops what it finds.
            let found = layer.lookup(&USER, d, b"f").unwrap().node;
            layer.forget(found, 1);
            assert_eq!(attempt(), Err(Errno::STALE), "{name}: {what}");
            assert_eq!(fs::read_to_string(scene.host("d/f")).unwrap(), SECRET, "{name}: {what}");
            assert_eq!(fs::read_to_string(scene.host("mine")).unwrap(), "mine", "{name}: {what}");
        }
        // A client that has looked again may.
        layer.lookup(&USER, d, b"f").unwrap();
        assert_eq!(layer.unlink(&USER, d, b"f"), Ok(()), "{name}");
    }
}

#[test]
fn what_the_host_has_changed_is_contested() {
    for scene in scenes_that_compare() {
        let (layer, name) = (&scene.layer, scene.name);
        ["x", "own"].iter().for_each(|file| scene.file(file, SECRET));
        let [x, own] = ["x", "own"].map(|file| scene.look_up(file).unwrap().node);
        let mode = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
        layer.set_attributes(&USER, own, None, &mode).unwrap();
        [x, own].iter().for_each(|node| assert!(layer.attributes(&USER, *node, None).is_ok()));
        assert!(!layer.is_contested(x) && !layer.is_contested(own), "{name}");
        scene.permit("x", 0o600);
        // Linux may drop this answer.
        layer.attributes(&USER, x, None).unwrap();
        assert!(layer.is_contested(x) && !layer.is_contested(own), "{name}");
    }
}

#[test]
fn what_a_recorder_looks_at_the_client_is_not_told() {
    for level in [RecordLevel::Command, RecordLevel::Process] {
        let scene =
            Scene::new("recorder", |_, host| Arc::new(Recorder::new(host, Recording::new(level), |thread, _| thread)));
        scene.file("x", SECRET);
        let x = scene.look_up("x").unwrap().node;
        fs::set_permissions(scene.host("x"), fs::Permissions::from_mode(0o600)).unwrap();
        // Which is written down with what the file is now.
        scene.layer.open(&Context::SERVER, x, READ).unwrap();
        assert_eq!(scene.layer.open(&USER, x, READ).map(|_| ()), Err(Errno::STALE));
        scene.look_up("x").unwrap();
        assert!(scene.layer.open(&USER, x, READ).is_ok());
    }
}

/// What a user tries in a directory.
type Attempt<'a> = &'a dyn Fn(Directory) -> Result<(), Errno>;

#[test]
fn a_directory_is_not_changed_by_rights_that_were_taken_away() {
    for scene in scenes_that_compare() {
        let (layer, name, root) = (&scene.layer, scene.name, NodeId::ROOT);
        let exchange = RenameFlags::EXCHANGE.bits();
        scene.file("mine", "mine");
        let mine = scene.look_up("mine").unwrap().node;
        let attempts: [(&str, Attempt<'_>); 15] = [
            ("create", &|d| layer.create(&USER, d.node, b"x", &FILE, WRITE).map(|_| ())),
            ("create unnamed", &|d| layer.create_unnamed(&USER, d.node, &FILE, WRITE).map(|_| ())),
            ("mknod", &|d| layer.make_node(&USER, d.node, b"x", &FILE).map(|_| ())),
            ("mkdir", &|d| layer.make_directory(&USER, d.node, b"x", &DIRECTORY).map(|_| ())),
            ("symlink", &|d| layer.make_symlink(&USER, d.node, b"x", b"target").map(|_| ())),
            ("link into it", &|d| layer.link(&USER, mine, d.node, b"x").map(|_| ())),
            ("unlink", &|d| layer.unlink(&USER, d.node, b"f")),
            ("rmdir", &|d| layer.remove_directory(&USER, d.node, b"empty")),
            ("rename in it", &|d| layer.rename(&USER, d.node, b"f", d.node, b"x", 0)),
            ("rename onto another", &|d| layer.rename(&USER, d.node, b"f", d.node, b"g", 0)),
            ("rename out of it", &|d| layer.rename(&USER, d.node, b"f", root, b"stolen", 0)),
            ("rename into it", &|d| layer.rename(&USER, root, b"mine", d.node, b"x", 0)),
            ("exchange", &|d| layer.rename(&USER, root, b"mine", d.node, b"f", exchange)),
            ("list", &|d| layer.open_directory(&USER, d.node).map(|_| ())),
            ("look for what is new", &|d| {
                fs::write(scene.host("d").join("new"), SECRET).unwrap();
                let found = layer.lookup(&USER, d.node, b"new").map(|_| ());
                fs::remove_file(scene.host("d").join("new")).unwrap();
                found
            }),
        ];
        // Closed, not to be changed any more, and with names that only their owners remove.
        for mode in [0o700, 0o755, 0o1777] {
            for (what, attempt) in attempts {
                let directory = scene.directory_permitted("d", mode);
                assert_eq!(attempt(directory), Err(Errno::STALE), "{name}: {what}, {mode:o}");
                // A client may look up again what it knows; so it learns of new permissions.
                let file = layer.lookup(&USER, directory.node, b"f").map(|entry| entry.node);
                assert_eq!(file, Ok(directory.file), "{name}: {what}, {mode:o}");
                assert!(scene.is_unchanged("d"), "{name}: {what}, {mode:o}");
                assert_eq!(fs::read_to_string(scene.host("mine")).unwrap(), "mine", "{name}: {what}, {mode:o}");
            }
        }
        // A client that has looked again may; root did not have to look.
        let directory = scene.directory_permitted("d", 0o700);
        layer.attributes(&USER, directory.node, None).unwrap();
        assert_eq!(layer.unlink(&USER, directory.node, b"f"), Ok(()), "{name}");
        let directory = scene.directory_permitted("e", 0o700);
        assert_eq!(layer.unlink(&Context::SERVER, directory.node, b"f"), Ok(()), "{name}");
    }
}

#[test]
fn whoever_brings_something_up_leaves_nobody_what_was_taken_away() {
    for scene in scenes_that_compare().filter(|scene| scene.name.contains("overlay")) {
        let (layer, name, root) = (&scene.layer, scene.name, Context::SERVER);
        let directory = scene.directory_permitted("d", 0o700);
        layer.make_directory(&root, directory.node, b"root's", &DIRECTORY).unwrap();
        let made = layer.make_directory(&USER, directory.node, b"x", &DIRECTORY);
        assert_eq!(made.map(|_| ()), Err(Errno::STALE), "{name}");
        scene.file("x", SECRET);
        let node = scene.look_up("x").unwrap().node;
        scene.permit("x", 0o600);
        let opened = layer.open(&root, node, WRITE).unwrap();
        layer.release(node, opened.handle, None);
        assert_eq!(layer.open(&USER, node, READ).map(|_| ()), Err(Errno::STALE), "{name}");
        // A client that has looked again may.
        layer.attributes(&USER, node, None).unwrap();
        assert_eq!(layer.open(&USER, node, READ).map(|_| ()), Ok(()), "{name}");
    }
}

#[test]
fn who_was_the_owner_does_not_set_times() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: who_was_the_owner_does_not_set_times: only root gives files to others");
    }
    for scene in scenes_that_compare() {
        let (layer, name) = (&scene.layer, scene.name);
        let to = SetTime::To(Timestamp { seconds: 1, nanoseconds: 0 });
        let past = SetAttributes { atime: Some(to), mtime: Some(to), ..SetAttributes::default() };
        let now = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
        for set in [past, now] {
            scene.file("x", SECRET);
            let node = scene.look_up("x").unwrap().node;
            chown(scene.host("x"), Some(7), None).unwrap();
            let before = fs::metadata(scene.host("x")).unwrap().modified().unwrap();
            assert_eq!(layer.set_attributes(&USER, node, None, &set).map(|_| ()), Err(Errno::STALE), "{name}");
            assert_eq!(fs::metadata(scene.host("x")).unwrap().modified().unwrap(), before, "{name}");
        }
    }
}

#[test]
fn a_client_is_not_misled_by_what_it_has_done_itself_nor_an_owner_by_new_permissions() {
    /// For the owner, a user 7 and the bound of both all, for others nothing: `struct posix_acl_xattr_header` and its entries.
    const LIST: &[u8] = &[
        2, 0, 0, 0, // version
        1, 0, 7, 0, 255, 255, 255, 255, // owner
        2, 0, 7, 0, 7, 0, 0, 0, // user 7
        4, 0, 0, 0, 255, 255, 255, 255, // group
        16, 0, 7, 0, 255, 255, 255, 255, // bound
        32, 0, 0, 0, 255, 255, 255, 255, // others
    ];
    let to = SetTime::To(Timestamp { seconds: 1, nanoseconds: 0 });
    let past = SetAttributes { atime: Some(to), mtime: Some(to), ..SetAttributes::default() };
    let size = SetAttributes { size: Some(1), ..SetAttributes::default() };
    for scene in scenes_that_compare().filter(|scene| !scene.name.starts_with("owners")) {
        let (layer, name) = (&scene.layer, scene.name);
        let (entry, opened) = layer.create(&USER, NodeId::ROOT, b"x", &FILE, WRITE).unwrap();
        layer.release(entry.node, opened.handle, None);
        match layer.set_xattr(&USER, entry.node, b"system.posix_acl_access", LIST, 0, false) {
            Err(Errno::OPNOTSUPP) => println!(
                "skipped: {}: {name}: no access control lists here",
                std::thread::current().name().unwrap_or_default()
            ),
            set => set.unwrap_or_else(|errno| panic!("{name}: {errno}")),
        }
        assert!(layer.set_attributes(&USER, entry.node, None, &size).is_ok(), "{name}");
        // The host takes others' rights away: the owner has the same.
        scene.file("y", SECRET);
        let node = scene.look_up("y").unwrap().node;
        scene.permit("y", 0o600);
        assert!(layer.set_attributes(&USER, node, None, &past).is_ok(), "{name}");
    }
}
