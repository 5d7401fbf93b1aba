//! What a client believes is checked again, in every layer: a host that changes lets nobody in.
//!
//! A client's kernel decides by what it has looked up. Then the host changes it, then the request comes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use tempfile::TempDir;

use crate::{
    Changes, Context, Entry, FileSystem, HostDirectory, HostOptions, MemoryFiles, NewNode, NodeId, OneClient, Overlay,
    RecordLevel, Recorder, Recording, SetAttributes,
};

/// Somebody who is not root. Who serves is root, or this user as well.
const USER: Context<'static> = Context { uid: 65534, gid: 65534, ..Context::SERVER };
const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };
const READ: u32 = libc::O_RDONLY as u32;
const WRITE: u32 = libc::O_RDWR as u32;
const SECRET: &str = "secret";

/// What is attempted, in words, and the attempt.
type AttemptByName<'a> = (&'a str, &'a dyn Fn() -> Result<(), Errno>);
type AttemptByNode<'a> = (&'a str, &'a dyn Fn(NodeId) -> Result<(), Errno>);

/// A layer, and the directory of the host that changes beneath it.
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

    /// The host makes a file, in place of what is there.
    fn file(&self, name: &str, content: &str) {
        let new = self.host("new");
        fs::write(&new, content).unwrap();
        fs::rename(new, self.host(name)).unwrap();
    }

    fn look_up(&self, name: &str) -> Result<Entry, Errno> {
        self.layer.lookup(&USER, NodeId::ROOT, name.as_bytes())
    }

    /// A file that a client knows, and that another one has replaced since.
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

/// All layers over a host that changes.
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
            Arc::new(Recorder::new(host, recording, |thread| thread))
        }),
        Scene::new("overlay in a directory", |directory, host| {
            let upper = HostDirectory::new(&directory.join("upper"), HostOptions::default()).unwrap();
            overlay(host, Arc::new(upper))
        }),
        Scene::new("overlay in memory", |_, host| overlay(host, Arc::new(MemoryFiles::new(1 << 20)))),
    ]
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
        // Who has looked again may do as it likes.
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
        let attempts: [AttemptByNode; 7] = [
            ("open", &|node| layer.open(&USER, node, READ).map(|_| ())),
            ("open to write", &|node| layer.open(&USER, node, WRITE).map(|_| ())),
            ("open to truncate", &|node| layer.open(&USER, node, WRITE | libc::O_TRUNC as u32).map(|_| ())),
            ("mode", &|node| layer.set_attributes(&USER, node, None, &mode).map(|_| ())),
            ("size", &|node| layer.set_attributes(&USER, node, None, &size).map(|_| ())),
            ("extended attribute", &|node| layer.set_xattr(&USER, node, b"user.x", b"", 0, false)),
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
    // Where nobody else is to change anything they are.
    let is_checked = |scene: &Scene| scene.name != "host of one guest";
    for scene in scenes().into_iter().filter(is_checked) {
        let (layer, name, root) = (&scene.layer, scene.name, NodeId::ROOT);
        let mode = SetAttributes { mode: Some(0o4755), ..SetAttributes::default() };
        let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let attempts: [AttemptByNode; 7] = [
            ("open", &|node| layer.open(&USER, node, READ).map(|_| ())),
            ("open to write", &|node| layer.open(&USER, node, WRITE).map(|_| ())),
            ("mode", &|node| layer.set_attributes(&USER, node, None, &mode).map(|_| ())),
            ("size", &|node| layer.set_attributes(&USER, node, None, &size).map(|_| ())),
            ("extended attribute", &|node| layer.set_xattr(&USER, node, b"user.x", b"", 0, false)),
            ("unlink", &|_| layer.unlink(&USER, root, b"x")),
            ("rename", &|_| layer.rename(&USER, root, b"x", root, b"y", 0)),
        ];
        // In an overlay a name covers the host's file, and no right to that is needed.
        let checked = if name.starts_with("overlay") { 5 } else { attempts.len() };
        for (what, attempt) in attempts.into_iter().take(checked) {
            scene.file("x", SECRET);
            let node = scene.look_up("x").unwrap().node;
            fs::set_permissions(scene.host("x"), fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(attempt(node), Err(Errno::STALE), "{name}: {what}");
            scene.assert_unharmed("x");
        }
        // Who was told of them may.
        let node = scene.look_up("x").unwrap().node;
        let opened = layer.open(&USER, node, READ).unwrap_or_else(|errno| panic!("{name}: {errno}"));
        layer.release(node, opened.handle, None);
        fs::set_permissions(scene.host("x"), fs::Permissions::from_mode(0o640)).unwrap();
        layer.attributes(&USER, node, None).unwrap();
        assert!(layer.open(&USER, node, READ).is_ok(), "{name}");
    }
}

#[test]
fn what_a_recorder_looks_at_the_client_is_not_told() {
    for level in [RecordLevel::Command, RecordLevel::Process] {
        let scene =
            Scene::new("recorder", |_, host| Arc::new(Recorder::new(host, Recording::new(level), |thread| thread)));
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
