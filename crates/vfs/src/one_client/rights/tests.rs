//! One client's root revokes permissions that another client's kernel still has cached. The other client's users get
//! `ESTALE`, not access.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustix::fs::RenameFlags;
use tempfile::TempDir;

use super::*;
use crate::{Changes, FileSystem, HostDirectory, HostOptions, MemoryFiles, NewNode, Overlay, SetTime};

const ROOT: Context<'static> = Context::SERVER;
const USER: Context<'static> = Context { uid: 65534, gid: 65534, ..Context::SERVER };
const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o666, umask: 0, device: 0 };
const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o777, umask: 0, device: 0 };
const READ: u32 = libc::O_RDONLY as u32;
const WRITE: u32 = libc::O_RDWR as u32;

/// For the owner, a user 7 and the mask all, for others nothing: `struct posix_acl_xattr_header` and its entries.
const LIST: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 7, 0, 0, 0, 4, 0, 0, 0, 255, 255, 255, 255, 16, 0, 7, 0,
    255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

/// Where something was before the other machine changed it.
#[derive(Clone, Copy, Debug)]
enum Layer {
    Lower,
    Upper,
}

const LAYERS: [Layer; 2] = [Layer::Lower, Layer::Upper];

/// An overlay with the files `x` and `mine`, and the directories `d` and `e` with the files `f` and `g`. Everybody may change all of them.
struct Scene {
    _directory: TempDir,
    other: OneClient,
    client: OneClient,
}

impl Scene {
    fn new(layer: Layer) -> Scene {
        Scene::changed_by(Changes::Host, layer)
    }

    fn changed_by(changes: Changes, layer: Layer) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let lower = HostDirectory::new(directory.path(), HostOptions { read_only: true, ..HostOptions::default() });
        let open = |path: &str, mode| {
            let path = directory.path().join(path);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        open("", 0o777);
        if let Layer::Lower = layer {
            for name in ["d", "e"] {
                fs::create_dir(directory.path().join(name)).unwrap();
                open(name, 0o777);
            }
            for name in FILES.map(|(parent, name)| format!("{parent}/{name}")) {
                fs::write(directory.path().join(&name), "content").unwrap();
                open(&name, 0o666);
            }
        }
        let is_root = rustix::process::geteuid().is_root();
        let overlay = Overlay::new(Arc::new(lower.unwrap()), Arc::new(MemoryFiles::new(1 << 20)), is_root).unwrap();
        let shared: Arc<dyn FileSystem> = Arc::new(overlay.changed_by(changes));
        let [other, client] = [(); 2].map(|()| OneClient::of(Arc::clone(&shared)));
        if let Layer::Upper = layer {
            for name in ["d", "e"] {
                other.make_directory(&ROOT, NodeId::ROOT, name.as_bytes(), &DIRECTORY).unwrap();
            }
            for (parent, name) in FILES {
                let parent = directory_of(&other, parent);
                other.make_node(&ROOT, parent, name.as_bytes(), &FILE).unwrap();
            }
        }
        let scene = Scene { _directory: directory, other, client };
        for (parent, name) in FILES {
            scene.node(parent, name);
        }
        scene
    }

    /// What the client knows by a name.
    fn node(&self, parent: &str, name: &str) -> NodeId {
        let parent = directory_of(&self.client, parent);
        self.client.lookup(&USER, parent, name.as_bytes()).unwrap().node
    }

    /// The other machine's root sets attributes.
    fn set(&self, parent: &str, name: &str, set: &SetAttributes) {
        let parent = directory_of(&self.other, parent);
        let node = self.other.lookup(&ROOT, parent, name.as_bytes()).unwrap().node;
        self.other.set_attributes(&ROOT, node, None, set).unwrap();
    }
}

const FILES: [(&str, &str); 6] = [(".", "x"), (".", "mine"), ("d", "f"), ("d", "g"), ("e", "f"), ("e", "g")];

fn directory_of(client: &OneClient, name: &str) -> NodeId {
    match name {
        "." => NodeId::ROOT,
        name => client.lookup(&ROOT, NodeId::ROOT, name.as_bytes()).unwrap().node,
    }
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn owner(uid: u32) -> SetAttributes {
    SetAttributes { uid: Some(uid), ..SetAttributes::default() }
}

/// What a user tries, in words, and the attempt.
type Attempt<'a> = (&'a str, &'a dyn Fn(&OneClient, NodeId) -> Result<(), Errno>);

/// What another machine does, in words, and the change.
type Change<'a> = (&'a str, &'a dyn Fn(&Scene));

#[test]
fn a_file_is_not_used_by_permissions_that_it_no_longer_has() {
    let now = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
    let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let root = NodeId::ROOT;
    let attempts: [Attempt<'_>; 12] = [
        ("open", &|client, node| client.open(&USER, node, READ).map(|_| ())),
        ("open to write", &|client, node| client.open(&USER, node, WRITE).map(|_| ())),
        ("mode", &|client, node| client.set_attributes(&USER, node, None, &mode(0o4777)).map(|_| ())),
        ("owner", &|client, node| client.set_attributes(&USER, node, None, &owner(65534)).map(|_| ())),
        ("size", &|client, node| client.set_attributes(&USER, node, None, &size).map(|_| ())),
        ("times", &|client, node| client.set_attributes(&USER, node, None, &now).map(|_| ())),
        ("value of an extended attribute", &|client, node| client.get_xattr(&USER, node, b"user.x").map(|_| ())),
        ("extended attribute", &|client, node| client.set_xattr(&USER, node, b"user.x", b"", 0, false)),
        ("removal of an extended attribute", &|client, node| client.remove_xattr(&USER, node, b"user.x")),
        ("link", &|client, node| client.link(&USER, node, root, b"link").map(|_| ())),
        ("open after root has opened it", &|client, node| {
            client.open(&ROOT, node, READ)?;
            client.open(&USER, node, READ).map(|_| ())
        }),
        ("look-up that fails", &|client, node| {
            client.lookup(&USER, root, b"absent").unwrap_err();
            client.open(&USER, node, READ).map(|_| ())
        }),
    ];
    for layer in LAYERS {
        for (what, attempt) in &attempts {
            let scene = Scene::new(layer);
            let x = scene.node(".", "x");
            scene.set(".", "x", &mode(0o600));
            assert!(!scene.client.is_contested(x), "{layer:?}: {what}");
            assert_eq!(attempt(&scene.client, x), Err(Errno::STALE), "{layer:?}: {what}");
            // The client looks again, and its kernel may miss the answer.
            assert_eq!(scene.node(".", "x"), x, "{layer:?}: {what}");
            assert!(scene.client.is_contested(x), "{layer:?}: {what}");
            assert!(scene.client.open(&USER, x, READ).is_ok(), "{layer:?}: {what}");
        }
    }
}

#[test]
fn a_directory_is_not_used_by_permissions_that_it_no_longer_has() {
    let exchange = RenameFlags::EXCHANGE.bits();
    let root = NodeId::ROOT;
    let attempts: [Attempt<'_>; 14] = [
        ("create", &|client, d| client.create(&USER, d, b"new", &FILE, WRITE).map(|_| ())),
        ("create unnamed", &|client, d| client.create_unnamed(&USER, d, &FILE, WRITE).map(|_| ())),
        ("mknod", &|client, d| client.make_node(&USER, d, b"new", &FILE).map(|_| ())),
        ("mkdir", &|client, d| client.make_directory(&USER, d, b"new", &DIRECTORY).map(|_| ())),
        ("symlink", &|client, d| client.make_symlink(&USER, d, b"new", b"target").map(|_| ())),
        ("link", &|client, d| {
            let mine = client.lookup(&USER, root, b"mine").unwrap().node;
            client.link(&USER, mine, d, b"new").map(|_| ())
        }),
        ("unlink", &|client, d| client.unlink(&USER, d, b"f")),
        ("rmdir", &|client, d| client.remove_directory(&USER, d, b"f")),
        ("rename in it", &|client, d| client.rename(&USER, d, b"f", d, b"g", 0)),
        ("rename out of it", &|client, d| client.rename(&USER, d, b"f", root, b"new", 0)),
        ("rename into it", &|client, d| client.rename(&USER, root, b"mine", d, b"new", 0)),
        ("exchange", &|client, d| client.rename(&USER, root, b"mine", d, b"f", exchange)),
        ("list", &|client, d| client.open_directory(&USER, d).map(|_| ())),
        ("move", &|client, _| {
            let e = client.lookup(&ROOT, root, b"e").unwrap().node;
            client.rename(&USER, root, b"d", e, b"d", 0)
        }),
    ];
    for layer in LAYERS {
        for set in [0o700, 0o755, 0o1777] {
            for (what, attempt) in &attempts {
                let scene = Scene::new(layer);
                let d = directory_of(&scene.client, "d");
                scene.set(".", "d", &mode(set));
                assert_eq!(attempt(&scene.client, d), Err(Errno::STALE), "{layer:?}: {what}, {set:o}");
            }
        }
        // What is new in it is not shown; what the client knows, it may look up again.
        let scene = Scene::new(layer);
        let [d, f] = [scene.node(".", "d"), scene.node("d", "f")];
        scene.set(".", "d", &mode(0o700));
        scene.other.make_node(&ROOT, directory_of(&scene.other, "d"), b"new", &FILE).unwrap();
        assert_eq!(scene.client.lookup(&USER, d, b"new").map(|_| ()), Err(Errno::STALE), "{layer:?}");
        assert_eq!(scene.client.lookup(&USER, d, b"f").unwrap().node, f, "{layer:?}");
        scene.client.attributes(&USER, d, None).unwrap();
        assert!(scene.client.lookup(&USER, d, b"new").is_ok(), "{layer:?}");
    }
}

#[test]
fn in_a_sticky_directory_only_what_the_client_saw_is_removed() {
    let attempts: [Attempt<'_>; 4] = [
        ("unlink", &|client, d| client.unlink(&USER, d, b"f")),
        ("rename", &|client, d| client.rename(&USER, d, b"f", d, b"new", 0)),
        ("rename onto it", &|client, d| client.rename(&USER, NodeId::ROOT, b"mine", d, b"f", 0)),
        ("rename out of it", &|client, d| client.rename(&USER, d, b"f", NodeId::ROOT, b"new", 0)),
    ];
    // What the other machine does with the user's file `f`.
    let changes: [Change<'_>; 4] = [
        ("gives it away", &|scene| scene.set("d", "f", &owner(7))),
        ("replaces it", &|scene| {
            let d = directory_of(&scene.other, "d");
            scene.other.unlink(&ROOT, d, b"f").unwrap();
            scene.other.make_node(&ROOT, d, b"f", &FILE).unwrap();
        }),
        ("replaces it by a file that the client knows", &|scene| {
            let d = directory_of(&scene.other, "d");
            scene.other.rename(&ROOT, d, b"g", d, b"f", 0).unwrap();
        }),
        ("lets it be", &|_| ()),
    ];
    for layer in LAYERS {
        for (change, make) in changes {
            for (what, attempt) in &attempts {
                let scene = Scene::new(layer);
                scene.set(".", "d", &mode(0o1777));
                scene.set("d", "f", &owner(65534));
                scene.set(".", "mine", &owner(65534));
                for (parent, name) in [(".", "d"), (".", "mine"), ("d", "f"), ("d", "g")] {
                    scene.node(parent, name);
                }
                let d = directory_of(&scene.client, "d");
                make(&scene);
                let expected = if change == "lets it be" { Ok(()) } else { Err(Errno::STALE) };
                assert_eq!(attempt(&scene.client, d), expected, "{layer:?}: {change}, {what}");
                // The client's kernel permits this to callers with a capability.
                let result = scene.client.unlink(&USER, d, b"g");
                assert!(result.is_ok() || change.contains("knows"), "{layer:?}: {change}, {what}: {result:?}");
            }
        }
    }
}

#[test]
fn nothing_is_compared_where_only_guests_change_the_tree() {
    for layer in LAYERS {
        let scene = Scene::changed_by(Changes::Guest, layer);
        let x = scene.node(".", "x");
        scene.set(".", "x", &mode(0o600));
        assert!(scene.client.open(&USER, x, READ).is_ok(), "{layer:?}");
    }
}

#[test]
fn a_client_is_not_misled_by_its_own_changes() {
    for layer in LAYERS {
        let scene = Scene::new(layer);
        let x = scene.node(".", "x");
        for set in [mode(0o640), owner(65534), mode(0o600)] {
            scene.client.set_attributes(&ROOT, x, None, &set).unwrap();
            assert!(scene.client.open(&USER, x, WRITE).is_ok(), "{layer:?}");
        }
        let (made, _) = scene.client.create(&USER, NodeId::ROOT, b"new", &FILE, WRITE).unwrap();
        assert!(scene.client.open(&USER, made.node, READ).is_ok(), "{layer:?}");
        assert!([x, made.node].iter().all(|node| !scene.client.is_contested(*node)), "{layer:?}");
        // Of an ACL the kernel may take no notice.
        scene.client.set_xattr(&USER, x, ACCESS_ACL, LIST, 0, false).unwrap();
        assert!(scene.client.is_contested(x) && !scene.client.is_contested(made.node), "{layer:?}");
        assert!(scene.client.open(&USER, x, WRITE).is_ok(), "{layer:?}");
        scene.client.remove_xattr(&USER, x, ACCESS_ACL).unwrap();
        assert!(scene.client.open(&USER, x, WRITE).is_ok(), "{layer:?}");
    }
}

#[test]
fn a_directory_moves_only_from_where_the_client_saw_it() {
    for layer in LAYERS {
        let scene = Scene::new(layer);
        let [d, e, root] = [directory_of(&scene.client, "d"), directory_of(&scene.client, "e"), NodeId::ROOT];
        let mine = scene.client.make_directory(&USER, d, b"x", &DIRECTORY).unwrap().node;
        // Root's, which the client knows by another name.
        let at_root = scene.other.make_directory(&ROOT, root, b"p", &DIRECTORY).unwrap().node;
        assert_eq!(scene.client.lookup(&USER, root, b"p").unwrap().node, at_root);
        let other_d = directory_of(&scene.other, "d");
        scene.other.lookup(&ROOT, other_d, b"x").unwrap();
        scene.other.rename(&ROOT, other_d, b"x", root, b"away", 0).unwrap();
        scene.other.rename(&ROOT, root, b"p", other_d, b"x", 0).unwrap();
        assert_eq!(scene.client.rename(&USER, d, b"x", e, b"x", 0), Err(Errno::STALE), "{layer:?}");
        // A client that has looked again may.
        assert_ne!(scene.client.lookup(&USER, d, b"x").unwrap().node, mine);
        assert_eq!(scene.client.rename(&USER, d, b"x", e, b"x", 0), Ok(()), "{layer:?}");
    }
}

#[test]
fn each_name_of_a_file_is_remembered_until_it_is_forgotten() {
    for layer in LAYERS {
        let scene = Scene::new(layer);
        scene.set(".", "d", &mode(0o1777));
        let d = scene.node(".", "d");
        let f = scene.node("d", "f");
        scene.client.link(&ROOT, f, d, b"link").unwrap();
        assert_eq!(scene.client.unlink(&USER, d, b"f"), Ok(()), "{layer:?}");
        let places = || scene.client.has().places.len();
        let before = places();
        scene.client.forget(f, u64::MAX);
        assert_eq!(places(), before - 2, "{layer:?}");
    }
}

#[test]
fn of_a_directory_that_is_renamed_again_and_again_few_names_are_remembered() {
    let scene = Scene::new(Layer::Upper);
    let (client, root) = (&scene.client, NodeId::ROOT);
    let before = client.has().places.len();
    for number in 0..300 {
        let [from, to] =
            [number, number + 1].map(|number| if number == 0 { "d".to_owned() } else { format!("d{number}") });
        scene.other.rename(&ROOT, root, from.as_bytes(), root, to.as_bytes(), 0).unwrap();
        client.lookup(&USER, root, to.as_bytes()).unwrap();
    }
    assert!(client.has().places.len() <= before + 65);
    assert_eq!(client.rename(&USER, root, b"d300", directory_of(client, "e"), b"d", 0), Ok(()));
}
